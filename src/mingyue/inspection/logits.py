"""Direct logit attribution: one logit as a sum of what each part of the model adds to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mingyue.charts import BarChart, Chart, MatrixChart
from mingyue.config import Count
from mingyue.errors import GenerationError
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.choices import chosen_position, chosen_token
from mingyue.inspection.command import ONE_TEXT, Command, Option
from mingyue.inspection.labels import decimals, head_label, layer_label, percent
from mingyue.inspection.logit_parts import LogitParts, logit_parts
from mingyue.inspection.parts import PART_NAMES
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.tokens import token_label
from mingyue.inspection.view import View
from mingyue.words import Language, TextTable, Words, sentences, tr

TOLERANCE = 1e-4
"""Largest difference between a logit of the model and the sum of its parts, for logits of size 1."""
_HEADS_LISTED = 12


@dataclass(frozen=True, eq=False)
class LogitsView(View):
    """The logit of a token at one position, or the difference of two, credited to the parts of the model."""

    title = tr("Direct logit attribution")

    position: int
    piece: str
    """The token read at the position."""
    token_id: int
    token: str
    """The token whose logit is credited."""
    instead_id: int | None
    instead: str | None
    """The token whose logit is subtracted; None = the logit of the token alone."""
    logit: float
    """As the model computes it: logit(token), or logit(token) − logit(instead)."""
    probability: float
    """P(token)."""
    parts: LogitParts
    normed: bool
    """Whether there is a norm between the parts and the output layer."""
    post_norm: bool

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return self.parts.total

    def charts(self, language: Language = "en") -> list[Chart]:
        """A bar for each part, in the order of a forward pass; then layers × heads of each kind of attention."""
        rows = [{"part": name.of(language), "logit": value} for name, value in self._by_layer()]
        title = tr("Contributions to {what}", self._what()).of(language)
        unit = tr("contribution to the logit").of(language)
        bars = BarChart(title, rows, x="part", y="logit", y_title=unit, note=self._note(language))
        largest = max((float(heads.abs().max()) for heads in self.parts.heads_LH.values()), default=1.0)
        grids = [
            MatrixChart(
                tr("Contributions of the heads: {part}", PART_NAMES[part].mapped(str.lower)).of(language),
                heads_LH.numpy(),
                row_labels=[layer_label(layer, language) for layer in range(heads_LH.shape[0])],
                column_labels=[head_label(head, language) for head in range(heads_LH.shape[1])],
                diverging=True,
                low=-largest,
                high=largest,
                language=language,
            )
            for part, heads_LH in self.parts.heads_LH.items()
        ]
        return [bars, *grids]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """The parts with their running sum, which ends at the logit; the heads with the largest contributions."""
        names = [tr("part"), tr("contribution"), tr("sum so far")]
        columns = [name.of(language) for name in names]
        rows, so_far = list[list[str]](), 0.0
        for name, value in self._by_layer():
            so_far += value
            rows.append([name.of(language), _signed(value), _signed(so_far)])
        model = tr("{what}, computed by the model", self._what()).of(language)
        rows.append([model, "", _signed(self.logit)])
        first = TextTable(self.title.of(language), columns, rows, right=columns[1:], note=self._note(language))
        return [first, self._heads(language)]

    def to_dict(self) -> dict[str, Any]:
        """The parts by name; `sum` and `logit` are equal to `TOLERANCE`."""
        parts = self.parts
        return {
            "position": self.position,
            "piece": self.piece,
            "token_id": self.token_id,
            "token": self.token,
            "instead_id": self.instead_id,
            "instead": self.instead,
            "probability": self.probability,
            "token_embedding": parts.token,
            "position_vector": parts.position,
            "heads_LH": {part: to_lists(heads_LH.numpy()) for part, heads_LH in parts.heads_LH.items()},
            "feedforward_L": to_lists(parts.feedforward_L.numpy()),
            "biases": parts.biases,
            "sum": self.total,
            "logit": self.logit,
        }

    def _what(self) -> str:
        return f"logit({self.token})" if self.instead is None else f"logit({self.token}) − logit({self.instead})"

    def _by_layer(self) -> Iterator[tuple[Words, float]]:
        """The embedding, the attention and the feed-forward of each layer, and the biases."""
        parts = self.parts
        yield tr("token embedding"), parts.token
        if parts.position is not None:
            yield tr("position vector"), parts.position
        short = {"self": tr("attention"), "decoder": tr("self-attention")}
        for layer, feedforward in enumerate(parts.feedforward_L.tolist()):
            for part, heads_LH in parts.heads_LH.items():
                name = short.get(part, tr("cross-attention"))
                yield tr("layer {layer} {name}", layer, name), float(heads_LH[layer].sum())
            yield tr("layer {layer} feed-forward", layer), feedforward
        yield tr("biases"), parts.biases

    def _heads(self, language: Language) -> TextTable:
        columns = [
            tr("attention").of(language), tr("layer").of(language),
            tr("head").of(language), tr("contribution").of(language),
        ]  # fmt: skip
        found = [
            (float(value), PART_NAMES[part].of(language), layer, head)
            for part, heads_LH in self.parts.heads_LH.items()
            for (layer, head), value in np.ndenumerate(heads_LH.numpy())
        ]
        found.sort(key=lambda one: -abs(one[0]))
        rows = [[part, str(layer), str(head), _signed(value)] for value, part, layer, head in found[:_HEADS_LISTED]]
        title = tr("Heads with the largest contributions").of(language)
        note = ""
        if len(found) > _HEADS_LISTED:
            note = tr("{heads_listed} of {n_found:,} heads; the JSON has all.", _HEADS_LISTED, len(found)).of(language)
        return TextTable(title, columns, rows, right=columns[1:], note=note)

    def _note(self, language: Language) -> str:
        apart = abs(self.total - self.logit)
        said = [
            tr(
                'Position {position}, after "{piece}": P({token}) = {percent}. The parts add up to '
                "{total:.5f}, the model computes {logit:.5f} (difference {apart:.0e}).",
                self.position,
                self.piece,
                self.token,
                percent(self.probability),
                self.total,
                self.logit,
                apart,
            )
        ]
        if self.post_norm:
            said.append(
                tr(
                    "Norms after the sub-layers divide by the scale of this pass: the parts count as "
                    "they are after all norms."
                )
            )
        elif self.normed:
            said.append(tr("The final norm divides by its scale in this pass, which is kept fixed."))
        said.append(
            tr("Only direct contributions count: what a part changes in later layers is credited to those layers.")
        )
        if self.instead is None:
            said.append(
                tr(
                    "A constant that is added to all logits changes no probability; the difference of "
                    "two logits (--instead) is free of it."
                )
            )
        return sentences(said, language)


def _signed(value: float) -> str:
    text = decimals(value)
    return f"+{text}" if value >= 0.0005 else text


@torch.inference_mode()
def logits_view(
    subject: Subject,
    reading: Reading,
    *,
    token: str | int | None = None,
    instead: str | int | None = None,
    position: int | None = None,
) -> LogitsView:
    """The parts of the logit of `token` (default: the most likely next token) at `position` (default: the last).

    With `instead` those of logit(token) − logit(instead). Of an encoder-decoder model, the decoder's position and
    parts. Raises `SettingsError` for a position outside the text, `GenerationError` for what is not one token, and if
    the parts do not add up to the logit to `TOLERANCE` (relative to the largest logit if that is above 1).
    """
    here = chosen_position(position, reading.pieces)
    other = None if instead is None else chosen_token(subject, instead)
    if token is None:
        token = int(subject.logits(reading)[here].argmax())
    wanted = chosen_token(subject, token)
    parts, seen = logit_parts(subject, reading, here, wanted, other)
    logits_V = seen.logits_TV[here].double()
    logit = float(logits_V[wanted]) - (0.0 if other is None else float(logits_V[other]))
    apart = abs(parts.total - logit) / max(1.0, float(logits_V.abs().max()))
    if apart > TOLERANCE:
        raise GenerationError(
            tr(
                "the parts add up to {total:.5f}, but the model computes the logit {logit:.5f}: the "
                "contributions would not be those of the model in use",
                parts.total,
                logit,
            )
        )
    config = subject.module.config
    return LogitsView(
        position=here,
        piece=reading.pieces[here],
        token_id=wanted,
        token=token_label(subject.tokenizer, wanted),
        instead_id=other,
        instead=None if other is None else token_label(subject.tokenizer, other),
        logit=logit,
        probability=float(logits_V.softmax(-1)[wanted]),
        parts=parts,
        normed=config.final_norm,
        post_norm=config.norm_placement == "post",
    )


COMMAND = Command(
    logits_view,
    options=(
        *ONE_TEXT,
        Option("token", str, "Token whose logit is credited: its text, or its label in tables.", "the most likely one"),
        Option("instead", str, "Token whose logit is subtracted, for the difference of two logits."),
        Option("position", Count, "Position whose next token is predicted, counted from 0.", "the last"),
    ),
)
