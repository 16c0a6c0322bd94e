"""The surprise of each token of a text, −log P, and the most likely tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mingyue.charts import Chart, TextChart, TextMark
from mingyue.config import Positive
from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection.arrays import Floats, Ints, to_lists, to_numpy
from mingyue.inspection.command import ONE_TEXT, Command, Option
from mingyue.inspection.labels import FROM_BOS, decimals, percent, token_at
from mingyue.inspection.ranking import Ranked, concatenated, ranked, row_slices
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.tokens import token_label, token_string
from mingyue.inspection.view import View
from mingyue.models import DecoderOnly
from mingyue.scoring import window_starts
from mingyue.words import Language, TextTable, Words, sentences, tr

MOST_TOKENS = 20_000
"""Of a longer text the beginning is shown."""
_MOST_AT_ONCE = 1 << 13  # tokens read in one pass (at least one window)
_MOST_PRINTED = 40  # rows of the terminal's table
_DARKEST = 8.0  # nats: P = 0.03 %


@dataclass(frozen=True, eq=False)
class SurpriseView(View):
    """N tokens that were predicted, K alternatives for each."""

    title = tr("Surprise of each token, −log P")

    pieces_N: tuple[str, ...]
    """The tokens as printable text."""
    texts_N: tuple[str, ...]
    """The text of the tokens, newlines included."""
    ids_N: Ints
    position_N: Ints
    """The position of each token in the input of the model, from 0; the first is 1 where a BOS token is at 0."""
    logprob_N: Floats
    """log P of each token given all before it, natural; NaN for a first token with no token before it."""
    rank_N: Ints
    """1 = the most likely; 0 where it was not predicted."""
    top_ids_NK: Ints
    """The most likely tokens at each position; −1 where nothing was predicted."""
    top_pieces_NK: tuple[tuple[str, ...], ...]
    top_probabilities_NK: Floats
    total: float
    """Σ log P, natural; what is shown is −Σ log P."""
    scored: int
    """Tokens with a probability."""
    n_tokens: int
    """Tokens of the whole text: more than are shown where it is longer than 20,000."""
    context: int
    stride: int
    """Tokens by which the window moves over a text that is longer than the context."""
    source: str | None = None

    @property
    def nats_per_token(self) -> float:
        """The loss of the text; NaN for a text without a predicted token."""
        return -self.total / self.scored if self.scored else math.nan

    def charts(self, language: Language = "en") -> list[Chart]:
        """The text, each token coloured."""
        marks = [TextMark(text, self._value(n), self._hover(n, language)) for n, text in enumerate(self.texts_N)]
        return [
            TextChart(
                self.title.of(language),
                marks,
                low=0.0,
                high=_DARKEST,
                legend=tr("−log P, nats").of(language),
                note=self._about(language, coloured=True),
            )
        ]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """The whole text in numbers, and its most surprising tokens."""
        fact, value = (name.of(language) for name in (tr("of the text"), tr("value")))
        surprise = 0.0 - self.total
        facts = [
            (tr("tokens counted"), f"{self.scored:,}"),
            (tr("sum of −log P, nats"), decimals(surprise, 4)),
            (tr("nats per token"), decimals(self.nats_per_token, 4)),
            (tr("perplexity"), decimals(math.exp(min(self.nats_per_token, 700.0)))),
        ]
        rows = [[name.of(language), number] for name, number in facts]
        title = tr("Surprise of the whole text").of(language)
        whole = TextTable(title, [fact, value], rows, right=[value], note=self._about(language))
        return [whole, self._each(language)]

    def to_dict(self) -> dict[str, Any]:
        """Every field, by name."""
        plain = ("pieces_N", "texts_N", "top_pieces_NK", "total", "scored", "n_tokens", "context", "stride", "source")
        arrays = ("ids_N", "position_N", "logprob_N", "rank_N", "top_ids_NK", "top_probabilities_NK")
        return {name: getattr(self, name) for name in plain} | {name: to_lists(getattr(self, name)) for name in arrays}

    def _value(self, n: int) -> float | None:
        value = -float(self.logprob_N[n])
        return max(0.0, value) if math.isfinite(value) else None  # −0 for a token with probability 1

    def _hover(self, n: int, language: Language) -> list[str]:
        value, token = self._value(n), token_at(int(self.position_N[n]), self.pieces_N[n])
        if value is None:
            alone = tr("{token}, there is no token before it", token)
            return [alone.of(language)]
        probability, rank = percent(math.exp(-value)), int(self.rank_N[n])
        head = tr("{token}, −log P = {value:.2f} nats, P = {probability}, rank {rank}", token, value, probability, rank)
        return [head.of(language), *self._alternatives(n)]

    def _alternatives(self, n: int, gap: str = "  ") -> list[str]:
        chances = zip(self.top_pieces_NK[n], self.top_probabilities_NK[n].tolist(), strict=True)
        return [f"{piece}{gap}{percent(value)}" for piece, value in chances if piece]

    def _each(self, language: Language) -> TextTable:
        columns = (
            tr("position"), tr("token"), tr("−log P, nats"), tr("P"),
            tr("rank"), tr("likeliest"),
        )  # fmt: skip
        names = [column.of(language) for column in columns]
        positions = list(range(len(self.pieces_N)))
        title = tr("Each token")
        if len(positions) > _MOST_PRINTED:
            title = tr("The {most_printed} most surprising of {n_positions:,} tokens", _MOST_PRINTED, len(positions))
            positions = sorted(positions, key=lambda n: -(self._value(n) or 0.0))[:_MOST_PRINTED]
        rows = []
        for n in positions:
            value = self._value(n)
            numbers = (
                ["–", "–", "–"] if value is None else [decimals(value), percent(math.exp(-value)), str(self.rank_N[n])]
            )
            rows.append([str(self.position_N[n]), self.pieces_N[n], *numbers, ", ".join(self._alternatives(n, " "))])
        note = FROM_BOS.of(language) if len(self.position_N) and self.position_N[0] else ""
        return TextTable(title.of(language), names, rows, right=[names[0], *names[2:5]], note=note)

    def _about(self, language: Language, *, coloured: bool = False) -> str:
        said = list[Words]()
        if coloured:
            end = percent(math.exp(-_DARKEST))
            said.append(
                tr(
                    "0 is certain; the larger, the less likely. The scale ends at {darkest:.0f} nats (P = {end}).",
                    _DARKEST,
                    end,
                )
            )
        if len(self.pieces_N) and self.rank_N[0] == 0:
            said.append(tr("The first token has no probability: there is no token before it."))
        if self.source is not None:
            said.append(tr("Given the source text."))
        if self.scored > self.context:
            said.append(
                tr(
                    "The context holds {context:,} tokens: the text is read in windows that move by {stride:,}.",
                    self.context,
                    self.stride,
                )
            )
        if self.n_tokens > len(self.pieces_N):
            said.append(tr("The first {n_pieces_n:,} of {n_tokens:,} tokens.", len(self.pieces_N), self.n_tokens))
        return sentences(said, language)


@torch.inference_mode()
def surprise_view(subject: Subject, reading: Reading, *, top: int = 5) -> SurpriseView:
    """−log P of each token of a reading, and the `top` most likely tokens at each position.

    Of one text, which may be longer than the context (`subject.read(text, any_length=True)`), in windows as
    `mingyue.scoring.score` reads it, up to 20,000 tokens; the sum is that of `score`. Of a pair, the target (EOS
    included) given the source. Raises `SettingsError` for `top` below 1, `GenerationError` for NaN logits.
    """
    if top < 1:
        raise SettingsError(tr("{top} tokens per position cannot be shown: give at least 1", top))
    context = subject.module.config.context
    stride = max(1, context // 2)
    n_all = len(reading.targets_T)
    if isinstance(subject.module, DecoderOnly):
        # After a BOS token the first token of the text is predicted too.
        n_kept = min(n_all, MOST_TOKENS if subject.starts_with_bos else MOST_TOKENS - 1)
        found = _in_windows(subject.module, reading.ids_T[: n_kept + 1], reading.targets_T[:n_kept], stride, top)
    else:
        n_kept = n_all
        found = _ranked(subject.logits(reading), reading.targets_T, top)
    if bool(torch.isnan(found.truth_logprob_N).any()):
        raise GenerationError(
            tr("the model's output is NaN"),
            advice=tr(
                "Its weights are damaged, or training had diverged when it was saved. Use an earlier checkpoint."
            ),
        )
    return _view(subject, reading, found, n_kept, stride)


def _in_windows(model: DecoderOnly, ids_T: Tensor, targets_N: Tensor, stride: int, top: int) -> Ranked:
    """Each target once, in the first window that reaches it."""
    n_targets, vocab_size = len(targets_N), model.config.vocab_size
    if not n_targets:
        nothing = torch.zeros(0, vocab_size, device=ids_T.device)
        return ranked(nothing, targets_N, top)
    length = min(model.config.context, n_targets)
    starts = window_starts(n_targets, model.config.context, stride)
    n_rows = max(1, _MOST_AT_ONCE // length)
    parts: list[Ranked] = []
    for at in range(0, len(starts), n_rows):
        some = starts[at : at + n_rows]
        hidden_BTM = model.hidden(torch.stack([ids_T[start : start + length] for start, _ in some]))
        hidden_NM = torch.cat([hidden_BTM[row, first - start :] for row, (start, first) in enumerate(some)])
        truth_N = torch.cat([targets_N[first : start + length] for start, first in some])
        parts += [
            _ranked(model.output(hidden_NM[rows]), truth_N[rows], top) for rows in row_slices(len(truth_N), vocab_size)
        ]
    return concatenated(parts)


def _ranked(logits_NV: Tensor, truth_N: Tensor, top: int) -> Ranked:
    return ranked(logits_NV.float().log_softmax(dim=-1), truth_N, top)


def _view(subject: Subject, reading: Reading, found: Ranked, n_kept: int, stride: int) -> SurpriseView:
    ids_N, logprob_N = reading.targets_T[:n_kept].cpu().numpy(), to_numpy(found.truth_logprob_N)
    rank_N, top_ids_NK = found.truth_rank_N.cpu().numpy(), found.top_ids_NK.cpu().numpy()
    chances_NK = to_numpy(found.top_logprobs_NK.exp())
    total = math.fsum(logprob_N.tolist())
    pieces = reading.target_pieces[:n_kept]
    alone = not subject.of_pairs and not subject.starts_with_bos
    if alone:  # the first token was read, not predicted
        width = top_ids_NK.shape[1]
        ids_N = np.concatenate([reading.ids_T[:1].cpu().numpy(), ids_N])
        logprob_N = np.concatenate([np.full(1, np.nan, dtype=np.float32), logprob_N])
        rank_N = np.concatenate([np.zeros(1, dtype=np.int64), rank_N])
        top_ids_NK = np.concatenate([np.full((1, width), -1, dtype=np.int64), top_ids_NK])
        chances_NK = np.concatenate([np.full((1, width), np.nan, dtype=np.float32), chances_NK])
        pieces = (reading.pieces[0], *pieces)
    names = {int(i): token_label(subject.tokenizer, int(i)) if i >= 0 else "" for i in np.unique(top_ids_NK)}
    return SurpriseView(
        pieces_N=pieces,
        texts_N=tuple(token_string(subject.tokenizer, i) or token_label(subject.tokenizer, i) for i in ids_N.tolist()),
        ids_N=ids_N,
        position_N=np.arange(len(ids_N)) + int(not alone),  # the model reads BOS before the others
        logprob_N=logprob_N,
        rank_N=rank_N,
        top_ids_NK=top_ids_NK,
        top_pieces_NK=tuple(tuple(names[index] for index in ids) for ids in top_ids_NK.tolist()),
        top_probabilities_NK=chances_NK,
        total=total,
        scored=n_kept,
        n_tokens=len(reading.targets_T) + alone,
        context=subject.module.config.context,
        stride=stride,
        source=reading.source,
    )


COMMAND = Command(
    surprise_view,
    options=(*ONE_TEXT, Option("top", Positive, "Likeliest tokens shown per position.", 5)),
    any_length=True,
)
