"""The text coloured by attention: what one position attends to, and which positions attend to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from mingyue.charts import Chart, TextChart, TextMark
from mingyue.config import Count
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.attention_weights import check_size, pieces_of, weights_of_layers
from mingyue.inspection.choices import chosen_part, chosen_position
from mingyue.inspection.command import ONE_TEXT, PART, Command, Option
from mingyue.inspection.parts import PART_NAMES, Part
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.tokens import token_string
from mingyue.inspection.view import View
from mingyue.text import Tokenizer
from mingyue.words import Language, TextTable, Words, tr

_ROWS = 16
_DARKEST = (0.1, 0.25, 0.5, 1.0)  # ends of the colour scale: a mean over many heads is seldom near 1


@dataclass(frozen=True, eq=False)
class AttendedView(View):
    """Attention weights from one query to every key, and from every query to one key."""

    title: ClassVar[Words] = tr("Text coloured by attention")  # pyrefly: ignore[bad-override]
    part: Part
    layers: tuple[int, ...]
    """The layers whose weights are averaged."""
    heads: tuple[int, ...]
    position: int
    """The query."""
    key_position: int
    """The key of the other direction: the same position; in cross-attention the one with the query's largest weight."""
    query_pieces: tuple[str, ...]
    key_pieces: tuple[str, ...]
    query_texts: tuple[str, ...]
    """The tokens as they stand in a running text."""
    key_texts: tuple[str, ...]
    weights_S: NDArray[np.float64]
    """From the query to each key; NaN where it may not attend."""
    received_T: NDArray[np.float64]
    """From each query to the key of the other direction; NaN where it may not attend."""

    def charts(self, language: Language = "en") -> list[Chart]:
        """The text of the keys, coloured by the weights of the query; the text of the queries, by those on the key."""
        largest = max(float(np.nanmax(self.weights_S)), float(np.nanmax(self.received_T)))
        high = next(end for end in _DARKEST if largest <= end or end == _DARKEST[-1])
        drawn = [(self._attends, self.key_texts, self.key_pieces, self.weights_S)]
        if self._is_attended:
            drawn.append((self._attended, self.query_texts, self.query_pieces, self.received_T))
        return [
            TextChart(
                title.of(language),
                [
                    TextMark(text, None if np.isnan(weight) else float(weight), _hover(number, piece, weight))
                    for number, (text, piece, weight) in enumerate(zip(texts, pieces, weights, strict=True))
                ],
                low=0.0,
                high=high,
                legend=tr("attention weight").of(language),
                note=self._note(language),
            )
            for title, texts, pieces, weights in drawn
        ]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """The largest weights in both directions."""
        found = [_table(self._attends, self.key_pieces, self.weights_S, self._note(language), language)]
        if self._is_attended:
            found.append(_table(self._attended, self.query_pieces, self.received_T, "", language))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Every field but the running text, by name."""
        plain = ("part", "layers", "heads", "position", "key_position", "query_pieces", "key_pieces")
        return {name: getattr(self, name) for name in plain} | {
            "weights_S": to_lists(self.weights_S),
            "received_T": to_lists(self.received_T),
        }

    @property
    def _is_attended(self) -> bool:
        """Whether more than one query may attend to the key: none but itself does to the last token of a decoder."""
        return int(np.isfinite(self.received_T).sum()) > 1

    @property
    def _attends(self) -> Words:
        piece = self.query_pieces[self.position]
        return tr('What position {position}, "{piece}", attends to', self.position, piece)

    @property
    def _attended(self) -> Words:
        piece = self.key_pieces[self.key_position]
        source = tr(" of the source text") if self.part == "cross" else Words("", "")
        return tr('What attends to position {key_position}{source}, "{piece}"', self.key_position, source, piece)

    def _note(self, language: Language) -> str:
        name = PART_NAMES[self.part]
        where = tr("{name}: layer {layers}", name, self.layers[0])
        if len(self.layers) > 1:
            where = tr("{name}: mean over {n_layers} layers", name, len(self.layers))
        heads = tr("head {heads}", self.heads[0])
        if len(self.heads) > 1:
            heads = tr("mean over {n_heads} heads", len(self.heads))
        said = tr("{where}, {heads}.", where, heads)
        if not self._is_attended:
            said = tr("{said} No other token can attend to this one, so the other direction is left out.", said)
        return said.of(language)


def _hover(number: int, piece: str, weight: float) -> list[str]:
    return [f"{piece} ({number})" if np.isnan(weight) else f"{piece} ({number}): {weight:.3f}"]


def _table(
    title: Words, pieces: Sequence[str], weights: NDArray[np.float64], note: str, language: Language
) -> TextTable:
    names = [tr("position"), tr("token"), tr("weight")]
    columns = [name.of(language) for name in names]
    order = [int(number) for number in np.argsort(-np.nan_to_num(weights), kind="stable")[:_ROWS]]
    rows = [[str(n), pieces[n], f"{weights[n]:.3f}"] for n in order if not np.isnan(weights[n])]
    return TextTable(title.of(language), columns, rows, [columns[0], columns[2]], note)


def attended_view(
    subject: Subject,
    reading: Reading,
    *,
    position: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    part: str | None = None,
) -> AttendedView:
    """The weights of the query at `position` (default: the last), means over all layers and heads that are not chosen.

    `part`: of an encoder-decoder model "encoder", "decoder" or "cross" (default). Raises `SettingsError` for a part,
    layer, head or position that is not there, `GenerationError` for a text with too many weights.
    """
    kind = chosen_part(subject, part)
    kind.check(layer, head)
    check_size(kind, reading)
    queries, keys = pieces_of(kind, reading)
    here = chosen_position(position, queries)
    layers = tuple(range(kind.n_layers)) if layer is None else (layer,)
    heads = tuple(range(kind.n_heads)) if head is None else (head,)
    mean_TS = torch.zeros(len(queries), len(keys), dtype=torch.float64)
    for weights_HTS in weights_of_layers(subject, reading, kind, layers, mean_TS.numel()):
        mean_TS += weights_HTS[list(heads)].mean(dim=0).cpu() / len(layers)
    allowed_TS = kind.allowed(len(queries), len(keys)).cpu()
    shown_TS = mean_TS.masked_fill(~allowed_TS, float("nan")).numpy()
    key = int(mean_TS[here].argmax()) if kind.name == "cross" else here
    source = subject.source_tokenizer or subject.tokenizer
    source_ids = [] if reading.source_ids_S is None else reading.source_ids_S.tolist()
    source_texts = _texts(source, source_ids, reading.source_pieces)
    target_texts = _texts(subject.tokenizer, reading.ids_T.tolist(), reading.pieces)
    return AttendedView(
        part=kind.name,
        layers=layers,
        heads=heads,
        position=here,
        key_position=key,
        query_pieces=queries,
        key_pieces=keys,
        query_texts=source_texts if kind.name == "encoder" else target_texts,
        key_texts=target_texts if kind.causal else source_texts,
        weights_S=shown_TS[here],
        received_T=shown_TS[:, key],
    )


def _texts(tokenizer: Tokenizer, ids: Sequence[int], pieces: Sequence[str]) -> tuple[str, ...]:
    """Tokens as they stand in a text; the label of those that are no text by themselves."""
    return tuple(token_string(tokenizer, index) or piece for index, piece in zip(ids, pieces, strict=True))


COMMAND = Command(
    attended_view,
    options=(
        *ONE_TEXT,
        Option("position", Count, "Position whose attention is shown, counted from 0.", "the last"),
        Option("layer", Count, "Layer to show, counted from 0.", "the mean of all"),
        Option("head", Count, "Head to show, counted from 0.", "the mean of all"),
        PART,
    ),
)
