"""What a claim is: its words, a prediction, a measurement, a verdict computed from the numbers, a figure.

`measure` computes, `judge` reads nothing but the numbers that `measure` gave, `draw` reads nothing but its tables. So a
verdict can be tested with numbers that contradict the claim, and a report can be drawn again from what was saved.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

Size = Literal["small", "report", "full"]
"""small: a test of seconds; report: what `claims run` does; full: minutes, for those who have them."""
Verdict = Literal["holds", "holds with a correction", "does not hold here"]


@dataclass(frozen=True)
class Number:
    """A measured number. What is exact has no width: low = high = value."""

    value: float
    low: float
    high: float
    """95 % interval over seeds, unless `note` says what else."""
    unit: str = ""

    @classmethod
    def exact(cls, value: float, unit: str = "") -> Number:
        """A number without chance in it."""
        return cls(value, value, value, unit)

    @classmethod
    def mean(cls, samples: Sequence[float], unit: str = "") -> Number:
        """The mean of samples (one a seed) with its 95 % interval by Student's t. Raises `ValueError` for none."""
        if not samples:
            raise ValueError("a mean needs samples")
        centre = statistics.fmean(samples)
        if len(samples) == 1:
            return cls.exact(centre, unit)
        half = _t95(len(samples) - 1) * statistics.stdev(samples) / math.sqrt(len(samples))
        return cls(centre, centre - half, centre + half, unit)

    @classmethod
    def median(cls, samples: Sequence[float], unit: str = "") -> Number:
        """The median of samples with their least and greatest: for counts of steps and for times, which have tails."""
        return cls(statistics.median(samples), min(samples), max(samples), unit)


Numbers = Mapping[str, Number]
Table = Sequence[Mapping[str, Any]]
"""Rows for a figure: plain JSON values by column."""


@dataclass(frozen=True)
class Measurement:
    """What was measured: numbers for the verdict and the page, tables for the figures. All of it JSON."""

    numbers: Numbers
    tables: Mapping[str, Table] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """A verdict with its reason, made of the numbers."""

    verdict: Verdict
    reason: Words


@dataclass(frozen=True)
class Trial:
    """How a claim is tested this time."""

    size: Size = "report"
    seed: int = 0

    def pick(self, small: Any, report: Any, full: Any) -> Any:  # noqa: ANN401
        """One of three, by the size."""
        return {"small": small, "report": report, "full": full}[self.size]


@dataclass(frozen=True)
class Claim:
    """A claim as an experiment."""

    name: str
    group: str
    """scaling, attention, heads, blocks, embeddings or likelihood."""
    claim: Words
    """What is claimed, in our words."""
    prediction: Words
    """What will be measured if it is so, with the tolerance."""
    method: Words
    """How it is tested."""
    measure: Callable[[Trial], Measurement]
    judge: Callable[[Numbers], Finding]
    draw: Callable[[Measurement, Language], Sequence[Chart]]
    labels: Mapping[str, Words]
    """What each number of the measurement is, by its name."""
    correction: Words | None = None
    """Where the notes need one: what is right instead."""


def _t95(freedom: int) -> float:
    """Student's t for a two-sided 95 % interval."""
    table = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
    return table[freedom - 1] if freedom <= len(table) else 1.96 + 2.5 / freedom
