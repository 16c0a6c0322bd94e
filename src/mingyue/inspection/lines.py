"""Attention as lines from token to token (Vig 2019, BertViz): a chart for each layer, a colour for each head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mingyue.charts import Chart, TokenLines
from mingyue.config import Count
from mingyue.errors import NothingToShowError
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.attention_weights import PartWeights, part_weights, pieces_of
from mingyue.inspection.command import ONE_TEXT, Command, Option
from mingyue.inspection.labels import head_label, layer_label
from mingyue.inspection.parts import PART_NAMES, AttentionPart, attention_part, attention_parts
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.view import View
from mingyue.words import Language, TextTable, Words, tr

MOST_TOKENS = 128
"""A longer text has no picture of lines."""
_ROWS = 20


@dataclass(frozen=True)
class LinesView(View):
    """Attention weights, drawn as lines from each query to its keys."""

    title: ClassVar[Words] = tr("Attention as lines")  # pyrefly: ignore[bad-override]
    parts: tuple[PartWeights, ...]

    def charts(self, language: Language = "en") -> list[Chart]:
        """A chart for each layer of each kind of attention."""
        return [
            TokenLines(
                _title(part, layer, language),
                part.weights_LHTS[number],
                left=part.rows,
                right=part.columns,
                series=[head_label(head, language) for head in part.heads],
                left_title=tr("query").of(language),
                right_title=tr("key").of(language),
                note=_note(part, language),
                language=language,
            )
            for part in self.parts
            for number, layer in enumerate(part.layers)
        ]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """The largest weights of each kind of attention, one for each query and head at most."""
        return [_table(part, language) for part in self.parts]

    def to_dict(self) -> dict[str, Any]:
        """By kind of attention: `weights_LHTS` [layers, heads, queries, keys], numbers of layers and heads, tokens."""
        return {
            part.part: {
                "layers": list(part.layers),
                "heads": list(part.heads),
                "queries": list(part.rows),
                "keys": list(part.columns),
                "weights_LHTS": to_lists(part.weights_LHTS),
            }
            for part in self.parts
        }


def lines_view(
    subject: Subject,
    reading: Reading,
    *,
    layer: int | None = None,
    head: int | None = None,
    part: str | None = None,
) -> LinesView:
    """The lines of all layers and heads, one layer, or one head; `part`: of an encoder-decoder model (default: all).

    Raises `SettingsError` for a part, layer or head that the model does not have, `NothingToShowError` for a text of
    more than `MOST_TOKENS` tokens.
    """
    chosen = attention_parts(subject) if part is None else (attention_part(subject, part),)
    max(chosen, key=lambda one: one.n_layers).check(layer, head)
    shown = [one for one in chosen if layer is None or layer < one.n_layers]
    for one in shown:
        _check_length(one, reading)
    return LinesView(tuple(part_weights(subject, reading, one, layer, head) for one in shown))


def _check_length(part: AttentionPart, reading: Reading) -> None:
    n_tokens = max(map(len, pieces_of(part, reading)))
    if n_tokens > MOST_TOKENS:
        raise NothingToShowError(
            tr(
                "{n_tokens:,} tokens are too many to be joined by lines: the limit is {most_tokens}",
                n_tokens,
                MOST_TOKENS,
            ),
            advice=tr("Give a shorter text, or use `mingyue inspect attention`, which draws matrices."),
        )


def _title(part: PartWeights, layer: int, language: Language) -> str:
    name = PART_NAMES[part.part].of(language)
    comma = tr(", ").of(language)
    where = [name, layer_label(layer, language)]
    if len(part.heads) == 1:
        where.append(head_label(part.heads[0], language))
    return comma.join(where)


def _note(part: PartWeights, language: Language) -> str:
    colours = tr(" Each colour is a head.") if len(part.heads) > 1 else Words("", "")
    return tr(
        "From each query token (left) to the key tokens it attends to (right); the wider and "
        "less transparent, the larger the weight.{colours}",
        colours,
    ).of(language)


def _table(part: PartWeights, language: Language) -> TextTable:
    names = [
        tr("layer"), tr("head"), tr("position"), tr("query token"),
        tr("key position"), tr("key token"), tr("weight"),
    ]  # fmt: skip
    columns = [name.of(language) for name in names]
    free_T = part.allowed_TS.sum(axis=1) > 1  # a query with one key gives it all its weight
    largest_LHT = np.where(free_T, part.weights_LHTS.max(axis=-1), 0.0)
    order = np.argsort(-largest_LHT, axis=None, kind="stable")[:_ROWS]
    rows = list[list[str]]()
    for number in order:
        layer, head, query = map(int, np.unravel_index(int(number), largest_LHT.shape))
        key = int(part.weights_LHTS[layer, head, query].argmax())
        weight = float(largest_LHT[layer, head, query])
        if weight > 0:
            where = [str(part.layers[layer]), str(part.heads[head])]
            rows.append([*where, str(query), part.rows[query], str(key), part.columns[key], f"{weight:.2f}"])
    title = tr("{part_names}: the largest weights", PART_NAMES[part.part])
    note = tr(
        "The largest weight of a query in a head; queries with a single key are left out. "
        "The lines are drawn with `--out FILE.html`, `.png` or `.svg`."
    )
    return TextTable(title.of(language), columns, rows, [*columns[:3], columns[4], columns[6]], note.of(language))


COMMAND = Command(
    lines_view,
    options=(
        *ONE_TEXT,
        Option("layer", Count, "Layer to show, counted from 0.", "all"),
        Option("head", Count, "Head to show, counted from 0.", "all"),
        Option(
            "part",
            str,
            "Attention to show: encoder, decoder (its self-attention) or cross.",
            "all",
            architecture="encoder-decoder",
        ),
    ),
)
