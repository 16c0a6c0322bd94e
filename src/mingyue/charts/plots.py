"""Lines, bars and points: rows of values and which columns to draw, as Vega-Lite specs that altair validates."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mingyue.charts import axes, colours, markup
from mingyue.charts.chart import Chart
from mingyue.charts.rules import Rule, rule_layers
from mingyue.charts.vega import CONFIG, drawable, heading, import_extra
from mingyue.printable import printable
from mingyue.words import tr

Row = Mapping[str, Any]
_ONE_ROW: dict[str, Any] = {"values": [{}]}  # data of marks without rows


def _in_expression(title: str) -> str:
    """The title of a tooltip, which Vega-Lite puts into an expression: a backslash would be evaluated there."""
    return printable(title).replace("\\", "\\\\")


@dataclass(frozen=True, kw_only=True)
class Plot(Chart):
    """Rows of values, and the columns that are drawn. Raises `ValueError` for a column that a row lacks."""

    rows: Sequence[Row] = field(kw_only=False)
    x: str
    """Column of the x axis."""
    y: str
    """Column of the y axis."""
    series: str | None = None
    """Column that divides the rows into series, each with its own colour."""
    x_title: str = ""
    y_title: str = ""
    log_y: bool = False
    """A logarithmic y axis; values that are not above 0 are left out."""

    kind: ClassVar[str]
    needs_vega = True

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            for column in self._columns().values():
                if column not in row:
                    raise ValueError(f"row {number} of the chart has no column {column!r}; it has {', '.join(row)}")

    def spec(self) -> dict[str, Any]:
        """The spec of the picture."""
        alt = import_extra("altair", "altair", tr("drawing a chart"))
        layers = self._layers(alt)
        rules = rule_layers(alt, self._rules(), self._y_range(), log_y=self.log_y)
        spec: dict[str, Any] = alt.layer(*layers, *rules).properties(width=axes.WIDTH, height=axes.HEIGHT).to_dict()
        for number, layer in enumerate(spec["layer"]):
            # altair names an empty data set for a chart without data; the rows are in the spec itself.
            layer.pop("data", None)
            if number >= len(layers):
                layer["data"] = _ONE_ROW
        spec.pop("datasets", None)
        whole = {**spec, "data": {"values": self._values()}, "title": heading(self), "config": CONFIG}
        return drawable(whole)

    def html(self) -> str:
        """The figure for a page: its script draws the spec when it comes into view, below a legend that wraps."""
        spec: dict[str, Any] = {**self.spec(), "width": "container"}
        del spec["title"]
        for layer in spec["layer"]:
            for channel in ("color", "strokeDash"):
                if channel in layer["encoding"]:
                    layer["encoding"][channel]["legend"] = None
        keys = [
            {"name": name, "light": light, "dark": colours.DARK.get(light, light), "look": self._look(name)}
            for name, light in zip(self._series(), self._colours(), strict=True)
        ]
        return markup.render("plot.html", chart=self, kind="vega", data=spec, one_image=True, keys=keys,
                             min_height=axes.HEIGHT + 60)  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Kind, text and data."""
        return {
            "kind": self.kind,
            "title": self.title,
            "note": self.note,
            "columns": {"x": self.x, "y": self.y, "series": self.series},
            "data": [{column: axes.plain(value) for column, value in row.items()} for row in self.rows],
        }

    @abstractmethod
    def _layers(self, alt: Any) -> list[Any]:  # noqa: ANN401
        """The marks, as altair charts."""

    def _columns(self) -> dict[str, str]:
        """Columns by the short names that the spec uses: in Vega-Lite, dots and brackets of a name mean a path."""
        return {"x": self.x, "y": self.y} | ({} if self.series is None else {"s": self.series})

    def _rules(self) -> Sequence[Rule]:
        return ()

    def _values(self) -> list[dict[str, Any]]:
        """The rows by short names, without values that a logarithmic y axis lacks; a band ends at the least value."""
        columns = self._columns()
        rows = [{short: axes.plain(row[column]) for short, column in columns.items()} for row in self.rows]
        if self.log_y:
            sizes = [row[name] for row in rows for name in ("y", "lo", "hi") if axes.is_positive(row.get(name))]
            least = min(sizes, default=1.0)
            for row in rows:
                row["y"] = row["y"] if axes.is_positive(row["y"]) else None
                if row.get("lo") is not None and row["y"] is not None:
                    row["lo"] = max(row["lo"], least)
        for row in rows if self.series is not None else ():
            row["s"] = str(row["s"])
        return rows

    def _series(self) -> list[str]:
        return [] if self.series is None else list(dict.fromkeys(str(row[self.series]) for row in self.rows))

    def _x_values(self) -> list[Any]:
        return [row[self.x] for row in self.rows]

    def _x_is_quantitative(self) -> bool:
        return axes.are_numbers(self._x_values())

    def _x(self, alt: Any, *, log: bool = False) -> Any:  # noqa: ANN401
        if self._x_is_quantitative():
            return axes.quantitative_x(alt, self._x_values(), self.x_title, log=log)
        return axes.nominal_x(alt, self._x_values(), self.x_title)

    def _y(self, alt: Any, column: str = "y") -> Any:  # noqa: ANN401
        if self.log_y:
            bottom = self._log_bottom()
            return axes.logarithmic_y(alt, column, self.y_title, bottom=bottom, values=self._y_range())
        return axes.linear_y(alt, column, self.y_title, zero=self._y_from_zero())

    def _y_from_zero(self) -> bool | None:
        """Whether a linear y axis includes 0; None: Vega-Lite decides."""
        return None

    def _y_range(self) -> tuple[float, float]:
        """Smallest and largest value on the y axis; of positive values only on a logarithmic one."""
        columns = [column for short, column in self._columns().items() if short in ("y", "lo", "hi")]
        values = [axes.plain(row[column]) for row in self.rows for column in columns]
        values += [value for value, _ in self._rules()]
        shown = [value for value in values if value is not None and (value > 0 or not self.log_y)]
        return (float(min(shown)), float(max(shown))) if shown else (0.1, 1.0)

    def _log_bottom(self) -> float:
        """Where a logarithmic y axis begins: a little below the least value."""
        least, greatest = self._y_range()
        return least / 1.08 if greatest > least else least / 2

    def _colour(self, alt: Any, symbol: str) -> Any:  # noqa: ANN401
        return axes.series_colours(alt, self._series(), self._colours(), symbol=symbol)

    def _colours(self) -> list[str]:
        """A colour for each series."""
        ordered = self.series is not None and axes.are_numbers([row[self.series] for row in self.rows])
        return colours.of_series(len(self._series()), ordered=ordered)

    def _look(self, name: str) -> str:
        """Class of the swatch of a series in the legend of a page."""
        return "square"

    def _tooltip(self, alt: Any) -> list[Any]:  # noqa: ANN401
        lines = [] if self.series is None else [alt.Tooltip("s:N", title=" ")]
        kind = "Q" if self._x_is_quantitative() else "N"
        lines.append(alt.Tooltip(f"x:{kind}", title=_in_expression(self.x_title or " ")))
        lines.append(alt.Tooltip("y:Q", title=_in_expression(self.y_title or " "), format=".4~g"))
        return lines


@dataclass(frozen=True, kw_only=True)
class IntervalPlot(Plot):
    """A plot whose values may have intervals, and that may have horizontal rules."""

    low: str | None = None
    """Column of the lower ends of the intervals."""
    high: str | None = None
    """Column of their upper ends; intervals are drawn where both columns are given."""
    rules: Sequence[Rule] = ()
    """Dashed horizontal lines."""

    def _columns(self) -> dict[str, str]:
        ends = {"lo": self.low, "hi": self.high}
        return super()._columns() | {short: column for short, column in ends.items() if column is not None}

    def _rules(self) -> Sequence[Rule]:
        return self.rules

    def _has_intervals(self) -> bool:
        return self.low is not None and self.high is not None

    def _tooltip(self, alt: Any) -> list[Any]:  # noqa: ANN401
        ends = (("lo", "↧"), ("hi", "↥")) if self._has_intervals() else ()
        return super()._tooltip(alt) + [alt.Tooltip(f"{name}:Q", title=title, format=".4~g") for name, title in ends]


@dataclass(frozen=True, kw_only=True)
class LineChart(IntervalPlot):
    """Lines of y over x, one for each value of `series`; intervals are drawn as a band."""

    log_x: bool = False
    """A logarithmic x axis; rows whose x is not above 0 are left out."""
    dashed: Collection[str] = ()
    """Series whose lines are dashed, because they lie on others; they come after these in `rows`."""

    kind = "line"

    def _layers(self, alt: Any) -> list[Any]:  # noqa: ANN401
        x, colour = self._x(alt, log=self.log_x), self._colour(alt, "stroke")
        layers = []
        if self._has_intervals():
            ends = {"y": self._y(alt, "lo"), "y2": alt.Y2("hi")}
            layers.append(alt.Chart().mark_area(opacity=0.18).encode(x=x, **ends, color=colour))
        shared = {"x": x, "y": self._y(alt), "color": colour}
        names = self._series()
        dashes = {"strokeDash": axes.series_dashes(alt, names, self.dashed)} if self.dashed and names else {}
        layers.append(alt.Chart().mark_line(strokeWidth=2, clip=False).encode(**shared, **dashes))
        # Many points would hide their line: they are then invisible, and only serve the tooltip.
        many = len(self.rows) > 60 * max(1, len(names))
        points = alt.Chart().mark_circle(size=60 if many else 34, opacity=0 if many else 1)
        return [*layers, points.encode(**shared, tooltip=self._tooltip(alt))]

    def _look(self, name: str) -> str:
        return "line dashed" if name in self.dashed else "line"

    def _values(self) -> list[dict[str, Any]]:
        return [row for row in super()._values() if not self.log_x or axes.is_positive(row["x"])]

    def _y_from_zero(self) -> bool | None:
        """A line that is far from 0 throughout shows more detail without it."""
        least, greatest = self._y_range()
        return least <= 0 <= greatest or greatest - least >= 0.6 * max(-least, greatest)


@dataclass(frozen=True, kw_only=True)
class BarChart(IntervalPlot):
    """A bar for each row in the order of rows, side by side for several `series`; intervals are error bars."""

    kind = "bar"

    def _layers(self, alt: Any) -> list[Any]:  # noqa: ANN401
        place: dict[str, Any] = {"x": self._x(alt)}
        if self.series is not None:
            place["xOffset"] = alt.XOffset("s:N", sort=None)
        # A logarithmic axis has no 0: bars begin at the bottom of the picture.
        ends = {"y": self._y(alt)} | ({"y2": alt.Y2Datum(self._log_bottom())} if self.log_y else {})
        tooltip = self._tooltip(alt)
        bars = alt.Chart().mark_bar(opacity=0.92)
        layers = [bars.encode(**place, **ends, color=self._colour(alt, "square"), tooltip=tooltip)]
        if self._has_intervals():
            place |= {"color": alt.value("#222222"), "tooltip": tooltip}
            low = self._y(alt, "lo")
            layers.append(alt.Chart().mark_rule(strokeWidth=1.4).encode(**place, y=low, y2=alt.Y2("hi")))
            tick = alt.Chart().mark_tick(size=9, thickness=1.4)
            layers += [tick.encode(**place, y=self._y(alt, end)) for end in ("lo", "hi")]
        return layers

    def _x_is_quantitative(self) -> bool:
        return False

    def _log_bottom(self) -> float:
        """The power of ten below all bars."""
        return 10.0 ** (math.ceil(math.log10(self._y_range()[0])) - 1)


@dataclass(frozen=True, kw_only=True)
class ScatterChart(Plot):
    """A point for each row."""

    label: str | None = None
    """Column with the text beside each point."""
    log_x: bool = False
    """A logarithmic x axis; rows whose x is not above 0 are left out."""

    kind = "scatter"

    def _layers(self, alt: Any) -> list[Any]:  # noqa: ANN401
        place = {"x": self._x(alt, log=self.log_x), "y": self._y(alt)}
        points = alt.Chart().mark_circle(size=64, opacity=0.85)
        layers = [points.encode(**place, color=self._colour(alt, "square"), tooltip=self._tooltip(alt))]
        if self.label is not None:
            text = alt.Chart().mark_text(align="left", dx=7, dy=-5, fontSize=12, color="#333333")
            layers.append(text.encode(**place, text=alt.Text("label:N")))
        return layers

    def _columns(self) -> dict[str, str]:
        return super()._columns() | ({} if self.label is None else {"label": self.label})

    def _values(self) -> list[dict[str, Any]]:
        return [row for row in super()._values() if not self.log_x or axes.is_positive(row["x"])]

    def _y_from_zero(self) -> bool | None:
        return False

    def _tooltip(self, alt: Any) -> list[Any]:  # noqa: ANN401
        return ([alt.Tooltip("label:N", title=" ")] if self.label else []) + super()._tooltip(alt)
