"""The plan that a new or resumed run starts with: the recorded one, or a new one from the speed of a timed step."""

from __future__ import annotations

from typing import Any

from mingyue.config import TrainSettings
from mingyue.training.batches import BatchSource
from mingyue.training.pace import Clock, Pace
from mingyue.training.plan import Plan, RunSizes, make_plan
from mingyue.training.resuming import Tell
from mingyue.training.state import RunState
from mingyue.training.step import Stepper
from mingyue.words import tr


def first_plan(
    old: Plan | None,
    stepper: Stepper,
    batches: BatchSource,
    settings: TrainSettings,
    *,
    state: RunState,
    pace: Pace,
    clock: Clock,
    same: bool,
    tell: Tell,
) -> Plan:
    """The recorded plan `old` if it was made from the `same` settings, else a new one; chosen by rank 0."""
    if needs_timing(settings, pace, old if same else None):
        pace.first_guess = time_a_step(stepper, batches, clock)

    def choose() -> dict[str, Any]:
        seconds, step = clock.seconds(), state.step
        plan = choose_plan(old, settings, batches.sizes, same=same, pace=pace, seconds=seconds, step=step, tell=tell)
        return plan.to_json()

    plan = Plan.from_json(stepper.ranks.share(choose))
    if old is not None and plan.evaluate_tokens != old.evaluate_tokens and state.best_loss is not None:
        state.best_loss = None
        tell(tr("Evaluations read another part of the held-out text from here on: the best step is selected again."))
    return plan


def needs_timing(settings: TrainSettings, pace: Pace, recorded: Plan | None) -> bool:
    """Whether a step has to be timed before the first one. `recorded`: the plan that will be followed, if any."""
    in_minutes = settings.budget.steps is None and settings.budget.epochs is None
    return in_minutes and not pace.first_guess and not (recorded is not None and recorded.fixed)


def time_a_step(stepper: Stepper, batches: BatchSource, clock: Clock) -> float:
    """Seconds of a step, measured without an update, after one micro-batch to warm up.

    Measured again if it took far longer than the warm-up, which is the slowest of all: then something else stalled it.
    """
    micro_batches = batches.step(0, rank=stepper.ranks.rank, ranks=stepper.ranks.size)

    def rehearse(count: int) -> float:
        start = clock.seconds()
        stepper.rehearse(micro_batches[:count])
        return clock.seconds() - start

    count = len(micro_batches)
    most = 2 * count * rehearse(1)
    taken = rehearse(count)
    if stepper.ranks.share(lambda: taken > most):
        taken = min(taken, rehearse(count))
    return 1.1 * taken  # a tenth more for the update, roughly


def choose_plan(
    old: Plan | None,
    settings: TrainSettings,
    sizes: RunSizes,
    *,
    same: bool,
    pace: Pace,
    seconds: float,
    step: int,
    tell: Tell,
) -> Plan:
    """The recorded plan `old` if it was made from the `same` settings, else a new one `seconds` into the run.

    Tells what a new plan changes, and fills in the time of evaluations in `pace` as long as none was measured.
    """
    if old is not None and same:
        plan = old
    else:
        warmup = None if old is None else old.warmup_steps
        plan = make_plan(settings, sizes, pace=pace, seconds=seconds, step=step, warmup=warmup)
        wanted = round(settings.schedule.warmup)  # below 1 it is a share of the steps, which always fits
        if wanted > plan.total_steps:
            rate = plan.multiplier(plan.total_steps - 1)
            tell(
                tr(
                    "The warm-up of {wanted:,} steps is longer than the run of {total_steps:,}: it takes "
                    "all of them, and the last step has {rate:.3f} of the peak rate. Give a shorter "
                    "--warmup, or more steps.",
                    wanted,
                    plan.total_steps,
                    rate,
                )
            )
    if old is not None and not same:
        tell(
            tr(
                "The plan is {total_steps:,} steps instead of {planned_steps:,}; {step:,} are taken. "
                "The schedule is that of a run of this length from the start: the rate of the next "
                "step is {multiplier:.3f} of its peak; by the old plan it was {planned_multiplier:.3f}.",
                plan.total_steps,
                old.total_steps,
                step,
                plan.multiplier(step),
                old.multiplier(step),
            )
        )
    if not pace.evaluation:  # the first measured one may be a stall, so this counts among the last three
        seconds_per_token = pace.step_seconds / 3 / sizes.step_tokens  # forward is a third of a step
        if plan.evaluate_tokens is None:
            pace.evaluation, pace.final_evaluation = seconds_per_token * sizes.heldout_tokens, 0.0
        else:
            pace.evaluation = seconds_per_token * plan.evaluate_tokens
            pace.final_evaluation = plan.final_seconds(sizes, seconds_per_token)
        pace.steady("evaluation", pace.evaluation)
        pace.steady(tr("held-out token"), seconds_per_token)
    return plan
