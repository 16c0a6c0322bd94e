"""A claim as an experiment: a measurement, a verdict computed from its numbers, figures; the words in files beside it.

`measure` computes, `judge` reads only the numbers that `measure` returned, and figures only its tables
and numbers. So a verdict can be tested with numbers that contradict the claim, and a report can be drawn again from
saved results.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mingyue.claims.wording import Wording, read_texts
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

Size = Literal["small", "report", "full"]
"""small: a test of seconds; report: what `claims run` does; full: minutes, for those who have them."""
Verdict = Literal["supported", "supported with a correction", "not supported"]
SUPPORTED: Verdict = "supported"
CORRECTED: Verdict = "supported with a correction"
NOT_SUPPORTED: Verdict = "not supported"


@dataclass(frozen=True)
class Number:
    """A measured number with its interval; of an exact one, low = high = value. Texts format it as its value."""

    value: float
    low: float
    high: float
    """95 % interval over seeds, unless `note` says what else."""
    unit: str = ""

    @classmethod
    def exact(cls, value: float, unit: str = "") -> Number:
        """A number that does not vary."""
        return cls(value, value, value, unit)

    @classmethod
    def mean(cls, samples: Sequence[float], unit: str = "") -> Number:
        """The mean of samples (one a seed) with its 95 % interval by Student's t. Raises `ValueError` for none."""
        if not samples:
            raise ValueError("there are no samples to average")
        centre = statistics.fmean(samples)
        if len(samples) == 1:
            return cls.exact(centre, unit)
        half = _t95(len(samples) - 1) * statistics.stdev(samples) / math.sqrt(len(samples))
        return cls(centre, centre - half, centre + half, unit)

    @classmethod
    def share(cls, samples: Sequence[float], unit: str = "") -> Number:
        """The mean of shares with its 95 % interval, cut to 0 to 1: no share lies beyond."""
        return cls.mean(samples, unit).clipped(0.0, 1.0)

    @classmethod
    def median(cls, samples: Sequence[float], unit: str = "") -> Number:
        """The median of samples between the smallest and the largest: for skewed ones, as counts of steps and times."""
        return cls(statistics.median(samples), min(samples), max(samples), unit)

    @classmethod
    def largest(cls, samples: Iterable[float], unit: str = "") -> Number:
        """The largest of samples (of errors, say), between the smallest and itself."""
        found = list(samples)
        return cls(max(found), min(found), max(found), unit)

    def clipped(self, low: float, high: float) -> Number:
        """The same number with its interval cut to the values that are possible."""
        return Number(self.value, max(low, self.low), min(high, self.high), self.unit)

    def at_least(self, limit: float) -> bool:
        """Whether the whole interval is at or above `limit`. False for NaN."""
        return self.low >= limit

    def at_most(self, limit: float) -> bool:
        """Whether the whole interval is at or below `limit`. False for NaN."""
        return self.high <= limit

    def near(self, centre: float, tolerance: float) -> bool:
        """Whether the whole interval is within `tolerance` of `centre`. False for NaN."""
        return self.at_least(centre - tolerance) and self.at_most(centre + tolerance)

    def row(self, column: str = "value", **others: Any) -> dict[str, Any]:  # noqa: ANN401  (plain JSON values)
        """A row for a figure: the other columns, the value in `column`, its interval in `low` and `high`."""
        return {**others, column: self.value, "low": self.low, "high": self.high}

    def __format__(self, spec: str) -> str:
        return format(self.value, spec or "g")


Numbers = Mapping[str, Number]
Table = Sequence[Mapping[str, Any]]
"""Rows for a figure: plain JSON values by column."""


@dataclass(frozen=True)
class Measurement:
    """What was measured: numbers for the verdict and the page, tables for the figures. All of it JSON."""

    numbers: Numbers
    tables: Mapping[str, Table] = field(default_factory=dict)


def values(numbers: Numbers) -> dict[str, float]:
    """The values of the numbers, without intervals."""
    return {name: number.value for name, number in numbers.items()}


@dataclass(frozen=True)
class Judgement:
    """What `judge` finds: the verdict, and which texts of `[reasons]` say why, one after another."""

    verdict: Verdict
    reasons: tuple[str, ...]
    values: Mapping[str, object]
    """What the texts name beyond the numbers and constants; a `Phrase` is another text of `[reasons]`."""

    @classmethod
    def supported(cls, *reasons: str, **values: object) -> Judgement:
        """The claim is supported."""
        return cls(SUPPORTED, reasons, values)

    @classmethod
    def corrected(cls, *reasons: str, **values: object) -> Judgement:
        """The claim is supported with a correction of its usual wording."""
        return cls(CORRECTED, reasons, values)

    @classmethod
    def not_supported(cls, *reasons: str, **values: object) -> Judgement:
        """The claim is not supported."""
        return cls(NOT_SUPPORTED, reasons, values)

    @classmethod
    def when(cls, supported: bool, *reasons: str, correction: bool = False, **values: object) -> Judgement:
        """Supported or not; if supported, with a correction or as it stands."""
        verdict = (CORRECTED if correction else SUPPORTED) if supported else NOT_SUPPORTED
        return cls(verdict, reasons, values)


@dataclass(frozen=True)
class Finding:
    """A verdict with its reason in words."""

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


class Drawable(Protocol):
    """A figure of a claim; `claims.figures` has the kinds."""

    def draw(self, measurement: Measurement, wording: Wording) -> Chart | None:
        """The chart, with its words from `wording`; None if the measurement has no rows for it."""


@dataclass(frozen=True)
class Claim:
    """A claim as an experiment. Its words are in `NAME.en.toml` and `NAME.zh.toml` beside its module."""

    module: str
    """`__name__` of the module, mingyue.claims.GROUP.NAME."""
    measure: Callable[[Trial], Measurement]
    judge: Callable[[Numbers], Judgement]
    figures: Sequence[Drawable]
    seconds: float
    """Roughly what the report size takes on one core: claims that take longest are started first."""

    @property
    def name(self) -> str:
        """The name in commands and files."""
        return self.module.rpartition(".")[2].replace("_", "-")

    @property
    def group(self) -> str:
        """scaling, attention, heads, blocks, embeddings or likelihood."""
        return self.module.split(".")[-2]

    @property
    def claim(self) -> Words:
        """What is claimed."""
        return self._words("claim")

    @property
    def prediction(self) -> Words:
        """What will be measured if the claim is right, with the tolerance."""
        return self._words("prediction")

    @property
    def method(self) -> Words:
        """How it is tested."""
        return self._words("method")

    @property
    def correction(self) -> Words | None:
        """What is right instead; None where no correction is needed."""
        return self._words("correction") if "correction" in read_texts(self.module, "en") else None

    @property
    def labels(self) -> Mapping[str, Words]:
        """What each number of the measurement is, by its name."""
        return {name: self._words("labels", name) for name in read_texts(self.module, "en")["labels"]}

    def finding(self, numbers: Numbers) -> Finding:
        """The verdict and its reason in both languages."""
        found = self.judge(numbers)
        english, chinese = (
            Wording(self.module, language, numbers).reason(found.reasons, found.values) for language in ("en", "zh")
        )
        return Finding(found.verdict, Words(english, chinese))

    def draw(self, measurement: Measurement, language: Language) -> list[Chart]:
        """The figures; those of which the measurement has no rows are left out."""
        wording = Wording(self.module, language)
        charts = (figure.draw(measurement, wording) for figure in self.figures)
        return [chart for chart in charts if chart is not None]

    def _words(self, *path: str) -> Words:
        return Words(Wording(self.module, "en").text(*path), Wording(self.module, "zh").text(*path))


def _t95(freedom: int) -> float:
    """Student's t for a two-sided 95 % interval."""
    table = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
    return table[freedom - 1] if freedom <= len(table) else 1.96 + 2.5 / freedom
