"""Attention weights on one text: thumbnails of all layers and heads, the map of one head, statistics of the heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mingyue.charts import Chart, MatrixChart, MatrixGrid
from mingyue.config import Count
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.attention_weights import PartWeights, check_size, part_weights
from mingyue.inspection.command import ONE_TEXT, Command, Option
from mingyue.inspection.labels import head_label, layer_label, token_at
from mingyue.inspection.parts import PART_NAMES, Part, attention_parts
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.view import View
from mingyue.words import Language, TextTable, Words, sentences, tr

MOST_TOKENS_AS_NUMBERS = 16
"""For a longer text the table of one head lists the tokens with the largest weights instead of all weights."""
MOST_ROWS = 512
"""Rows of such a table."""
MOST_TOKENS_LISTED = 64
"""Tokens in the note of a picture."""


@dataclass(frozen=True)
class AttentionView(View):
    """Attention weights: one set for a decoder-only model, three (encoder, decoder, cross) for an encoder-decoder."""

    title: ClassVar[Words] = tr("Attention weights")  # pyrefly: ignore[bad-override]
    parts: tuple[PartWeights, ...]
    layer: int | None = None
    head: int | None = None

    def part(self, name: Part) -> PartWeights:
        """One of the sets. Raises `KeyError` for a set that is not shown."""
        return {part.part: part for part in self.parts}[name]

    @property
    def weights_LHTS(self) -> NDArray[np.float32]:  # noqa: N802
        """The weights of the only set. Raises `ValueError` if there are several: use `part`."""
        (only,) = self.parts
        return only.weights_LHTS

    @property
    def _one_head(self) -> bool:
        return self.layer is not None and self.head is not None

    def charts(self, language: Language = "en") -> list[Chart]:
        """Thumbnails, layers × heads, of each set; or the map of the one selected head."""
        return [(_map if self._one_head else _grid)(part, language) for part in self.parts]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """A row for each head; for one head its weights, of a long text the three largest of each query."""
        if not self._one_head:
            return [_heads_table(part, language) for part in self.parts]
        short = MOST_TOKENS_AS_NUMBERS
        return [
            (_map_table if max(part.weights_LHTS.shape[2:]) <= short else _top_table)(part, language)
            for part in self.parts
        ]

    def to_dict(self) -> dict[str, Any]:
        """The sets by name: `weights_LHTS` [layers, heads, queries, keys], numbers of layers and heads, tokens, and
        the position of each query and key (of a block of tokens the first)."""
        return {part.part: _part_dict(part) for part in self.parts}


def attention_view(
    subject: Subject, reading: Reading, *, layer: int | None = None, head: int | None = None
) -> AttentionView:
    """The weights of all layers and heads, of the heads of one layer, of one head in all layers, or of one head.

    Raises `SettingsError` for a layer or head that the model does not have, `GenerationError` for a text so long that
    one layer has more than `MOST_CELLS_OF_A_LAYER` weights.
    """
    parts = attention_parts(subject)
    if layer is not None:  # encoder and decoder may differ in depth: only those with the layer are shown
        deepest = max(parts, key=lambda part: part.n_layers)
        deepest.check(layer, None)
        parts = tuple(part for part in parts if layer < part.n_layers)
    parts[0].check(None, head)
    for part in parts:
        check_size(part, reading)
    return AttentionView(tuple(part_weights(subject, reading, part, layer, head) for part in parts), layer, head)


def _number(value: float, digits: int = 2) -> str:
    return "" if np.isnan(value) else f"{value:.{digits}f}"


def _block_note(part: PartWeights, language: Language) -> str:
    if not part.in_blocks:
        return ""
    queries, keys = part.tokens
    return tr(
        "{queries:,} × {keys:,} tokens are shown as {n_rows} × {n_columns} blocks: mean over "
        "the queries of a block, sum over its keys.",
        queries,
        keys,
        len(part.rows),
        len(part.columns),
    ).of(language)


def _tokens_note(part: PartWeights, language: Language) -> str:
    """The tokens in the note of an image, which has no room for labels along every map."""

    def listed(pieces: Sequence[str]) -> str:
        return " ".join(pieces[:MOST_TOKENS_LISTED]) + (" …" if len(pieces) > MOST_TOKENS_LISTED else "")

    rows, columns = listed(part.query_pieces), listed(part.key_pieces)
    if rows == columns:
        return tr("Tokens: {rows}", rows).of(language)
    return tr("Tokens of the rows: {rows}; of the columns: {columns}", rows, columns).of(language)


def _grid(part: PartWeights, language: Language) -> Chart:
    note = tr("Rows: query tokens. Columns: key tokens. Each row sums to 1. Layers and heads are counted from 0.")
    return MatrixGrid(
        PART_NAMES[part.part].of(language),
        part.weights_LHTS,
        row_titles=[layer_label(layer, language) for layer in part.layers],
        column_titles=[head_label(head, language) for head in part.heads],
        row_labels=part.rows,
        column_labels=part.columns,
        low=0.0,
        high=1.0,
        note=sentences([note, _block_note(part, language), _tokens_note(part, language)], language),
        language=language,
    )


def _map_title(part: PartWeights, language: Language) -> str:
    (layer,), (head,) = part.layers, part.heads
    comma = tr(", ").of(language)
    where = comma.join([layer_label(layer, language), head_label(head, language)])
    return tr("{part_names}, {where}", PART_NAMES[part.part], where).of(language)


def _map(part: PartWeights, language: Language) -> Chart:
    return MatrixChart(
        _map_title(part, language),
        part.weights_LHTS[0, 0],
        row_labels=part.rows,
        column_labels=part.columns,
        row_title=tr("query token").of(language),
        column_title=tr("key token").of(language),
        low=0.0,
        high=1.0,
        note=_block_note(part, language),
        language=language,
    )


def _heads_table(part: PartWeights, language: Language) -> TextTable:
    columns = {
        tr("layer"): [str(layer) for layer in part.layers for _ in part.heads],
        tr("head"): [str(head) for _ in part.layers for head in part.heads],
    }
    numbers = {
        tr("mean distance"): ("distance_LH", 1),
        tr("entropy, bits"): ("entropy_LH", 2),
        tr("to first token"): ("first_LH", 2),
        tr("to EOS"): ("end_LH", 2),
    }
    shown = {name: how for name, how in numbers.items() if not np.isnan(getattr(part.statistics, how[0])).all()}
    uniform = [tr("uniform").of(language), ""]
    for name, (field, digits) in shown.items():
        columns[name] = [_number(value, digits) for value in getattr(part.statistics, field).flat]
        uniform.append(_number(getattr(part.uniform, field)[0, 0], digits))
    pair = tr("largest weight")
    columns[pair] = _pairs(part)
    headings = [name.of(language) for name in columns]
    return TextTable(
        title=tr("{part_names}: weights of each head", PART_NAMES[part.part]).of(language),
        columns=headings,
        rows=[*(list(row) for row in zip(*columns.values(), strict=True)), [*uniform, ""]],
        right=headings[:-1],
        note=tr(
            "Means over all queries; `to first token`: the weight on it. `2:a → 0:b 0.90`: the "
            "query at position 2 gives the key at position 0 the weight 0.90, the largest of "
            "this head (queries with a single key left out). Positions are counted from 0. The "
            "last row is uniform attention."
        ).of(language),
    )


def _pairs(part: PartWeights) -> list[str]:
    positions = part.statistics.strongest_LH2.reshape(-1, 2)
    return [
        f"{token_at(query, part.query_pieces[query])} → {token_at(key, part.key_pieces[key])} {weight:.2f}"
        for (query, key), weight in zip(positions, part.statistics.strongest_LH.flat, strict=True)
    ]


def _map_table(part: PartWeights, language: Language) -> TextTable:
    """All weights of one head; masked cells are empty."""
    keys = [token_at(position, piece) for position, piece in enumerate(part.columns)]
    rows = [
        [
            token_at(position, piece),
            *(f"{w:.2f}" if seen else "" for w, seen in zip(weights_S, allowed_S, strict=True)),
        ]
        for position, (piece, weights_S, allowed_S) in enumerate(
            zip(part.rows, part.weights_LHTS[0, 0], part.allowed_TS, strict=True)
        )
    ]
    note = tr("Rows: queries. Columns: keys. The numbers before tokens are positions, counted from 0. Empty = masked.")
    return TextTable(_map_title(part, language), ["", *keys], rows, right=keys, note=note.of(language))


def _top_table(part: PartWeights, language: Language) -> TextTable:
    """For each query the three keys with the largest weights."""
    weights_TS = part.weights_LHTS[0, 0][:MOST_ROWS]
    keys = part.columns if part.in_blocks else list(map(token_at, part.key_positions, part.columns))
    rows = []
    for row, weights_S in enumerate(weights_TS):
        top = [key for key in np.argsort(-weights_S, kind="stable")[:3] if weights_S[key] > 0]
        cells = [f"{keys[key]} {weights_S[key]:.2f}" for key in top]
        at = part.query_positions[row]
        rows.append([at, part.rows[row].removeprefix(f"{at}:"), *cells, *[""] * (3 - len(cells))])
    position, token = tr("position").of(language), tr("token").of(language)
    columns = [position, token, *(tr("key {n}", n).of(language) for n in (1, 2, 3))]
    notes = [tr("Keys by weight, each with its position, counted from 0.").of(language)]
    notes.append(_block_note(part, language))
    if len(part.rows) > MOST_ROWS:
        notes.append(tr("The first {most_rows} of {n_rows:,} rows.", MOST_ROWS, len(part.rows)).of(language))
    return TextTable(_map_title(part, language), columns, rows, right=[position], note=sentences(notes, language))


def _part_dict(part: PartWeights) -> dict[str, Any]:
    statistics = {name: to_lists(array) for name, array in vars(part.statistics).items()}
    return {
        "layers": list(part.layers),
        "heads": list(part.heads),
        "queries": list(part.rows),
        "query_positions": [int(position.split("–")[0]) for position in part.query_positions],
        "keys": list(part.columns),
        "key_positions": [int(position.split("–")[0]) for position in part.key_positions],
        "tokens": list(part.tokens),
        "weights_LHTS": to_lists(part.weights_LHTS),
        **statistics,
    }


COMMAND = Command(
    attention_view,
    options=(
        *ONE_TEXT,
        Option("layer", Count, "Layer to show, counted from 0; with --head the weights of that one head.", "all"),
        Option("head", Count, "Head to show, counted from 0.", "all"),
    ),
)
