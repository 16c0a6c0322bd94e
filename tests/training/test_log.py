"""metrics.jsonl: one object a line, cut back by a resume, never half."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from mingyue.errors import CheckpointError, MissingExtraError
from mingyue.training import Board, MetricsLog, read_log


@pytest.fixture
def log(tmp_path):
    return MetricsLog(tmp_path / "metrics.jsonl")


def fill(log, steps):
    for step in steps:
        log.write("train", step=step, tokens=step * 10, seconds=step / 3, train_loss=1 / step)


def test_lines_are_there_as_soon_as_written(log):
    """One JSON object a line, in UTF-8, readable while the run goes on; what JSON cannot hold is null."""
    log.write("sample", step=3, tokens=30, seconds=1.23456, text="床前明月光\n疑是地上霜")
    log.write("train", step=4, tokens=40, seconds=2, train_loss=math.inf, gradient_norm=math.nan)
    raw = log.path.read_bytes()
    assert raw.count(b"\n") == 2
    assert "床前明月光" in raw.decode("utf-8")
    sample, train = read_log(log.path)
    assert sample == {"event": "sample", "step": 3, "tokens": 30, "seconds": 1.235, "text": "床前明月光\n疑是地上霜"}
    assert (train["train_loss"], train["gradient_norm"]) == (None, None)
    json.loads(raw.split(b"\n")[1], parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_cut_drops_what_came_after(log):
    """T2: what was written after the checkpoint is gone; what was before stands to the byte."""
    fill(log, [1, 2, 3])
    size, before = log.size(), log.path.read_bytes()
    fill(log, [4, 5])
    assert log.cut(size) == 2
    assert log.path.read_bytes() == before
    fill(log, [9])
    assert [event["step"] for event in read_log(log.path)] == [1, 2, 3, 9]


def test_cut_removes_half_a_line(log):
    """T13: a line that a kill cut short is dropped, also when the file is shorter than the checkpoint says."""
    fill(log, [1, 2])
    log.close()
    whole = log.path.read_bytes()
    log.path.write_bytes(whole[:-5])
    assert [event["step"] for event in read_log(log.path)] == [1]
    log.cut(len(whole))
    assert [event["step"] for event in read_log(log.path)] == [1]
    assert log.path.read_bytes().endswith(b"}\n")


def test_cut_to_nothing_and_of_nothing(log):
    assert log.cut(0) == 0
    fill(log, [1])
    assert log.cut(0) == 1
    assert read_log(log.path) == []
    assert read_log(log.path.with_name("not there")) == []


def test_disk_that_refuses_is_told(tmp_path):
    """A log that cannot be written is an error with the path, not a traceback."""
    log = MetricsLog(tmp_path / "no such folder" / "metrics.jsonl")
    with pytest.raises(CheckpointError, match="no such folder"):
        fill(log, [1])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full: Linux")
def test_closing_a_log_that_did_not_fit_says_disk_too():
    """What could not be written is tried again on closing: that error is told in the same words, not as a fault."""
    log = MetricsLog(Path("/dev/full"))
    with pytest.raises(CheckpointError, match="the disk is full"):
        log.write("train", step=1, tokens=2, seconds=0.5)
    with pytest.raises(CheckpointError, match="the disk is full"):
        log.close()
    log.close()


def test_damaged_lines_are_set_aside_and_the_others_kept(tmp_path):
    """A line that is no event is neither read nor kept; the whole file as it was is beside it, and it is told."""
    path = tmp_path / "metrics.jsonl"
    good = '{"event": "train", "step": 1, "tokens": 2, "seconds": 0.5}\n'
    damaged = good.replace('"step"', '"stfp"')
    path.write_text(good + "{half\n" + damaged + good, encoding="utf-8")
    assert [event["step"] for event in read_log(path)] == [1, 1]
    note = MetricsLog(path).mend()
    assert "2 of 4 lines" in note and "metrics.jsonl" in note
    assert path.read_text(encoding="utf-8") == good + good
    assert (tmp_path / "damaged-metrics.jsonl.1").read_text(encoding="utf-8") == good + "{half\n" + damaged + good
    assert MetricsLog(path).mend() is None


def test_tensorboard_missing_names_the_extra(tmp_path, monkeypatch):
    """Without the package the error says what to install."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"mingyue\[track\]"):
        Board(tmp_path)


def test_tensorboard_gets_the_same_numbers(tmp_path):
    """Scalars and texts of the log arrive in TensorBoard under event and key."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path / "metrics.jsonl", board=Board(tmp_path / "board"))
    fill(log, [1, 2])
    log.write("sample", step=2, tokens=20, seconds=1, text="明月")
    log.close()
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/train_loss")] == [(1, 1.0), (2, 0.5)]
    assert events.Tags()["tensors"] == ["sample/text/text_summary"]
