"""Dashed horizontal lines in front of the data, with their labels beside the picture, where no data lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mingyue.charts.axes import HEIGHT
from mingyue.charts.fonts import wrap

Rule = tuple[float, str]
"""A y value and the text beside its dashed line."""
_COLUMNS = 15  # of a line of a label
_LINE = 13.0  # its height in pixels


def rule_layers(alt: Any, rules: Sequence[Rule], y_range: tuple[float, float], *, log_y: bool) -> list[Any]:  # noqa: ANN401
    """Lines and labels; `y_range` are the least and the greatest value of the picture."""
    ordered = sorted(rules, key=lambda rule: -rule[0])
    texts = [wrap(label, _COLUMNS) or [""] for _, label in ordered]
    places = [_from_top(value, y_range, log_y=log_y) for value, _ in ordered]
    shifts = apart([(place, _LINE * len(lines)) for place, lines in zip(places, texts, strict=True)])
    return [
        layer
        for (value, _), lines, shift in zip(ordered, texts, shifts, strict=True)
        for layer in _layers(alt, value, lines, shift)
    ]


def apart(heights: Sequence[tuple[float, float]]) -> list[float]:
    """How far down each label must move so that it does not touch the one above it.

    `heights` are (middle, height) from top to bottom, in pixels.
    """
    moved, bottom = list[float](), -math.inf
    for middle, height in heights:
        top = max(middle - height / 2, bottom)
        moved.append(top + height / 2 - middle)
        bottom = top + height
    return moved


def _from_top(value: float, y_range: tuple[float, float], *, log_y: bool) -> float:
    """Roughly how far below the top of the picture a value is, in pixels."""
    least, greatest = y_range
    if greatest <= least or (log_y and min(least, value) <= 0):
        return 0.0
    share = (greatest - value) / (greatest - least)
    if log_y:
        share = math.log(greatest / value) / math.log(greatest / least)
    return share * HEIGHT * 0.8  # an axis goes a little beyond the values


def _layers(alt: Any, value: float, lines: Sequence[str], shift: float) -> list[Any]:  # noqa: ANN401
    line = alt.Chart().mark_rule(strokeDash=[5, 4], color="#666666", strokeWidth=1.5).encode(y=alt.YDatum(value))
    first = shift - _LINE * (len(lines) - 1) / 2
    text = alt.Chart().mark_text(
        align="left", baseline="middle", dx=6, dy=first, fontSize=11, lineHeight=_LINE, color="#444444"
    )
    shown = alt.value(list(lines) if len(lines) > 1 else lines[0])
    return [line, text.encode(x=alt.value("width"), y=alt.YDatum(value), text=shown)]
