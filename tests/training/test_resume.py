"""Exact resume: a run that was stopped anywhere equals one that never was."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from mingyue.training import StopRequests, read_log


def same_weights(first, second):
    one, two = first.state_dict(), second.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def numbers(path):
    """The log without the times and what depends on them."""
    timed = {"seconds", "tokens_per_second", "evaluation_seconds"}
    events = (event for event in read_log(path) if event["event"] not in ("resume", "plan"))
    return [{key: value for key, value in event.items() if key not in timed} for event in events]


SCHEDULES = ("wsd", "cosine", "paper", "constant")
CASES = [("adamw", "wsd"), *itertools.product(["muon"], SCHEDULES)]


@pytest.mark.parametrize(("optimiser", "schedule"), CASES)
def test_killed_and_resumed_equals_never_stopped(bench, watcher, killed, optimiser, schedule):
    """T2: killed at random steps, some in later epochs, with dropout and accumulation: the same weights and log."""
    options = {
        "config": {"dropout": 0.2, "attention_dropout": 0.1},
        "optimiser": optimiser,
        "schedule": schedule,
        "checkpoint_every": 4,
        "steps": 26,
        "sizes": {"train": 330},
        "label_smoothing": 0.1 if schedule == "paper" else 0.0,
        "attend_across_documents": schedule != "cosine",
    }
    whole = bench(**options, name="whole")
    assert whole.settings.budget.steps * whole.rows > 2 * 22  # more than two epochs
    never_stopped, result = whole.go()
    broken = bench(**options, name="broken")
    moments = sorted(random.Random(optimiser + schedule).sample(range(1, 26), 3))
    for number, moment in enumerate(moments):
        with pytest.raises(killed):
            broken.go(resume=number > 0, watcher=watcher(die_after=moment))
    resumed, again = broken.go(resume=True)
    assert same_weights(never_stopped, resumed)
    assert again.evaluation.nats == result.evaluation.nats
    assert (again.step, again.tokens, again.weights_step) == (result.step, result.tokens, result.weights_step)
    assert numbers(broken.path / "metrics.jsonl") == numbers(whole.path / "metrics.jsonl")


def test_asked_to_stop_saves_and_goes_on_exactly(bench, watcher):
    """T2: a stop on request finishes the step, saves it, and the resumed run equals one never stopped."""
    never_stopped, _ = bench(name="whole").go()
    broken = bench(name="broken")
    for moment in (5, 6, 17):
        stop = StopRequests()
        _, result = broken.go(resume=moment > 5, watcher=watcher(stop_after=moment, stop=stop), stop=stop)
        assert (result.reason, result.step) == ("stopped", moment)
    resumed, result = broken.go(resume=True)
    assert result.reason == "finished"
    assert same_weights(never_stopped, resumed)


def test_same_seed_twice_is_the_same_run(bench):
    """T14: the same settings twice give the same weights and the same log; another seed gives others."""
    one, two = bench(name="one"), bench(name="two")
    first, second = one.go()[0], two.go()[0]
    assert same_weights(first, second)
    assert numbers(one.path / "metrics.jsonl") == numbers(two.path / "metrics.jsonl")
    assert not same_weights(first, bench(name="three", seed=2).go()[0])
