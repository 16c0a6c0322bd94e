"""Text whose pieces are coloured by a value, in running lines or in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mingyue.charts import coloured
from mingyue.charts.chart import Chart, TextMark


@dataclass(frozen=True, kw_only=True)
class TextChart(Chart):
    """See `text_chart`."""

    marks: Sequence[TextMark]
    low: float
    high: float
    legend: str = ""

    def spec(self) -> dict[str, Any]:
        """The spec of the picture."""
        return coloured.text_spec(self)

    def html(self) -> str:
        """The figure for a page."""
        return coloured.text_fragment(self)

    def to_dict(self) -> dict[str, Any]:
        """Kind, words and data."""
        return {
            "kind": "text",
            "title": self.title,
            "note": self.note,
            "legend": self.legend,
            "data": [coloured.mark_dict(mark) for mark in self.marks],
        }


@dataclass(frozen=True, kw_only=True)
class WordGrid(Chart):
    """See `word_grid`."""

    cells: Sequence[Sequence[TextMark]]
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    low: float
    high: float
    legend: str = ""

    def spec(self) -> dict[str, Any]:
        """The spec of the picture."""
        return coloured.grid_spec(self)

    def html(self) -> str:
        """The figure for a page."""
        return coloured.grid_fragment(self)

    def to_dict(self) -> dict[str, Any]:
        """Kind, words and data."""
        return {
            "kind": "word_grid",
            "title": self.title,
            "note": self.note,
            "legend": self.legend,
            "row_labels": list(self.row_labels),
            "column_labels": list(self.column_labels),
            "data": [[coloured.mark_dict(mark) for mark in row] for row in self.cells],
        }


def text_chart(
    title: str, marks: Sequence[TextMark], *, low: float, high: float, legend: str = "", note: str = ""
) -> TextChart:
    """Running text, each piece coloured by its value on a scale from `low` to `high`; `legend` names the value."""
    return TextChart(title=title, marks=tuple(marks), low=low, high=high, legend=legend, note=note)


def word_grid(
    title: str,
    cells: Sequence[Sequence[TextMark]],
    *,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    low: float,
    high: float,
    legend: str = "",
    note: str = "",
    page_note: str = "",
) -> WordGrid:
    """cells[R][C]: a table of words coloured by value; `page_note` stands on a page only.

    Raises `ValueError` for labels that do not fit the cells.
    """
    if len(cells) != len(row_labels) or any(len(row) != len(column_labels) for row in cells):
        raise ValueError(
            f"a grid of {len(cells)} rows of {sorted({len(row) for row in cells})} words with {len(row_labels)} row "
            f"labels and {len(column_labels)} column labels"
        )
    return WordGrid(
        title=title, cells=tuple(tuple(row) for row in cells), row_labels=tuple(row_labels),
        column_labels=tuple(column_labels), low=low, high=high, legend=legend, note=note,
        page_note=page_note,
    )  # fmt: skip
