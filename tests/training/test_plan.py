"""The plan: fixed from counts, or following the clock until it has to be fixed."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mingyue.config import TrainSettings
from mingyue.errors import TrainingError
from mingyue.training import Clock, Pace, Plan, RunSizes, make_plan
from mingyue.training.plan import Cadence

SIZES = RunSizes(windows=100, rows=8, step_tokens=512, heldout_tokens=5000)


def settings_of(**values):
    return TrainSettings.from_flat(**values)


def test_steps_are_a_plan_from_the_start():
    plan = make_plan(settings_of(steps=200, warmup=0.1), SIZES, pace=Pace(), seconds=0.0)
    assert (plan.total_steps, plan.warmup_steps, plan.decay_from, plan.fixed) == (200, 20, 100, True)
    assert plan.evaluate_every == 10
    assert [step for step in range(25) if plan.evaluates_after(step)] == [9, 19]
    assert plan.evaluates_after(199)
    assert plan.log_every == 1
    assert plan.follow(50, Pace(first_guess=9.0), 1e6) == plan


def test_epochs_show_the_whole_text():
    """100 windows in steps of 8: one epoch is 13 steps, the last of which reaches into the next."""
    for epochs, steps in ((1, 13), (2, 25), (0.5, 7), (0.001, 1), (8, 100)):
        assert make_plan(settings_of(epochs=epochs), SIZES, pace=Pace(), seconds=0.0).total_steps == steps


def test_evaluations_are_counted_not_measured():
    """About 20 evaluations that cost at most 5 % of the steps; the same on every machine."""
    plans = [
        make_plan(settings_of(steps=1000), SIZES, pace=Pace(first_guess=p), seconds=s) for p, s in ((1, 0), (9, 5))
    ]
    assert plans[0] == plans[1]
    assert plans[0].evaluate_tokens == int(0.15 * 50 * 512)
    assert make_plan(settings_of(steps=10_000), SIZES, pace=Pace(), seconds=0.0).evaluate_tokens is None  # all of it
    asked = make_plan(settings_of(steps=1000, evaluate_every=7, evaluate_tokens=100), SIZES, pace=Pace(), seconds=0.0)
    assert (asked.evaluate_every, asked.evaluate_tokens) == (7, 100)


def test_plan_survives_json():
    plan = make_plan(settings_of(minutes=5.0), SIZES, pace=Pace(first_guess=0.1), seconds=3.0)
    assert Plan.from_json(plan.to_json()) == plan


class Machine:
    """Plays a run of so many minutes on a made-up machine; time passes only when something is done."""

    def __init__(
        self, *, minutes, step, slow_start=0.0, evaluation=0.0, final=0.0, save=0.0, start=8.0, noise=0.0, **s
    ):
        self.now, self.step_seconds, self.slow_start, self.noise = 0.0, step, slow_start, noise
        self.evaluation, self.final, self.save = evaluation, final, save
        self.settings = settings_of(minutes=minutes, **s)
        self.clock = Clock(already=start, now=lambda: self.now)
        self.random = random.Random(1)

    def play(self):
        guess = self.step_seconds * (1 + self.slow_start)  # what the first step would be measured at
        self.now += 2 * guess
        pace = Pace(first_guess=guess, ending=1.0)
        self.plan = make_plan(self.settings, SIZES, pace=pace, seconds=self.clock.seconds())
        step, self.fixed_at, self.plans = 0, None, []
        while True:
            plan = self.plan.follow(step, pace, self.clock.seconds())
            if plan.fixed and self.fixed_at is None:
                self.fixed_at = step
            if self.fixed_at is not None:
                self.plans.append(plan)
            self.plan = plan
            if step >= plan.total_steps:
                break
            factor = 1 + self.slow_start * 0.5**step
            taken = self.step_seconds * factor * (1 + self.noise * self.random.uniform(-1, 1))
            self.now += taken
            pace.add_step(taken)
            step += 1
            if plan.evaluates_after(step - 1):
                self.now += self.evaluation + self.save
                pace.evaluation, pace.save, pace.final_evaluation = self.evaluation, self.save, self.final
        self.now += self.final + self.save + 1.0
        self.steps = step
        return self.clock.seconds()


@pytest.mark.parametrize("schedule", ["wsd", "cosine", "paper", "constant"])
@pytest.mark.parametrize(
    "machine",
    [
        {"minutes": 10, "step": 0.11},
        {"minutes": 10, "step": 0.11, "noise": 0.5, "evaluation": 0.9, "final": 12.0, "save": 0.4},
        {"minutes": 1, "step": 0.05, "slow_start": 20.0, "final": 3.0, "save": 0.1},
        {"minutes": 10, "step": 0.3, "slow_start": 30.0, "start": 45.0},
        {"minutes": 0.5, "step": 0.002, "evaluation": 0.05, "final": 1.0},
    ],
)
def test_minutes_end_on_time(machine, schedule):
    """A run of so many minutes ends within 5 %: start, evaluations, saving and slow first steps included."""
    played = Machine(schedule=schedule, **machine)
    assert played.play() == pytest.approx(60 * machine["minutes"], rel=0.05)
    # wsd: half of the steps are the decay; cosine: a tenth of the time to know the speed; paper, constant: halfway
    low, high = {"cosine": (0.05, 0.12)}.get(schedule, (0.4, 0.6))
    assert low * played.steps < played.fixed_at < high * played.steps
    never = schedule in ("paper", "constant")
    assert played.plan.decay_from == (played.steps if never else played.fixed_at)


def test_the_last_evaluation_of_a_run_in_minutes_takes_a_fifth_of_its_steps_at_most():
    """A minute on a large text must not end in several minutes of evaluation; steps and epochs read all."""
    played = Machine(minutes=1, step=0.5)
    played.play()
    plan = replace(played.plan, total_steps=100, evaluate_tokens=500)
    large = replace(SIZES, step_tokens=1000, heldout_tokens=1_000_000)
    assert plan.final_tokens(large) == 60_000  # forward is a third of a step: a fifth of 100 steps of 1,000 tokens
    assert plan.final_seconds(large, 1e-3) == 60.0
    assert plan.final_tokens(replace(large, heldout_tokens=60_000)) is None
    assert replace(plan, evaluate_tokens=70_000).final_tokens(large) == 70_000  # never less than those on the way
    assert replace(plan, minutes=None).final_tokens(large) is None
    assert replace(plan, evaluate_tokens=None).final_seconds(large, 1e-3) == 1000.0


def test_a_resumed_run_in_minutes_without_time_for_a_step_is_refused_with_what_takes_the_time():
    pace = Pace(first_guess=2.0, final_evaluation=40.0, ending=1.0)
    with pytest.raises(TrainingError, match=r"before the next step: 25 s went into 7 steps, .* end of the run 41 s"):
        make_plan(settings_of(minutes=1), SIZES, pace=pace, seconds=25.0, step=7)
    assert make_plan(settings_of(minutes=2), SIZES, pace=pace, seconds=25.0, step=7).total_steps > 7


def test_plan_does_not_move_once_fixed():
    """From the beginning of the decay on the plan is the same, whatever the clock says."""
    played = Machine(minutes=2, step=0.1, noise=0.9)
    played.play()
    assert len(set(played.plans)) == 1
    assert played.plans[0].fixed
    assert played.plans[0].total_steps == played.steps


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.2, 5),
    st.floats(0.02, 2.0),
    st.floats(0, 1),
    st.sampled_from(["wsd", "cosine", "constant"]),
    st.floats(0, 1),
)
def test_minutes_always_end(minutes, step, decay_share, schedule, warmup):
    """Whatever the settings, a run of so many minutes takes steps, ends, and its last rate is above 0."""
    if 60 * minutes < 9 + 6 * step:
        return
    played = Machine(minutes=minutes, step=step, decay_share=decay_share, schedule=schedule, warmup=warmup)
    seconds = played.play()
    assert played.steps >= 1
    assert seconds < 60 * minutes * 1.05 + 2 * step
    assert 0 < played.plan.multiplier(played.steps - 1) <= 1


def test_no_time_for_a_step_says_so():
    """A budget that the start has used up is an error with both numbers."""
    with pytest.raises(TrainingError, match=r"0\.1 minutes .* 30 s"):
        make_plan(settings_of(minutes=0.1), SIZES, pace=Pace(first_guess=0.5), seconds=30.0)


def test_pace_forgets_the_slow_start():
    """The mean of the later half: ten slow steps at the start do not count after twenty fast ones."""
    pace = Pace(first_guess=7.0)
    for _ in range(7):
        pace.add_step(5.0)
    assert pace.step_seconds == 7.0  # too few to believe
    for _ in range(3):
        pace.add_step(5.0)
    assert pace.step_seconds == pytest.approx(5.0)
    for _ in range(30):
        pace.add_step(0.1)
    assert pace.step_seconds == pytest.approx(0.1)


def test_clock_counts_earlier_parts_and_not_the_time_between():
    now = 100.0
    clock = Clock(already=2.0, now=lambda: now)
    now = 110.0
    clock.add(60.0)
    assert clock.seconds() == pytest.approx(72.0)


def test_a_slow_first_step_does_not_leave_an_evaluation_every_few_steps():
    """The first guess of the speed is the worst one: how often to evaluate follows the better ones."""
    asked = TrainSettings.from_flat(minutes=1.0)
    sizes = RunSizes(windows=1000, rows=8, step_tokens=2048, heldout_tokens=1_000_000)
    pace = Pace(first_guess=1.0)
    first = make_plan(asked, sizes, pace=pace, seconds=0.0)
    for _ in range(20):
        pace.add_step(0.1)
    cadence = Cadence(asked.run, sizes, in_minutes=True)
    later = first.follow(20, pace, 2.0, cadence=cadence)
    assert first.evaluate_every == 8
    assert later.total_steps > 400
    assert later.evaluate_every == math.ceil(later.total_steps / 20)
    assert later.evaluate_tokens is not None
    assert first.evaluate_tokens is not None
    assert later.evaluate_tokens > first.evaluate_tokens
    after = first.follow(20, pace, 2.0, cadence=cadence, evaluated=True)
    assert after.evaluate_tokens == first.evaluate_tokens  # another part of the text could not be compared


def test_what_was_asked_of_evaluations_stays_whatever_the_speed():
    asked = TrainSettings.from_flat(minutes=1.0, evaluate_every=7, evaluate_tokens=5000)
    sizes = RunSizes(windows=1000, rows=8, step_tokens=2048, heldout_tokens=1_000_000)
    pace = Pace(first_guess=1.0)
    plan = make_plan(asked, sizes, pace=pace, seconds=0.0)
    for _ in range(20):
        pace.add_step(0.1)
    later = plan.follow(20, pace, 2.0, cadence=Cadence(asked.run, sizes, in_minutes=True))
    assert (later.evaluate_every, later.evaluate_tokens) == (7, 5000)


# --- stalls ---------------------------------------------------------------------------------------------------------


def play_with_stalls(stalls, *, minutes=1.0, step=0.05, evaluation=0.05, speed=lambda step: 1.0, **given):
    """(seconds at the end, steps, plans) of a run whose steps or evaluations of these numbers take 15 s more."""
    now = 0.0
    asked = settings_of(minutes=minutes, **given)
    clock = Clock(already=3.0, now=lambda: now)
    pace = Pace(first_guess=step, ending=1.0)
    plan = make_plan(asked, SIZES, pace=pace, seconds=clock.seconds())
    number, evaluations, plans = 0, 0, [plan]
    pace.steady("evaluation", evaluation)
    while True:
        plan = plan.follow(number, pace, clock.seconds(), cadence=Cadence(asked.run, SIZES, in_minutes=True))
        plans.append(plan)
        if number >= plan.total_steps:
            return clock.seconds() + 1.0, number, plans
        taken = step * speed(number) + 15.0 * (("step", number) in stalls)
        now += taken
        pace.add_step(taken)
        number += 1
        if plan.evaluates_after(number - 1):
            taken = evaluation + 15.0 * (("evaluation", evaluations) in stalls)
            now += taken
            pace.evaluation = pace.steady("evaluation", taken)
            evaluations += 1


@pytest.mark.parametrize("schedule", ["wsd", "cosine", "constant"])
@pytest.mark.parametrize("what", ["step", "evaluation"])
@pytest.mark.parametrize("when", [0, 1, 3, 9, 20, 100, 300])
def test_a_stall_of_15_seconds_leaves_a_run_of_a_minute_on_time(schedule, what, when):
    """A stopped process or a laptop that slept: the run ends when it should, by a warm-up within its plan."""
    seconds, steps, plans = play_with_stalls({(what, when)}, schedule=schedule)
    assert seconds == pytest.approx(60, rel=0.06)
    assert steps > 500
    assert all(plan.warmup_steps <= plan.total_steps for plan in plans)
    assert plans[-1].multiplier(steps - 1) < 0.02 or schedule == "constant"


@pytest.mark.parametrize("schedule", ["wsd", "cosine", "constant"])
@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_a_fixed_plan_is_looked_at_again_when_the_speed_changes_for_good(schedule, factor):
    """Another program comes or goes in the middle: the run still ends about when it should, and without a jump."""
    fixed_at = {"wsd": 600, "cosine": 120, "constant": 600}[schedule]
    _, _, plans = play_with_stalls(set(), schedule=schedule, speed=lambda step: factor if step > fixed_at else 1.0)
    seconds, steps, _ = play_with_stalls(
        set(), schedule=schedule, speed=lambda step: factor if step > fixed_at else 1.0
    )
    assert 50 < seconds < 80
    changes = [(old, new) for old, new in pairwise(plans) if old.fixed and old != new]
    assert len(changes) == 1
    old, new = changes[0]
    step = plans.index(new) - 1
    assert new.multiplier(step) == pytest.approx(old.multiplier(step), abs=0.01)
    assert steps == new.total_steps
    assert Plan.from_json(new.to_json()) == new


@pytest.mark.parametrize("warmup", [0.02, 0.5, 400.0])
def test_a_warm_up_is_never_longer_than_the_plan(warmup):
    """The first guess is a hundred times too fast: the warm-up was planned for a run that is not to be."""
    asked = settings_of(minutes=1.0, warmup=warmup)
    pace = Pace(first_guess=0.003, ending=1.0)
    plan = make_plan(asked, SIZES, pace=pace, seconds=0.0)
    assert plan.warmup_steps > 300
    for step in range(40):
        pace.add_step(0.3)
        plan = plan.follow(step + 1, pace, 0.3 * (step + 1))
    assert 150 < plan.total_steps < 250
    assert plan.warmup_steps == (
        min(400, plan.total_steps) if warmup == 400.0 else math.ceil(warmup * plan.total_steps)
    )


def test_pace_counts_regular_slow_steps_but_not_one_stall():
    """Every tenth step takes long: the plan needs their time. One stall: it does not."""
    pace = Pace()
    for number in range(400):
        pace.add_step(1.0 if number % 10 == 9 else 0.1)
    assert pace.step_seconds == pytest.approx(0.19)
    pace = Pace()
    for number in range(400):
        pace.add_step(15.0 if number == 300 else 0.1)
    assert pace.step_seconds == pytest.approx(0.1)
    assert [pace.steady("save", seconds) for seconds in (1.0, 16.0, 1.2, 1.1, 20.0)] == [1.0, 1.0, 1.2, 1.2, 1.2]
