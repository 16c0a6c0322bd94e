"""A table as a chart: text marks and lines in a picture, the usual table on a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mingyue.charts import markup
from mingyue.charts.chart import Chart
from mingyue.charts.fonts import display_width, truncate
from mingyue.charts.vega import CONFIG, heading, pixels
from mingyue.words import TextTable

_LINE, _COLUMN = 22, 6.7  # height of a line and width of a column of text, in pixels
_GAP = 20  # between columns of the table
_MOST_ROWS = 200
_MOST_COLUMNS = 60  # of the text of a cell


@dataclass(frozen=True, kw_only=True)
class TableChart(Chart):
    """Rows of text below their headings."""

    table: TextTable = field(kw_only=False)

    @classmethod
    def of(cls, table: TextTable) -> TableChart:
        """The chart of a table, with its title and note."""
        return cls(table.title, table, note=table.note)

    def spec(self) -> dict[str, Any]:
        """The spec of the image: a layer of texts for each weight and alignment, which a mark has once."""
        rows = [[truncate(text, _MOST_COLUMNS) for text in row] for row in self.table.rows[:_MOST_ROWS]]
        lines = [list(self.table.columns), *rows]
        widths = [
            max(display_width(row[column]) if column < len(row) else 0 for row in lines) * _COLUMN + _GAP
            for column in range(max(map(len, lines)))
        ]
        right = {column for column, name in enumerate(self.table.columns) if name in self.table.right}
        cells = [
            {"x": sum(widths[: column + 1]) - _GAP if column in right else sum(widths[:column]),
             "y": (number + 0.5) * _LINE, "text": text, "right": column in right, "head": number == 0}
            for number, row in enumerate(lines)
            for column, text in enumerate(row)
        ]  # fmt: skip
        hidden = len(self.table.rows) - len(rows)
        if hidden:
            cells.append({"x": 0, "y": (len(lines) + 0.5) * _LINE, "text": f"… + {hidden}", "right": False,
                          "head": False})  # fmt: skip
        width = sum(widths) - _GAP
        rules = [{"x": 0, "x2": width, "y": number * _LINE, "head": number == 1} for number in range(1, len(lines) + 1)]
        return {
            "width": width,
            "height": (len(lines) + bool(hidden)) * _LINE,
            "layer": [_rules(rules), *(_texts(cells, head=h, right=r) for h in (True, False) for r in (True, False))],
            "title": heading(self),
            "config": CONFIG,
        }

    def html(self) -> str:
        """The table of a page."""
        right = {number for number, column in enumerate(self.table.columns) if column in self.table.right}
        return markup.render("table.html", table=self.table, right_columns=right)

    def to_dict(self) -> dict[str, Any]:
        """Kind and table."""
        return {"kind": "table", **self.table.to_dict()}


def _rules(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Lines below the headings and below each row."""
    return {
        "data": {"values": lines},
        "mark": {"type": "rule", "color": {"expr": "datum.head ? '#999999' : '#e8e8e8'"}},
        "encoding": {"x": pixels("x"), "x2": {"field": "x2"}, "y": pixels("y")},
    }


def _texts(cells: list[dict[str, Any]], *, head: bool, right: bool) -> dict[str, Any]:
    return {
        "data": {"values": [cell for cell in cells if cell["head"] == head and cell["right"] == right]},
        "mark": {"type": "text", "align": "right" if right else "left", "fontWeight": "bold" if head else "normal",
                 "fontSize": 12, "color": "#222222", "baseline": "middle"},
        "encoding": {"x": pixels("x"), "y": pixels("y"), "text": {"field": "text", "type": "nominal"}},
    }  # fmt: skip
