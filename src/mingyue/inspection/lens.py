"""The logit lens (nostalgebraist 2020): what each layer would predict next, if the model ended there."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mingyue.charts import Chart, LineChart, TextMark, WordGrid
from mingyue.config import Positive
from mingyue.errors import SettingsError
from mingyue.inspection.arrays import Floats, Ints, to_lists, to_numpy
from mingyue.inspection.capture import capture
from mingyue.inspection.command import ONE_TEXT, Command, Option
from mingyue.inspection.labels import decimals, layer_ticks, percent, token_at
from mingyue.inspection.lens_notes import about_means, about_picture
from mingyue.inspection.ranking import Ranked, concatenated, ranked, row_slices
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.taps import stream_taps, tap_label
from mingyue.inspection.tokens import token_label
from mingyue.inspection.view import View
from mingyue.models import EncoderDecoder
from mingyue.words import Language, TextTable, sentences, tr

MOST_COLUMNS = 256
"""Positions that are drawn; the arrays have all."""
_MOST_PRINTED = 16  # positions of the terminal's table
_TOP = 5  # predictions per layer and position
_MOST_IN_A_CELL = 3
_MOST_ON_HOVER = 25


@dataclass(frozen=True, eq=False)
class LensView(View):
    """Predictions of L rows (embeddings, then each layer) at T positions, the K most likely tokens of each."""

    title = tr("Logit lens: what each layer would predict next")

    pieces_T: tuple[str, ...]
    """The token read at each position."""
    truth_T: Ints
    """The id of the token that comes next; −1 where none is known."""
    truth_pieces_T: tuple[str, ...]
    """The same as printable text; empty where none is known."""
    places_L: tuple[str, ...]
    """Names of taps. The row of the last layer is the model's own output."""
    top_ids_LTK: Ints
    top_pieces_LTK: tuple[tuple[tuple[str, ...], ...], ...]
    top_probabilities_LTK: Floats
    truth_rank_LT: Ints
    """Rank of the token that comes next, 1 = the most likely; 0 where none is known."""
    truth_logprob_LT: Floats
    """log P of the token that comes next, natural; NaN where none is known. What is shown is −log P."""
    divergence_LT: Floats
    """KL(output ‖ layer) in nats, from the model's output to the layer's prediction; 0 in the last row."""
    normed: bool
    """Whether the final norm was applied to each layer before the output layer (the model has one)."""
    tied: bool = False
    """Whether the output layer is the embedding table, which decides what the low layers show."""
    source: str | None = None
    printed: int = 1
    """Predictions in a cell of the printed table."""

    def charts(self, language: Language = "en") -> list[Chart]:
        """The grid of predictions; then rank and −log P of the actual token, and the divergence, by layer."""
        return [self._grid(language), *self._courses(language)]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """Means by layer; the predictions of each layer at the last positions."""
        return [self._means(language), self._words(language)]

    def to_dict(self) -> dict[str, Any]:
        """Every field, by name."""
        plain = ("pieces_T", "truth_pieces_T", "places_L", "top_pieces_LTK", "normed", "tied", "source")
        arrays = (
            "truth_T", "top_ids_LTK", "top_probabilities_LTK", "truth_rank_LT", "truth_logprob_LT", "divergence_LT",
        )  # fmt: skip
        named = {name: getattr(self, name) for name in plain}
        named["position_T"] = list(range(len(self.pieces_T)))
        return named | {name: to_lists(getattr(self, name)) for name in arrays}

    def _labels(self, language: Language) -> list[str]:
        labels = [tap_label(place, language) for place in self.places_L]
        return [*labels[:-1], labels[-1] + tr(" = output").of(language)]

    def _grid(self, language: Language) -> Chart:
        n_all = len(self.pieces_T)
        first = max(0, n_all - MOST_COLUMNS)
        cells = [
            [
                TextMark(
                    self.top_pieces_LTK[layer][t][0],
                    float(self.top_probabilities_LTK[layer, t, 0]),
                    self._hover(layer, t, language),
                )
                for t in range(first, n_all)
            ]
            for layer in range(len(self.places_L))
        ]
        note = [about_picture(self.normed, self.tied, ends_open=self._ends_open).of(language)]
        if first:
            cut = tr("The last {most_columns} of {n_all} positions.", MOST_COLUMNS, n_all)
            note.append(cut.of(language))
        return WordGrid(
            self.title.of(language),
            cells,
            row_labels=self._labels(language),
            column_labels=self.pieces_T[first:],
            low=0.0,
            high=1.0,
            legend=tr("probability of that token").of(language),
            note=sentences(note, language),
        )

    def _hover(self, layer: int, t: int, language: Language) -> list[str]:
        read = token_at(t, self.pieces_T[t])
        lines = [tr("after {read}", read).of(language)]
        lines += [
            f"{piece}  {percent(value)}"
            for piece, value in zip(
                self.top_pieces_LTK[layer][t][:_MOST_ON_HOVER],
                self.top_probabilities_LTK[layer, t, :_MOST_ON_HOVER].tolist(),
                strict=True,
            )
        ]
        if self.truth_T[t] >= 0:
            rank, value = (
                int(self.truth_rank_LT[layer, t]),
                percent(float(np.exp(self.truth_logprob_LT[layer, t]))),
            )
            lines.append(
                tr("actual: {truth_pieces_t}, rank {rank}, {value}", self.truth_pieces_T[t], rank, value).of(language)
            )
        apart = decimals(float(self.divergence_LT[layer, t]))
        return [*lines, tr("KL to the output: {apart} nats", apart).of(language)]

    @property
    def _ends_open(self) -> bool:
        """Whether the token after the last position is unknown."""
        return bool(len(self.truth_T)) and bool(self.truth_T[-1] < 0)

    def _about_words(self, language: Language) -> str:
        n_all, n_top = len(self.pieces_T), self.top_ids_LTK.shape[-1]
        said = [
            tr("Rows: the token just read. Columns: the most likely next token of each layer, with its probability.")
        ]
        if self.printed < n_top and self.printed > 1:
            said.append(
                tr("{printed} of the {n_top:,} predictions per position; the JSON has all.", self.printed, n_top)
            )
        if n_all > _MOST_PRINTED:
            said.append(tr("The last {most_printed} of {n_all} positions.", _MOST_PRINTED, n_all))
        if self._ends_open:
            said.append(tr("The last row is a prediction: the next token is unknown."))
        return sentences(said, language)

    def _courses(self, language: Language) -> list[Chart]:
        if not bool((self.truth_T >= 0).any()):
            return []
        rows = [
            {"layer": layer, "rank": means[0], "surprise": means[1], "kl": means[2]}
            for layer, means in zip(layer_ticks(self._labels(language)), zip(*self.means_L(), strict=True), strict=True)
        ]
        tick = tr("layer, from the embeddings to the output").of(language)
        rank = tr("Mean rank of the actual token by layer")
        surprise = tr("Mean −log P of the actual token by layer")
        apart = tr("KL divergence of each layer from the output")
        drawn = (
            ("rank", rank, tr("rank"), True),
            ("surprise", surprise, tr("−log P, nats"), False),
            ("kl", apart, tr("KL, nats"), False),
        )
        return [
            LineChart(
                name.of(language), rows, x="layer", y=column, x_title=tick, y_title=unit.of(language), log_y=logarithmic
            )
            for column, name, unit, logarithmic in drawn
        ]

    def means_L(self) -> tuple[list[float], list[float], list[float]]:  # noqa: N802  (the shape is in the name)
        """Of each layer: mean rank and mean −log P of the actual token where it is known, mean divergence."""
        known_T = self.truth_T >= 0
        apart = self.divergence_LT.mean(axis=1).tolist()
        if not bool(known_T.any()):
            nothing = [float("nan")] * len(apart)
            return nothing, nothing, apart
        return (
            self.truth_rank_LT[:, known_T].mean(axis=1).tolist(),
            (0.0 - self.truth_logprob_LT[:, known_T].mean(axis=1)).tolist(),
            apart,
        )

    def _means(self, language: Language) -> TextTable:
        columns = (
            tr("layer"), tr("mean rank of the actual token"),
            tr("mean −log P, nats"),
            tr("KL to the output, nats"),
        )  # fmt: skip
        names = [column.of(language) for column in columns]
        rows = [
            [label, decimals(rank, 1), decimals(surprise), decimals(apart)]
            for label, rank, surprise, apart in zip(self._labels(language), *self.means_L(), strict=True)
        ]
        return TextTable(
            tr("Logit lens: means by layer").of(language),
            names,
            rows,
            right=names[1:],
            note=about_means(self.normed, self.tied, int((self.truth_T >= 0).sum())).of(language),
        )

    def _words(self, language: Language) -> TextTable:
        n_all = len(self.pieces_T)
        first = max(0, n_all - _MOST_PRINTED)
        position = tr("position").of(language)
        names = [
            position, tr("read").of(language), *self._labels(language), tr("actual").of(language)
        ]  # fmt: skip
        rows = [
            [
                str(t),
                self.pieces_T[t],
                *(self._cell(layer, t) for layer in range(len(self.places_L))),
                self.truth_pieces_T[t],
            ]
            for t in range(first, n_all)
        ]
        title = tr("The most likely next token at each layer").of(language)
        return TextTable(title, names, rows, right=[position], note=self._about_words(language))

    def _cell(self, layer: int, t: int) -> str:
        words = zip(self.top_pieces_LTK[layer][t], self.top_probabilities_LTK[layer, t].tolist(), strict=True)
        return ", ".join(f"{piece} {percent(value)}" for piece, value in islice(words, self.printed))


@torch.inference_mode()
def lens_view(subject: Subject, reading: Reading, *, top: int | None = None) -> LensView:
    """The `top` most likely next tokens (default: 5) of every layer of a decoder at every position.

    The printed table has the first of each position; with `top` that many, but at most 3.

    At each layer the model's own final norm (if it has one) and output layer are applied to the residual stream; after
    the last block that is the model's own prediction. Raises `SettingsError` for `top` below 1.
    """
    printed = 1 if top is None else min(top, _MOST_IN_A_CELL)
    top = _TOP if top is None else top
    if top < 1:
        raise SettingsError(tr("{top} predictions per position cannot be shown: give at least 1", top))
    module = subject.module
    stack = module.decoder if isinstance(module, EncoderDecoder) else module
    places = stream_taps(module.config.n_layers, "decoder." if subject.of_pairs else "")[:-1]
    values = capture(subject, reading, places).values
    n_places, n_tokens = len(places), len(reading.ids_T)
    missing = reading.targets_T.new_full((n_tokens - len(reading.targets_T),), -1)
    truth_T = torch.cat([reading.targets_T, missing])
    found: list[list[Ranked]] = [[] for _ in places]
    apart: list[list[Tensor]] = [[] for _ in places]
    for rows in row_slices(n_tokens, module.config.vocab_size):
        final_NV: Tensor | None = None
        for layer in reversed(range(n_places)):  # the last one first: the others are compared with it
            logits_NV = module.output(stack.final_norm(values[places[layer]][rows])).float()
            logprobs_NV = logits_NV.log_softmax(dim=-1)
            final_NV = logprobs_NV if final_NV is None else final_NV
            found[layer].append(ranked(logprobs_NV, truth_T[rows], top))
            apart[layer].append((final_NV.exp() * (final_NV - logprobs_NV)).sum(dim=-1).clamp(min=0.0))
    layers = [concatenated(parts) for parts in found]
    top_ids_LTK = torch.stack([one.top_ids_NK for one in layers]).cpu().numpy()
    names = {int(index): token_label(subject.tokenizer, int(index)) for index in np.unique(top_ids_LTK)}
    return LensView(
        pieces_T=reading.pieces,
        truth_T=truth_T.cpu().numpy(),
        truth_pieces_T=(*reading.target_pieces, *[""] * len(missing)),
        places_L=tuple(places),
        top_ids_LTK=top_ids_LTK,
        top_pieces_LTK=tuple(
            tuple(tuple(names[index] for index in ids) for ids in layer) for layer in top_ids_LTK.tolist()
        ),
        top_probabilities_LTK=to_numpy(torch.stack([one.top_logprobs_NK for one in layers]).exp()),
        truth_rank_LT=torch.stack([one.truth_rank_N for one in layers]).cpu().numpy(),
        truth_logprob_LT=to_numpy(torch.stack([one.truth_logprob_N for one in layers])),
        divergence_LT=to_numpy(torch.stack([torch.cat(parts) for parts in apart])),
        normed=module.config.final_norm,
        tied=not isinstance(module.output, nn.Linear),
        source=reading.source,
        printed=printed,
    )


COMMAND = Command(
    lens_view,
    options=(
        *ONE_TEXT,
        Option(
            "top",
            Positive,
            "Predictions kept per layer and position. The table shows the first, with --top up to 3; "
            "--out FILE.html shows 25 on hover, --json all.",
            _TOP,
        ),
    ),
)
