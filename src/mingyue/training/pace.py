"""The speed of a run, and the number of steps that fit into the remaining time."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

_TRUSTED = 8  # measured steps from which they replace the first guess
_SAVING_EVERY = 60.0  # seconds between checkpoints, by default


class Clock:
    """Counts the seconds of a run: `already` passed, plus those since. Time between stop and resume does not count."""

    def __init__(self, already: float = 0.0, now: Callable[[], float] = perf_counter) -> None:
        self._now = now
        self._zero = now() - already

    def seconds(self) -> float:
        """Seconds of the run so far."""
        return self._now() - self._zero

    def add(self, seconds: float) -> None:
        """Add `seconds` of an earlier part of the run."""
        self._zero -= seconds


@dataclass
class Pace:
    """Measured durations, in seconds."""

    first_guess: float = 0.0
    """Of a step, before steps of the run are measured."""
    evaluation: float = 0.0
    """Of the latest evaluation during the run."""
    final_evaluation: float = 0.0
    """Of the evaluation at the end, if it is not one of the others."""
    save: float = 0.0
    """Of the latest checkpoint."""
    sample: float = 0.0
    """Of generated texts, per evaluation."""
    ending: float = 0.0
    """Of the work between the end of training and the end of the program."""
    spent: float = 0.0
    """Sum of all measured steps."""
    _steps: array[float] = field(default_factory=lambda: array("d"))
    _later_sum: float = 0.0
    _later_start: int = 0

    def add_step(self, seconds: float) -> None:
        """Add the duration of a step."""
        self._steps.append(seconds)
        self.spent += seconds
        self._later_sum += seconds
        while self._later_start < len(self._steps) // 2:
            self._later_sum -= self._steps[self._later_start]
            self._later_start += 1

    @property
    def step_seconds(self) -> float:
        """Duration of a step: the mean of the later half of all steps.

        The first steps are slow (caches, allocations). A mean and not a median, because the plan needs sums.
        """
        if len(self._steps) < _TRUSTED and self.first_guess:
            return self.first_guess
        return self._later_sum / max(1, len(self._steps) - self._later_start)

    @property
    def reserve(self) -> float:
        """Time to reserve for the end: the last evaluation, the last checkpoint and the work after training."""
        return self.final_evaluation + self.save + self.ending

    def seconds_for(self, steps: int, evaluate_every: int | None) -> float:
        """Duration of `steps` more steps, with their evaluations and checkpoints and the end."""
        return steps * self._cost(evaluate_every) + self.reserve

    def steps_in(self, seconds: float, evaluate_every: int | None) -> int:
        """Number of steps that fit into `seconds`; not below 0."""
        cost = self._cost(evaluate_every)
        return max(0, round((seconds - self.reserve) / cost)) if cost > 0 else 0

    def _cost(self, evaluate_every: int | None) -> float:
        """Duration of a step with its share of evaluations, samples and checkpoints."""
        aside = 0.0 if not evaluate_every else (self.evaluation + self.save + self.sample) / evaluate_every
        return (self.step_seconds + aside) * (1 + self.save / _SAVING_EVERY)

    def to_json(self) -> dict[str, Any]:
        """The durations that a resumed run starts from."""
        return {
            "first_guess": self.step_seconds,
            "evaluation": self.evaluation,
            "final_evaluation": self.final_evaluation,
            "save": self.save,
            "sample": self.sample,
        }
