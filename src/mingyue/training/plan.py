"""The plan of a run: the number of steps, the rate of each, the steps with an evaluation.

With `--steps` and `--epochs` the plan is fixed from the start. With `--minutes` the number of steps follows the
measured speed until the rate starts to decay, which depends on the last step. Then the plan is fixed and recorded, and
the clock has no further effect: a resumed run follows the same plan. A decay that would start earlier (as a cosine
does, right after the warm-up) starts when steps of a tenth of the time are measured; without a decay towards the end
(paper, constant), the plan is fixed halfway.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from mingyue.config import DEFAULT_MINUTES, RunSettings, TrainSettings
from mingyue.errors import TrainingError
from mingyue.parsing import as_record
from mingyue.training.pace import Pace
from mingyue.training.schedules import ScheduleKind, decay_start, multiplier, warmup_steps
from mingyue.words import tr

_EVALUATIONS = 20  # over a run, by default
_EVALUATIONS_BETWEEN_SAMPLES = 5
_MEASURED_SHARE = 0.1  # of the time of a run in minutes, before its length is fixed
_MEASURED_STEPS = 8  # before the first evaluation of a run in minutes
_LOG_LINES = 10  # between two evaluations
_EVALUATION_SHARE = 0.05  # of the time of the steps between two evaluations
_FINAL_SHARE = 0.2  # of the time of all steps, for the last evaluation of a run in minutes
_SECONDS_BETWEEN_CHECKPOINTS = 60.0
_SAVING_SHARE = 0.03  # of the time, at most
_DEVIATION = 0.15  # of the planned steps: a run that would miss its time by more gets a new plan
_FORWARD_SHARE = 1 / 3  # of a step: backward costs twice what forward does


@dataclass(frozen=True)
class Plan:
    """The plan of a run. Every weight at every step is a pure function of it, the seed and the data."""

    schedule: ScheduleKind
    total_steps: int
    warmup_steps: int
    decay_from: int
    """First step (from 0) of the decay that ends at `total_steps`; `total_steps` if there is none."""
    decay_share: float
    final_share: float
    evaluate_every: int
    """Steps between evaluations; the last step is always evaluated."""
    evaluate_tokens: int | None
    """Held-out tokens of such an evaluation; None: all."""
    log_every: int
    """Steps between two lines of the log."""
    minutes: float | None
    """The budget, if it is in minutes."""
    fixed: bool
    """Whether `total_steps` no longer follows the clock."""
    warmup: float = 0.0
    """The warm-up as it was set: a share of all steps, or their number."""
    revised: bool = False
    """Whether the plan was changed after it was fixed (`_look_again`)."""

    def multiplier(self, step: int) -> float:
        """Share of the peak rate at `step`, counted from 0."""
        return multiplier(
            self.schedule,
            step,
            total_steps=self.total_steps,
            warmup=self.warmup_steps,
            decay_from=self.decay_from,
            final_share=self.final_share,
        )

    def evaluates_after(self, step: int) -> bool:
        """Whether an evaluation follows `step`, counted from 0."""
        return (step + 1) % self.evaluate_every == 0 or step + 1 == self.total_steps

    def logs_after(self, step: int) -> bool:
        """Whether a line of the log follows `step`, counted from 0."""
        return (step + 1) % self.log_every == 0 or self.evaluates_after(step)

    def final_tokens(self, sizes: RunSizes) -> int | None:
        """Held-out targets of the last evaluation; None: all.

        In a run in minutes, as many as take a fifth of the time of the steps at most, by their number: one minute of
        training on a large text must not end with several minutes of evaluation.
        """
        if self.minutes is None or self.evaluate_tokens is None:
            return None
        fitting = int(_FINAL_SHARE / _FORWARD_SHARE * self.total_steps * sizes.step_tokens)
        tokens = max(fitting, self.evaluate_tokens)
        return None if tokens >= sizes.heldout_tokens else tokens

    def final_seconds(self, sizes: RunSizes, seconds_per_token: float) -> float:
        """Duration of the last evaluation, if a held-out token takes `seconds_per_token`."""
        return seconds_per_token * (self.final_tokens(sizes) or sizes.heldout_tokens)

    def follow(
        self,
        step: int,
        pace: Pace,
        seconds: float,
        *,
        cadence: Cadence | None = None,
        evaluated: bool = False,
        stands: bool = False,
    ) -> Plan:
        """The plan before `step`, `seconds` into the run; unchanged once it is fixed, unless it would miss the time.

        `stands`: it was fixed before a resume, so it is never changed.

        With a `cadence`, evaluations follow the number of steps too; their size stays after the first one.
        """
        if self.minutes is None:
            return self
        if self.fixed:
            return (
                self
                if stands
                else self._look_again(
                    step, pace.steps_in(60 * self.minutes - seconds, self.evaluate_every, latest=True)
                )
            )
        left = pace.steps_in(60 * self.minutes - seconds, self.evaluate_every)
        total = max(1, step + left)
        warmup = self.warmup_steps
        if self.schedule != "paper" and step < warmup:  # not longer than the run, as it is known now
            warmup = warmup_steps(self.schedule, self.warmup or warmup, total)
        falls = decay_start(self.schedule, total, warmup, self.decay_share)
        never = falls >= total
        known = pace.spent >= _MEASURED_SHARE * (pace.spent + 60 * self.minutes - seconds)
        fixed = left <= 0 or (known and step >= (total // 2 if never else falls))
        falls = step if fixed else max(falls, step + 1)
        decay = total if never else falls
        plan = replace(self, total_steps=total, warmup_steps=min(warmup, total), decay_from=decay, fixed=fixed)
        return plan if cadence is None else plan._paced(cadence, evaluated)

    def _look_again(self, step: int, left: int) -> Plan:
        """The fixed plan before `step`, when by the latest speed `left` steps fit into the rest of the time.

        If these are far fewer or more than planned, after a third of the decay, the run is made to end on time:
        once, and with the rate that it has now as the beginning of the rest of its decay.
        """
        planned, past = self.total_steps - step, step - self.decay_from
        known_from = self.decay_from + (self.total_steps - self.decay_from) / 3
        begun = step >= min(known_from, 2 / 3 * self.total_steps)
        if self.revised or planned < 1 or not begun or abs(left - planned) < _DEVIATION * self.total_steps:
            return self
        total = step + max(1, left)
        if self.decay_from >= self.total_steps:
            return replace(self, total_steps=total, decay_from=total, revised=True)
        done = past / (self.total_steps - self.decay_from)
        return replace(self, total_steps=total, decay_from=round((step - done * total) / (1 - done)), revised=True)

    def describe_revision(self, step: int, pace: Pace) -> str:
        """A sentence about this revised plan."""
        return tr(
            "At step {step:,} the speed is no longer that of the plan (now {step_seconds:.3g} s "
            "per step): to end on time, the run will have {total_steps:,} steps.",
            step,
            pace.step_seconds,
            self.total_steps,
        )

    def _paced(self, cadence: Cadence, evaluated: bool) -> Plan:
        every = cadence.every(self.total_steps)
        tokens = self.evaluate_tokens if evaluated else cadence.tokens(every)
        return replace(self, evaluate_every=every, evaluate_tokens=tokens, log_every=max(1, every // _LOG_LINES))

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Plan:
        """The plan of such an object. Raises `FormatError` for a value that is missing or of another type."""
        return as_record(cls, value)


@dataclass(frozen=True)
class RunSizes:
    """Sizes of data and batch that determine the length of a run."""

    windows: int
    """Samples of one epoch."""
    rows: int
    """Samples of one step."""
    step_tokens: int
    """Tokens of one step."""
    heldout_tokens: int
    """Targets of the whole held-out text."""

    def steps_of(self, epochs: float) -> int:
        """Steps of at least `epochs` epochs."""
        return max(1, math.ceil(epochs * self.windows / self.rows - 1e-9))


@dataclass(frozen=True)
class Cadence:
    """How often a run saves, evaluates and generates, and on how much text: as set, or by its number of steps."""

    run: RunSettings
    sizes: RunSizes
    in_minutes: bool

    @property
    def sample_every(self) -> int:
        """Evaluations between generated texts; 0: none."""
        every = self.run.sample_every
        return _EVALUATIONS_BETWEEN_SAMPLES if every is None else every

    def saves(self, step: int, since: float, pace: Pace) -> bool:
        """Whether a checkpoint is due after `step` steps, `since` seconds after the one before."""
        every = self.run.checkpoint_every
        if every is not None:
            return step % every == 0
        return since >= max(_SECONDS_BETWEEN_CHECKPOINTS, pace.save / _SAVING_SHARE)

    def every(self, total_steps: int) -> int:
        """Steps between evaluations.

        With a budget in minutes the first one comes after a few steps, when the speed is known.
        """
        few = min(_MEASURED_STEPS, total_steps) if self.in_minutes else 1
        return self.run.evaluate_every or max(few, math.ceil(total_steps / _EVALUATIONS))

    def tokens(self, every: int) -> int | None:
        """Held-out targets of an evaluation: as set, or as many as take a small share of the steps' time; None: all.

        By counts, not by measured time, so that a run of a given number of steps evaluates alike on every machine.
        """
        asked, sizes = self.run.evaluate_tokens, self.sizes
        if asked is None:
            share = int(_EVALUATION_SHARE / _FORWARD_SHARE * every * sizes.step_tokens)
            asked = max(share, min(sizes.step_tokens, 8192))
        return None if asked >= sizes.heldout_tokens else asked


def make_plan(
    settings: TrainSettings, sizes: RunSizes, *, pace: Pace, seconds: float, step: int = 0, warmup: int | None = None
) -> Plan:
    """The plan `seconds` into the run: before the first step, or a new one before `step` with the old `warmup`.

    For a budget in minutes `pace` must have a measured step. Raises `TrainingError` when no step fits.
    """
    budget, schedule, run = settings.budget, settings.schedule, settings.run
    minutes = None
    if budget.steps is not None:
        total = budget.steps
    elif budget.epochs is not None:
        total = sizes.steps_of(budget.epochs)
    else:
        minutes = DEFAULT_MINUTES if budget.minutes is None else budget.minutes
        left = pace.steps_in(60 * minutes - seconds, run.evaluate_every)
        total = step + left
        if left < 1:
            before, into = (
                (tr("next step"), tr("{step:,} steps", step)) if step else (tr("first step"), tr("the start"))
            )
            raise TrainingError(
                tr(
                    "{minutes:g} minutes are over before the {before}: {seconds:.0f} s went into "
                    "{into}, a step takes {step_seconds:.2f} s, the end of the run {reserve:.0f} s",
                    minutes,
                    before,
                    seconds,
                    into,
                    pace.step_seconds,
                    pace.reserve,
                ),
                advice=tr("Give more --minutes, or a smaller model, batch or text."),
            )
    kind = schedule.schedule
    warm = warmup_steps(kind, schedule.warmup, total) if warmup is None else warmup
    warm = warm if kind == "paper" else min(warm, total)
    cadence = Cadence(run, sizes, in_minutes=minutes is not None)
    every = cadence.every(total)
    return Plan(
        schedule=schedule.schedule,
        total_steps=total,
        warmup_steps=warm,
        decay_from=decay_start(schedule.schedule, total, warm, schedule.decay_share),
        decay_share=schedule.decay_share,
        final_share=schedule.final_share,
        evaluate_every=every,
        evaluate_tokens=cadence.tokens(every),
        log_every=max(1, every // _LOG_LINES),
        minutes=minutes,
        fixed=minutes is None,
        warmup=schedule.warmup,
    )
