"""Two columns of tokens joined by lines, whose width and opacity are weights; one colour for each series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mingyue.charts import markup
from mingyue.charts.chart import Chart
from mingyue.charts.fonts import MONO_STACK, display_width, truncate
from mingyue.charts.matrices import as_lists
from mingyue.charts.vega import CONFIG, heading, pixels
from mingyue.printable import printable
from mingyue.words import Language, sentences, tr

LEAST_WEIGHT = 0.05
"""Smaller weights are not drawn."""
MOST_LINES = 2000
"""Lines of one chart; of more, those with the largest weights."""
COLOURS = (
    "#3b82c4", "#e07b2a", "#2a9d76", "#d0579b", "#8f6bb3", "#b8901a",
    "#4bb3d6", "#d9534f", "#7f8c3a", "#8a8f98", "#5f6fd0", "#c98bd0",
)  # fmt: skip
"""Of the series: visible on white and on black. More series begin again."""
_ROW, _COLUMN, _BETWEEN = 24, 9, 280  # height of a row, width of a column of text, room of the lines, in pixels
_MOST_COLUMNS = 16  # of a label
_GAP = 10  # between a label and its lines
_SPREAD = 12  # pixels over which the series of one token are spread, so that their lines do not hide one another
_HOVER_LINES = 8


@dataclass(frozen=True)
class Line:
    """A line from a token on the left to one on the right, in pixels of the picture."""

    series: int
    left: int
    right: int
    weight: float
    y1: float
    y2: float


@dataclass(frozen=True)
class Label:
    """A token in its column, with the lines that a pointer over it shows."""

    side: str
    number: int
    text: str
    x: float
    y: float
    hover: Sequence[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenLines(Chart):
    """Lines from T tokens on the left to S on the right. Raises `ValueError` for labels that do not fit the weights."""

    weights: NDArray[Any] = field(kw_only=False)
    """[N series, T, S], from 0 to 1."""
    left: Sequence[str]
    right: Sequence[str]
    series: Sequence[str]
    left_title: str = ""
    right_title: str = ""
    language: Language = "en"
    """Language of the sentence on lines that are not drawn."""

    kind = "token_lines"

    def __post_init__(self) -> None:
        wanted = (len(self.series), len(self.left), len(self.right))
        if self.weights.shape != wanted:
            raise ValueError(f"weights of shape {self.weights.shape} with labels for {wanted}")

    @property
    def caption(self) -> str:
        """The note, and which weights have no line."""
        cut = max(LEAST_WEIGHT, min((line.weight for line in self.lines), default=0.0) if self._is_cut else 0.0)
        said = tr("Weights below {cut:.2g} are not drawn.", cut).of(self.language)
        return sentences([self.note, said], self.language)

    @property
    def _is_cut(self) -> bool:
        return int((self.weights >= LEAST_WEIGHT).sum()) > MOST_LINES

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Those that are drawn: the largest weights last, on top of the others."""
        flat = self.weights.reshape(-1)
        order = np.argsort(flat, kind="stable")[-MOST_LINES:]
        found = [(int(number), float(flat[number])) for number in order if flat[number] >= LEAST_WEIGHT]
        places = [(*map(int, np.unravel_index(number, self.weights.shape)), weight) for number, weight in found]
        return tuple(
            Line(series, left, right, weight, self._y(left, series), self._y(right, series))
            for series, left, right, weight in places
        )

    @property
    def left_edge(self) -> float:
        """Where lines begin."""
        return self._columns(self.left) * _COLUMN + _GAP

    @property
    def right_edge(self) -> float:
        """Where lines end."""
        return self.left_edge + _BETWEEN

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        width = self.right_edge + _GAP + self._columns(self.right) * _COLUMN
        return round(width), round(_ROW * (max(len(self.left), len(self.right)) + 1.25))

    def labels(self) -> Iterator[Label]:
        """The tokens of both columns."""
        for side, names, x in (
            ("left", self.left, self.left_edge - _GAP),
            ("right", self.right, self.right_edge + _GAP),
        ):
            for number, name in enumerate(names):
                text = truncate(printable(name), _MOST_COLUMNS)
                yield Label(side, number, text, x, self._y(number), self._hover(side, number))

    def titles(self) -> Iterator[tuple[str, float, str]]:
        """The headings of both columns, where they stand, and their alignment."""
        yield self.left_title, self.left_edge - _GAP, "end"
        yield self.right_title, self.right_edge + _GAP, "start"

    def groups(self) -> Iterator[tuple[int, str, str, list[Line]]]:
        """The series: number, name, colour, lines."""
        for number, name in enumerate(self.series):
            lines = [line for line in self.lines if line.series == number]
            yield number, name, COLOURS[number % len(COLOURS)], lines

    def spec(self) -> dict[str, Any]:
        """The spec of the image: rules and texts at pixels of the picture."""
        width, height = self.size
        rows = [
            {"x": self.left_edge, "x2": self.right_edge, "y": line.y1, "y2": line.y2, "w": 0.6 + 3 * line.weight,
             "o": _opacity(line.weight), "c": COLOURS[line.series % len(COLOURS)]}
            for line in self.lines
        ]  # fmt: skip
        raw = {"type": "quantitative", "scale": None, "legend": None}
        rules = {
            "data": {"values": rows},
            "mark": {"type": "rule"},
            "encoding": {
                "x": pixels("x"), "x2": {"field": "x2"}, "y": pixels("y"), "y2": {"field": "y2"},
                "strokeWidth": {"field": "w", **raw}, "strokeOpacity": {"field": "o", **raw},
                "color": {"field": "c", "type": "nominal", "scale": None},
            },
        }  # fmt: skip
        texts = [(label.text, label.x, label.y, "right" if label.side == "left" else "left", 14, "#222222")
                 for label in self.labels()]  # fmt: skip
        texts += [(text, x, _ROW / 2, "right" if anchor == "end" else "left", 12, "#555555")
                  for text, x, anchor in self.titles()]  # fmt: skip
        texts += self._legend(height)
        layers = [_text_layer([text for text in texts if text[3] == align], align) for align in ("left", "right")]
        return {
            "width": width,
            "height": height + (_ROW * (1 + self._legend_rows) if len(self.series) > 1 else 0),
            "layer": [rules, *layers],
            "title": heading(self),
            "config": CONFIG,
        }

    def html(self) -> str:
        """The figure for a page: an SVG; a pointer over a token singles out its lines, buttons switch series."""
        return markup.render("token_lines.html", chart=self, opacity=_opacity, mono=MONO_STACK)

    def to_dict(self) -> dict[str, Any]:
        """Kind, text and weights."""
        return {
            "kind": self.kind,
            "title": self.title,
            "note": self.caption,
            "series": list(self.series),
            "left": list(self.left),
            "right": list(self.right),
            "data": as_lists(self.weights.astype(np.float64)),
        }

    def _y(self, row: int, series: int | None = None) -> float:
        """The middle of a row, or where the lines of a series meet it."""
        count = len(self.series)
        aside = 0.0 if series is None or count == 1 else (series / (count - 1) - 0.5) * min(_SPREAD, 3 * count)
        return (row + 1.5) * _ROW + round(aside, 1)

    def _columns(self, names: Sequence[str]) -> int:
        return max([4, *(min(_MOST_COLUMNS, display_width(printable(name))) for name in names)])

    def _hover(self, side: str, number: int) -> list[str]:
        """The largest weights of a token, with the token at the other end."""
        of_left = side == "left"
        weights_NX = self.weights[:, number] if of_left else self.weights[:, :, number]
        names, others = (self.left, self.right) if of_left else (self.right, self.left)
        best = np.argsort(-weights_NX.reshape(-1), kind="stable")[:_HOVER_LINES]
        arrow = "→" if of_left else "←"
        found = [
            f"{self.series[series]}: {arrow} {others[other]} ({other}) {weights_NX[series, other]:.2f}"
            for series, other in (divmod(int(one), weights_NX.shape[1]) for one in best)
            if weights_NX[series, other] >= LEAST_WEIGHT
        ]
        return [f"{names[number]} ({number})", *found]

    @property
    def _legend_step(self) -> int:
        return (max(map(display_width, self.series)) + 2) * 7

    @property
    def _legend_rows(self) -> int:
        """Rows of the legend of the image."""
        return -(-len(self.series) // max(1, self.size[0] // self._legend_step))

    def _legend(self, top: int) -> list[tuple[str, float, float, str, int, str]]:
        if len(self.series) == 1:
            return []
        across = max(1, self.size[0] // self._legend_step)
        return [
            (name, number % across * self._legend_step, top + _ROW * (number // across + 0.5), "left", 12,
             COLOURS[number % len(COLOURS)])
            for number, name in enumerate(self.series)
        ]  # fmt: skip


def _opacity(weight: float) -> float:
    """Small weights stay visible."""
    return round(min(1.0, 0.05 + 0.95 * weight), 3)


def _text_layer(texts: Sequence[tuple[str, float, float, str, int, str]], align: str) -> dict[str, Any]:
    rows = [{"t": text, "x": x, "y": y, "s": size, "c": colour} for text, x, y, _, size, colour in texts]
    raw: dict[str, Any] = {"scale": None, "legend": None}
    return {
        "data": {"values": rows},
        "mark": {"type": "text", "align": align, "baseline": "middle", "font": MONO_STACK},
        "encoding": {
            "x": pixels("x"), "y": pixels("y"), "text": {"field": "t", "type": "nominal"},
            "size": {"field": "s", "type": "quantitative", **raw}, "color": {"field": "c", "type": "nominal", **raw},
        },
    }  # fmt: skip
