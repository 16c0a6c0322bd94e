"""Colour scales: white to deep blue, and blue, white, red. Both are safe for colour-blind readers.

On a dark page they begin at a dark grey and get lighter. Images are light always.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEQUENTIAL = ("#ffffff", "#c9def1", "#94bfe1", "#5a9bcf", "#2c72b5", "#0f4590", "#08214d")
DIVERGING = ("#0f4590", "#3f83c0", "#a9cde6", "#ffffff", "#f7b799", "#d2604d", "#8b0a25")
SERIES = ("#0f5ea8", "#d95f02", "#1b8a6b", "#c2408b", "#7a5195", "#b8860b", "#56a8dd", "#555555")
"""Colours of lines and bars: dark enough on white, and different in lightness as well as in hue."""
MORE_SERIES = (
    "#4c78a8", "#f58518", "#54a24b", "#e45756", "#79706e", "#b279a2", "#439894", "#b79a20", "#d67195", "#9e765f",
    "#7fb3dd", "#e8a45c", "#7cb574", "#e88f8d", "#a39c99", "#cf9fc4", "#76bcb7", "#d1bb5a", "#e5a5bb", "#c0a28f",
)  # fmt: skip
"""Of more series than `SERIES` has, if their names are no numbers."""
_ORDERED = ("#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30")
"""Of more series whose names are numbers: from small to large."""

SEQUENTIAL_DARK = ("#1c222b", "#1d3b59", "#225c8d", "#3584bd", "#63a9df", "#a6d2f4", "#f3f9ff")
DIVERGING_DARK = ("#b5dbff", "#5a9fdd", "#29547c", "#1c222b", "#7a382b", "#dc6c52", "#ffc9b9")
DARK = {
    **dict(
        zip(
            SERIES,
            ("#5aa9e6", "#ff9b4a", "#4ec9a3", "#e982bd", "#b99fd4", "#e2bd45", "#93d2f8", "#b8bcc2"),
            strict=True,
        )
    ),
    "#ffffff": "#14181d",
    "#222222": "#e4e7ea",
    "#333333": "#d5dade",
    "#444444": "#bcc3ca",
    "#666666": "#9aa3ad",
    "#999999": "#6d7680",
    "#e8e8e8": "#2a313a",
}
"""What each colour of lines, bars, axes and letters becomes on a dark page."""
NO_VALUE = "#f0f0f0"
"""Background of a cell without a value."""


def stops(diverging: bool) -> tuple[str, ...]:
    """The colours between which a scale interpolates."""
    return DIVERGING if diverging else SEQUENTIAL


def of_series(count: int, *, ordered: bool) -> list[str]:
    """A colour for each of `count` series; `ordered`: their names are numbers."""
    if count <= len(SERIES):
        return list(SERIES[:count])
    if not ordered:
        return [MORE_SERIES[number % len(MORE_SERIES)] for number in range(count)]
    points = _channels(_ORDERED)
    at = np.linspace(0, len(points) - 1, count)
    mixed = [np.interp(at, np.arange(len(points)), points[:, channel]).round().astype(int) for channel in range(3)]
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in zip(*mixed, strict=True)]


def _channels(stops: Sequence[str]) -> NDArray[np.float64]:
    return np.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in stops], dtype=np.float64)


@functools.cache
def colormap(diverging: bool = False) -> NDArray[np.uint8]:
    """[256, 3]: red, green and blue for each byte; read-only."""
    points = _channels(stops(diverging))
    at = np.linspace(0, len(points) - 1, 256)
    channels = [np.interp(at, np.arange(len(points)), points[:, channel]) for channel in range(3)]
    colours = np.stack(channels, axis=1).round().astype(np.uint8)
    colours.setflags(write=False)
    return colours


def to_bytes(values: NDArray[np.floating[Any]], low: float, high: float) -> NDArray[np.uint8]:
    """Values as bytes: `low` is 0 and `high` 255; values outside are clipped, NaN is 0."""
    width = high - low
    fraction = (values - low) / width if width > 0 else np.zeros_like(values)
    return np.rint(np.nan_to_num(np.clip(fraction, 0, 1)) * 255).astype(np.uint8)


def cell_colours(value: float | None, low: float, high: float) -> tuple[str, str]:
    """(background, text) of a cell with this value, as `#rrggbb`; grey where the value is None or not finite."""
    if value is None or not np.isfinite(value):
        return NO_VALUE, "#000000"
    channels = colormap()[int(to_bytes(np.array([value]), low, high)[0])]
    red, green, blue = (int(channel) for channel in channels)
    linear = np.where(channels <= 10, channels / 3294.6, ((channels / 255 + 0.055) / 1.055) ** 2.4)
    # Relative luminance of WCAG 2; at 0.179 black and white text have the same contrast.
    dark = float(linear @ [0.2126, 0.7152, 0.0722]) < 0.179
    return f"#{red:02x}{green:02x}{blue:02x}", "#ffffff" if dark else "#000000"
