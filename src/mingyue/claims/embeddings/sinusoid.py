"""Claim: with sinusoidal positions a shift is one linear map, and no two positions are alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial, values
from mingyue.claims.figures import Lines, Matrix
from mingyue.claims.number_figures import Dials
from mingyue.nn import sinusoid_table

_LAST = 10_000
"""Largest position."""
ROUNDING = 1e-5
"""Differences up to this are float32 rounding (6e-8 for each number, over hundreds of numbers)."""
APART = 0.1
"""Vectors at least this far apart count as different."""
_PICTURE_WIDTH, _PICTURE_POSITIONS = 64, 128
_HANDS, _SHOWN = (0, 4, 8, 16, 31), (0, 1, 2, 10, 100, 1000)
"""Pairs of that width and positions that are drawn as hands of a clock."""


def measure(trial: Trial) -> Measurement:
    """Errors of the linear map, distances of positions and the frequencies of the table that models use."""
    widths = trial.pick((2, 8, 64), (2, 8, 64, 512), (2, 8, 64, 512, 1024))
    shifts = trial.pick(
        (1, 7, 100, 5000), (1, 2, 3, 7, 20, 100, 1000, 5000, 9000), (1, 2, 3, 7, *range(20, 10_000, 500))
    )
    width = max(size for size in widths if size <= 512)
    table_PM = sinusoid_table(_LAST + 1, width).double()
    spread = float(max(_spread(table_PM, shift) for shift in shifts))
    distance_K = _distances(table_PM)
    # Radians by which each pair turns from one position to the next.
    frequency_I = torch.atan2(table_PM[1, 0::2], table_PM[1, 1::2])
    different = int((frequency_I.diff().abs() > 1e-9).sum()) + 1
    circle = (table_PM[:, 0::2].square() + table_PM[:, 1::2].square() - 1).abs().max()
    numbers = {
        "width": Number.exact(width),
        "map_error": Number.exact(max(_map_error(table_PM, shift) for shift in shifts)),
        "spread": Number.exact(spread),
        "nearest": Number.exact(float(distance_K.min())),
        "nearest_shift": Number.exact(int(distance_K.argmin()) + 1),
        "frequencies": Number.exact(different),
        "circle_error": Number.exact(float(circle)),
        "shortest": Number.exact(2 * math.pi / float(frequency_I.max())),
        "longest": Number.exact(2 * math.pi / float(frequency_I.min())),
    }
    return Measurement(
        numbers,
        {
            "nearest": [row for size in widths for row in _nearest_rows(size)],
            "picture": [
                {"position": position, "values": [round(value, 3) for value in values]}
                for position, values in enumerate(sinusoid_table(_PICTURE_POSITIONS, _PICTURE_WIDTH).tolist())
            ],
            "clock": _hands(),
        },
    )


def _map_error(table_PM: Tensor, shift: int) -> float:
    """Largest error of M · PE(p) = PE(p + shift) over all p, for one M.

    M rotates each pair; its entries are the sine and the cosine of the pair at position `shift`.
    """
    sine_PI, cosine_PI = table_PM[:-shift, 0::2], table_PM[:-shift, 1::2]
    sine_I, cosine_I = table_PM[shift, 0::2], table_PM[shift, 1::2]
    moved_PI = sine_PI * cosine_I + cosine_PI * sine_I, cosine_PI * cosine_I - sine_PI * sine_I
    return max(float((moved_PI[part] - table_PM[shift:, part::2]).abs().max()) for part in (0, 1))


def _spread(table_PM: Tensor, shift: int) -> float:
    """How much ‖PE(p) − PE(p + shift)‖ varies with p."""
    distance_P = (table_PM[shift:] - table_PM[:-shift]).norm(dim=1)
    return float(distance_P.max() - distance_P.min())


def _distances(table_PM: Tensor) -> Tensor:
    """‖PE(0) − PE(k)‖ for k = 1 … last."""
    return (table_PM[1:] - table_PM[0]).norm(dim=1)


def _nearest_rows(width: int) -> list[dict[str, Any]]:
    """Smallest distance of two positions that are up to k apart, for k on a logarithmic scale."""
    least_K = torch.cummin(_distances(sinusoid_table(_LAST + 1, width).double()), dim=0).values
    shifts = sorted({round(shift) for shift in np.geomspace(1, _LAST, 80).tolist()})
    return [{"width": width, "shift": shift, "nearest": float(least_K[shift - 1])} for shift in shifts]


def _hands() -> list[dict[str, Any]]:
    """Pairs of some positions: the sine is the x, the cosine the y of the tip of a hand."""
    table_PM = sinusoid_table(max(_SHOWN) + 1, _PICTURE_WIDTH)
    periods = {pair: 2 * math.pi / math.atan2(*table_PM[1, 2 * pair : 2 * pair + 2].tolist()) for pair in _HANDS}
    return [
        {
            "position": f"{position:,}",
            "period": f"{periods[pair]:,.1f}" if periods[pair] < 100 else f"{periods[pair]:,.0f}",
            "x": float(table_PM[position, 2 * pair]),
            "y": float(table_PM[position, 2 * pair + 1]),
        }
        for position in _SHOWN
        for pair in _HANDS
    ]


def judge(numbers: Numbers) -> Judgement:
    """A shift is linear and no two positions are alike; a correction if frequencies are fewer than dimensions."""
    value = values(numbers)
    rounding = all(value[name] <= ROUNDING for name in ("map_error", "spread", "circle_error"))
    if not (rounding and value["nearest"] >= APART):
        return Judgement.not_supported("found")
    if value["frequencies"] == value["width"]:
        return Judgement.supported("found", "each_dimension")
    return Judgement.corrected("found", "in_pairs")


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Dials("clock", row="position", column="period"),
        Matrix("picture", labels="position", square=False, low=-1.0, high=1.0, diverging=True),
        Lines("nearest", x="shift", y="nearest", series="width", interval=None, log_x=True, log_y=True),
    ],
    seconds=1,
)
