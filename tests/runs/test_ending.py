"""The end of a run: what it says meanwhile, what it shows, and which model it keeps after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import mingyue
from mingyue.bundle import load_bundle, read_training
from mingyue.training import EvaluationReport, Observer, StepReport, read_log

TEXT = "".join(f"The mill {number % 9} turns by the river {number % 7}.\n" for number in range(300))
TINY: dict[str, Any] = {"depth": 1, "d_model": 32, "context": 32, "batch_tokens": 256, "threads": 1}


class Recorder(Observer):
    def __init__(self, stop_at: int | None = None) -> None:
        self.notes: list[str] = []
        self.stages: list[str] = []
        self.samples: list[tuple[int, str]] = []
        self.final: EvaluationReport | None = None
        self.stop_at = stop_at

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_progress(self, stage: str, done: int, total: int) -> None:
        if stage not in self.stages:
            self.stages.append(stage)

    def on_sample(self, step: int, text: str) -> None:
        self.samples.append((step, text))

    def on_evaluate(self, report: EvaluationReport) -> None:
        self.final = report

    def on_step(self, report: StepReport) -> None:
        if report.step == self.stop_at:
            import signal

            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_the_end_of_a_run_says_what_it_is_doing(text: Path, tmp_path: Path) -> None:
    """T32: each thing that is done after the last step is a stage of its own."""
    seen = Recorder()
    mingyue.train(sources=text, out=tmp_path / "run", steps=4, observer=seen, **TINY)
    wanted = ["final evaluation", "saving the model", "generating texts", "comparing with the training text"]
    assert [stage for stage in seen.stages if stage in wanted] == wanted


@pytest.mark.parametrize("prompt", ["", "The "])
def test_a_text_is_not_shown_twice(text: Path, tmp_path: Path, prompt: str) -> None:
    """T32: without a prompt the last sample would be one of the texts at the end; with one it is another text."""
    seen = Recorder()
    given = {"evaluate_every": 2, "sample_every": 1, "sample_prompt": prompt}
    result = mingyue.train(sources=text, out=tmp_path / "run", steps=6, observer=seen, **given, **TINY)
    assert [step for step, _ in seen.samples] == ([2, 4] if not prompt else [2, 4, 6])
    assert not {sample for _, sample in seen.samples}.intersection(result.outcome.texts)


def test_a_longer_run_that_ends_worse_keeps_the_model_that_it_had(text: Path, tmp_path: Path) -> None:
    """T31: the former model is compared on the same text, and both losses are told."""
    first = mingyue.train(sources=text, out=tmp_path / "run", steps=60, evaluate_every=60, observer=Recorder(), **TINY)
    before = load_bundle(first.model_folder).model.state_dict()
    seen = Recorder()
    # Another part of the held-out text: so the best step is selected again, among those of the longer run.
    worse = {"learning_rate": 0.9, "muon_learning_rate": 0.9, "evaluate_tokens": 64, "clip": 0.0}
    second = mingyue.resume(first.folder, steps=70, observer=seen, **worse)
    after = load_bundle(second.model_folder).model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert second.training.weights_step == first.training.weights_step
    told = [note for note in seen.notes if "has become worse" in note]
    assert len(told) == 1 and "is kept" in told[0]
    former = next(line for line in read_log(first.folder / "metrics.jsonl") if line["event"] == "former")
    assert former["taken"] and former["former_step"] == first.training.weights_step


def test_a_longer_run_that_ends_better_replaces_the_model_and_says_so(text: Path, tmp_path: Path) -> None:
    """T31: with both losses."""
    first = mingyue.train(sources=text, out=tmp_path / "run", steps=6, observer=Recorder(), **TINY)
    seen = Recorder()
    second = mingyue.resume(first.folder, steps=40, observer=seen)
    assert second.training.weights_step > 6
    assert any(note.startswith("The new model replaces the former one") for note in seen.notes)
    assert read_training(second.model_folder)["steps"] == second.training.weights_step


def test_a_longer_run_that_is_stopped_leaves_the_finished_model(text: Path, tmp_path: Path) -> None:
    """T31: weights in the middle of a schedule do not replace those of a finished run."""
    first = mingyue.train(sources=text, out=tmp_path / "run", steps=10, observer=Recorder(), **TINY)
    before = (first.model_folder / "model.safetensors").read_bytes()
    seen = Recorder(stop_at=14)
    stopped = mingyue.resume(first.folder, steps=40, observer=seen)
    assert stopped.training.reason == "stopped"
    assert (first.model_folder / "model.safetensors").read_bytes() == before
    assert any("is still that of step" in note for note in seen.notes)
    assert mingyue.resume(first.folder, observer=Recorder()).training.step == 40


def test_the_time_of_a_run_in_steps_is_told_once_it_is_measured() -> None:
    """Small models reach a small part of the speed of large matrices: only measured steps say how long they take."""
    from mingyue.training.pace import Pace
    from mingyue.training.plan import Plan, RunSizes
    from mingyue.training.reports import ExpectedTime

    told: list[str] = []
    expected, pace = ExpectedTime(told.append), Pace()
    plan = Plan("constant", 1000, 0, 1000, 0.5, 0.0, 50, 64, 5, None, True)
    sizes = RunSizes(windows=100, rows=2, step_tokens=64, heldout_tokens=640)
    for step in range(1, 20):
        pace.add_step(0.5)
        expected.look(pace, plan, sizes, step=step, seconds=2 + 0.5 * step)
    assert len(told) == 1
    assert "0.5 s per step" in told[0] and "about 8 min" in told[0]
