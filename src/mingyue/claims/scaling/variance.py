"""Claim: dot products of d_k components have variance d_k, and dividing by √d_k makes it 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Lines
from mingyue.claims.training import seeds
from mingyue.nn import EVERYONE, Taps, explicit_attention

RATIO = 0.1
"""Largest difference from 1 of variance ÷ d_k and of the variance after scaling."""
CENTRE = 0.05
"""Largest distance of the mean from 0, in standard deviations."""
_KINDS = ("normal", "signs")
_QUERIES, _KEYS = 64, 64


def measure(trial: Trial) -> Measurement:
    """Variance and mean of q·k and of q·k/√d_k over random pairs, for each width, kind of components and seed."""
    widths = trial.pick((4, 64, 1024), tuple(2**power for power in range(2, 11)), tuple(2**p for p in range(2, 13)))
    chosen = seeds(trial, 10, 10, 30)
    rows: list[dict[str, Any]] = []
    ratios, scaled, centres = list[Number](), list[Number](), list[Number]()
    slopes: list[float] = []
    for kind in _KINDS:
        found = [[_moments(kind, width, seed) for width in widths] for seed in chosen]
        slopes += [_slope(widths, [variance for variance, _, _ in by_width]) for by_width in found]
        for place, width in enumerate(widths):
            plain = Number.mean([by_width[place][0] for by_width in found])
            after = Number.mean([by_width[place][1] for by_width in found])
            centres.append(Number.mean([by_width[place][2] / math.sqrt(width) for by_width in found]))
            ratios.append(Number(plain.value / width, plain.low / width, plain.high / width))
            scaled.append(after)
            for what, number in (("plain", plain), ("scaled", after)):
                rows.append(number.row(d_k=width, kind=kind, what=what))
    numbers = {
        "least_width": Number.exact(widths[0]),
        "most_width": Number.exact(widths[-1]),
        "slope": Number.mean(slopes),
        "ratio_least": min(ratios, key=lambda number: number.value),
        "ratio_most": max(ratios, key=lambda number: number.value),
        "scaled_least": min(scaled, key=lambda number: number.value),
        "scaled_most": max(scaled, key=lambda number: number.value),
        "mean_most": max(centres, key=_furthest_from_0),
    }
    return Measurement(numbers, {"variance": rows})


def _moments(kind: str, width: int, seed: int) -> tuple[float, float, float]:
    """(variance of q·k, variance of the scores that attention makes of them, mean of q·k)."""
    draw = torch.Generator().manual_seed(seed)

    def components(count: int) -> Tensor:
        if kind == "normal":
            return torch.randn(1, 1, count, width, generator=draw)
        return torch.randint(2, (1, 1, count, width), generator=draw) * 2.0 - 1.0

    query_BHTD, key_BHSD = components(_QUERIES), components(_KEYS)
    taps = Taps("scores")
    explicit_attention(query_BHTD, key_BHSD, key_BHSD, EVERYONE, taps=taps)
    products = query_BHTD @ key_BHSD.transpose(-2, -1)
    return float(products.var()), float(taps.values["scores"].var()), float(products.mean())


def _slope(widths: Sequence[int], variances: Sequence[float]) -> float:
    """Slope of log variance against log d_k, by least squares."""
    x = torch.tensor(widths, dtype=torch.float64).log()
    y = torch.tensor(variances, dtype=torch.float64).log()
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def judge(numbers: Numbers) -> Judgement:
    """Variance ÷ d_k and variance after scaling near 1 at every width, the mean near 0."""
    names = ("ratio_least", "ratio_most", "scaled_least", "scaled_most")
    near = all(numbers[name].near(1, RATIO) for name in names)
    centred = numbers["mean_most"].near(0, CENTRE)
    return Judgement.when(near and centred, "found", off_centre=_furthest_from_0(numbers["mean_most"]))


def _furthest_from_0(number: Number) -> float:
    """The end of the interval that is further from 0, without its sign."""
    return max(abs(number.low), abs(number.high))


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("variance", x="d_k", series=("what", "kind"), log_x=True, log_y=True, dashed=("kind", "signs")),
    ],
    seconds=0,
)
