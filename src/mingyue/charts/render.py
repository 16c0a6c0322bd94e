"""Images of charts: PNG and SVG, drawn by vl-convert without a browser."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from mingyue.charts.chart import Chart
from mingyue.charts.fonts import chinese_font, has_chinese
from mingyue.charts.matrices import one_scale
from mingyue.charts.table_chart import TableChart
from mingyue.charts.vega import CONFIG, drawable, import_converter
from mingyue.errors import SettingsError
from mingyue.words import TextTable, Words, tr

_SCALE = 2.0  # pixels of a PNG for each pixel of the spec


def stacked(charts: Sequence[Chart], tables: Sequence[TextTable] = ()) -> dict[str, Any]:
    """One spec with all charts in a column; with the tables if there is no chart.

    Raises `SettingsError` if there is neither, `MissingExtraError` without `plot`.
    """
    specs = [chart.spec() for chart in one_scale(charts) or map(TableChart.of, tables)]
    if not specs:
        raise SettingsError(tr("there is nothing to draw"))
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


def notes_on_fonts(spec: Mapping[str, Any]) -> list[Words]:
    """A note for the user where the image has Chinese characters and this machine has no font with them."""
    if chinese_font() is not None or not has_chinese(json.dumps(spec, ensure_ascii=False)):
        return []
    return [
        tr(
            "No font with Chinese characters was found: they will be missing in the picture. Install one (Debian, "
            "Ubuntu: apt install fonts-noto-cjk), or write an .html page, which uses the fonts of the browser."
        )
    ]


@functools.cache
def _converter() -> Any:  # noqa: ANN401
    """vl-convert, with the Chinese font registered."""
    converter = import_converter("drawing an image")
    font = chinese_font()
    if font is not None:
        converter.register_font_directory(str(font.parent))
    return converter
