"""Pictures of charts: PNG and SVG, drawn by vl-convert without a browser."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from mingyue.charts.chart import Chart
from mingyue.charts.lettering import chinese_font, has_chinese, width_of
from mingyue.charts.vega import CONFIG
from mingyue.errors import MissingExtraError, SettingsError
from mingyue.words import TextTable

_SCALE = 2.0  # points of a PNG for each point of the spec
_LINE, _UNIT = 20, 7.2  # points that a line of a table and a column of its text take
_MOST_ROWS = 200


def stacked(charts: Sequence[Chart], tables: Sequence[TextTable] = ()) -> dict[str, Any]:
    """One spec of all charts below one another; of the tables, if there is no chart."""
    specs = [chart.spec() for chart in charts] or [_table(table) for table in tables]
    if not specs:
        raise SettingsError("there is nothing to draw")
    parts = [{key: value for key, value in spec.items() if key != "config"} for spec in specs]
    if len(parts) == 1:
        return {**parts[0], "config": CONFIG, "padding": 12}
    return {
        "vconcat": parts,
        "spacing": 36,
        "resolve": {"scale": dict.fromkeys(("color", "fill", "strokeDash", "x", "y"), "independent")},
        "config": CONFIG,
        "padding": 12,
    }


def png(spec: Mapping[str, Any]) -> bytes:
    """The picture as PNG, at two points for each of the spec."""
    return bytes(_converter().vegalite_to_png(dict(spec), scale=_SCALE, allowed_base_urls=[]))


def svg(spec: Mapping[str, Any]) -> str:
    """The picture as SVG."""
    return str(_converter().vegalite_to_svg(dict(spec), allowed_base_urls=[]))


def notes_on_fonts(spec: Mapping[str, Any]) -> list[str]:
    """What to tell the user, if the picture has Chinese characters and this machine no font with them."""
    if chinese_font() is not None or not has_chinese(json.dumps(spec, ensure_ascii=False)):
        return []
    return [
        "No font with Chinese characters was found: they will be missing in the picture. Install one "
        "(Debian, Ubuntu: apt install fonts-noto-cjk), or write an .html page, which uses the fonts of its reader."
    ]


@functools.cache
def _converter() -> Any:  # noqa: ANN401
    """vl-convert, which has been told where the Chinese font is."""
    try:
        import vl_convert
    except ImportError as error:
        raise MissingExtraError(
            f"drawing a picture needs vl-convert-python, which could not be imported ({error})",
            advice="Install it: pip install 'mingyue[plot]'",
        ) from error
    font = chinese_font()
    if font is not None:
        vl_convert.register_font_directory(str(font.parent))
    return vl_convert


def _table(table: TextTable) -> dict[str, Any]:
    """A table as texts at their places."""
    rows = [list(table.columns), *map(list, table.rows[:_MOST_ROWS])]
    n_columns = max(map(len, rows))
    widths = [
        (max(width_of(row[place]) if place < len(row) else 0 for row in rows) + 3) * _UNIT for place in range(n_columns)
    ]
    right = {place for place, column in enumerate(table.columns) if column in table.right}
    cells = [
        {"x": sum(widths[: place + 1]) - 2 * _UNIT if place in right else sum(widths[:place]),
         "y": number * _LINE, "text": text, "right": place in right, "head": number == 0}
        for number, row in enumerate(rows)
        for place, text in enumerate(row)
    ]  # fmt: skip
    if len(table.rows) > _MOST_ROWS:
        cells.append({"x": 0, "y": len(rows) * _LINE, "text": f"… + {len(table.rows) - _MOST_ROWS}", "right": False,
                      "head": False})  # fmt: skip

    def at(field: str) -> dict[str, Any]:
        return {"field": field, "type": "quantitative", "scale": None, "axis": None}

    def layer(test: str, align: str, weight: str) -> dict[str, Any]:
        return {
            "transform": [{"filter": test}],
            "mark": {"type": "text", "align": align, "fontWeight": weight, "fontSize": 12, "color": "#222222",
                     "baseline": "top"},
            "encoding": {"x": at("x"), "y": at("y"), "text": {"field": "text", "type": "nominal"}},
        }  # fmt: skip

    kinds = [
        (f"{'' if head else '!'}datum.head && {'' if side else '!'}datum.right", side, head)
        for head in (True, False)
        for side in (True, False)
    ]
    return {
        "data": {"values": cells},
        "width": sum(widths),
        "height": (len(rows) + 1) * _LINE,
        "layer": [layer(test, "right" if side else "left", "bold" if head else "normal") for test, side, head in kinds],
        "title": {"text": table.title, "subtitle": table.note},
    }
