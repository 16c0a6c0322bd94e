"""Runs on pairs: exact resume, how the best step is chosen, budgets, and where numbers went wrong."""

from __future__ import annotations

import random

import pytest
import torch

from mingyue.config import TrainSettings
from mingyue.errors import TrainingError
from mingyue.training import Clock, StopRequests, changed_settings, read_log
from mingyue.training.recipes import with_recipe

TIMES = {"seconds", "tokens_per_second", "evaluation_seconds"}


def same_weights(first, second):
    one, two = first.state_dict(), second.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def numbers(path):
    events = (event for event in read_log(path / "metrics.jsonl") if event["event"] not in ("resume", "plan"))
    return [{key: value for key, value in event.items() if key not in TIMES} for event in events]


@pytest.mark.parametrize(
    ("optimiser", "schedule", "changes"),
    [
        ("muon", "wsd", {}),
        ("adamw", "paper", {"positions": "sinusoidal", "norm_placement": "post", "final_norm": False}),
        ("muon", "cosine", {"source_vocab_size": 23, "tied_output": False, "qk_norm": True, "n_kv_heads": 1}),
    ],
)
def test_killed_and_resumed_equals_never_stopped(pair_bench, watcher, killed, optimiser, schedule, changes):
    """T2: pairs, with dropout, micro-batches and label smoothing, killed in the second epoch: the same weights, log."""
    options = {
        "config": {"dropout": 0.2, "attention_dropout": 0.1, **changes},
        "optimiser": optimiser,
        "schedule": schedule,
        "label_smoothing": 0.1,
        "checkpoint_every": 4,
        "steps": 15,
        "average_last": 2,
        "sizes": {"train": 35, "valid": 8},
    }
    whole, broken = pair_bench(**options, name="whole"), pair_bench(**options, name="broken")
    epoch = whole.batches(whole.settings).sizes.windows
    assert 4 <= epoch <= 7  # more than two of them
    never_stopped, result = whole.go()
    moments = [*sorted(random.Random(schedule).sample(range(1, epoch), 1)), epoch + epoch // 2]
    for number, moment in enumerate(moments):
        with pytest.raises(killed):
            broken.go(resume=number > 0, watcher=watcher(die_after=moment))
    resumed, again = broken.go(resume=True)
    assert same_weights(never_stopped, resumed)
    assert again.evaluation.nats == result.evaluation.nats
    assert (again.step, again.tokens, again.weights_step) == (result.step, result.tokens, result.weights_step)
    assert numbers(broken.path) == numbers(whole.path)


def test_asked_to_stop_saves_and_goes_on_exactly(pair_bench, watcher):
    """T2: a stop on request, in the middle of the second epoch."""
    options = {"config": {"dropout": 0.2}, "steps": 18}
    never_stopped, _ = pair_bench(**options).go()
    broken, stop = pair_bench(**options), StopRequests()
    _, result = broken.go(watcher=watcher(stop_after=13, stop=stop), stop=stop)
    assert (result.reason, result.step) == ("stopped", 13)
    resumed, _ = broken.go(resume=True)
    assert same_weights(never_stopped, resumed)


def test_a_step_counts_the_targets_that_it_held(pair_bench):
    """Steps on pairs differ in tokens: the count of a run is the sum, not steps × the mean."""
    run = pair_bench(steps=5)
    _, result = run.go()
    batches = run.batches(run.settings)
    assert result.tokens == sum(batch.tokens for step in range(5) for batch in batches.step(step))


# --- which step is the best -------------------------------------------------------------------------------------------


def scores(*values):
    """A stand-in for BLEU: these values, one an evaluation."""
    left = iter(values)
    return lambda: {"bleu": next(left)}


def test_selection_by_a_measure_and_by_loss(pair_bench):
    """The highest value of the measure marks the best step, or the lowest loss does; both are in the log."""
    wanted = {"steps": 16, "learning_rate": 1e-4, "muon_learning_rate": 1e-4}  # the loss falls all along
    by_loss, by_bleu = pair_bench(**wanted), pair_bench(**wanted, select="bleu")
    seen = (3.0, 9.0, 9.0, 1.0)
    first = by_loss.go(measure=scores(*seen))[1]
    model, second = by_bleu.go(measure=scores(*seen), select="bleu")
    assert (first.weights_step, second.weights_step) == (16, 12)  # of equals the one of the lower loss
    for run, best in ((by_loss, [True] * 4), (by_bleu, [True, True, True, False])):
        lines = [line for line in read_log(run.path / "metrics.jsonl") if line["event"] == "evaluate"]
        assert [line["bleu"] for line in lines] == list(seen)
        assert [line["best"] for line in lines] == best
        assert all(line["heldout_loss"] > 0 for line in lines)
    stopped_there = pair_bench(**wanted)
    stop = StopRequests()

    def at_twelve():
        stop.request()
        return {"bleu": 1.0}

    weights = stopped_there.go(stop=stop, measure=iter_after(2, at_twelve))[0]
    assert same_weights(model, weights)


def iter_after(calls, then):
    """Nothing to tell for so many calls, then what `then` says."""
    count = 0

    def measure():
        nonlocal count
        count += 1
        return {"bleu": 0.0} if count <= calls else then()

    return measure


def test_the_observer_hears_what_was_measured(pair_bench, watcher):
    run, seen = pair_bench(steps=8), watcher()
    run.go(watcher=seen, measure=scores(3.0, 2.0))
    assert [report.measures for report in seen.evaluations] == [{"bleu": 3.0}, {"bleu": 2.0}, {}]
    assert seen.evaluations[-1].final


def test_measuring_changes_no_weight(pair_bench):
    """T14: what is measured beside the training, in eval mode, leaves the run as it was."""
    options = {"config": {"dropout": 0.3}, "steps": 8}
    plain, _ = pair_bench(**options).go()
    run = pair_bench(**options)
    modes = []

    def measure():
        modes.append(model_of[0].training)
        torch.rand(3)
        return {"bleu": 1.0}

    model_of = []
    measured, _ = run.go(prepare=model_of.append, measure=measure)
    assert modes == [False, False]
    assert same_weights(plain, measured)


def test_patience_counts_by_the_measure(pair_bench):
    run = pair_bench(steps=40, patience=2, select="bleu")
    _, result = run.go(measure=scores(1.0, 5.0, 4.0, 3.0, 9.0), select="bleu")
    assert (result.reason, result.step, result.weights_step) == ("patience", 16, 8)


@pytest.mark.parametrize(("before", "after"), [("loss", "bleu"), ("bleu", "loss")])
def test_another_measure_on_a_resume_counts_the_best_anew(pair_bench, watcher, before, after):
    """T1: a loss is never compared with a BLEU: the first evaluation after the change is the best so far."""
    run = pair_bench(steps=16, select=before, keep=9)
    stop = StopRequests()
    run.go(
        watcher=watcher(stop_after=9, stop=stop), stop=stop,
        measure=scores(50.0, 40.0), select=None if before == "loss" else "bleu",
    )  # fmt: skip
    seen = watcher()
    _, result = run.go(
        resume=True, settings=changed_settings(run.settings, {"select": after}), watcher=seen,
        measure=scores(30.0, 20.0), select=None if after == "loss" else "bleu",
    )  # fmt: skip
    assert any("selected again" in note for note in seen.notes)
    assert seen.evaluations[0].best
    assert result.weights_step == (
        12 if after == "bleu" else min(seen.evaluations[:2], key=lambda r: r.evaluation.loss).step
    )
    again = watcher()  # said once
    run.go(resume=True, settings=changed_settings(run.settings, {"select": after}), watcher=again)
    assert not any("selected again" in note for note in again.notes)


# --- the rest of a run ------------------------------------------------------------------------------------------------


def test_epochs_are_passes_over_the_pairs(pair_bench):
    """Two epochs show every target twice, whatever the batches hold."""
    run = pair_bench(steps=None, epochs=2.0)
    _, result = run.go()
    assert result.tokens == 2 * int(run.corpus.train.target_lengths.sum())


def test_minutes_hold_with_measuring_in_them(pair_bench):
    """A budget in minutes on a clock that steps and measuring move: both are part of it."""
    now = [0.0]

    def forward(*_):
        now[0] += 0.25

    def measure():
        now[0] += 1.5
        return {"bleu": 1.0}

    run = pair_bench(steps=None, minutes=1.0, evaluate_every=None, micro_tokens=60)
    _, result = run.go(
        clock=Clock(now=lambda: now[0]),
        prepare=lambda model: model.embedding.register_forward_hook(forward),
        measure=measure,
    )
    assert result.reason == "finished"
    assert result.seconds == pytest.approx(60, rel=0.05)
    assert result.step > 30


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("encoder.blocks.0.attention.qkv", "encoder.blocks.0.attention.query"),
        ("encoder.blocks.0.feedforward.inner", "encoder.blocks.0.feedforward.inner"),
        ("decoder.blocks.0.attention.qkv", "decoder.blocks.0.attention.query"),
        ("decoder.blocks.1.cross_attention.query", "decoder.blocks.1.cross_attention.query"),
        ("decoder.blocks.1.feedforward.inner", "decoder.blocks.1.feedforward.inner"),
    ],
)
def test_an_overflow_names_the_layer_of_its_stack(pair_bench, name, place):
    """T11: finite weights, an overflow in one of the two stacks: the first place where it shows is named."""

    def prepare(model):
        with torch.no_grad():
            weight = model.get_parameter(f"{name}.weight")
            weight.copy_(torch.where(weight > 0, 3e38, -3e38))

    run = pair_bench(steps=2)
    with pytest.raises(TrainingError) as caught:
        run.go(prepare=prepare)
    assert f"the output of {place}" in caught.value.message
    assert "step 1" in caught.value.message


def test_the_paper_recipe_in_a_short_run_is_the_beginning_of_its_curve(pair_bench):
    """Equation 3: d_model^-0.5 · n · 4000^-1.5 at step n of the warm-up, however soon the run ends; Adam alone."""
    run = pair_bench(steps=6)
    run.settings = with_recipe(
        TrainSettings.from_flat(recipe="paper", steps=6, evaluate_every=6, source="a", target="b")
    )
    run.go()
    lines = [line for line in read_log(run.path / "metrics.jsonl") if line["event"] == "train"]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all("muon_learning_rate" not in line for line in lines)
    expected = [16**-0.5 * number * 4000**-1.5 for number in range(1, 7)]
    assert [line["learning_rate"] for line in lines] == pytest.approx(expected)


def test_pairs_and_text_do_not_go_through_the_other_model(pair_bench, bench):
    pairs, text = pair_bench(), bench()
    pairs.config, text.config = text.config, pairs.config
    for run in (pairs, text):
        with pytest.raises(TypeError, match="does not read a"):
            run.go()
