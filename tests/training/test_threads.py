"""The number of threads: measured at the start, reported, recorded, kept by a resume, measured again if steps slow."""

from __future__ import annotations

import json
import tomllib

import pytest
import torch

import mingyue
from mingyue.config import TrainSettings
from mingyue.runs import run as runs
from mingyue.runtime import Runtime
from mingyue.training import Observer, Pace, threads
from mingyue.training.threads import Measured, ThreadWatch, are_chosen, candidates, measure_threads

TEXT = "".join(f"The mill {i % 9} turns by the river {i % 7}.\n" for i in range(60))
TINY = {"depth": 1, "context": 32, "batch_tokens": 128, "d_model": 32, "sample_every": 0, "evaluate_every": 10}


class Listener(Observer):
    def __init__(self):
        self.notes = []

    def on_note(self, text):
        self.notes.append(text)


@pytest.fixture
def free(monkeypatch):
    """A machine of two cores whose user has set no number of threads."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "available_cores", lambda: 2)


@pytest.fixture
def measured(monkeypatch):
    """Replaces the measuring: each call gives the next of these numbers."""

    def use(*numbers):
        waiting = list(numbers)

        def choose(*_):
            number = waiting.pop(0)
            torch.set_num_threads(number)
            return Measured(number, {1: 0.1, 2: 0.2})

        monkeypatch.setattr(runs, "choose_threads", choose)

    return use


def train(tmp_path, listener=None, **given):
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    given = TINY | given
    return mingyue.train(sources=[str(tmp_path / "a.txt")], out=str(tmp_path / "run"), observer=listener, **given)


def recorded(tmp_path):
    """(threads in run.toml, of the latest checkpoint, in the events of the log)"""
    settings = tomllib.loads((tmp_path / "run" / "run.toml").read_text(encoding="utf-8"))
    latest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    state = json.loads((latest / "state.json").read_text(encoding="utf-8"))
    log = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    events = [line["threads"] for line in log if line["event"] == "threads"]
    return settings["run"].get("threads"), state["run"]["runtime"]["threads"], events


@pytest.mark.parametrize("number", [1, 2])
def test_the_measured_number_is_told_recorded_and_kept_by_a_resume(tmp_path, free, measured, number):
    measured(number)
    listener = Listener()
    train(tmp_path, listener, steps=3)
    assert any(f"threads: {number}, measured" in note and "--threads" in note for note in listener.notes)
    assert recorded(tmp_path) == (number, number, [number])
    again = Listener()
    mingyue.resume(tmp_path / "run", steps=5, observer=again)  # a second measurement would fail
    assert recorded(tmp_path) == (number, number, [number])
    assert not any("threads" in note for note in again.notes)


def test_a_given_number_wins(tmp_path, free, measured, monkeypatch):
    measured()
    train(tmp_path, steps=2, threads=1)
    assert recorded(tmp_path) == (1, 1, [])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    train(tmp_path, steps=2, overwrite=True)
    assert recorded(tmp_path)[2] == []


@pytest.mark.parametrize(
    ("device", "ranks", "given", "expected"),
    [("cpu", 1, {}, True), ("cpu", 2, {}, False), ("cuda", 1, {}, False), ("cpu", 1, {"compile": True}, False)],
)
def test_where_the_number_is_chosen(free, device, ranks, given, expected):
    runtime = Runtime(torch.device(device), torch.float32, 2, world_size=ranks)
    assert are_chosen(TrainSettings.from_flat(sources=["a"], **given), runtime) is expected


def test_measuring_changes_no_result(tmp_path, free, monkeypatch):
    """T14: neither weights nor random states: the run equals one that was given the number."""
    monkeypatch.setattr(threads, "candidates", lambda cores: [1])
    one = train(tmp_path, steps=6, dropout=0.1)
    first = (one.model_folder / "model.safetensors").read_bytes()
    two = train(tmp_path, steps=6, dropout=0.1, threads=1, overwrite=True)
    assert (two.model_folder / "model.safetensors").read_bytes() == first


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({1: 0.10, 2: 0.06, 4: 0.04}, 4),
        ({1: 0.10, 2: 0.095, 4: 0.10}, 1),  # hardly faster: the fewest
        ({1: 0.10, 2: 2.0, 4: 0.01}, 1),  # a busy machine: larger numbers are not even tried
        ({1: 0.10, 2: 0.05, 4: 0.048}, 2),
    ],
)
def test_the_fewest_threads_that_are_nearly_the_fastest(monkeypatch, seconds, expected):
    now = [0.0]
    monkeypatch.setattr(threads, "perf_counter", lambda: now[0])
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)

    def work():
        now[0] += seconds[asked[-1]]

    found = measure_threads(work, list(seconds))
    assert found.threads == asked[-1] == expected


def test_candidates_reach_all_cores():
    assert [candidates(cores) for cores in (1, 2, 3, 8, 12)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 12]]


def test_slow_steps_are_noticed_and_one_stall_is_not():
    pace, calls = Pace(), []

    def measure():
        calls.append(len(calls))
        return Measured(1, {1: 0.1, 2: 2.0})

    watch, now = ThreadWatch(2, measure), 0.0
    found = []
    for step in range(120):
        taken = 15.0 if step == 30 else 0.3 if step >= 60 else 0.1
        now += taken
        pace.add_step(taken)
        if watch.look(pace, now) is not None:
            found.append(step)
    assert len(found) == 1
    assert 60 < found[0] < 80


def test_a_change_in_the_middle_is_told_recorded_and_saved(tmp_path, free, measured, monkeypatch):
    measured(2, 1)
    count = [0]

    def sometimes(self, pace, seconds):
        count[0] += 1
        return self._measure() if count[0] == 4 else None

    monkeypatch.setattr(ThreadWatch, "look", sometimes)
    listener = Listener()
    train(tmp_path, listener, steps=8, checkpoint_every=100, held_out=0.0, keep=5)
    assert recorded(tmp_path) == (1, 1, [2, 1])
    assert (tmp_path / "run" / "checkpoints" / "step-00000004").is_dir()
    assert any("more than twice as long" in note for note in listener.notes)
