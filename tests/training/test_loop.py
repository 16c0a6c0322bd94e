"""The loop as a whole: what it writes, when it evaluates, how it ends."""

from __future__ import annotations

import math
import os
import signal

import pytest
import torch

from mingyue.errors import CheckpointError, SettingsError, TrainingError
from mingyue.models import build_model
from mingyue.training import Checkpoints, Clock, Observer, StopRequests, read_log
from mingyue.training.names import clean_state


def events(run, kind):
    return [event for event in read_log(run.path / "metrics.jsonl") if event["event"] == kind]


def test_log_of_a_run(bench, watcher):
    """metrics.jsonl has the keys that are promised, for every kind of event, and its losses fall."""
    run = bench(steps=60, evaluate_every=20, checkpoint_every=50)
    seen = watcher()
    _, result = run.go(watcher=seen, flops_per_token=1e4, peak_flops=1e9)
    train, evaluations, (end,) = events(run, "train"), events(run, "evaluate"), events(run, "end")
    common = {"event", "step", "tokens", "seconds"}
    assert set(train[0]) == common | {
        "train_loss",
        "learning_rate",
        "muon_learning_rate",
        "gradient_norm",
        "tokens_per_second",
        "share_of_peak",
    }
    heldout = {"heldout_loss", "heldout_tokens", "bits_per_byte"}
    assert set(evaluations[0]) == common | heldout | {"evaluation_seconds", "best"}
    assert set(end) == common | heldout | {"reason", "weights_step"}
    assert [event["step"] for event in evaluations] == [20, 40, 60]
    assert train[-1]["train_loss"] < train[0]["train_loss"] - 0.3
    assert seen.steps[0].loss == pytest.approx(math.log(23), abs=0.1)
    assert end["heldout_loss"] == result.evaluation.loss
    batches = _batches(run)
    assert end["tokens"] == result.tokens == sum(batch.tokens for step in range(60) for batch in batches.step(step))
    seconds = [event["seconds"] for event in read_log(run.path / "metrics.jsonl")]
    assert seconds == sorted(seconds)
    assert [report.step for report in seen.steps] == list(range(1, 61))
    assert all(report.share_of_peak > 0 for report in seen.steps)
    assert seen.ended == result


def _batches(run):
    from mingyue.training import CorpusBatches

    return CorpusBatches(run.corpus, context=16, rows=run.rows, micro_rows=run.micro_rows, seed=run.settings.run.seed)


def test_train_loss_of_the_log_is_the_mean_since_the_last_line(bench, watcher):
    """A line covers all steps since the line before, each token counting the same."""
    run = bench(steps=20, evaluate_every=20)
    seen = watcher()
    run.go(watcher=seen)
    lines = events(run, "train")
    assert [line["step"] for line in lines] == list(range(2, 21, 2))
    tokens = [sum(batch.tokens for batch in _batches(run).step(step)) for step in range(2)]
    nats = [report.loss * count for report, count in zip(seen.steps, tokens, strict=False)]
    assert lines[0]["train_loss"] == pytest.approx(sum(nats) / sum(tokens))


def test_best_weights_are_handed_over(bench, monkeypatch):
    """The result is the best evaluated model, its checkpoint is kept, and its loss is of all held-out text."""
    run = bench(steps=80, evaluate_every=10, keep=1, learning_rate=0.5, muon_learning_rate=0.5, sizes={"train": 60})
    model, result = run.go()
    assert result.weights_step < 80  # such rates on so little text end worse than they were
    best = min(events(run, "evaluate"), key=lambda event: event["heldout_loss"])
    assert result.weights_step == best["step"]
    checkpoints = Checkpoints(run.path / "checkpoints")
    assert checkpoints.steps() == [best["step"], 80]
    kept = checkpoints.load(best["step"]).model
    assert all(torch.equal(tensor, kept[name]) for name, tensor in clean_state(model).items())
    assert result.evaluation.tokens == _batches(run).heldout_targets


def test_damaged_best_is_told_and_the_last_kept(bench, watcher, tmp_path):
    """A best checkpoint that was damaged meanwhile: said, and the last weights are handed over."""
    run = bench(steps=40, evaluate_every=10, keep=1, learning_rate=0.5, muon_learning_rate=0.5, sizes={"train": 60})

    class Spoiler(watcher):
        def on_step(self, report):
            if report.step == 40:
                for path in (run.path / "checkpoints").glob("step-*/model.safetensors"):
                    path.write_bytes(b"spoiled")

    seen = Spoiler()
    _, result = run.go(watcher=seen)
    if result.weights_step != 40:
        pytest.fail("the last step was the best: the test tests nothing")
    assert any("damaged" in note and "last weights" in note for note in seen.notes)


def test_patience(bench):
    """Training stops after so many evaluations without a better one, also if a stop falls among them."""
    settings = {"steps": 300, "evaluate_every": 5, "learning_rate": 0.5, "muon_learning_rate": 0.5}
    run = bench(**settings, patience=3, sizes={"train": 60})
    _, result = run.go()
    assert result.reason == "patience"
    losses = [event["heldout_loss"] for event in events(run, "evaluate")]
    assert losses.index(min(losses)) == len(losses) - 4
    assert result.step == 5 * len(losses)
    _, again = run.go(resume=True)
    assert (again.reason, again.step) == ("patience", result.step)


def test_without_held_out_text(bench):
    """Nothing held out: no evaluation, the last weights are the result; patience is refused."""
    run = bench(steps=10, sizes={"held_out": 0})
    _, result = run.go()
    assert (result.evaluation, result.weights_step, result.reason) == (None, 10, "finished")
    assert events(run, "evaluate") == []
    with pytest.raises(SettingsError, match="patience"):
        bench(steps=10, patience=2, sizes={"held_out": 0}).go()


def test_samples_by_evaluation(bench, watcher):
    """Every so many evaluations a text is written, in eval mode; 0 turns it off; training is untouched."""
    modes = []
    plain = bench(steps=20, evaluate_every=2, config={"dropout": 0.1})
    weights, _ = plain.go()
    run = bench(steps=20, evaluate_every=2, sample_every=3, config={"dropout": 0.1})
    seen = watcher()
    holder = {}

    def sample():
        modes.append(holder["model"].training)
        torch.rand(7)
        return f"text {len(modes)}"

    model, _ = run.go(watcher=seen, sample=sample, prepare=lambda model: holder.update(model=model))
    assert seen.samples == [(6, "text 1"), (12, "text 2"), (18, "text 3")]
    assert modes == [False] * 3
    assert [event["text"] for event in events(run, "sample")] == ["text 1", "text 2", "text 3"]
    assert all(torch.equal(tensor, weights.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_finishes_the_step_and_saves(bench, watcher, name):
    """Ctrl-C, SIGTERM and a closed terminal: the step is finished, the run saved, and the old handlers are back."""
    if os.name == "nt":
        pytest.skip("Windows sends no such signal to oneself")
    number = getattr(signal, name)
    before = signal.getsignal(number)

    class Interrupts(watcher):
        def on_step(self, report):
            super().on_step(report)
            if report.step == 4:
                os.kill(os.getpid(), number)

    run = bench(steps=20)
    _, result = run.go(watcher=Interrupts())
    assert (result.reason, result.step) == ("stopped", 4)
    assert Checkpoints(run.path / "checkpoints").steps()[-1] == 4
    assert signal.getsignal(number) is before
    assert events(run, "end")[-1]["reason"] == "stopped"


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no such signal to oneself")
def test_second_interrupt_ends_at_once():
    with StopRequests() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_a_closed_terminal_may_send_several_hangups_and_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with StopRequests() as stop:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGHUP)
        assert stop.requested
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with StopRequests() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("every", "advice"), [(100, "No checkpoint was saved before"), (2, "of step 4, is finite")])
def test_the_advice_after_divergence_names_a_checkpoint_only_if_there_is_one(bench, every, advice):
    holder = {}
    run = bench(steps=20, checkpoint_every=every, sizes={"held_out": 0})

    def spoil():
        with torch.no_grad():
            holder["model"].embedding.weight[5] = math.nan

    class Spoils(Observer):
        def on_step(self, report):
            if report.step == 5:
                spoil()

    with pytest.raises(TrainingError) as error:
        run.go(watcher=Spoils(), prepare=lambda model: holder.update(model=model))
    assert advice in error.value.advice
    assert "--learning-rate" in error.value.advice
    assert ("Resume" in error.value.advice) is (every == 2)


@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_loss_that_is_not_a_number_stops_the_run(bench, watcher, optimiser):
    """T11: a weight goes bad in the middle: step and layer are named, and the last good checkpoint goes on."""
    run = bench(steps=30, evaluate_every=5, optimiser=optimiser)
    holder = {}

    class Poisons(watcher):
        def on_step(self, report):
            if report.step == 12:
                with torch.no_grad():
                    holder["model"].blocks[1].attention.output.weight[0, 0] = math.nan

    with pytest.raises(TrainingError, match=r"step 13.*blocks\.1\.attention\.output"):
        run.go(watcher=Poisons(), prepare=lambda model: holder.update(model=model))
    assert events(run, "end")[-1]["reason"] == "failed"
    latest, _ = Checkpoints(run.path / "checkpoints").load_latest()
    assert latest.step == 10
    assert all(torch.isfinite(tensor).all() for tensor in latest.model.values())
    _, result = run.go(resume=True)
    assert (result.reason, result.step) == ("finished", 30)


def test_rates_far_too_high_stop_the_run(bench):
    """T11: weights that really run away end in the error, never in a checkpoint of NaN."""
    run = bench(steps=200, optimiser="adamw", learning_rate=1e20, clip=0.0, warmup=0.0, schedule="constant")
    with pytest.raises(TrainingError, match="step"):
        run.go()
    for step in Checkpoints(run.path / "checkpoints").steps():
        checkpoint = Checkpoints(run.path / "checkpoints").load(step)
        assert all(torch.isfinite(tensor).all() for tensor in checkpoint.model.values())


def test_disk_full_in_a_run(bench, monkeypatch, watcher):
    """T13: the disk fills up at the second save: the error says disk, and the run goes on from the first."""
    import errno

    original = os.fsync
    full = {"now": False}

    def fsync(handle):
        if full["now"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(handle)

    class Fills(watcher):
        def on_checkpoint(self, path, step, best):
            full["now"] = True

    monkeypatch.setattr(os, "fsync", fsync)
    run = bench(steps=20, evaluate_every=5)
    with pytest.raises(CheckpointError, match="disk is full"):
        run.go(watcher=Fills())
    full["now"] = False
    _, result = run.go(resume=True)
    assert (result.reason, result.step) == ("finished", 20)


def test_names_in_a_checkpoint_of_a_compiled_run(bench, monkeypatch, tiny_config):
    """T10: a compiled run saves the model's own names, and goes on compiled or not."""
    original = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: original(module, backend="eager"))
    run = bench(steps=4, compile=True, evaluate_every=4, config={"n_layers": 1})
    run.go()
    own = set(build_model(tiny_config(n_layers=1), seed=1).state_dict())
    assert set(Checkpoints(run.path / "checkpoints").load(4).model) == own
    changed = run.settings.with_flat(compile=False, steps=6)
    _, result = run.go(resume=True, settings=changed)
    assert result.step == 6


def test_minutes_end_on_time_and_the_fixed_plan_is_replayed(bench, watcher, killed):
    """A run of so many minutes on a clock that only steps move; killed after its plan was fixed, it ends as planned."""

    class Ticking:
        now = 0.0

        def __call__(self):
            return self.now

    def slow(ticking, seconds):
        """Make every forward pass of the model take so long."""
        return lambda model: model.embedding.register_forward_hook(
            lambda *_: setattr(ticking, "now", ticking.now + seconds)
        )

    settings = {"steps": None, "minutes": 1.0, "evaluate_every": None, "config": {"dropout": 0.1, "n_layers": 1}}
    whole, ticking = bench(**settings, name="whole"), Ticking()
    seen = watcher()
    model, result = whole.go(watcher=seen, clock=Clock(already=6.0, now=ticking), prepare=slow(ticking, 0.3))
    assert result.seconds == pytest.approx(60, rel=0.05)
    assert [plan.fixed for plan in seen.plans] == [False, True]
    fixed = seen.plans[1]
    assert fixed.decay_from == pytest.approx(fixed.total_steps / 2, rel=0.2)

    broken, ticking = bench(**settings, name="broken"), Ticking()
    dies = watcher(die_after=fixed.decay_from + 3)
    with pytest.raises(killed):
        broken.go(watcher=dies, clock=Clock(already=6.0, now=ticking), prepare=slow(ticking, 0.3))
    ticking = Ticking()  # the machine is twice as slow now, and the plan stands nevertheless
    resumed, again = broken.go(resume=True, clock=Clock(already=6.0, now=ticking), prepare=slow(ticking, 0.6))
    assert again.plan == result.plan
    assert all(torch.equal(tensor, resumed.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_minutes_killed_before_the_first_checkpoint(bench, watcher, killed):
    """A run of so many minutes that was killed before it saved anything has its whole time again."""
    run = bench(steps=None, minutes=1.0, evaluate_every=None, config={"n_layers": 1})
    ticking = [0.0]

    def prepare(model):
        model.embedding.register_forward_hook(lambda *_: ticking.__setitem__(0, ticking[0] + 0.5))

    with pytest.raises(killed):
        run.go(watcher=watcher(die_after=1), clock=Clock(now=lambda: ticking[0]), prepare=prepare)
    ticking[0] = 0.0
    _, result = run.go(resume=True, clock=Clock(now=lambda: ticking[0]), prepare=prepare)
    assert result.step > 30
    assert result.seconds == pytest.approx(60, rel=0.05)


def test_run_killed_before_its_first_checkpoint_begins_again(bench, watcher, killed):
    """T2: nothing saved yet: the resumed run begins at its start, says so, and equals one never stopped."""
    never_stopped, _ = bench(name="whole").go()
    run = bench(name="broken")
    with pytest.raises(killed):
        run.go(watcher=watcher(die_after=3))
    assert Checkpoints(run.path / "checkpoints").steps() == []
    seen = watcher()
    model, _ = run.go(resume=True, watcher=seen)
    assert any("no checkpoint" in note for note in seen.notes)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in never_stopped.state_dict().items())


def test_finished_run_resumed_changes_nothing(bench):
    """A resume of a finished run takes no step and hands over the same weights and loss."""
    run = bench(steps=15)
    model, result = run.go()
    again, same = run.go(resume=True)
    assert (same.reason, same.step, same.weights_step) == ("finished", 15, result.weights_step)
    assert same.evaluation.nats == result.evaluation.nats
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_seconds_go_on_over_a_resume(bench, watcher):
    """Time of the run continues from the checkpoint; the time while it was stopped does not count."""
    run = bench(steps=20, evaluate_every=5)
    stop = StopRequests()
    ticks = iter(range(10**6))
    clock = Clock(already=100.0, now=lambda: next(ticks) * 0.001)
    _, stopped = run.go(watcher=watcher(stop_after=10, stop=stop), stop=stop, clock=clock)
    ticks = iter(range(10**6))
    run.go(resume=True, clock=Clock(already=3.0, now=lambda: 5e6 + next(ticks) * 0.001))
    seconds = [event["seconds"] for event in read_log(run.path / "metrics.jsonl")]
    assert seconds == sorted(seconds)
    resumed = events(run, "resume")[0]["seconds"]
    assert stopped.seconds + 2.5 < resumed < stopped.seconds + 3.5


def test_resume_cuts_the_log_to_its_checkpoint(bench, watcher, killed):
    """A resume forgets the lines after its checkpoint: each step stands in the log once."""
    run = bench(steps=30, evaluate_every=10)
    with pytest.raises(killed):
        run.go(watcher=watcher(die_after=17))
    assert events(run, "train")[-1]["step"] == 17
    run.go(resume=True)
    steps = [event["step"] for event in events(run, "train")]
    assert steps == sorted(set(steps))
    assert [event["from_step"] for event in events(run, "resume")] == [10]


def test_threads_of_the_run_are_kept(bench, watcher, cpu):
    """T2: a resumed run uses the threads that it began with, and says so."""
    from dataclasses import replace

    run = bench(steps=10)
    stop = StopRequests()
    run.go(watcher=watcher(stop_after=4, stop=stop), stop=stop)
    run.runtime = replace(cpu, threads=2)
    torch.set_num_threads(2)
    seen = watcher()
    run.go(resume=True, watcher=seen)
    assert torch.get_num_threads() == 1
    assert any("1 threads" in note for note in seen.notes)
