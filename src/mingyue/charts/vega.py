"""Common parts of all Vega-Lite specs: theme, headings, pixel channels, colour legends, imports of the extra `plot`."""

from __future__ import annotations

import importlib
import mmap
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mingyue.charts.chart import Chart
from mingyue.charts.fonts import FONT_STACK, wrap
from mingyue.errors import MissingExtraError, SettingsError
from mingyue.printable import printable
from mingyue.words import tr

CONFIG: dict[str, Any] = {
    "font": FONT_STACK,
    "background": "#ffffff",
    # Descriptions for screen readers are expressions in which Vega evaluates a backslash of the text.
    "aria": False,
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
"""The theme of every image, and of every Vega-Lite chart on a page."""


_ADDRESSES_OF_V8 = 65 << 30  # bytes, measured; it uses few of them


def import_extra(module: str, package: str, purpose: str) -> Any:  # noqa: ANN401
    """A module of the extra `plot`. Raises `MissingExtraError` where it cannot be imported.

    `purpose` begins the message, such as "drawing a chart".
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            tr("{purpose} needs {package}, which could not be imported ({error})", purpose, package, error),
            advice=tr("Install it: pip install 'mingyue[plot]'"),
        ) from error


def import_converter(purpose: str) -> Any:  # noqa: ANN401
    """vl-convert, which draws with V8. Raises `MissingExtraError` without it.

    Raises `SettingsError` where a limit of the process (ulimit -v) refuses the addresses that V8 reserves: it would
    abort the process.
    """
    converter = import_extra("vl_convert", "vl-convert-python", purpose)
    limit = _address_limit()
    if limit is not None:
        try:
            mmap.mmap(-1, _ADDRESSES_OF_V8, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ).close()
        except (OSError, ValueError, OverflowError):
            raise SettingsError(
                tr(
                    "{purpose} needs {addresses_of_v8} GiB of address space (not memory), and the limit "
                    "of this process is {limit:,.1f} GiB",
                    purpose,
                    _ADDRESSES_OF_V8 >> 30,
                    limit / 2**30,
                ),
                advice=tr("Raise the limit: ulimit -v unlimited."),
            ) from None
    return converter


def _address_limit() -> int | None:
    """Most bytes of addresses of this process; None without a limit."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def heading(chart: Chart) -> dict[str, Any]:
    """The title of a spec, with the caption below it."""
    return {"text": wrap(chart.title, 76), "subtitle": wrap(chart.caption.replace("`", ""), 96)}


def pixels(field: str) -> dict[str, Any]:
    """An x or y channel whose values are pixels of the picture."""
    return {"field": field, "type": "quantitative", "scale": None, "axis": None}


def colour_legend(low: float, high: float, colours: tuple[str, ...], **legend: object) -> dict[str, Any]:
    """The encoding of a colour scale from `low` to `high` that is there only for its legend."""
    return {
        "field": "v",
        "type": "quantitative",
        "scale": {"domain": [low, high], "range": list(colours), "nice": False, "interpolate": "rgb"},
        "legend": {"gradientOpacity": 1, "format": ".3~g", **legend},
    }


def drawable(value: Any) -> Any:  # noqa: ANN401
    """A spec, or the data of a chart, with characters that cannot be drawn as symbols.

    An SVG may not hold control characters, and Vega's expressions, which hold titles and names, no U+2028 and U+2029.
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {drawable(name): drawable(part) for name, part in value.items()}
    return [drawable(part) for part in value] if isinstance(value, Sequence) else value
