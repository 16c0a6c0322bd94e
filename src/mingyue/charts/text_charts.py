"""Text coloured by values: running text, and tables of words. Spans and tables on a page, boxes in a picture."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from mingyue.charts import colours, markup
from mingyue.charts.chart import Chart, TextMark
from mingyue.charts.fonts import MONO_STACK, display_width, drawn_width, truncate
from mingyue.charts.markup import visible
from mingyue.charts.vega import CONFIG, colour_legend, heading, pixels

_COLUMNS = 84  # of a line in an image
_COLUMN, _LINE = 9, 28  # width of a column and height of a line, in pixels
_MOST_LINES = 400
_CELL_COLUMNS = 14
_PAGE = 900  # pixels of a page on a screen of 1280, less its margins
_PAGE_LETTER, _PAGE_CELL = 8.5, (34, 190)  # on a page: width of a column of text; least and most of a cell
_SCALE_LENGTH = 260  # of the colour scale, in pixels: room for seven numbers of four digits
_PLAIN = "#444444"  # colour of text without a value


@dataclass(frozen=True, kw_only=True)
class _ColouredText(Chart):
    """The common base: the colour scale from `low` to `high`, and drawing in boxes."""

    low: float
    high: float
    legend: str = ""
    """Meaning of the values."""
    page_note: str = ""
    """A further sentence below the note on a page, about its interactive features."""

    kind: ClassVar[str]

    @abstractmethod
    def shown_marks(self) -> Iterator[TextMark]:
        """All marks."""

    @property
    def is_coloured(self) -> bool:
        """Whether any mark has a value; without colours there is no scale to explain."""
        return any(mark.value is not None for mark in self.shown_marks())

    def colours_of(self, mark: TextMark) -> tuple[str, str]:
        """Background and text colour of a mark with a value."""
        return colours.cell_colours(mark.value, self.low, self.high)

    def byte_of(self, mark: TextMark) -> int | None:
        """The value of a mark as a byte of the colour scale, for the script that paints dark pages."""
        if mark.value is None or not math.isfinite(mark.value):
            return None
        return int(colours.to_bytes(np.array([mark.value]), self.low, self.high)[0])

    def _html(self, template: str) -> str:
        return markup.render(template, chart=self)

    def _dict(self, **data: object) -> dict[str, Any]:
        return {"kind": self.kind, "title": self.title, "note": self.note, "legend": self.legend, **data}

    def _box(self, mark: TextMark, text: str, x: int, y: int, right: int) -> dict[str, Any]:
        """A text in the middle of a box, which is filled with the colour of the mark's value."""
        fill, ink = ("", _PLAIN) if mark.value is None else self.colours_of(mark)
        return {"x": x, "x2": right, "y": y, "y2": y + _LINE - 3, "text": text, "fill": fill, "ink": ink,
                "mx": (x + right) / 2, "my": y + (_LINE - 3) / 2, "align": "center"}  # fmt: skip

    def _boxes_spec(self, boxes: Sequence[dict[str, Any]], width: int, height: int) -> dict[str, Any]:
        """Boxes at pixels of the image; the legend is a separate colour scale next to them."""
        raw = {"type": "nominal", "scale": None}
        box = {"mark": {"type": "rect"}, "transform": [{"filter": "datum.fill != ''"}],
               "encoding": {"x": pixels("x"), "x2": {"field": "x2"}, "y": pixels("y"), "y2": {"field": "y2"},
                            "color": {"field": "fill", **raw}}}  # fmt: skip
        text = {"mark": {"type": "text", "fontSize": 14, "font": MONO_STACK, "align": {"expr": "datum.align"}},
                "encoding": {"x": pixels("mx"), "y": pixels("my"), "text": {"field": "text", "type": "nominal"},
                             "color": {"field": "ink", **raw}}}  # fmt: skip
        legend = {"title": self.legend or None, "orient": "top", "gradientLength": _SCALE_LENGTH,
                  "gradientThickness": 10, "direction": "horizontal", "tickCount": 4}  # fmt: skip
        scale = {
            "data": {"values": [{"v": self.low}, {"v": self.high}]},
            "mark": {"type": "point", "opacity": 0},
            "encoding": {"fill": colour_legend(self.low, self.high, colours.SEQUENTIAL, **legend)},
        }
        return {
            "width": width,
            "height": height,
            "layer": [{"data": {"values": list(boxes)}, "layer": [box, text]}, *([scale] if self.is_coloured else [])],
            "resolve": {"scale": {"color": "independent"}},
            "title": heading(self),
            "config": CONFIG,
        }


@dataclass(frozen=True, kw_only=True)
class TextChart(_ColouredText):
    """Running text, each piece coloured by its value."""

    marks: Sequence[TextMark] = field(kw_only=False)

    kind = "text"

    def shown_marks(self) -> Iterator[TextMark]:
        """All pieces."""
        return iter(self.marks)

    def spec(self) -> dict[str, Any]:
        """The spec of the image: a box for each piece, in lines. The last box counts the pieces that do not fit."""
        boxes, column, line = list[dict[str, Any]](), 0, 0
        for mark in self.marks:
            text = visible(mark.text)
            width = max(1, drawn_width(text))
            if column and column + width > _COLUMNS:
                column, line = 0, line + 1
            if line >= _MOST_LINES:
                break
            boxes.append(self._box(mark, text, column * _COLUMN, line * _LINE, (column + width) * _COLUMN))
            column += width
            if mark.text.endswith("\n"):
                column, line = 0, line + 1
        lines = (line if column == 0 else line + 1) or 1
        if len(boxes) < len(self.marks):
            more = f"… + {len(self.marks) - len(boxes)}"
            boxes.append(self._box(TextMark(""), more, 0, line * _LINE, 12 * _COLUMN))
        return self._boxes_spec(boxes, _COLUMNS * _COLUMN, min(lines, _MOST_LINES + 1) * _LINE)

    def html(self) -> str:
        """The figure for a page: spans with line ends kept; its script shows the hover lines."""
        return self._html("text.html")

    def to_dict(self) -> dict[str, Any]:
        """Kind, text and marks."""
        return self._dict(data=[mark.to_dict() for mark in self.marks])


@dataclass(frozen=True, kw_only=True)
class WordGrid(_ColouredText):
    """A table of words coloured by value. Raises `ValueError` for labels that do not fit the cells."""

    cells: Sequence[Sequence[TextMark]] = field(kw_only=False)
    """[R][C]."""
    row_labels: Sequence[str]
    column_labels: Sequence[str]

    kind = "word_grid"

    def __post_init__(self) -> None:
        if len(self.cells) != len(self.row_labels) or any(len(row) != len(self.column_labels) for row in self.cells):
            raise ValueError(
                f"a grid of {len(self.cells)} rows of {sorted({len(row) for row in self.cells})} words with "
                f"{len(self.row_labels)} row labels and {len(self.column_labels)} column labels"
            )

    def shown_marks(self) -> Iterator[TextMark]:
        """All cells, row by row."""
        return itertools.chain.from_iterable(self.cells)

    def labelled_rows(self) -> Iterator[tuple[str, Sequence[TextMark]]]:
        """Each row with its label."""
        return zip(self.row_labels, self.cells, strict=True)

    def spec(self) -> dict[str, Any]:
        """The spec of the image: boxes, with labels above and at the left; a wide table is broken into bands."""
        widest_label = max((display_width(visible(label)) for label in self.row_labels), default=0)
        left = min(_CELL_COLUMNS * 2, widest_label + 2) * _COLUMN
        widths = [self._column_width(number) for number in range(len(self.column_labels))]
        boxes, top, right = list[dict[str, Any]](), 0, left
        for band in _bands(widths, _COLUMNS * _COLUMN - left):
            starts = {number: left + sum(widths[band.start : number]) for number in band}
            ends = {number: starts[number] + widths[number] for number in band}
            for number in band:
                boxes.append(self._label_box(self.column_labels[number], starts[number], top, ends[number]))
            for label, row in self.labelled_rows():
                top += _LINE
                boxes.append(self._label_box(label, 0, top, left) | {"mx": left - _COLUMN, "align": "right"})
                for number in band:
                    text = truncate(visible(row[number].text), max(1, widths[number] // _COLUMN - 1))
                    boxes.append(self._box(row[number], text, starts[number], top, ends[number]))
            top += 2 * _LINE
            right = max(right, *ends.values())
        return self._boxes_spec(boxes, right, max(top - _LINE, _LINE))

    def html(self) -> str:
        """The figure for a page: a wide table is broken into bands, as in an image."""
        return self._html("word_grid.html")

    def page_bands(self) -> list[range]:
        """The columns of each table on a page, by the widths that a browser is likely to give them."""

        def width(*texts: str) -> int:
            return round(max((display_width(visible(text)) for text in texts), default=0) * _PAGE_LETTER + 14)

        least, most = _PAGE_CELL
        widths = [
            max(least, width(heading), min(most, width(*(row[number].text for row in self.cells))))
            for number, heading in enumerate(self.column_labels)
        ]
        return _bands(widths, _PAGE - width(*self.row_labels))

    def to_dict(self) -> dict[str, Any]:
        """Kind, text and marks."""
        return self._dict(
            row_labels=list(self.row_labels),
            column_labels=list(self.column_labels),
            data=[[mark.to_dict() for mark in row] for row in self.cells],
        )

    def _column_width(self, number: int) -> int:
        """Of a column of the table, in pixels: as wide as its widest text, within limits."""
        texts = [visible(text) for text in (self.column_labels[number], *(row[number].text for row in self.cells))]
        widths = [max(display_width(text) + 1, drawn_width(text)) for text in texts]
        return min(_CELL_COLUMNS, max([3, *widths])) * _COLUMN

    def _label_box(self, label: str, x: int, y: int, right: int) -> dict[str, Any]:
        return self._box(TextMark(label), truncate(visible(label), (right - x) // _COLUMN), x, y, right)


def _bands(widths: Sequence[int], room: int) -> list[range]:
    """The columns divided into bands that fit the width."""
    bands, first, used = list[range](), 0, 0
    for number, width in enumerate(widths):
        if number > first and used + width > room:
            bands.append(range(first, number))
            first, used = number, 0
        used += width
    return [*bands, range(first, len(widths))] if widths else bands
