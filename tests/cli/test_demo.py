"""`mingyue demo`: it trains, and shows what came of it on items that the model never saw."""

from __future__ import annotations

import signal
import tomllib
from pathlib import Path

import pytest

from mingyue.api import demo
from mingyue.cli.invocation import INTERRUPTED
from mingyue.cli.progress import RunScreen

QUICK = ("--steps", "2", "--threads", "1", "--d-model", "32", "--n-layers", "1")


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Fewer pairs, a short text, and a folder to be in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "help.txt").write_text("The for statement is used to iterate over a sequence.\n" * 80, encoding="utf-8")
    for name, value in {"_PAIRS": 300, "_VALID": 30, "_TEST": 12, "_TEXT": "help.txt"}.items():
        monkeypatch.setattr(demo, name, value)


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_translate_runs_through(run, tmp_path):
    code, out, err = run("demo", "--translate", *QUICK)
    assert (code, err) == (0, "")
    assert "of 12 unseen items are exactly right" in out
    assert "Verdict: " in out
    assert "Now try: mingyue translate runs/demo-translate" in out.replace("\\", "/")
    pairs = tmp_path / "runs" / "demo-translate-pairs"
    sizes = {name: len(lines_of(pairs / f"{name}.words")) for name in ("train", "valid", "test")}
    assert sizes == {"train": 300, "valid": 30, "test": 12}
    seen = {*lines_of(pairs / "train.words"), *lines_of(pairs / "valid.words")}
    assert not seen & set(lines_of(pairs / "test.words"))
    assert len(lines_of(pairs / "test.digits")) == 12
    items = zip(lines_of(pairs / "test.words"), lines_of(pairs / "test.digits"), strict=True)
    for source, target in list(items)[:8]:  # each is marked, and a wrong one has the right translation beside it
        line = next(line for line in out.splitlines() if f" {source} → " in line)
        assert line == f"    ✓ {source} → {target}" or (
            line.startswith("    ✗ ") and line.endswith(f"(right: {target})")
        )


def test_what_is_given_wins_over_the_demonstration(run, tmp_path):
    code, _, err = run("demo", "--translate", *QUICK, "--dropout", "0.1", "--batch-tokens", "999", "--out", "here")
    assert code == 0, err
    values = tomllib.loads((tmp_path / "here" / "run.toml").read_text(encoding="utf-8"))
    assert (values["model"]["dropout"], values["model"]["d_model"], values["model"]["n_heads"]) == (0.1, 32, 4)
    assert values["batch"]["batch_tokens"] == 999
    assert (values["optimiser"]["label_smoothing"], values["tokenizer"]["tokenizer"]) == (0.0, "char")
    assert values["budget"] == {"steps": 2}
    code, out, err = run("translate", "here", "--text", "the third of March, 1987")
    assert code == 0, err
    assert out.count("\n") == 1


def test_a_demonstration_that_is_stopped_says_how_to_go_on(run, monkeypatch):
    monkeypatch.setattr(RunScreen, "on_step", lambda *_: signal.raise_signal(signal.SIGINT))
    code, out, _ = run("demo", "--translate", *QUICK)
    assert code == INTERRUPTED
    assert "mingyue resume runs/demo-translate" in out.replace("\\", "/")
    assert "unseen items" not in out


def test_text_runs_through(run, tmp_path):
    code, out, err = run("demo", *QUICK, "--context", "32")
    assert (code, err) == (0, "")
    assert "Generated text:" in out
    assert "mingyue generate runs/demo" in out.replace("\\", "/")
    assert (tmp_path / "runs" / "demo" / "model").is_dir()


def test_the_demonstrations_take_minutes_unless_something_else_is_asked_for(monkeypatch, tmp_path):
    """The time that making the pairs took is part of the minutes."""
    seen = []

    def train(settings, *, observer, waited):
        seen.append((settings.budget, waited))
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "train", train)
    for call, minutes in ((demo.translate_demo, demo.TRANSLATE_MINUTES), (demo.text_demo, demo.TEXT_MINUTES)):
        with pytest.raises(KeyboardInterrupt):
            call(tmp_path / "out", waited=7.0)
        budget, waited = seen[-1]
        assert (budget.minutes, budget.steps) == (minutes, None)
        assert waited >= 7.0
    assert seen[0][1] > 7.0
