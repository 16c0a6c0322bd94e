"""What is logged and reported of a training step, and reports that may fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mingyue.training.observer import Callbacks, StepReport
from mingyue.training.optimisers import Optimisers
from mingyue.training.pace import Pace
from mingyue.training.plan import Plan, RunSizes
from mingyue.training.state import RunState
from mingyue.training.step import StepResult
from mingyue.words import tr

T = TypeVar("T")
_ENOUGH_STEPS, _ENOUGH_SECONDS = 8, 10.0
"""Steps, or their time (with two of them at least), after which their speed is known."""
_WORTH_TELLING = 5.0
"""Seconds: a run that ends sooner needs no estimate."""


def attempt(what: str, make: Callable[[], T], otherwise: T, tell: Callable[[str], None]) -> T:
    """What `make` returns; if it fails, `otherwise`, and `tell` receives a sentence about `what` is missing.

    For reports about a model or a run, whatever they meet (no memory, a damaged log): they must never end the run.
    """
    try:
        return make()
    except Exception as error:
        kind = type(error).__name__
        said = tr("No {what}: {kind}: {error}.", what, kind, error)
        tell(said if str(error) else tr("No {what}: {kind}.", what, kind))
        return otherwise


def step_report(
    result: StepResult,
    state: RunState,
    plan: Plan,
    optimisers: Optimisers,
    callbacks: Callbacks,
    *,
    pace: Pace,
    sizes: RunSizes,
) -> StepReport:
    """The report of the step that was just taken."""
    tokens_per_second = sizes.step_tokens / max(pace.step_seconds, 1e-9)
    return StepReport(
        step=state.step,
        total_steps=plan.total_steps,
        loss=result.loss,
        learning_rate=optimisers.rates.adamw * plan.multiplier(state.step - 1),
        gradient_norm=result.gradient_norm,
        tokens_per_second=tokens_per_second,
        seconds=callbacks.clock.seconds(),
        seconds_left=pace.seconds_for(plan.total_steps - state.step, plan.evaluate_every),
        share_of_peak=callbacks.share_of_peak(tokens_per_second),
    )


def log_values(
    result: StepResult, state: RunState, plan: Plan, optimisers: Optimisers, callbacks: Callbacks
) -> dict[str, float]:
    """The `train` line of the log after the step that was just taken: means over the steps since the line before."""
    loss, tokens_per_second = state.take_since_log()
    multiplier = plan.multiplier(state.step - 1)
    values = {
        "train_loss": loss,
        "learning_rate": optimisers.rates.adamw * multiplier,
        "gradient_norm": result.gradient_norm,
        "tokens_per_second": round(tokens_per_second, 1),
    }
    if optimisers.muon is not None:
        values["muon_learning_rate"] = optimisers.rates.muon * multiplier
    if (share := callbacks.share_of_peak(tokens_per_second)) is not None:
        values["share_of_peak"] = round(share, 4)
    return values


class ExpectedTime:
    """Tells once how long a run of a given number of steps will take, as soon as a few of them are measured.

    An estimate before the first step would rest on the speed of large matrices; small models reach a part of it only.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._steps, self._told = 0, False

    def look(self, pace: Pace, plan: Plan, sizes: RunSizes, *, step: int, seconds: float) -> None:
        """Look at the speed after `step` steps, `seconds` into the run."""
        self._steps += 1
        if self._told or plan.minutes is not None or self._steps < 2:
            return
        if self._steps < _ENOUGH_STEPS and pace.spent < _ENOUGH_SECONDS:
            return
        self._told = True
        if not pace.evaluation and sizes.heldout_tokens:
            tokens = plan.evaluate_tokens or sizes.heldout_tokens
            pace.evaluation = tokens / sizes.step_tokens * pace.step_seconds / 3  # forward is a third of a step
        left = pace.seconds_for(plan.total_steps - step, plan.evaluate_every)
        if left >= _WORTH_TELLING:
            self._tell(
                tr(
                    "measured: {step_seconds:.2g} s per step, so the run of {total_steps:,} steps takes "
                    "about {spoken_time} in all",
                    pace.step_seconds,
                    plan.total_steps,
                    spoken_time(seconds + left),
                )
            )


def spoken_time(seconds: float) -> str:
    """A time in words, in the unit that suits it."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return tr("{seconds:.0f} min", seconds / 60) if seconds < 5400 else f"{seconds / 3600:.1f} h"
