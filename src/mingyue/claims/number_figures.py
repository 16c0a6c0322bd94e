"""Figures whose numbers can be read: matrices with written numbers, and pairs of numbers as hands of dials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mingyue.charts import Chart, Dial, DialGrid, Hand, TextMark, WordGrid
from mingyue.claims.claim import Measurement
from mingyue.claims.figures import Figure
from mingyue.claims.wording import Wording


@dataclass(frozen=True, kw_only=True)
class NumberTables(Figure):
    """Matrices side by side with their numbers written out, from rows `panel`, `row`, `written`, `values`.

    A row of the table is one row of one matrix: its label, what is written in its cells, and the values that colour
    them (None: no colour). Columns are counted; `[names.panel]` names the matrices.
    """

    panel: str = "panel"
    low: float
    high: float

    words: ClassVar[frozenset[str]] = frozenset({"title", "note", "legend"})

    def chart(self, rows: list[dict[str, Any]], measurement: Measurement, wording: Wording) -> Chart:
        """The chart of these rows."""
        panels = list(dict.fromkeys(row[self.panel] for row in rows))
        labels = list(dict.fromkeys(row["row"] for row in rows))
        headings: list[str] = []
        cells: dict[str, list[TextMark]] = {label: [] for label in labels}
        for panel in panels:
            own = [row for row in rows if row[self.panel] == panel]
            headings += [str(wording.name_of(self.panel, panel)), *map(str, range(len(own[0]["written"])))]
            for row in own:
                marks = [TextMark(*cell) for cell in zip(row["written"], row["values"], strict=True)]
                cells[row["row"]] += [TextMark(""), *marks]
        return WordGrid(
            self.said(wording, "title"),
            [cells[label] for label in labels],
            row_labels=labels,
            column_labels=headings,
            low=self.low,
            high=self.high,
            legend=self.said(wording, "legend"),
            note=self.said(wording, "note"),
        )


@dataclass(frozen=True, kw_only=True)
class Dials(Figure):
    """Pairs of numbers as hands of dials, from rows of one hand each: `row`, `column`, `x`, `y`.

    `series` is the column that says which hand of a dial it is, named in `[names.COLUMN]`; `text` is written below the
    dial, from the values of the row.
    """

    row: str
    column: str
    series: str = ""

    words: ClassVar[frozenset[str]] = frozenset({"title", "note", "x", "y", "text"})

    def chart(self, rows: list[dict[str, Any]], measurement: Measurement, wording: Wording) -> Chart:
        """The chart of these rows."""
        down, across = (list(dict.fromkeys(row[side] for row in rows)) for side in (self.row, self.column))
        dials: dict[tuple[object, object], Dial] = {}
        for place in ((r, c) for r in down for c in across):
            own = [row for row in rows if (row[self.row], row[self.column]) == place]
            hands = [
                Hand(row["x"], row["y"], str(wording.name_of(self.series, row[self.series])) if self.series else "")
                for row in own
            ]
            dials[place] = Dial(hands, self.said(wording.with_values({**measurement.numbers, **own[0]}), "text"))
        return DialGrid(
            self.said(wording, "title"),
            [[dials[r, c] for c in across] for r in down],
            row_labels=[str(wording.name_of(self.row, value)) for value in down],
            column_labels=[str(wording.name_of(self.column, value)) for value in across],
            row_title=self.said(wording, "y"),
            column_title=self.said(wording, "x"),
            note=self.said(wording, "note"),
        )
