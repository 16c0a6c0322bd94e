"""Figures as data: what is drawn of a measurement, and how. Their words are in `[figures.NAME]` of the claim's files.

Claims make charts here, and in `number_figures`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from mingyue.charts import BarChart, Chart, LineChart, MatrixChart, MatrixGrid, ScatterChart, TextMark, WordGrid
from mingyue.claims.claim import Measurement, Table
from mingyue.claims.wording import Wording

_SERIES = "series"


@dataclass(frozen=True)
class Figure(ABC):
    """One figure of a claim. Subclasses are the kinds of chart."""

    name: str
    """Of its words, and of its table unless `table` says another."""
    table: str = field(default="", kw_only=True)
    rows: Callable[[Measurement], Table] | None = field(default=None, kw_only=True)
    """Computes the rows where a table of the measurement does not have them as they are drawn."""
    where: Mapping[str, object] = field(default_factory=dict, kw_only=True)
    """Only the rows that have these values are drawn."""
    values: Callable[[Measurement], Mapping[str, object]] | None = field(default=None, kw_only=True)
    """Further values that the words of the figure are filled with."""

    words: ClassVar[frozenset[str]] = frozenset({"title", "note"})
    """Keys that `[figures.NAME]` may have."""

    def draw(self, measurement: Measurement, wording: Wording) -> Chart | None:
        """The chart; None where there are no rows. Raises `KeyError` for a table, column or word that is missing."""
        table = measurement.tables[self.table or self.name] if self.rows is None else self.rows(measurement)
        rows = [dict(row) for row in table if all(row[key] == value for key, value in self.where.items())]
        if not rows:
            return None
        filled = wording.with_values(measurement.numbers)
        return self.chart(rows, measurement, filled.with_values(self.values(measurement)) if self.values else filled)

    @abstractmethod
    def chart(self, rows: list[dict[str, Any]], measurement: Measurement, wording: Wording) -> Chart:
        """The chart of these rows."""

    def said(self, wording: Wording, *path: str) -> str:
        """A text of the figure."""
        return wording.text("figures", self.name, *path)


@dataclass(frozen=True, kw_only=True)
class Plot(Figure):
    """A figure with two axes. The values of `series` (and, of bars, of x) are named in `[names.COLUMN]`."""

    x: str
    y: str = "value"
    series: str | tuple[str, ...] = ()
    """The column that divides the rows; several make a series of each combination."""
    order: Sequence[object] = ()
    """Values of the series (of x, where there is none) in the order in which they are drawn; others are left out."""
    interval: tuple[str, str] | None = ("low", "high")
    """Columns of the ends of the interval of y."""
    log_x: bool = False
    log_y: bool = False
    scale: float = 1.0
    """y and its interval are multiplied by this."""
    floor: float | None = None
    """Smaller values are drawn as this one: 0 has no place on a logarithmic axis."""
    rules: Mapping[str, float | str] = field(default_factory=dict)
    """Horizontal lines: a value, or the name of a number of the measurement."""
    dashed: tuple[str, object] | None = None
    """(column, value) of the series that are dashed, since they lie on others."""

    words: ClassVar[frozenset[str]] = frozenset({"title", "note", "x", "y", "rules"})
    named_x: ClassVar[bool] = False

    def plotted(self, rows: list[dict[str, Any]], measurement: Measurement, wording: Wording) -> dict[str, Any]:
        """Rows and options that all kinds of plot have."""
        parts = (self.series,) if isinstance(self.series, str) else self.series
        if self.order:
            key = parts[0] if parts else self.x
            rows = [row for value in self.order for row in rows if row[key] == value]
        drawn = [self._row(row, parts, wording) for row in rows]
        options: dict[str, Any] = {
            "rows": drawn,
            "x": self.x,
            "y": self.y,
            "series": _SERIES if parts else None,
            "x_title": self.said(wording, "x"),
            "y_title": self.said(wording, "y"),
            "log_y": self.log_y,
            "note": self.said(wording, "note"),
        }
        if self.dashed is not None:
            column, value = self.dashed
            options["dashed"] = [shown[_SERIES] for row, shown in zip(rows, drawn, strict=True) if row[column] == value]
        return options

    def bounded(self, measurement: Measurement, wording: Wording) -> dict[str, Any]:
        """Interval and rules, for the kinds that have them."""
        low, high = self.interval or (None, None)
        numbers = measurement.numbers
        rules = [
            (numbers[at].value if isinstance(at, str) else at, self.said(wording, "rules", name))
            for name, at in self.rules.items()
        ]
        return {"low": low, "high": high, "rules": rules}

    def _row(self, row: dict[str, Any], parts: Sequence[str], wording: Wording) -> dict[str, Any]:
        shown = dict(row)
        for column in (self.y, *(self.interval or ())):
            if shown[column] is not None:
                value = shown[column] * self.scale if self.scale != 1.0 else shown[column]
                shown[column] = value if self.floor is None else max(value, self.floor)
        if self.named_x:
            shown[self.x] = wording.name_of(self.x, row[self.x])
        if parts:
            shown[_SERIES] = wording.listed([wording.name_of(part, row[part]) for part in parts])
        return shown


@dataclass(frozen=True, kw_only=True)
class Lines(Plot):
    """Lines with bands, one for each series."""

    def chart(self, rows: list[dict[str, Any]], measurement: Measurement, wording: Wording) -> Chart:
        """The chart of these rows."""
        options = self.plotted(rows, measurement, wording) | self.bounded(measurement, wording)
        return LineChart(self.said(wording, "title"), log_x=self.log_x, **options)


@dataclass(frozen=True, kw_only=True)
class Bars(Plot):
    """Bars with error bars, side by side for several series."""

    named_x: ClassVar[bool] = True

    def chart(self, rows: list[dict[str, Any]], measurement: Measurement, wording: Wording) -> Chart:
        """The chart of these rows."""
        options = self.plotted(rows, measurement, wording) | self.bounded(measurement, wording)
        return BarChart(self.said(wording, "title"), **options)


@dataclass(frozen=True, kw_only=True)
class Points(Plot):
    """A point for each row."""

    interval: tuple[str, str] | None = None

    def chart(self, rows: list[dict[str, Any]], measurement: Measurement, wording: Wording) -> Chart:
        """The chart of these rows."""
        options = self.plotted(rows, measurement, wording)
        return ScatterChart(self.said(wording, "title"), log_x=self.log_x, **options)


@dataclass(frozen=True, kw_only=True)
class Matrix(Figure):
    """One matrix: a row of the table is one of its rows, in the column `values`. Words `x` and `y` name its sides."""

    labels: str | None = None
    """The column that names the rows; None = they are counted."""
    square: bool = True
    """Whether the columns have the labels of the rows; otherwise they are counted."""
    low: float | None = None
    high: float | None = None
    diverging: bool = False

    words: ClassVar[frozenset[str]] = frozenset({"title", "note", "x", "y"})

    def chart(self, rows: list[dict[str, Any]], measurement: Measurement, wording: Wording) -> Chart:
        """The chart of these rows."""
        values_RC = np.array([row["values"] for row in rows])
        labels = [str(number if self.labels is None else row[self.labels]) for number, row in enumerate(rows)]
        return MatrixChart(
            self.said(wording, "title"),
            values_RC,
            row_labels=labels,
            column_labels=labels if self.square else [str(number) for number in range(values_RC.shape[1])],
            row_title=self.said(wording, "y"),
            column_title=self.said(wording, "x"),
            low=self.low,
            high=self.high,
            diverging=self.diverging,
            note=self.said(wording, "note"),
            language=wording.language,
        )


def matrix_rows(values: Sequence[Sequence[float]]) -> Table:
    """A matrix as the rows of a table that `Matrix` draws."""
    return [{"row": number, "values": list(row)} for number, row in enumerate(values)]


@dataclass(frozen=True, kw_only=True)
class Matrices(Figure):
    """Several matrices side by side, from rows of one cell each; `[names.COLUMN]` names panels, rows and columns."""

    panel: str
    row: str
    column: str
    value: str
    low: float | None = None
    high: float | None = None

    def chart(self, rows: list[dict[str, Any]], measurement: Measurement, wording: Wording) -> Chart:
        """The chart of these rows."""
        sides = [list(dict.fromkeys(row[side] for row in rows)) for side in (self.panel, self.row, self.column)]
        cells = {(row[self.panel], row[self.row], row[self.column]): row[self.value] for row in rows}
        panels, down, across = sides
        values = np.array([[[[cells[p, r, c] for c in across] for r in down] for p in panels]])
        titles, row_labels, column_labels = (
            [str(wording.name_of(column, value)) for value in values]
            for column, values in zip((self.panel, self.row, self.column), sides, strict=True)
        )
        return MatrixGrid(
            self.said(wording, "title"),
            values,
            row_titles=[""],
            column_titles=titles,
            row_labels=row_labels,
            column_labels=column_labels,
            low=self.low,
            high=self.high,
            note=self.said(wording, "note"),
            language=wording.language,
        )


@dataclass(frozen=True, kw_only=True)
class WordTable(Figure):
    """A table of words coloured by value, from rows of one cell each: `row`, `column`, `word`, `value`, and `hover`.

    `[names.COLUMN]` names rows and columns where it exists, and the words that it has. `hover` is empty or (key, text):
    what `hover.KEY` of the figure says, with the text in place of `{hover}`.
    """

    low: float
    high: float

    words: ClassVar[frozenset[str]] = frozenset({"title", "note", "legend", "hover"})

    def chart(self, rows: list[dict[str, Any]], measurement: Measurement, wording: Wording) -> Chart:
        """The chart of these rows."""
        down = list(dict.fromkeys(row["row"] for row in rows))
        across = list(dict.fromkeys(row["column"] for row in rows))
        marks = {(row["row"], row["column"]): self._mark(row, wording) for row in rows}
        return WordGrid(
            self.said(wording, "title"),
            [[marks[r, c] for c in across] for r in down],
            row_labels=[str(wording.name_of("row", value)) for value in down],
            column_labels=[str(wording.name_of("column", value)) for value in across],
            low=self.low,
            high=self.high,
            legend=self.said(wording, "legend"),
            note=self.said(wording, "note"),
        )

    def _mark(self, row: dict[str, Any], wording: Wording) -> TextMark:
        hover: list[str] = []
        if row["hover"]:
            key, text = row["hover"]
            hover = [self.said(wording.with_values({"hover": text}), "hover", key)]
        known = row["word"] in wording.texts.get("names", {}).get("word", {})
        return TextMark(wording.text("names", "word", row["word"]) if known else row["word"], row["value"], hover)
