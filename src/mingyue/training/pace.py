"""How fast a run goes, and how many more steps fit into the time that is left."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

_TRUSTED = 8  # steps from which the measured ones are believed
_SAVING_EVERY = 60.0  # seconds between checkpoints that come by the clock


class Clock:
    """Seconds of a run: those before this object was made, plus those since. Time between runs does not count."""

    def __init__(self, already: float = 0.0, now: Callable[[], float] = perf_counter) -> None:
        self._now = now
        self._zero = now() - already

    def seconds(self) -> float:
        """Seconds of the run so far."""
        return self._now() - self._zero

    def add(self, seconds: float) -> None:
        """Count `seconds` of an earlier part of the run."""
        self._zero -= seconds


@dataclass
class Pace:
    """Measured durations. Everything is in seconds."""

    first_guess: float = 0.0
    """A step, before any was measured inside the run."""
    evaluation: float = 0.0
    """An evaluation during the run (the latest)."""
    final_evaluation: float = 0.0
    """The evaluation at the end, as far as it is not one of the others."""
    save: float = 0.0
    """A checkpoint (the latest)."""
    sample: float = 0.0
    """Samples after an evaluation, spread over all evaluations."""
    ending: float = 0.0
    """What the caller does between the end of training and the end of the program."""
    spent: float = 0.0
    """All steps that were measured, together."""
    _steps: array[float] = field(default_factory=lambda: array("d"))
    _later_sum: float = 0.0
    _later_start: int = 0

    def add_step(self, seconds: float) -> None:
        """Note the duration of a step."""
        self._steps.append(seconds)
        self.spent += seconds
        self._later_sum += seconds
        while self._later_start < len(self._steps) // 2:
            self._later_sum -= self._steps[self._later_start]
            self._later_start += 1

    @property
    def step_seconds(self) -> float:
        """Duration of a step: the mean of the later half of all steps.

        The first steps are slow (caches, allocations), and what is wanted is a sum, so it is a mean over many and not
        a median.
        """
        if len(self._steps) < _TRUSTED and self.first_guess:
            return self.first_guess
        return self._later_sum / max(1, len(self._steps) - self._later_start)

    @property
    def reserve(self) -> float:
        """Time to keep for the end: the last evaluation, checkpoint and whatever the caller does after it."""
        return self.final_evaluation + self.save + self.ending

    def seconds_for(self, steps: int, evaluate_every: int | None) -> float:
        """How long `steps` more steps take, with their evaluations and checkpoints and the end."""
        return steps * self._cost(evaluate_every) + self.reserve

    def steps_in(self, seconds: float, evaluate_every: int | None) -> int:
        """How many more steps fit into `seconds`; never below 0."""
        cost = self._cost(evaluate_every)
        return max(0, round((seconds - self.reserve) / cost)) if cost > 0 else 0

    def _cost(self, evaluate_every: int | None) -> float:
        """A step with its share of everything that happens between steps."""
        aside = 0.0 if not evaluate_every else (self.evaluation + self.save + self.sample) / evaluate_every
        return (self.step_seconds + aside) * (1 + self.save / _SAVING_EVERY)

    def to_json(self) -> dict[str, Any]:
        """What a resumed run starts from."""
        return {
            "first_guess": self.step_seconds,
            "evaluation": self.evaluation,
            "final_evaluation": self.final_evaluation,
            "save": self.save,
            "sample": self.sample,
        }
