"""One head in numbers, step by step: the products q · k, the division by √d_k, the mask, the softmax, the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from mingyue.charts import Chart, MatrixChart
from mingyue.config import Count
from mingyue.errors import GenerationError
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.attention_weights import check_size, pieces_of
from mingyue.inspection.capture import capture
from mingyue.inspection.choices import chosen_part, chosen_position
from mingyue.inspection.command import ONE_TEXT, PART, Command, Option
from mingyue.inspection.labels import decimals
from mingyue.inspection.parts import PART_NAMES, Part
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.view import View
from mingyue.words import Language, TextTable, Words, sentences, tr

TOLERANCE = 1e-5
"""Largest difference between the steps and the head's recorded output, for outputs of size 1."""
MOST_TOKENS_AS_NUMBERS = 8
"""For longer texts only the row of one query is printed."""
_COMPONENTS = 6  # of a vector, in a printed table
_KEYS_LISTED = 16
_PRODUCTS = tr("1. Products q · k")
_SOFTMAX = tr("4. Softmax: the weights")
_OUTPUT = tr("5. Weights · V: the output")

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeadView(View):
    """softmax(Q Kᵀ / √d_k + mask) V of one head, each step as a matrix."""

    title: ClassVar[Words] = tr("One attention head, step by step")  # pyrefly: ignore[bad-override]
    part: Part
    layer: int
    head: int
    kv_head: int
    """The key-value head of its keys and values."""
    n_sharing: int
    """Heads that share the key-value head (grouped-query attention); 1 = it has its own."""
    position: int
    """The query whose row is printed in detail."""
    query_pieces: tuple[str, ...]
    key_pieces: tuple[str, ...]
    query_TD: Floats
    """After QK-norm and rotation, as used in the dot product."""
    key_SD: Floats
    value_SD: Floats
    products_TS: Floats
    """Q Kᵀ: the dot product of each query with each key."""
    scores_TS: Floats
    """Q Kᵀ / √d_k."""
    allowed_TS: NDArray[np.bool_]
    """The mask: True = may attend."""
    weights_TS: Floats
    """Softmax of the scores of each query over the keys that it may attend to."""
    output_TD: Floats
    """weights · V, the output of the head."""
    recorded_TD: Floats
    """The output of the head as the model computed it."""

    def charts(self, language: Language = "en") -> list[Chart]:
        """Matrices in the order of the equation."""
        where = self._where().of(language)
        components = [str(number) for number in range(self.query_TD.shape[1])]
        token = (tr("query token").of(language), tr("key token").of(language))
        component = tr("component").of(language)
        queries, keys, vectors = (self.query_pieces, token[0]), (self.key_pieces, token[1]), (components, component)
        # Each scale belongs to what is compared: queries with keys, values with the output.
        scale_qk, scale_v = _largest(self.query_TD, self.key_SD), _largest(self.value_SD, self.output_TD)
        mask_TS = self.allowed_TS.astype(np.float64)
        steps: list[tuple[Words, Floats, tuple[Sequence[str], str], tuple[Sequence[str], str], float | None]] = [
            (tr("Q, the queries"), self.query_TD, queries, vectors, scale_qk),
            (tr("K, the keys"), self.key_SD, keys, vectors, scale_qk),
            (_PRODUCTS, self.products_TS, queries, keys, _largest(self.products_TS)),
            (_scaled(self.query_TD.shape[1]), self.scores_TS, queries, keys, _largest(self.scores_TS)),
            (tr("3. Mask: 1 = may attend"), mask_TS, queries, keys, None),
            (_SOFTMAX, self.weights_TS, queries, keys, None),
            (tr("V, the values"), self.value_SD, keys, vectors, scale_v),
            (_OUTPUT, self.output_TD, queries, vectors, scale_v),
        ]
        return [
            MatrixChart(
                name.of(language) if number else f"{where}: {name.en}" if language == "en" else f"{where}：{name.zh}",
                values,
                row_labels=rows[0],
                column_labels=columns[0],
                row_title=rows[1],
                column_title=columns[1],
                diverging=largest is not None,
                low=0.0 if largest is None else -largest,
                high=1.0 if largest is None else largest,
                note="" if number else self._note(language),
                language=language,
            )
            for number, (name, values, rows, columns, largest) in enumerate(steps)
        ]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """For a short text every matrix in numbers; then the row of one query, from its products to its output."""
        row = self._row(language)
        if max(self.weights_TS.shape) > MOST_TOKENS_AS_NUMBERS:
            return [row]
        queries, keys = _numbered(self.query_pieces), _numbered(self.key_pieces)
        masked_TS = np.where(self.allowed_TS, self.scores_TS, -np.inf)

        def vectors(title: Words, rows: Sequence[str], values: Floats) -> TextTable:
            return _vectors(title, rows, values, language)

        def matrix(title: Words, values: Floats) -> TextTable:
            return _matrix(title.of(language), queries, keys, values)

        return [
            vectors(tr("Q, the queries"), queries, self.query_TD),
            vectors(tr("K, the keys"), keys, self.key_SD),
            matrix(_PRODUCTS, self.products_TS),
            matrix(_scaled(self.query_TD.shape[1]), self.scores_TS),
            matrix(tr("3. Masked: −∞ where it may not attend"), masked_TS),
            matrix(_SOFTMAX, self.weights_TS),
            vectors(tr("V, the values"), keys, self.value_SD),
            vectors(_OUTPUT, queries, self.output_TD),
            row,
        ]

    def to_dict(self) -> dict[str, Any]:
        """Every field, by name."""
        plain = ("part", "layer", "head", "kv_head", "n_sharing", "position", "query_pieces", "key_pieces")
        arrays = ("query_TD", "key_SD", "value_SD", "products_TS", "scores_TS", "allowed_TS", "weights_TS", "output_TD")
        return {name: getattr(self, name) for name in plain} | {name: to_lists(getattr(self, name)) for name in arrays}

    def _where(self) -> Words:
        name = PART_NAMES[self.part]
        return tr("{name}, layer {layer}, head {head}", name, self.layer, self.head)

    def _note(self, language: Language) -> str:
        apart = float(np.abs(self.output_TD - self.recorded_TD).max())
        said = [
            tr("Q and K as they enter the dot product, after QK-norm and rotation where the model has them."),
            tr("The last step equals the output that the model computed (largest difference {apart:.0e}).", apart),
        ]
        if self.n_sharing > 1:
            said.insert(
                1,
                tr(
                    "K and V are those of key-value head {kv_head}, which {n_sharing} heads share.",
                    self.kv_head,
                    self.n_sharing,
                ),
            )
        return sentences(said, language)

    def _row(self, language: Language) -> TextTable:
        """The keys of one query from left to right: product, score, mask, weight, value; the output below."""
        t, d_head = self.position, self.query_TD.shape[1]
        shown = min(_COMPONENTS, d_head)
        keys = np.argsort(-self.weights_TS[t], kind="stable")[:_KEYS_LISTED]
        names = [
            tr("position"), tr("key token"), tr("q·k"),
            tr("/ √{d_head}", d_head), tr("masked"), tr("softmax"),
            *(tr("v[{number}]", number) for number in range(shown)),
        ]  # fmt: skip
        columns = [name.of(language) for name in names]
        rows = [
            [
                str(s), self.key_pieces[s], _number(self.products_TS[t, s]), _number(self.scores_TS[t, s]),
                _number(self.scores_TS[t, s] if self.allowed_TS[t, s] else -np.inf), _number(self.weights_TS[t, s]),
                *map(_number, self.value_SD[s, :shown]),
            ]
            for s in sorted(int(key) for key in keys)
        ]  # fmt: skip
        total = tr("sum of weight · v").of(language)
        rows.append(["", total, "", "", "", _number(1.0), *map(_number, self.output_TD[t, :shown])])
        title = tr(
            '{where}: the query at position {t}, "{query_pieces}"',
            self._where(),
            t,
            self.query_pieces[t],
        )
        notes = [self._note(language)]
        if len(keys) < len(self.key_pieces):
            notes.append(
                tr(
                    "The {n_keys} keys with the largest weights, of {n_key_pieces:,}; the sum is over all.",
                    len(keys),
                    len(self.key_pieces),
                ).of(language)
            )
        if shown < d_head:
            notes.append(_first_components(shown, d_head).of(language))
        right = [columns[0], *columns[2:]]
        return TextTable(title.of(language), columns, rows, right, sentences(notes, language))


def _largest(*values: Floats) -> float:
    """The end of a scale around 0."""
    return max(float(np.abs(one).max()) for one in values)


def _scaled(d_head: int) -> Words:
    return tr("2. Scores: q · k / √{d_head}", d_head)


def _first_components(shown: int, d_head: int) -> Words:
    return tr("The first {shown} of {d_head} components.", shown, d_head)


def _number(value: float) -> str:
    return "−∞" if value == -np.inf else decimals(float(value))


def _numbered(pieces: Sequence[str]) -> list[str]:
    return [f"{position} {piece}" for position, piece in enumerate(pieces)]


def _matrix(title: str, rows: Sequence[str], columns: Sequence[str], values: Floats, note: str = "") -> TextTable:
    cells = [[label, *map(_number, row)] for label, row in zip(rows, values, strict=True)]
    return TextTable(title, ["", *columns], cells, columns, note)


def _vectors(title: Words, rows: Sequence[str], values: Floats, language: Language) -> TextTable:
    """One vector a row, its first components."""
    d_head = values.shape[1]
    shown = min(d_head, _COMPONENTS)
    note = "" if shown == d_head else _first_components(shown, d_head).of(language)
    return _matrix(title.of(language), rows, [f"[{number}]" for number in range(shown)], values[:, :shown], note)


@torch.inference_mode()
def head_view(
    subject: Subject,
    reading: Reading,
    *,
    layer: int = 0,
    head: int = 0,
    part: str | None = None,
    position: int | None = None,
) -> HeadView:
    """The steps of one head; `position` (default: the last) is the query whose row is printed.

    `part`: of an encoder-decoder model "encoder", "decoder" or "cross" (default). Raises `SettingsError` for a part,
    layer, head or position that is not there; `GenerationError` for a text with too many weights, and if the steps do
    not give the model's output of the head to `TOLERANCE` (relative to the largest value if that is above 1).
    """
    kind = chosen_part(subject, part)
    kind.check(layer, head)
    check_size(kind, reading)
    queries, keys = pieces_of(kind, reading)
    here = chosen_position(position, queries)
    taps = {name: kind.tap(layer, name) for name in ("query", "key", "value", "heads")}
    values = capture(subject, reading, taps.values()).values
    query, key, value, recorded = (values[tap].cpu().double() for tap in taps.values())
    n_sharing = query.shape[0] // key.shape[0]
    kv_head = head // n_sharing
    query_TD, key_SD, value_SD, recorded_TD = query[head], key[kv_head], value[kv_head], recorded[head]
    products_TS = query_TD @ key_SD.T
    scores_TS = products_TS / query_TD.shape[1] ** 0.5
    allowed_TS = kind.allowed(len(queries), len(keys)).cpu()
    weights_TS = scores_TS.masked_fill(~allowed_TS, float("-inf")).softmax(dim=-1)
    output_TD = weights_TS @ value_SD
    apart = float((output_TD - recorded_TD).abs().max()) / max(1.0, float(recorded_TD.abs().max()))
    if apart > TOLERANCE:
        raise GenerationError(
            tr(
                "the steps give an output of the head that differs from the model's by {apart:.1e}, "
                "more than {tolerance:.0e}: the numbers would not be those of the model in use",
                apart,
                TOLERANCE,
            )
        )
    return HeadView(
        part=kind.name,
        layer=layer,
        head=head,
        kv_head=kv_head,
        n_sharing=n_sharing,
        position=here,
        query_pieces=queries,
        key_pieces=keys,
        query_TD=query_TD.numpy(),
        key_SD=key_SD.numpy(),
        value_SD=value_SD.numpy(),
        products_TS=products_TS.numpy(),
        scores_TS=scores_TS.numpy(),
        allowed_TS=allowed_TS.numpy(),
        weights_TS=weights_TS.numpy(),
        output_TD=output_TD.numpy(),
        recorded_TD=recorded_TD.numpy(),
    )


COMMAND = Command(
    head_view,
    options=(
        *ONE_TEXT,
        Option("layer", Count, "Layer of the head, counted from 0.", 0),
        Option("head", Count, "Head, counted from 0.", 0),
        PART,
        Option("position", Count, "Position whose query is followed in detail, counted from 0.", "the last"),
    ),
)
