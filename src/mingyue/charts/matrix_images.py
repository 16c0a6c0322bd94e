"""A Vega-Lite spec of one image with texts around it: matrices are drawn as images, not as one mark per cell."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mingyue.charts.side_labels import Mark
from mingyue.charts.vega import colour_legend, import_extra, pixels
from mingyue.words import tr


def image_spec(
    picture: NDArray[np.uint8],
    size: tuple[int, int],
    texts: Sequence[Mark],
    *,
    limits: tuple[float, float],
    stops: tuple[str, ...],
    frame: bool,
) -> dict[str, Any]:
    """picture [H, W, RGB] drawn at `size` (width, height), with texts around it, and a legend.

    `limits` and `stops` are the ends and colours of the scale. Raises `MissingExtraError` without pillow.
    """
    width, height = size
    image = {
        "data": {"values": [{"x": 0, "y": 0}]},
        "mark": {"type": "image", "url": _png_url(picture, width, height), "width": width, "height": height,
                 "aspect": False, "align": "left", "baseline": "top"},
        "encoding": {"x": pixels("x"), "y": pixels("y")},
    }  # fmt: skip
    own = {name: {"expr": f"datum.{name}"} for name in ("align", "baseline", "angle")}
    labels = {
        "data": {"values": list(texts)},
        "mark": {"type": "text", "fontSize": {"expr": "datum.size"}, "lineHeight": {"expr": "datum.size + 1"},
                 "color": {"expr": "datum.grey ? '#444444' : '#333333'"}, **own},
        "encoding": {"x": pixels("x"), "y": pixels("y"), "text": {"field": "text", "type": "nominal"}},
    }  # fmt: skip
    legend = {"title": None, "orient": "right", "gradientLength": 120, "tickCount": 5}
    scale = {
        "data": {"values": [{"v": limit} for limit in limits]},
        "mark": {"type": "point", "opacity": 0},
        "encoding": {"color": colour_legend(*limits, stops, **legend)},
    }
    edge = {
        "data": {"values": [{"x": 0, "y": 0, "x2": width, "y2": height}]},
        "mark": {"type": "rect", "fill": None, "stroke": "#999999"},
        "encoding": {"x": pixels("x"), "x2": {"field": "x2"}, "y": pixels("y"), "y2": {"field": "y2"}},
    }
    layers = [image, *([edge] if frame else []), labels, scale]
    return {"width": width, "height": height, "layer": layers, "view": {"stroke": None}}


def _png_url(picture: NDArray[np.uint8], width: int, height: int) -> str:
    """A data URL of the image; its cells are enlarged to whole pixels, so that no renderer blurs them."""
    import_extra("PIL", "pillow", tr("drawing a matrix as an image"))
    from PIL import Image

    tall, wide = picture.shape[:2]
    times = max(1, round(2 * max(width / max(wide, 1), height / max(tall, 1))))
    buffer = io.BytesIO()
    Image.fromarray(picture.repeat(times, axis=0).repeat(times, axis=1)).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
