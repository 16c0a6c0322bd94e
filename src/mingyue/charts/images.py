"""How matrices are drawn: bytes for the page's canvas, one PNG inside a Vega-Lite spec for pictures."""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mingyue.charts import colours
from mingyue.charts.lettering import shortened, width_of
from mingyue.charts.vega import CONFIG, heading, json_block, note_of
from mingyue.errors import MissingExtraError
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts.grids import MatrixGrid
    from mingyue.charts.matrices import MatrixChart

MOST_CELLS_A_SIDE = 512
"""Wider or higher matrices are averaged down to this, and their note says so."""
_FEW = 12  # columns
Array = NDArray[np.floating[Any]]


def ends(values: Array, low: float | None, high: float | None, *, diverging: bool) -> tuple[float, float]:
    """The ends of the colour scale: those given, else taken from the finite values."""
    finite = values[np.isfinite(values)]
    least, greatest = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if diverging:
        size = max(abs(least), abs(greatest))
        least, greatest = -size, size
    low, high = least if low is None else float(low), greatest if high is None else float(high)
    return (low, high) if high > low else (low, low + 1.0)


def note_of_size(note: str, shape: Sequence[int], side: int, language: Language) -> str:
    """The note, with a sentence about averaging where a matrix is larger than what is drawn."""
    rows, columns = shape
    if max(rows, columns) <= side:
        return note
    fewer = (min(rows, side), min(columns, side))
    told = Words(
        f"Drawn with {fewer[0]} × {fewer[1]} cells, each the mean of its part of the {rows} × {columns} values.",
        f"图中为 {fewer[0]} × {fewer[1]} 格，每格是 {rows} × {columns} 个数值中对应部分的平均。",
    ).of(language)
    return f"{note} {told}" if note else told


def as_lists(values: Array) -> Any:  # noqa: ANN401
    """Nested lists of numbers with six digits; what is not finite is None."""
    finite = np.isfinite(values)
    if not finite.all() and values.ndim > 1:
        return [as_lists(part) for part in values]
    known = np.where(finite & (values != 0), values, 1.0).astype(np.float64)
    scale = 10.0 ** np.clip(5 - np.floor(np.log10(np.abs(known))), -300, 300)
    rounded: list[Any] = np.where(finite, np.rint(np.where(finite, values, 0.0) * scale) / scale, np.nan).tolist()
    return rounded if finite.all() else [None if math.isnan(value) else value for value in rounded]


def shrunk(values: Array, side: int) -> Array:
    """The last two axes averaged down to at most `side` cells each."""
    for axis in (-2, -1):
        n = values.shape[axis]
        if n > side:
            starts = np.arange(side) * n // side
            sizes = np.diff([*starts, n])
            shape = [1] * values.ndim
            shape[axis] = side
            values = np.add.reduceat(values, starts, axis=axis) / sizes.reshape(shape)
    return values


def shrunk_labels(labels: Sequence[str], side: int) -> list[str]:
    """Labels of the cells that `shrunk` makes: the first and last of those in a cell."""
    n = len(labels)
    if n <= side:
        return list(labels)
    starts = [place * n // side for place in range(side)] + [n]
    pairs = [(labels[start], labels[end - 1]) for start, end in itertools.pairwise(starts)]
    return [first if first == last else f"{first} … {last}" for first, last in pairs]


def matrix_fragment(chart: MatrixChart) -> str:
    """A figure whose canvas the page's script draws when it comes into view."""
    data = {
        "rows": shrunk_labels(chart.row_labels, MOST_CELLS_A_SIDE),
        "columns": shrunk_labels(chart.column_labels, MOST_CELLS_A_SIDE),
        "rowTitle": chart.row_title,
        "columnTitle": chart.column_title,
        "low": chart.low,
        "high": chart.high,
        "diverging": chart.diverging,
        "data": base64_of(colours.to_bytes(shrunk(chart.values_RC, MOST_CELLS_A_SIDE), chart.low, chart.high)),
    }
    return (
        f'<figure class="chart"><figcaption>{escape(chart.title)}</figcaption>'
        f'<div class="matrix" role="img" aria-label="{escape(chart.title, quote=True)}">{json_block(data)}</div>'
        f"{note_of(chart)}</figure>"
    )


def grid_fragment(chart: MatrixGrid) -> str:
    """A figure of thumbnails, with room for the one that is enlarged."""
    data = {
        "rows": shrunk_labels(chart.row_labels, chart.side),
        "columns": shrunk_labels(chart.column_labels, chart.side),
        "rowTitle": "",
        "columnTitle": "",
        "rowTitles": list(chart.row_titles),
        "columnTitles": list(chart.column_titles),
        "low": chart.low,
        "high": chart.high,
        "diverging": False,
        "data": base64_of(colours.to_bytes(shrunk(chart.matrices_NMTS, chart.side), chart.low, chart.high)),
    }
    return (
        f'<figure class="chart"><figcaption>{escape(chart.title)}</figcaption>'
        f'<div class="matrix-grid">{json_block(data)}</div>{note_of(chart)}</figure>'
    )


def matrix_spec(chart: MatrixChart) -> dict[str, Any]:
    """Vega-Lite: one image, axes with every k-th label, the colour scale."""
    cells = colours.to_bytes(shrunk(chart.values_RC, MOST_CELLS_A_SIDE), chart.low, chart.high)
    rows, columns = cells.shape
    cell = max(1.0, min(26.0, 560 / max(columns, 1), 560 / max(rows, 1)))
    picture = colours.table(chart.diverging)[cells]
    row_labels = shrunk_labels(chart.row_labels, MOST_CELLS_A_SIDE)
    column_labels = shrunk_labels(chart.column_labels, MOST_CELLS_A_SIDE)
    column = cell
    if columns <= _FEW:  # as wide as their labels, so that these need not be turned
        column = max(cell, min(560 / max(columns, 1), max(map(width_of, column_labels), default=0) * 6.5 + 10))
    spec = _picture(picture, round(columns * column), round(rows * cell), row_labels, column_labels)
    x, y = spec["layer"][0]["encoding"]["x"], spec["layer"][0]["encoding"]["y"]
    x["axis"]["title"], y["axis"]["title"] = chart.column_title or None, chart.row_title or None
    spec["layer"].append(_scale(chart.low, chart.high, chart.diverging))
    return {**spec, "title": heading(chart), "config": CONFIG}


def grid_spec(chart: MatrixGrid) -> dict[str, Any]:
    """Vega-Lite: all thumbnails put together into one image."""
    n_rows, n_columns = chart.matrices_NMTS.shape[:2]
    side = max(24, min(chart.side, 960 // max(n_rows, n_columns, 1)))
    cells = colours.to_bytes(shrunk(chart.matrices_NMTS, side), chart.low, chart.high)
    height, width = cells.shape[2:]
    # Small maps are drawn with several pixels a cell, so that the frame between maps stays thin.
    scale = max(1, side // max(height, width))
    drawn = colours.table()[cells.repeat(scale, axis=2).repeat(scale, axis=3)]
    framed = np.pad(drawn, ((0, 0), (0, 0), (1, 1), (1, 1), (0, 0)), constant_values=190)
    framed = np.pad(framed, ((0, 0), (0, 0), (2, 2), (2, 2), (0, 0)), constant_values=255)
    n, m, tall, wide, _ = framed.shape
    picture = framed.transpose(0, 2, 1, 3, 4).reshape(n * tall, m * wide, 3)
    shown = min(1.0, 720 / max(m * wide, 1)) if m * wide > 720 else min(2.0, 720 / max(m * wide, n * tall, 1))
    spec = _picture(
        picture, round(m * wide * shown), round(n * tall * shown), chart.row_titles, chart.column_titles, frame=False
    )
    spec["layer"].append(_scale(chart.low, chart.high, False))
    return {**spec, "title": heading(chart), "config": CONFIG}


def _picture(  # noqa: PLR0917
    picture: NDArray[np.uint8],
    width: int,
    height: int,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    frame: bool = True,
) -> dict[str, Any]:
    """One image of so many points, with labels along its rows and columns."""
    url = _png_url(picture, width, height)
    image = {
        "data": {"values": [{"x": 0, "y": 0}]},
        "mark": {"type": "image", "url": url, "width": width, "height": height, "aspect": False, "align": "left",
                 "baseline": "top"},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "axis": _axis(column_labels, width, upright=False),
                  "scale": {"domain": [0, len(column_labels)], "nice": False, "zero": False}},
            "y": {"field": "y", "type": "quantitative", "axis": _axis(row_labels, height, upright=True),
                  "scale": {"domain": [0, len(row_labels)], "nice": False, "zero": False, "reverse": True}},
        },
    }  # fmt: skip
    view = {"view": {"stroke": "#999999"}} if frame else {}
    return {"width": width, "height": height, "layer": [image], **view}


def _axis(labels: Sequence[str], points: int, *, upright: bool) -> dict[str, Any]:
    """Labels in the middle of their cells, as many as there is room for. They stand in an expression, as JSON."""
    short = [shortened(label, 16) for label in labels]
    widths = [6.5 * width_of(label) for label in short]
    room = points / max(len(labels), 1)
    # Two neighbours must not meet; one long label among short ones (an end mark) is no reason to turn them all.
    turned = not upright and any((one + other) / 2 + 2 > room for one, other in itertools.pairwise(widths))
    step = max(1, math.ceil(14 / room)) if upright or turned else 1
    places = [place + 0.5 for place in range(0, len(labels), step)]
    return {
        "title": None,
        "values": places,
        "labelExpr": f"{json.dumps(short)}[floor(datum.value)]",
        "grid": False,
        "domain": False,
        "ticks": len(labels) * 4 < points,
        "tickSize": 3,
        "labelOverlap": False,
        **({} if upright else {"orient": "top", "labelAngle": -90 if turned else 0}),
    }


def _scale(low: float, high: float, diverging: bool) -> dict[str, Any]:
    """Nothing but a legend: the colour scale with its ends."""
    stops = list(colours.DIVERGING if diverging else colours.SEQUENTIAL)
    return {
        "data": {"values": [{"v": low}, {"v": high}]},
        "mark": {"type": "point", "opacity": 0},
        "encoding": {
            "color": {
                "field": "v",
                "type": "quantitative",
                "scale": {"domain": [low, high], "range": stops, "nice": False, "interpolate": "rgb"},
                "legend": {"title": None, "orient": "right", "gradientLength": 120, "gradientOpacity": 1,
                           "format": ".3~g", "tickCount": 5},
            }
        },
    }  # fmt: skip


def _png_url(picture: NDArray[np.uint8], width: int, height: int) -> str:
    """A data URL of the picture, its cells enlarged to whole pixels so that no renderer blurs them."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(
            f"drawing a matrix as a picture needs pillow, which could not be imported ({error})",
            advice="Install it: pip install 'mingyue[plot]'",
        ) from error
    tall, wide = picture.shape[:2]
    times = max(1, round(2 * max(width / max(wide, 1), height / max(tall, 1))))
    buffer = io.BytesIO()
    Image.fromarray(picture.repeat(times, axis=0).repeat(times, axis=1)).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def base64_of(values: NDArray[np.uint8]) -> str:
    """Bytes for the page's scripts."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
