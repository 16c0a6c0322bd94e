"""Lines, bars and points, as Vega-Lite specs that altair checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mingyue.charts import vega
from mingyue.charts.chart import Chart

Row = Mapping[str, Any]
Rule = tuple[float, str]
"""A y value and what stands beside its dashed line."""


@dataclass(frozen=True, kw_only=True)
class Plot(Chart):
    """Rows of plain values, and which columns are drawn as what."""

    rows: Sequence[Row]
    x: str
    y: str
    series: str | None = None
    x_title: str = ""
    y_title: str = ""
    log_y: bool = False

    needs_vega = True

    def html(self) -> str:
        """The figure for a page."""
        return vega.fragment(self, self.spec())

    def to_dict(self) -> dict[str, Any]:
        """Kind, words and data."""
        return {
            "kind": type(self).__name__.removesuffix("Chart").lower(),
            "title": self.title,
            "note": self.note,
            "columns": {"x": self.x, "y": self.y, "series": self.series},
            "data": [{column: vega.plain(value) for column, value in row.items()} for row in self.rows],
        }


@dataclass(frozen=True, kw_only=True)
class LineChart(Plot):
    """See `line_chart`."""

    low: str | None = None
    high: str | None = None
    log_x: bool = False
    rules: Sequence[Rule] = field(default=())
    dashed: Collection[str] = ()

    def spec(self) -> dict[str, Any]:
        """The spec of the picture."""
        return vega.line(self)


@dataclass(frozen=True, kw_only=True)
class BarChart(Plot):
    """See `bar_chart`."""

    low: str | None = None
    high: str | None = None
    rules: Sequence[Rule] = field(default=())

    def spec(self) -> dict[str, Any]:
        """The spec of the picture."""
        return vega.bar(self)


@dataclass(frozen=True, kw_only=True)
class ScatterChart(Plot):
    """See `scatter_chart`."""

    label: str | None = None
    log_x: bool = False

    def spec(self) -> dict[str, Any]:
        """The spec of the picture."""
        return vega.scatter(self)


def line_chart(
    title: str,
    rows: Sequence[Row],
    *,
    x: str,
    y: str,
    series: str | None = None,
    low: str | None = None,
    high: str | None = None,
    x_title: str = "",
    y_title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    rules: Sequence[Rule] = (),
    dashed: Collection[str] = (),
    note: str = "",
) -> LineChart:
    """Lines of y over x, one for each value of `series`; `low` and `high` are columns whose values end a band.

    `rules` are dashed horizontal lines; `dashed` names the series whose lines are dashed, because they lie on others,
    and they come after these in `rows`. Raises `ValueError` for a column that a row does not have.
    """
    _check(rows, x, y, series, low, high)
    return LineChart(
        title=title, rows=rows, x=x, y=y, series=series, low=low, high=high, x_title=x_title, y_title=y_title,
        log_x=log_x, log_y=log_y, rules=tuple(rules), dashed=frozenset(dashed), note=note,
    )  # fmt: skip


def bar_chart(
    title: str,
    rows: Sequence[Row],
    *,
    x: str,
    y: str,
    series: str | None = None,
    low: str | None = None,
    high: str | None = None,
    x_title: str = "",
    y_title: str = "",
    log_y: bool = False,
    rules: Sequence[Rule] = (),
    note: str = "",
) -> BarChart:
    """A bar for each row in the order of rows, side by side for several `series`; `low` and `high` end error bars.

    Raises `ValueError` for a column that a row does not have.
    """
    _check(rows, x, y, series, low, high)
    return BarChart(
        title=title, rows=rows, x=x, y=y, series=series, low=low, high=high, x_title=x_title, y_title=y_title,
        log_y=log_y, rules=tuple(rules), note=note,
    )  # fmt: skip


def scatter_chart(
    title: str,
    rows: Sequence[Row],
    *,
    x: str,
    y: str,
    label: str | None = None,
    series: str | None = None,
    x_title: str = "",
    y_title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    note: str = "",
) -> ScatterChart:
    """A point for each row; the text of the column `label` stands beside it.

    Raises `ValueError` for a column that a row does not have.
    """
    _check(rows, x, y, series, label)
    return ScatterChart(
        title=title, rows=rows, x=x, y=y, series=series, label=label, x_title=x_title, y_title=y_title,
        log_x=log_x, log_y=log_y, note=note,
    )  # fmt: skip


def _check(rows: Sequence[Row], *columns: str | None) -> None:
    for number, row in enumerate(rows):
        for column in columns:
            if column is not None and column not in row:
                raise ValueError(f"row {number} of the chart has no column {column!r}; it has {', '.join(row)}")
