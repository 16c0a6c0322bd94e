"""Dials: pairs of numbers as the tips of hands in circles, in rows and columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from mingyue.charts import colours, markup
from mingyue.charts.chart import Chart
from mingyue.charts.fonts import display_width
from mingyue.charts.vega import CONFIG, drawable, heading, pixels

_CELL, _RADIUS, _LINE = 96, 38, 20
_COLUMN = 7.2  # width of a column of text, in pixels
_INK, _RIM = "#444444", "#bbbbbb"


class Hand(NamedTuple):
    """A hand from the middle of a dial; its tip is (x, y), where 1 is the rim, x points right and y up."""

    x: float
    y: float
    series: str = ""


@dataclass(frozen=True)
class Dial:
    """Hands in one circle, and a line of text below it."""

    hands: Sequence[Hand]
    text: str = ""


class _Stroke(NamedTuple):
    x: float
    y: float
    x2: float
    y2: float
    colour: str

    @property
    def dark(self) -> str:
        """On a dark page."""
        return colours.DARK.get(self.colour, self.colour)


class _Label(NamedTuple):
    x: float
    y: float
    text: str
    anchor: str
    """start or middle."""
    colour: str

    @property
    def page_colour(self) -> str:
        """On a page: that of its text, light or dark, where it is not that of a series."""
        return "currentColor" if self.colour == _INK else self.colour

    @property
    def dark(self) -> str:
        """The same on a dark page."""
        return "currentColor" if self.colour == _INK else colours.DARK.get(self.colour, self.colour)


@dataclass(frozen=True, kw_only=True)
class DialGrid(Chart):
    """R rows of C dials. Raises `ValueError` for labels that do not fit."""

    dials: Sequence[Sequence[Dial]] = field(kw_only=False)
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    row_title: str = ""
    column_title: str = ""

    kind: ClassVar[str] = "dials"

    def __post_init__(self) -> None:
        if len(self.dials) != len(self.row_labels) or any(len(row) != len(self.column_labels) for row in self.dials):
            raise ValueError(
                f"{len(self.dials)} rows of {sorted({len(row) for row in self.dials})} dials with "
                f"{len(self.row_labels)} row labels and {len(self.column_labels)} column labels"
            )

    @property
    def width(self) -> int:
        """Of the drawing, in pixels."""
        return round(self._left + _CELL * len(self.column_labels))

    @property
    def height(self) -> int:
        """Of the drawing, in pixels."""
        return round(self._top + self._row_height * len(self.row_labels))

    radius: ClassVar[int] = _RADIUS

    def rims(self) -> Iterator[tuple[float, float]]:
        """The middle of each dial."""
        for row in range(len(self.row_labels)):
            for column in range(len(self.column_labels)):
                yield self._left + _CELL * (column + 0.5), self._top + self._row_height * row + _CELL / 2

    def strokes(self) -> Iterator[_Stroke]:
        """The hands."""
        every = (dial for row in self.dials for dial in row)
        for (x, y), dial in zip(self.rims(), every, strict=True):
            for hand in dial.hands:
                tip = x + _RADIUS * hand.x, y - _RADIUS * hand.y
                yield _Stroke(x, y, *tip, self._colour(hand.series))

    def labels(self) -> Iterator[_Label]:
        """Titles, labels of rows and columns, the legend, and the text below each dial."""
        at = 0.0
        for name in self._series:
            if name:
                yield _Label(at, _LINE / 2, f"▬ {name}", "start", self._colour(name))
                at += (display_width(name) + 4) * _COLUMN
        line = self._top - _LINE / 2
        yield _Label(self._left, line - _LINE, self.column_title, "start", _INK)
        yield _Label(0, line, self.row_title, "start", _INK)
        for number, text in enumerate(self.column_labels):
            yield _Label(self._left + _CELL * (number + 0.5), line, text, "middle", _INK)
        for number, text in enumerate(self.row_labels):
            yield _Label(0, self._top + self._row_height * number + _CELL / 2, text, "start", _INK)
        every = (dial for row in self.dials for dial in row)
        for (x, y), dial in zip(self.rims(), every, strict=True):
            if dial.text:
                yield _Label(x, y + _RADIUS + 14, dial.text, "middle", _INK)

    def spec(self) -> dict[str, Any]:
        """The Vega-Lite spec, in pixels."""
        raw = {"field": "colour", "type": "nominal", "scale": None}
        place = {"x": pixels("x"), "y": pixels("y")}
        rims = [{"x": x, "y": y} for x, y in self.rims()]
        circle = {"type": "point", "shape": "circle", "size": (2 * _RADIUS) ** 2, "filled": False, "strokeWidth": 1.2,
                  "stroke": _RIM, "opacity": 1}  # fmt: skip
        layers: list[dict[str, Any]] = [
            {"data": {"values": rims}, "mark": circle, "encoding": place},
            {
                "data": {"values": [stroke._asdict() for stroke in self.strokes()]},
                "mark": {"type": "rule", "strokeWidth": 3, "strokeCap": "round"},
                "encoding": {**place, "x2": {"field": "x2"}, "y2": {"field": "y2"}, "color": raw},
            },
        ]
        for anchor, align in (("start", "left"), ("middle", "center")):
            values = [label._asdict() for label in self.labels() if label.anchor == anchor and label.text]
            text = {"field": "text", "type": "nominal"}
            layers.append(
                {
                    "data": {"values": values},
                    "mark": {"type": "text", "align": align, "baseline": "middle", "fontSize": 12},
                    "encoding": {**place, "text": text, "color": raw},
                }
            )
        spec = {"width": self.width, "height": self.height, "layer": layers, "title": heading(self), "config": CONFIG}
        return drawable(spec)

    def html(self) -> str:
        """The figure for a page: an SVG that shrinks with the page."""
        return markup.render("dials.html", chart=self)

    def to_dict(self) -> dict[str, Any]:
        """Kind, text and data."""
        return {
            "kind": self.kind,
            "title": self.title,
            "note": self.note,
            "row_labels": list(self.row_labels),
            "column_labels": list(self.column_labels),
            "data": [
                [{"text": dial.text, "hands": [hand._asdict() for hand in dial.hands]} for dial in row]
                for row in self.dials
            ],
        }

    @property
    def _series(self) -> list[str]:
        return list(dict.fromkeys(hand.series for row in self.dials for dial in row for hand in dial.hands))

    def _colour(self, series: str) -> str:
        return colours.SERIES[self._series.index(series) % len(colours.SERIES)]

    @property
    def _left(self) -> float:
        widest = max(map(display_width, (self.row_title, *self.row_labels)), default=0)
        return (widest + 2) * _COLUMN

    @property
    def _top(self) -> float:
        return _LINE * (3 if any(self._series) else 2)

    @property
    def _row_height(self) -> float:
        return _CELL + (_LINE if any(dial.text for row in self.dials for dial in row) else 0)
