"""The speed of a run, and the number of steps that fit into the remaining time."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

_TRUSTED = 8  # measured steps from which they replace the first guess
_STRETCHES = 8  # consecutive parts of the steps, of whose means the median is taken
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
    _ends: array[float] = field(default_factory=lambda: array("d", [0.0]))
    """Sum of the steps up to each one."""
    _recent: dict[str, list[float]] = field(default_factory=dict)

    def add_step(self, seconds: float) -> None:
        """Add the duration of a step."""
        self.spent += seconds
        self._ends.append(self.spent)

    def steady(self, what: str, seconds: float) -> float:
        """The typical duration of `what`, measured once more: the median of the last three, the lower one of two.

        One stall (a laptop that slept, a stopped process) must not count.
        """
        recent = self._recent.setdefault(what, [])
        recent.append(seconds)
        del recent[:-3]
        return sorted(recent)[(len(recent) - 1) // 2]

    @property
    def step_seconds(self) -> float:
        """Typical duration of a step, from the later half of all steps, since the first are slow (caches, memory).

        The median of the means of consecutive stretches: the plan needs sums, to which rare slow steps belong, but one
        stall of seconds must not count.
        """
        steps = len(self._ends) - 1
        if steps < _TRUSTED and self.first_guess:
            return self.first_guess
        return self.seconds_of_last(steps - steps // 2)

    def seconds_of_last(self, steps: int) -> float:
        """Typical duration of a step among the last `steps`; 0 if there are none."""
        end = len(self._ends) - 1
        start = max(0, end - steps)
        stretches = min(_STRETCHES, end - start)
        borders = [start + (end - start) * number // max(1, stretches) for number in range(stretches + 1)]
        means = [(self._ends[last] - self._ends[first]) / (last - first) for first, last in pairwise(borders)]
        return median(means) if means else 0.0

    @property
    def reserve(self) -> float:
        """Time to reserve for the end: the last evaluation, the last checkpoint and the work after training."""
        return self.final_evaluation + self.save + self.ending

    def seconds_for(self, steps: int, evaluate_every: int | None) -> float:
        """Duration of `steps` more steps, with their evaluations and checkpoints and the end."""
        return steps * self._cost(evaluate_every) + self.reserve

    def steps_in(self, seconds: float, evaluate_every: int | None, *, latest: bool = False) -> int:
        """Number of steps that fit into `seconds`; not below 0. `latest`: at the speed of the last eighth of all."""
        cost = self._cost(evaluate_every)
        if latest and self.step_seconds > 0:
            cost += self.seconds_of_last(max(_TRUSTED, len(self._ends) // 8)) - self.step_seconds
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
