"""`mingyue inspect curve`: runs instead of a model, and nothing else of what other views take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Two runs in progress: a log, and no model."""
    folders = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        lines = [
            {"event": "train", "step": step, "tokens": step, "seconds": 1.0 * step, "train_loss": 5.0 - step / 10}
            for step in range(1, 9)
        ]
        log = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / name / "metrics.jsonl").write_text(log, encoding="utf-8")
        folders.append(str(tmp_path / name))
    return folders


def test_one_run_or_several_are_shown(run, runs, tmp_path):
    code, out, err = run("inspect", "curve", *runs, "--language", "en", "--out", str(tmp_path / "x.html"))
    assert (code, err) == (0, "")
    assert all(name in out for name in ("one", "two", "Training curves"))
    assert "Loss by step" in (tmp_path / "x.html").read_text(encoding="utf-8")
    code, out, _ = run("inspect", "curve", runs[0], "--language", "zh")
    assert code == 0 and "训练还没有结束" in out


def test_the_numbers_are_json_too(run, runs):
    code, out, _ = run("inspect", "curve", runs[1], "--json")
    assert code == 0
    (one,) = json.loads(out)["runs"]
    assert one["name"] == "two" and one["training_loss"]["steps_N"] == list(range(1, 9))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((), "no run"),
        (("nosuch",), "does not exist"),
        (("RUN", "--device", "cpu"), "no use for --device"),
        (("RUN", "--text", "x"), "no use for --text"),
        (("RUN", "--out", "x.pdf"), "not written to this kind of file"),
    ],
)
def test_what_it_cannot_use_is_an_error(run, runs, given, told):
    code, out, err = run("inspect", "curve", *(runs[0] if part == "RUN" else part for part in given))
    assert (code, out) == (2, "")
    assert told in " ".join(err.split())
