"""Tables and charts of heads: the label of each with its score, and the change of the loss without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mingyue.charts import Chart, TextMark, WordGrid
from mingyue.inspection.head_labels import PartHeads, Source
from mingyue.inspection.head_patterns import BACK, EARNED, PATTERN_NAMES, Pattern
from mingyue.inspection.labels import decimals, head_label, layer_label
from mingyue.inspection.parts import PART_NAMES
from mingyue.words import Language, TextTable, Words, sentences, tr

FEWEST_TOKENS = 300
"""Changes of the loss on fewer tokens are not coloured: they are mostly noise."""
CLEAR = 3
"""A change of the loss is coloured from this many standard errors on."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """What the loss was measured on."""

    loss: float | None
    """Loss of the whole model, nats per token; None: not measured."""
    tokens: int
    about: Words
    """A sentence about the texts."""

    @property
    def enough(self) -> bool:
        """Whether there are enough tokens to tell heads apart."""
        return self.tokens >= FEWEST_TOKENS

    def clear(self, change: float, error: float) -> bool:
        """Whether a change of the loss is far enough from 0 to mean something."""
        return self.enough and abs(change) > CLEAR * error  # NaN is not

    def notes(self) -> list[Words]:
        """How to read the changes of the loss."""
        if self.loss is None:
            return [self.about]
        notes = [
            tr("After ± is the standard error of the change (paired: the same tokens with and without the head)."),
            self.about,
        ]
        if self.enough:
            return notes
        return [
            *notes,
            tr(
                "{tokens:,} tokens are too few to tell heads apart: no change is marked or coloured "
                "below {fewest_tokens}. Give more text.",
                self.tokens,
                FEWEST_TOKENS,
            ),
        ]


_SOURCES: Mapping[Source, Words] = {"random": tr("random"), "texts": tr("text")}
_SHORT: dict[Pattern, Words] = {
    "previous": tr("previous"),
    "next": tr("next"),
    "itself": tr("itself"),
    "earlier": tr("same, earlier"),
    "other": tr("same, other"),
    "first": tr("first"),
    "end": tr("EOS"),
    "induction": tr("induction"),
    "diagonal": tr("alignment"),
    "mixed": tr("mixed"),
    **{name: tr("{steps} back", steps) for name, steps in BACK.items()},
}


def _does(part: PartHeads, layer: int, head: int, language: Language) -> str:
    best = part.best(layer, head)
    name = PATTERN_NAMES[best.pattern]
    if best.earned:
        return name.of(language)
    if not best.stands_out:
        return PATTERN_NAMES["mixed"].of(language)
    return tr("mixed (most: {name})", name).of(language)


def _change(value: float, error: float | None = None) -> str:
    change = f"{value:+.3f}".replace("-0.000", "+0.000")
    return change if error is None else f"{change} ± {decimals(error)}"


def heads_table(part: PartHeads, measured: Measured, language: Language, *, explained: bool = True) -> TextTable:
    """A row for each head: label, score, threshold, score of uniform attention, change of the loss.

    `explained`: with the note on how to read it, which is the same for all kinds of attention.
    """
    numbered = [tr("layer"), tr("head")]
    numbers = [tr("score"), tr("threshold"), tr("uniform")]
    changes = (tr("Δ loss, off"), tr("Δ loss, mean"))
    changed = () if part.zero_LH is None else changes
    rows = []
    for layer, head in np.ndindex(*part.shape):
        best = part.best(layer, head)
        row = [str(layer), str(head), _does(part, layer, head, language), _SOURCES[best.measured_on].of(language)]
        row += [decimals(value, 2) for value in (best.score, best.threshold, best.uniform)]
        for change_LH, error_LH in ((part.zero_LH, part.zero_error_LH), (part.mean_LH, part.mean_error_LH)):
            if change_LH is not None and error_LH is not None:
                change, error = float(change_LH[layer, head]), float(error_LH[layer, head])
                row.append(("* " if measured.clear(change, error) else "") + _change(change, error))
        rows.append(row)
    what = [tr("does"), tr("on")]
    name = PART_NAMES[part.part]
    return TextTable(
        title=tr("{name}: what each head does", name).of(language),
        columns=[words.of(language) for words in (*numbered, *what, *numbers, *changed)],
        rows=rows,
        right=[words.of(language) for words in (*numbered, *numbers, *changed)],
        note=_note(measured, language) if explained else "",
        spared=[words.of(language) for words in (what[1], *numbers[1:])],
    )


def _note(measured: Measured, language: Language) -> str:
    notes = [
        tr(
            "Score: share of a head's attention weight on the pattern, on a repeated random "
            "sequence or on the text. The threshold of a label: the score of uniform attention + "
            "{earned} of the distance to 1.",
            EARNED,
        )
    ]
    if measured.loss is not None:
        notes.append(
            tr(
                "Δ loss: change from {loss:.3f} nats per token when the output of the head is 0 "
                "(off), or its mean over the text; above 0 = the head lowers the loss.",
                measured.loss,
            )
        )
        if measured.enough:
            notes.append(tr("* = more than {clear} standard errors from 0.", CLEAR))
    return _joined([*notes, *measured.notes()], language)


def _joined(notes: Sequence[Words], language: Language) -> str:
    return sentences(notes, language)


def _titles(part: PartHeads, language: Language) -> tuple[list[str], list[str]]:
    n_layers, n_heads = part.shape
    layers = [layer_label(layer, language) for layer in range(n_layers)]
    return layers, [head_label(head, language) for head in range(n_heads)]


def label_chart(part: PartHeads, language: Language) -> Chart:
    """Labels, layers × heads, coloured by score."""
    layers, heads = _titles(part, language)

    def mark(layer: int, head: int) -> TextMark:
        lines = [
            f"{_SOURCES[source].of(language)} · {PATTERN_NAMES[pattern].of(language)} {score:.2f} ({uniform:.2f})"
            for source, scores in part.scores.items()
            for pattern, score, uniform in zip(
                scores.patterns, scores.scores_LHP[layer, head], scores.uniform_P, strict=True
            )
            if not np.isnan(score)
        ]
        return TextMark(_SHORT[part.label(layer, head)].of(language), part.best(layer, head).score, lines)

    name = PART_NAMES[part.part]
    return WordGrid(
        tr("{name}: label of each head", name).of(language),
        [[mark(layer, head) for head in range(len(heads))] for layer in range(len(layers))],
        row_labels=layers,
        column_labels=heads,
        low=0.0,
        high=1.0,
        legend=tr("score").of(language),
        note=tr(
            "Score: share of a head's attention weight on its nearest pattern. The threshold of "
            "a label: the score of uniform attention + {earned} of the distance from there to 1.",
            EARNED,
        ).of(language),
        page_note=tr("Hover for all scores, with those of uniform attention in brackets.").of(language),
    )


def largest_change(parts: Sequence[PartHeads], measured: Measured) -> float:
    """The upper end of the scale that `loss_chart` has for all kinds of attention: the largest change with a colour."""
    changes = [
        (float(change), float(error))
        for part in parts
        if part.zero_LH is not None and part.zero_error_LH is not None
        for change, error in zip(part.zero_LH.flat, part.zero_error_LH.flat, strict=True)
    ]
    largest = max((change for change, error in changes if measured.clear(change, error)), default=0.0)
    return largest if largest > 0 else 1.0


def loss_chart(part: PartHeads, measured: Measured, language: Language, *, high: float) -> Chart:
    """The change of the loss with each head switched off, layers × heads; coloured where it is clear of noise.

    `high` is the upper end of the colour scale.
    """
    layers, heads = _titles(part, language)
    assert part.zero_LH is not None and part.zero_error_LH is not None
    zero_LH, error_LH = part.zero_LH, part.zero_error_LH

    def mark(layer: int, head: int) -> TextMark:
        change, error = float(zero_LH[layer, head]), float(error_LH[layer, head])
        clear = measured.clear(change, error)
        lines = [tr("{change} nats per token", _change(change, error)).of(language)]
        return TextMark(_change(change), change if clear else None, lines)

    marks = [[mark(layer, head) for head in range(len(heads))] for layer in range(len(layers))]
    name = PART_NAMES[part.part]
    colours = tr(
        "Not coloured: within {clear} standard errors of 0. The larger, the more the head lowers the loss.", CLEAR
    )
    return WordGrid(
        tr("{name}: Δ loss with a head off, nats per token", name).of(language),
        marks,
        row_labels=layers,
        column_labels=heads,
        low=0.0,
        high=high,
        legend=tr("Δ loss, nats").of(language),
        note=_joined([*([colours] if measured.enough else []), *measured.notes()[1:]], language),
        page_note=tr("Hover for the standard errors.").of(language),
    )
