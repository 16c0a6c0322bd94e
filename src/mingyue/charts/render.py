"""Images of charts: PNG and SVG, drawn by vl-convert without a browser."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from mingyue.charts.chart import Chart
from mingyue.charts.fonts import chinese_font, display_width, has_chinese
from mingyue.charts.vega import CONFIG, drawable, import_converter, pixels
from mingyue.errors import SettingsError
from mingyue.words import TextTable

_SCALE = 2.0  # pixels of a PNG for each pixel of the spec
_LINE, _COLUMN = 20, 7.2  # height of a line and width of a column of text in a table, in pixels of the spec
_MOST_ROWS = 200


def stacked(charts: Sequence[Chart], tables: Sequence[TextTable] = ()) -> dict[str, Any]:
    """One spec with all charts in a column; with the tables if there is no chart.

    Raises `SettingsError` if there is neither, `MissingExtraError` without `plot`.
    """
    specs = [chart.spec() for chart in charts] or [_table_spec(table) for table in tables]
    if not specs:
        raise SettingsError("there is nothing to draw")
    parts = [{key: value for key, value in spec.items() if key != "config"} for spec in specs]
    if len(parts) == 1:
        return drawable({**parts[0], "config": CONFIG, "padding": 12})
    whole = {
        "vconcat": parts,
        "spacing": 36,
        "resolve": {"scale": dict.fromkeys(("color", "fill", "strokeDash", "x", "y"), "independent")},
        "config": CONFIG,
        "padding": 12,
    }
    return drawable(whole)


def png(spec: Mapping[str, Any]) -> bytes:
    """The image as PNG, at two pixels for each of the spec."""
    return bytes(_converter().vegalite_to_png(dict(spec), scale=_SCALE, allowed_base_urls=[]))


def svg(spec: Mapping[str, Any]) -> str:
    """The image as SVG."""
    return str(_converter().vegalite_to_svg(dict(spec), allowed_base_urls=[]))


def notes_on_fonts(spec: Mapping[str, Any]) -> list[str]:
    """A note for the user where the image has Chinese characters and this machine has no font with them."""
    if chinese_font() is not None or not has_chinese(json.dumps(spec, ensure_ascii=False)):
        return []
    return [
        "No font with Chinese characters was found: they will be missing in the picture. Install one "
        "(Debian, Ubuntu: apt install fonts-noto-cjk), or write an .html page, which uses the fonts of the browser."
    ]


@functools.cache
def _converter() -> Any:  # noqa: ANN401
    """vl-convert, with the Chinese font registered."""
    converter = import_converter("drawing an image")
    font = chinese_font()
    if font is not None:
        converter.register_font_directory(str(font.parent))
    return converter


def _table_spec(table: TextTable) -> dict[str, Any]:
    """A table as text marks; one layer for each weight and alignment, which a mark has once."""
    rows = [list(table.columns), *map(list, table.rows[:_MOST_ROWS])]
    widths = [
        (max(display_width(row[column]) if column < len(row) else 0 for row in rows) + 3) * _COLUMN
        for column in range(max(map(len, rows)))
    ]
    right = {column for column, heading in enumerate(table.columns) if heading in table.right}
    cells = [
        {"x": sum(widths[: column + 1]) - 2 * _COLUMN if column in right else sum(widths[:column]),
         "y": number * _LINE, "text": text, "right": column in right, "head": number == 0}
        for number, row in enumerate(rows)
        for column, text in enumerate(row)
    ]  # fmt: skip
    if len(table.rows) > _MOST_ROWS:
        cells.append({"x": 0, "y": len(rows) * _LINE, "text": f"… + {len(table.rows) - _MOST_ROWS}", "right": False,
                      "head": False})  # fmt: skip

    def layer(*, head: bool, right: bool) -> dict[str, Any]:
        return {
            "transform": [{"filter": f"{'' if head else '!'}datum.head && {'' if right else '!'}datum.right"}],
            "mark": {"type": "text", "align": "right" if right else "left", "fontWeight": "bold" if head else "normal",
                     "fontSize": 12, "color": "#222222", "baseline": "top"},
            "encoding": {"x": pixels("x"), "y": pixels("y"), "text": {"field": "text", "type": "nominal"}},
        }  # fmt: skip

    return {
        "data": {"values": cells},
        "width": sum(widths),
        "height": (len(rows) + 1) * _LINE,
        "layer": [layer(head=head, right=right) for head in (True, False) for right in (True, False)],
        "title": {"text": table.title, "subtitle": table.note},
    }
