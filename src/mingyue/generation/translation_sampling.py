"""Translations sampled from the model's distribution, each with its own random stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from mingyue.config import GenerateSettings
from mingyue.generation.decoding import Decoder
from mingyue.generation.hypotheses import Hypothesis, SourceBatch, length_penalties
from mingyue.generation.sampling import choose_tokens, log_softmax, no_token_error, uniform

if TYPE_CHECKING:
    from mingyue.config import TranslateSettings


@dataclass
class _Sample:
    """One sampled translation of one line while it is generated."""

    line: int
    number: int
    limit: int
    ids: list[int] = field(default_factory=list)
    log_prob: float = 0.0
    state: int = 0
    """Which part of a character the text ends with (see `mingyue.generation.allowed`)."""
    done: bool = False


def sample_translations(
    decoder: Decoder, batch: SourceBatch, settings: TranslateSettings, lines: Sequence[int]
) -> list[list[Hypothesis]]:
    """`n_best` samples for each row of the batch, in the order of their numbers.

    Token t of sample n of line l is picked by a number that is a pure function of (seed, l, n, t); `lines` holds the
    line number of each row. Raises `GenerationError` when the model's output is NaN.
    """
    choice = GenerateSettings(
        temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p, seed=settings.seed
    )
    n_samples, device = settings.n_best, batch.source_BS.device
    samples = [
        [_Sample(line, number, limit) for number in range(n_samples)]
        for line, limit in zip(lines, batch.limits, strict=True)
    ]
    decoding = decoder.start(batch, n_samples, max(batch.limits))
    active = samples
    tokens = [batch.bos_id] * (len(samples) * n_samples)
    while active:
        rows = [one for text in active for one in text]
        logits_RV = decoding.step(torch.tensor(tokens, device=device)).cpu().numpy()
        logprobs_RV = log_softmax(logits_RV)
        batch.allowed.remove(logits_RV, [one.state for one in rows])
        uniforms = [uniform(settings.seed, one.line, one.number, len(one.ids)) for one in rows]
        chosen = choose_tokens(logits_RV, choice, uniforms)
        tokens = [token for token in chosen if token is not None]
        if len(tokens) < len(rows):
            raise no_token_error()
        for one, token, logprobs_V in zip(rows, tokens, logprobs_RV, strict=True):
            logprob = float(logprobs_V[token])
            if not one.done:
                one.ids.append(token)
                one.log_prob += logprob
                one.state = batch.allowed.after(one.state, token)
                one.done = token == batch.eos_id or len(one.ids) == one.limit
        staying = [i for i, text in enumerate(active) if not all(one.done for one in text)]
        if staying and len(staying) < len(active):
            kept_rows = [i * n_samples + number for i in staying for number in range(n_samples)]
            decoding.keep_rows(kept_rows)
            decoding.keep_texts(staying)
            tokens = [tokens[row] for row in kept_rows]
        active = [active[i] for i in staying]
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
        for text in samples
    ]
