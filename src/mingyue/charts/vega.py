"""Vega-Lite specs of lines, bars and points. Columns get short names, since dots and brackets would mean paths."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from mingyue.charts import colours
from mingyue.charts.lettering import FONT_STACK, width_of, wrapped
from mingyue.errors import MissingExtraError

if TYPE_CHECKING:
    from mingyue.charts.chart import Chart
    from mingyue.charts.plots import BarChart, LineChart, Plot, ScatterChart

WIDTH, HEIGHT = 560, 300
_MOST_NAMES = 40  # of an axis; of more, some are left out
_MANY = 10  # so many values of x stand as ticks of their own on a logarithmic axis
_BLANK: dict[str, Any] = {"values": [{}]}  # data of one empty row, for marks that stand alone

CONFIG: dict[str, Any] = {
    "font": FONT_STACK,
    "background": "#ffffff",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titleColor": "#444444",
        "labelColor": "#333333",
        "gridColor": "#e8e8e8",
        "domainColor": "#999999",
        "tickColor": "#999999",
        "labelLimit": 260,
    },
    "legend": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelLimit": 360,
        "titleLimit": 460,
        "titleFontWeight": "normal",
    },
    "title": {
        "anchor": "start",
        "frame": "group",
        "fontSize": 15,
        "fontWeight": 600,
        "subtitleFontSize": 12,
        "subtitleColor": "#555555",
        "subtitlePadding": 5,
        "offset": 10,
    },
}
"""Look of every picture, and of every Vega-Lite chart on a page."""


def altair() -> Any:  # noqa: ANN401
    """The library. Raises `MissingExtraError` where it is not installed."""
    try:
        import altair as library
    except ImportError as error:
        raise MissingExtraError(
            f"drawing a chart needs altair, which could not be imported ({error})",
            advice="Install it: pip install 'mingyue[plot]'",
        ) from error
    return library


def heading(chart: Chart) -> dict[str, Any]:
    """The title of a spec, the note below it."""
    return {"text": wrapped(chart.title, 76), "subtitle": wrapped(chart.note.replace("`", ""), 96)}


def line(chart: LineChart) -> dict[str, Any]:
    """The spec of a line chart: a band, lines, points, rules."""
    alt = altair()
    x = _x(alt, chart, chart.log_x)
    layers = []
    if chart.low is not None and chart.high is not None:
        ends = {"y": _y(alt, chart, "lo"), "y2": alt.Y2("hi")}
        layers.append(alt.Chart().mark_area(opacity=0.18).encode(x=x, **ends, **_colour(alt, chart)))
    shared = {"x": x, "y": _y(alt, chart), **_colour(alt, chart)}
    layers.append(alt.Chart().mark_line(strokeWidth=2, clip=False).encode(**shared, **_dashes(alt, chart)))
    if len(chart.rows) <= 60 * max(1, len(_series(chart))):
        layers.append(alt.Chart().mark_circle(size=34, opacity=1).encode(**shared, tooltip=_tooltip(alt, chart)))
    else:
        # Invisible, for the pointer: many points would hide their line.
        layers.append(alt.Chart().mark_circle(size=60, opacity=0).encode(**shared, tooltip=_tooltip(alt, chart)))
    return _finished(alt, chart, layers)


def bar(chart: BarChart) -> dict[str, Any]:
    """The spec of a bar chart: bars in the order of rows, error bars, rules."""
    alt = altair()
    place: dict[str, Any] = {"x": _named(alt, chart)}
    if chart.series is not None:
        place["xOffset"] = alt.XOffset("s:N", sort=None)
    ends = {"y": _y(alt, chart)}
    if chart.log_y:
        # A logarithmic axis has no zero to stand on: bars begin at the foot of the picture.
        ends["y2"] = alt.Y2Datum(_foot(chart))
    layers = [
        alt.Chart()
        .mark_bar(opacity=0.92)
        .encode(**place, **ends, **_colour(alt, chart, single=True), tooltip=_tooltip(alt, chart))
    ]
    if chart.low is not None and chart.high is not None:
        whisker = {"color": alt.value("#222222"), "tooltip": _tooltip(alt, chart)}
        low = _y(alt, chart, "lo")
        layers.append(alt.Chart().mark_rule(strokeWidth=1.4).encode(**place, y=low, y2=alt.Y2("hi"), **whisker))
        for end in ("lo", "hi"):
            layers.append(
                alt.Chart().mark_tick(size=9, thickness=1.4).encode(**place, y=_y(alt, chart, end), **whisker)
            )
    return _finished(alt, chart, layers)


def scatter(chart: ScatterChart) -> dict[str, Any]:
    """The spec of a chart of points, with text beside them."""
    alt = altair()
    place = {"x": _x(alt, chart, chart.log_x, zero=False), "y": _y(alt, chart, zero=False)}
    colour = _colour(alt, chart, single=True)
    layers = [
        alt.Chart()
        .mark_circle(size=64, opacity=0.85)
        .encode(**place, **colour, tooltip=_tooltip(alt, chart, "label" if chart.label else None))
    ]
    if chart.label is not None:
        layers.append(
            alt.Chart().mark_text(align="left", dx=7, dy=-5, fontSize=12).encode(**place, text=alt.Text("label:N"))
        )
    return _finished(alt, chart, layers)


def fragment(chart: Chart, spec: Mapping[str, Any]) -> str:
    """A figure whose drawing the page's script makes from the spec when it comes into view."""
    inner = {**spec, "width": "container"}
    inner.pop("title", None)
    title, room = escape(chart.title, quote=True), f"min-height:{HEIGHT + 60}px"
    return (
        f'<figure class="chart"><figcaption>{title}</figcaption>'
        f'<div class="vega" style="{room}" role="img" aria-label="{title}">{json_block(inner)}</div>'
        f"{note_of(chart)}</figure>"
    )


def note_of(chart: Chart) -> str:
    """The note as a paragraph, or nothing."""
    return f'<p class="note">{marked(chart.note)}</p>' if chart.note else ""


def marked(text: str) -> str:
    """Text as HTML, with what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def json_block(value: Any) -> str:  # noqa: ANN401
    """Data for the page's scripts: JSON in which nothing can end the element or begin another."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json">{text}</script>'


def _rows(chart: Plot) -> list[dict[str, Any]]:
    """The rows by our short names. What a logarithmic axis cannot show is left out; a band ends at its least value."""
    names = {"x": chart.x, "y": chart.y, "s": chart.series}
    names |= {"lo": getattr(chart, "low", None), "hi": getattr(chart, "high", None)}
    names |= {"label": getattr(chart, "label", None)}
    rows = [{short: plain(row[column]) for short, column in names.items() if column is not None} for row in chart.rows]
    if chart.log_y:
        sizes = [row[name] for row in rows for name in ("y", "lo", "hi") if _positive(row.get(name))]
        least = min(sizes, default=1.0)
        for row in rows:
            row["y"] = row["y"] if _positive(row["y"]) else None
            if "lo" in row and row["y"] is not None and row["lo"] is not None:
                row["lo"] = max(row["lo"], least)
    if getattr(chart, "log_x", False):
        rows = [row for row in rows if _positive(row["x"])]
    if "s" in names and chart.series is not None:
        for row in rows:
            row["s"] = str(row["s"])
    return rows


def plain(value: Any) -> Any:  # noqa: ANN401
    """A value as JSON has it: numbers of numpy as Python's, what is not finite as null."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def _range(chart: Plot) -> tuple[float, float]:
    """Least and greatest of what stands on the y axis; on a logarithmic one, of what is above zero."""
    columns = [chart.y, getattr(chart, "low", None), getattr(chart, "high", None)]
    values = [plain(row[column]) for row in chart.rows for column in columns if column is not None]
    values += [value for value, _ in getattr(chart, "rules", ())]
    shown = [value for value in values if value is not None and (value > 0 or not chart.log_y)]
    return (float(min(shown)), float(max(shown))) if shown else (0.1, 1.0)


def _foot(chart: Plot) -> float:
    """Where a logarithmic axis begins: below all bars, at the least value of lines and points."""
    least, greatest = _range(chart)
    if type(chart).__name__ == "BarChart":
        return 10.0 ** (math.ceil(math.log10(least)) - 1)
    return least / 1.08 if greatest > least else least / 2


def _log_ticks(least: float, greatest: float) -> list[float]:
    """1, 10, 100 …; where that would be few, 2 and 5 between them, or equal steps as on any axis."""
    ratio = greatest / least
    if ratio < 5:
        about = (greatest - least) / 4 or least / 4
        size = 10.0 ** math.floor(math.log10(about))
        step = size * next(digit for digit in (1, 2, 5, 10) if digit * size >= 0.99 * about)
        first, last = math.floor(least / step), math.ceil(greatest / step)
        return [float(f"{count * step:.6g}") for count in range(max(first, 1), last + 1)]
    decades = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(greatest)) + 1)
    digits = (1,) if ratio >= 1000 else (1, 2, 5) if ratio >= 20 else (1, 2, 3, 5, 7)
    return [float(f"{digit}e{decade}") for decade in decades for digit in digits]


def _numeric(values: Sequence[object]) -> bool:
    numbers = (int, float, type(None))
    return all(isinstance(plain(value), numbers) and not isinstance(value, bool) for value in values)


def _series(chart: Plot) -> list[str]:
    return [] if chart.series is None else list(dict.fromkeys(str(row[chart.series]) for row in chart.rows))


def _x(alt: Any, chart: Plot, log: bool, zero: bool = False) -> Any:  # noqa: ANN401
    values = [row[chart.x] for row in chart.rows]
    title = chart.x_title or None
    if not _numeric(values):
        return _named(alt, chart)
    shown = sorted({plain(value) for value in values if plain(value) is not None})
    whole = all(isinstance(value, int) for value in shown)
    look: dict[str, Any] = {"grid": False} | ({"format": ",d", "tickMinStep": 1} if whole else {})
    if log:
        positive = [value for value in shown if value > 0]
        axis = alt.Axis(**look, values=positive) if len(positive) <= _MANY else alt.Axis(**look)
        return alt.X("x:Q", title=title, scale=alt.Scale(type="log", nice=False), axis=axis)
    axis = alt.Axis(**look, values=shown) if whole and len(shown) <= _MANY else alt.Axis(**look)
    padding = 12 if zero or len(set(values)) > 1 else 0
    return alt.X("x:Q", title=title, scale=alt.Scale(zero=zero, nice=False, padding=padding), axis=axis)


def _named(alt: Any, chart: Plot) -> Any:  # noqa: ANN401
    """An axis of names in the order of rows, turned where they would touch one another."""
    names = list(dict.fromkeys(str(row[chart.x]) for row in chart.rows))
    widest = max((width_of(name) for name in names), default=0) * 6.2
    angle = 0 if widest < WIDTH / max(1, len(names)) else -35
    axis = alt.Axis(labelAngle=angle, labelLimit=220, labelOverlap=len(names) > _MOST_NAMES)
    return alt.X("x:N", title=chart.x_title or None, sort=None, axis=axis)


def _y(alt: Any, chart: Plot, field: str = "y", zero: bool | None = None) -> Any:  # noqa: ANN401
    title = chart.y_title or None
    if chart.log_y:
        least, greatest = _range(chart)
        scale = alt.Scale(type="log", domain=[_foot(chart), greatest * 1.08], nice=False)
        return alt.Y(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(values=_log_ticks(least, greatest)))
    if zero is None and type(chart).__name__ == "LineChart":
        least, greatest = _range(chart)
        # A line that is far from zero all along shows more without it.
        zero = least <= 0 <= greatest or greatest - least >= 0.6 * max(-least, greatest)
    return alt.Y(f"{field}:Q", title=title, scale=alt.Scale() if zero is None else alt.Scale(zero=zero))


def _colour(alt: Any, chart: Plot, *, single: bool = False) -> dict[str, Any]:  # noqa: ANN401
    names = _series(chart)
    if not names:
        return {"color": alt.value(colours.SERIES[0])}
    if len(names) > len(colours.SERIES):
        scale = alt.Scale(domain=names, scheme="viridis") if _numeric([row[chart.series or ""] for row in chart.rows]) \
            else alt.Scale(domain=names, scheme="tableau20")  # fmt: skip
    else:
        scale = alt.Scale(domain=names, range=list(colours.SERIES[: len(names)]))
    return {"color": alt.Color("s:N", scale=scale, sort=None, legend=_legend(alt, names, single=single))}


def _dashes(alt: Any, chart: LineChart) -> dict[str, Any]:  # noqa: ANN401
    names = _series(chart)
    if not chart.dashed or not names:
        return {}
    # The legend is that of the colours, word for word: only then is one drawn for both.
    scale = alt.Scale(domain=names, range=[[5, 4] if name in chart.dashed else [1, 0] for name in names])
    return {"strokeDash": alt.StrokeDash("s:N", scale=scale, sort=None, legend=_legend(alt, names))}


def _legend(alt: Any, names: Sequence[str], *, single: bool = False) -> Any:  # noqa: ANN401
    columns = max(1, min(len(names), int(80 / (max(map(width_of, names)) + 5))))
    symbol = "square" if single else "stroke"
    return alt.Legend(
        title=None, orient="top", columns=columns, symbolType=symbol, symbolStrokeWidth=3, symbolOpacity=1
    )


def _tooltip(alt: Any, chart: Plot, label: str | None = None) -> list[Any]:  # noqa: ANN401
    numeric = _numeric([row[chart.x] for row in chart.rows]) and type(chart).__name__ != "BarChart"
    lines = [alt.Tooltip("label:N", title=" ")] if label else []
    if chart.series is not None:
        lines.append(alt.Tooltip("s:N", title=" "))
    lines.append(alt.Tooltip(f"x:{'Q' if numeric else 'N'}", title=chart.x_title or chart.x))
    lines.append(alt.Tooltip("y:Q", title=chart.y_title or chart.y, format=".4~g"))
    if getattr(chart, "low", None) is not None and getattr(chart, "high", None) is not None:
        lines += [alt.Tooltip("lo:Q", title="↧", format=".4~g"), alt.Tooltip("hi:Q", title="↥", format=".4~g")]
    return lines


def _finished(alt: Any, chart: Plot, layers: list[Any]) -> dict[str, Any]:  # noqa: ANN401
    rules = getattr(chart, "rules", ())
    n_data = len(layers)
    for value, label in rules:
        layers.append(alt.Chart().mark_rule(strokeDash=[5, 4], color="#666666").encode(y=alt.YDatum(value)))
        text = alt.Chart().mark_text(align="right", dy=-6, fontSize=11, color="#555555")
        layers.append(text.encode(x=alt.value("width"), y=alt.YDatum(value), text=alt.value(label)))
    spec: dict[str, Any] = alt.layer(*layers).properties(width=WIDTH, height=HEIGHT).to_dict()
    for number, layer in enumerate(spec["layer"]):
        # altair gives a chart without data the name of an empty one; ours are in the spec itself.
        layer.pop("data", None)
        if number >= n_data:
            layer["data"] = _BLANK
    spec.pop("datasets", None)
    spec["data"] = {"values": _rows(chart)}
    spec["title"] = heading(chart)
    spec["config"] = CONFIG
    return spec
