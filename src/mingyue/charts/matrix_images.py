"""A Vega-Lite spec of one image with labels along its sides: matrices are drawn as images, not as one mark per cell."""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mingyue.charts.fonts import display_width, truncate
from mingyue.charts.vega import colour_legend, import_extra
from mingyue.printable import printable

_LETTER = 6.5  # width of a column of a label, in pixels


def image_spec(
    picture: NDArray[np.uint8],
    size: tuple[int, int],
    *,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    limits: tuple[float, float],
    stops: tuple[str, ...],
    frame: bool,
    row_title: str = "",
    column_title: str = "",
) -> dict[str, Any]:
    """picture [H, W, RGB] drawn at `size` (width, height), with labels along its rows and columns, and a legend.

    `limits` and `stops` are the ends and colours of the scale. Raises `MissingExtraError` without pillow.
    """
    width, height = size
    x_axis = {**_axis(column_labels, width, upright=False), "title": column_title or None}
    y_axis = {**_axis(row_labels, height, upright=True), "title": row_title or None}
    image = {
        "data": {"values": [{"x": 0, "y": 0}]},
        "mark": {"type": "image", "url": _png_url(picture, width, height), "width": width, "height": height,
                 "aspect": False, "align": "left", "baseline": "top"},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "axis": x_axis,
                  "scale": {"domain": [0, len(column_labels)], "nice": False, "zero": False}},
            "y": {"field": "y", "type": "quantitative", "axis": y_axis,
                  "scale": {"domain": [0, len(row_labels)], "nice": False, "zero": False, "reverse": True}},
        },
    }  # fmt: skip
    legend = {"title": None, "orient": "right", "gradientLength": 120, "tickCount": 5}
    scale = {
        "data": {"values": [{"v": limit} for limit in limits]},
        "mark": {"type": "point", "opacity": 0},
        "encoding": {"color": colour_legend(*limits, stops, **legend)},
    }
    view = {"view": {"stroke": "#999999"}} if frame else {}
    return {"width": width, "height": height, "layer": [image, scale], **view}


def _axis(labels: Sequence[str], length: int, *, upright: bool) -> dict[str, Any]:
    """Labels in the middle of their cells, as many as fit in `length` pixels; JSON inside an expression."""
    short = [truncate(printable(label), 16) for label in labels]
    widths = [_LETTER * display_width(label) for label in short]
    room = length / max(len(labels), 1)
    # Neighbours must not overlap; one long label among short ones (such as <eos>) is no reason to turn them all.
    turned = not upright and any((one + other) / 2 + 2 > room for one, other in itertools.pairwise(widths))
    step = max(1, math.ceil(14 / room)) if upright or turned else 1
    return {
        "values": [number + 0.5 for number in range(0, len(labels), step)],
        "labelExpr": f"{json.dumps(short)}[floor(datum.value)]",
        "grid": False,
        "domain": False,
        "ticks": len(labels) * 4 < length,
        "tickSize": 3,
        "labelOverlap": False,
        **({} if upright else {"orient": "top", "labelAngle": -90 if turned else 0}),
    }


def _png_url(picture: NDArray[np.uint8], width: int, height: int) -> str:
    """A data URL of the image; its cells are enlarged to whole pixels, so that no renderer blurs them."""
    import_extra("PIL", "pillow", "drawing a matrix as an image")
    from PIL import Image

    tall, wide = picture.shape[:2]
    times = max(1, round(2 * max(width / max(wide, 1), height / max(tall, 1))))
    buffer = io.BytesIO()
    Image.fromarray(picture.repeat(times, axis=0).repeat(times, axis=1)).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
