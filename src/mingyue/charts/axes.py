"""Axes, colours and legends of lines, bars and points, as altair channels made from plain values."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from mingyue.charts import colours
from mingyue.charts.fonts import display_width

WIDTH, HEIGHT = 560, 300
"""Of the plotting area, in pixels."""
_MOST_NAMES = 40  # labels of an axis; of more, some are left out
_SLANTED = 21  # pixels between slanted names that do not touch
_MOST_TICKS = 10  # up to this many values of x each have a tick


def plain(value: Any) -> Any:  # noqa: ANN401
    """The value for JSON: NumPy scalars as Python numbers, NaN and infinities as None."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_positive(value: object) -> bool:
    """Whether a logarithmic axis can show the value."""
    return isinstance(value, int | float) and value > 0


def are_numbers(values: Sequence[object]) -> bool:
    """Whether all values are numbers or None."""
    numbers = (int, float, type(None))
    return all(isinstance(plain(value), numbers) and not isinstance(value, bool) for value in values)


def quantitative_x(alt: Any, values: Sequence[Any], title: str, *, log: bool) -> Any:  # noqa: ANN401
    """An x axis of numbers; a few whole numbers all have a tick."""
    shown = sorted({plain(value) for value in values if plain(value) is not None})
    whole = all(isinstance(value, int) for value in shown)
    look: dict[str, Any] = {"grid": False} | ({"format": ",d", "tickMinStep": 1} if whole else {})
    if log:
        ticks = [value for value in shown if value > 0]
        scale = alt.Scale(type="log", nice=False)
    else:
        ticks = shown if whole else []
        scale = alt.Scale(zero=False, nice=False, padding=12 if len(set(values)) > 1 else 0)
    every = (log or whole) and len(ticks) <= _MOST_TICKS
    axis = alt.Axis(**look, values=ticks, labelOverlap="greedy", labelSeparation=6) if every else alt.Axis(**look)
    return alt.X("x:Q", title=title or None, scale=scale, axis=axis)


def nominal_x(alt: Any, values: Sequence[Any], title: str) -> Any:  # noqa: ANN401
    """An x axis of names in the order of rows, slanted where they would overlap, or upright."""
    names = list(dict.fromkeys(str(value) for value in values))
    widest = max((display_width(name) for name in names), default=0) * 6.2
    band = WIDTH / max(1, len(names))
    angle = 0 if widest < band else -35 if band >= _SLANTED else -90
    axis = alt.Axis(labelAngle=angle, labelLimit=220, labelOverlap=len(names) > _MOST_NAMES)
    return alt.X("x:N", title=title or None, sort=None, axis=axis)


def linear_y(alt: Any, field: str, title: str, *, zero: bool | None) -> Any:  # noqa: ANN401
    """A linear y axis; with `zero` None, Vega-Lite decides whether it includes 0."""
    scale = alt.Scale() if zero is None else alt.Scale(zero=zero)
    return alt.Y(f"{field}:Q", title=title or None, scale=scale)


def logarithmic_y(alt: Any, field: str, title: str, *, bottom: float, values: tuple[float, float]) -> Any:  # noqa: ANN401
    """A logarithmic y axis from `bottom` to just above the greatest of `values` (least, greatest)."""
    scale = alt.Scale(type="log", domain=[bottom, values[1] * 1.08], nice=False)
    return alt.Y(f"{field}:Q", title=title or None, scale=scale, axis=alt.Axis(values=log_ticks(*values)))


def log_ticks(least: float, greatest: float) -> list[float]:
    """1, 10, 100 …; where that gives few ticks, 2 and 5 between them, or equal steps as on a linear axis."""
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


def series_colours(alt: Any, names: Sequence[str], shades: Sequence[str], *, symbol: str) -> Any:  # noqa: ANN401
    """A colour for each series."""
    if not names:
        return alt.value(colours.SERIES[0])
    scale = alt.Scale(domain=names, range=list(shades))
    return alt.Color("s:N", scale=scale, sort=None, legend=_legend(alt, names, symbol))


def series_dashes(alt: Any, names: Sequence[str], dashed: Collection[str]) -> Any:  # noqa: ANN401
    """Dashed or solid for each series. The legend equals that of the colours: only then does Vega merge the two."""
    scale = alt.Scale(domain=names, range=[[5, 4] if name in dashed else [1, 0] for name in names])
    return alt.StrokeDash("s:N", scale=scale, sort=None, legend=_legend(alt, names, "stroke"))


def _legend(alt: Any, names: Sequence[str], symbol: str) -> Any:  # noqa: ANN401
    columns = max(1, min(len(names), int(80 / (max(map(display_width, names)) + 5))))
    return alt.Legend(
        title=None, orient="top", columns=columns, symbolType=symbol, symbolStrokeWidth=3, symbolOpacity=1
    )
