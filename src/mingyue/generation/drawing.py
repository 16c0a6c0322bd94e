"""Translations drawn from the model's distribution, each from a stream of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mingyue.config import GenerateSettings
from mingyue.generation.hypotheses import Hypothesis, SourceBatch, length_penalties, no_choice
from mingyue.generation.sampling import distribution, draw, uniform

if TYPE_CHECKING:
    from mingyue.config import TranslateSettings
    from mingyue.models import EncoderDecoder


@dataclass
class _Draw:
    """One draw of one text while it is written."""

    line: int
    number: int
    limit: int
    ids: list[int] = field(default_factory=list)
    log_prob: float = 0.0
    over: bool = False


def draw_translations(
    model: EncoderDecoder, batch: SourceBatch, settings: TranslateSettings, lines: Sequence[int]
) -> list[list[Hypothesis]]:
    """`n_best` draws for each row of the batch, in the order of their numbers.

    Token t of draw d of line l is decided by a number that is a pure function of (seed, l, d, t); `lines` says which
    line each row is. Raises `GenerationError` when the model's output is NaN.
    """
    asked = GenerateSettings(temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p)
    n_draws, device = settings.n_best, batch.source_BS.device
    draws = [
        [_Draw(line, number, limit) for number in range(n_draws)]
        for line, limit in zip(lines, batch.limits, strict=True)
    ]
    memory = batch.remembered(model)
    cache = model.new_cache(len(draws) * n_draws, capacity=max(batch.limits))
    going = draws
    tokens = [batch.bos_id] * (len(draws) * n_draws)
    while going:
        rows = [one for text in going for one in text]
        ids_R1 = torch.tensor(tokens, device=device)[:, None]
        logits_RV = model.output(model.hidden(ids_R1, memory, cache=cache.step())[:, 0]).float()
        tokens, logprobs = _choose(logits_RV, rows, asked, batch.never, settings.seed)
        for one, token, logprob in zip(rows, tokens, logprobs, strict=True):
            if not one.over:
                one.ids.append(token)
                one.log_prob += logprob
                one.over = token == batch.eos_id or len(one.ids) == one.limit
        left = [i for i, text in enumerate(going) if not all(one.over for one in text)]
        if left and len(left) < len(going):
            places = [i * n_draws + number for i in left for number in range(n_draws)]
            cache.keep(places)
            memory = memory.keep(left)
            tokens = [tokens[place] for place in places]
        going = [going[i] for i in left]
    penalties = length_penalties(max(batch.limits), settings.length_penalty)
    return [
        [
            Hypothesis(
                ids=tuple(one.ids),
                log_prob=one.log_prob,
                score=one.log_prob / penalties[len(one.ids)],
                finished=one.ids[-1] == batch.eos_id,
            )
            for one in text
        ]
        for text in draws
    ]


def _choose(
    logits_RV: Tensor, rows: Sequence[_Draw], asked: GenerateSettings, never: Tensor, seed: int
) -> tuple[list[int], list[float]]:
    """The next token of each row, and its log P under the model itself: temperature 1, nothing removed."""
    logprobs_RV = logits_RV.log_softmax(dim=-1)
    allowed_RV = logits_RV.index_fill(1, never, -math.inf)
    if asked.temperature == 0.0:
        highest_R, tokens_R = allowed_RV.max(dim=-1)
    else:
        numbers = [uniform(seed, one.line, one.number, len(one.ids)) for one in rows]
        highest_R, tokens_R = draw(distribution(allowed_RV, asked), torch.tensor(numbers, dtype=torch.float64))
    if not all(highest > -math.inf for highest in highest_R.tolist()):
        raise no_choice()
    tokens_R1 = tokens_R[:, None].to(logprobs_RV.device)
    return tokens_R.tolist(), logprobs_RV.gather(1, tokens_R1)[:, 0].tolist()
