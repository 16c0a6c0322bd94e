"""The curves of a run, from its log: losses, learning rates and speed, at each step, number of tokens and time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mingyue.printable import sparkline
from mingyue.training.log import read_log

_MOST_POINTS = 600
"""Points of a line: of a longer log, evenly spaced ones."""


@dataclass(frozen=True)
class Curve:
    """One quantity of a run, at N moments."""

    steps_N: tuple[int, ...]
    tokens_N: tuple[int, ...]
    """Targets seen in training."""
    seconds_N: tuple[float, ...]
    """Time of the run, without that between stop and resume."""
    values_N: tuple[float, ...]

    @classmethod
    def of(cls, log: Sequence[Mapping[str, Any]], events: str, key: str) -> Curve:
        """The values of `key` in the events of that kind; those that are missing or not finite are left out."""
        found = [line for line in log if line["event"] == events and _is_number(line.get(key))]
        return cls(
            tuple(line["step"] for line in found),
            tuple(line["tokens"] for line in found),
            tuple(line["seconds"] for line in found),
            tuple(float(line[key]) for line in found),
        )

    def thinned(self) -> Iterator[tuple[int, int, float, float]]:
        """(step, tokens, seconds, value), at most `_MOST_POINTS` of them, the last one included."""
        points = list(zip(self.steps_N, self.tokens_N, self.seconds_N, self.values_N, strict=True))
        every = max(1, math.ceil(len(points) / _MOST_POINTS))
        return (point for number, point in enumerate(points) if (len(points) - 1 - number) % every == 0)

    def before(self, step: int) -> float:
        """The latest value up to a step; NaN if there is none."""
        return next(
            (value for at, value in zip(self.steps_N[::-1], self.values_N[::-1], strict=True) if at <= step), math.nan
        )

    def to_dict(self) -> dict[str, list[Any]]:
        """For JSON."""
        return {
            "steps_N": list(self.steps_N),
            "tokens_N": list(self.tokens_N),
            "seconds_N": list(self.seconds_N),
            "values_N": list(self.values_N),
        }


@dataclass(frozen=True)
class RunCurves:
    """The curves of one run."""

    name: str
    training_loss: Curve
    heldout_loss: Curve
    learning_rate: Curve
    """Of AdamW."""
    muon_learning_rate: Curve
    tokens_per_second: Curve
    resumed: tuple[int, ...]
    """Steps from which the run was resumed."""
    reason: str | None
    """How it ended: finished, patience, stopped or failed; None: it has not ended, or was killed."""

    @classmethod
    def read(cls, name: str, metrics: Path) -> RunCurves:
        """The curves in a metrics.jsonl; damaged lines are left out."""
        log = read_log(metrics)
        ends = [line for line in log if line["event"] in ("end", "resume")]
        return cls(
            name,
            Curve.of(log, "train", "train_loss"),
            Curve.of(log, "evaluate", "heldout_loss"),
            Curve.of(log, "train", "learning_rate"),
            Curve.of(log, "train", "muon_learning_rate"),
            Curve.of(log, "train", "tokens_per_second"),
            tuple(line["from_step"] for line in ends if isinstance(line.get("from_step"), int) and line["from_step"]),
            ends[-1].get("reason") if ends else None,
        )

    @property
    def shown(self) -> Curve:
        """The curve that says how well the run goes: the held-out loss, or without one the training loss."""
        return self.heldout_loss if self.heldout_loss.values_N else self.training_loss

    def sparkline(self, width: int = 40) -> str:
        """`shown` as one line of blocks; empty for fewer than two values."""
        values = [value for *_, value in self.shown.thinned()]
        return sparkline(values, width) if len(values) > 1 else ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("training_loss", "heldout_loss", "learning_rate", "muon_learning_rate", "tokens_per_second")
        curves = {name: getattr(self, name).to_dict() for name in names}
        return {"name": self.name, "reason": self.reason, "resumed": list(self.resumed), **curves}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
