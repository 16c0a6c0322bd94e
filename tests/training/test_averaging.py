"""The mean of the last checkpoints: exact, of the right ones, and taken only where it is no worse."""

from __future__ import annotations

import pytest
import torch

from mingyue.models import build_model
from mingyue.training import Checkpoint, Checkpoints, DamagedCheckpointError, evaluate, final_weights, read_log
from mingyue.training.averaging import average_weights


@pytest.fixture
def store(tmp_path):
    """Checkpoints of one weight, by step."""

    def make(values, dtype=torch.float32):
        checkpoints = Checkpoints(tmp_path / "checkpoints", keep=len(values))
        for step, value in values.items():
            weights = {"a": torch.tensor(value, dtype=dtype), "b": torch.full((2,), float(step))}
            checkpoints.save(Checkpoint(step, weights, {"x": torch.zeros(1)}, {}))
        return checkpoints

    return make


def test_mean_by_hand(store):
    """Section 6.1: each weight is the mean of the same weight in the last checkpoints, and of no other."""
    checkpoints = store({1: [100.0, 100.0], 5: [1.0, -2.0], 7: [2.0, 0.0], 8: [6.0, 5.0]})
    average, steps = average_weights(checkpoints, 3)
    assert steps == [5, 7, 8]
    assert average["a"].tolist() == [3.0, 1.0]
    torch.testing.assert_close(average["b"], torch.full((2,), 20 / 3))
    assert average_weights(checkpoints, 1)[0]["a"].tolist() == [6.0, 5.0]


def test_fewer_checkpoints_than_asked(store):
    average, steps = average_weights(store({3: [1.0], 4: [2.0]}), 5)
    assert (steps, average["a"].tolist()) == ([3, 4], [1.5])


def test_sums_do_not_lose_small_weights(store):
    """In double: in the weights' own format 2²⁴ + 1 would be 2²⁴."""
    average, _ = average_weights(store({1: [2.0**24], 2: [1.0], 3: [1.0], 4: [2.0]}), 4)
    assert average["a"].dtype == torch.float32
    assert average["a"].item() == 2.0**22 + 1


def test_a_damaged_checkpoint_is_named(store):
    checkpoints = store({1: [1.0], 2: [2.0]})
    (checkpoints.path(1) / "model.safetensors").write_bytes(b"")
    with pytest.raises(DamagedCheckpointError, match="step-00000001"):
        average_weights(checkpoints, 2)


# --- at the end of a run ----------------------------------------------------------------------------------------------

RUN = {"steps": 12, "evaluate_every": 4, "checkpoint_every": 3, "average_last": 3, "keep": 1}


def loss_of(run, weights):
    model = build_model(run.config, seed=0)
    model.load_state_dict(weights)
    batches = run.batches(run.settings).held_out(None)
    return evaluate(model, batches, run.runtime, bytes_per_token=1.0).loss


@pytest.mark.parametrize("kind", ["bench", "pair_bench"])
def test_the_end_of_a_run_takes_the_mean_if_it_is_no_worse(request, watcher, kind):
    """The handed-over weights are those that predict better, by their own evaluation; told, logged, and true."""
    run = request.getfixturevalue(kind)(**RUN, schedule="constant", learning_rate=0.05, optimiser="adamw")
    seen = watcher()
    model, result = run.go(watcher=seen)
    checkpoints = Checkpoints(run.path / "checkpoints")
    steps = checkpoints.steps()[-3:]
    assert len(steps) == 3  # although `keep` is 1
    mean = {
        name: torch.stack([checkpoints.load(step).model[name].double() for step in steps]).mean(0).float()
        for name in model.state_dict()
    }
    single = checkpoints.load(result.weights_step).model
    losses = loss_of(run, mean), loss_of(run, single)
    taken = losses[0] <= losses[1]
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, (mean if taken else single)[name], rtol=1e-6, atol=1e-8)
    assert result.evaluation.loss == pytest.approx(min(losses), rel=1e-6)
    (event,) = (line for line in read_log(run.path / "metrics.jsonl") if line["event"] == "average")
    assert (event["steps"], event["taken"]) == (steps, taken)
    assert event["heldout_loss"] == pytest.approx(losses[0], rel=1e-6)
    (note,) = (note for note in seen.notes if "mean of the last 3 checkpoints" in note)
    assert f"{losses[0]:.4f}" in note
    assert f"{losses[1]:.4f}" in note
    assert note.endswith("the mean is kept." if taken else "the single one is kept.")
    assert seen.evaluations[-1].evaluation == result.evaluation
    assert result.averaged == (tuple(steps) if taken else ())


@pytest.mark.parametrize("worse", [True, False])
def test_both_ends(bench, watcher, monkeypatch, worse):
    """A mean that is worse is put back to the last bit; one that is as good is taken."""
    run = bench(**RUN)
    plain, _ = bench(**{**RUN, "average_last": 1, "keep": 3}).go()

    def fake(checkpoints, last):
        assert last == 3
        return {name: weight + 3.0 * worse for name, weight in plain.state_dict().items()}, [1, 2, 3]

    monkeypatch.setattr(final_weights, "average_weights", fake)
    seen = watcher()
    model, result = run.go(watcher=seen)
    assert all(torch.equal(weight, plain.state_dict()[name]) for name, weight in model.state_dict().items())
    assert result.averaged == (() if worse else (1, 2, 3))
    assert any(note.endswith(f"the {'single one' if worse else 'mean'} is kept.") for note in seen.notes)
    assert result.evaluation.loss == pytest.approx(loss_of(run, plain.state_dict()), rel=1e-6)


def test_nothing_is_averaged_where_it_was_not_asked_for_or_cannot_be_judged(bench, watcher):
    for changes in ({"average_last": 1}, {"sizes": {"held_out": 0}}):
        run, seen = bench(**{**RUN, **changes}), watcher()
        run.go(watcher=seen)
        assert not any("mean of the last" in note for note in seen.notes)
        assert all(line["event"] != "average" for line in read_log(run.path / "metrics.jsonl"))


def test_a_damaged_checkpoint_leaves_the_best_weights(bench, watcher):
    """T13: a file that went bad during the run costs the mean, not the run."""
    run = bench(**RUN)

    class Damager(type(watcher())):
        def on_checkpoint(self, path, step, best):
            super().on_checkpoint(path, step, best)
            if step == 9:
                (path / "model.safetensors").write_bytes(b"")

    seen = Damager()
    _, result = run.go(watcher=seen)
    assert result.reason == "finished"
    assert any("step-00000009" in note and "Nothing is averaged" in note for note in seen.notes)
    assert result.evaluation.loss == pytest.approx(
        loss_of(run, Checkpoints(run.path / "checkpoints").load(result.weights_step).model), rel=1e-6
    )


def test_a_stopped_run_averages_at_its_end_alone(pair_bench, watcher, killed):
    """T2: stopped, resumed and ended: the same mean as without the stop."""
    whole, broken = pair_bench(**RUN, name="whole"), pair_bench(**RUN, name="broken")
    expected, result = whole.go()
    with pytest.raises(killed):
        broken.go(watcher=watcher(die_after=8))
    resumed, again = broken.go(resume=True)
    assert again.evaluation == result.evaluation
    assert all(torch.equal(weight, expected.state_dict()[name]) for name, weight in resumed.state_dict().items())
