"""What is refused before a run begins or goes on, and what then is as it was."""

from __future__ import annotations

import sys

import pytest

import mingyue
from mingyue.config import TrainSettings
from mingyue.errors import MingyueError, MissingExtraError, SettingsError, TrainingError
from mingyue.training import Observer

TINY = {
    "depth": 1, "d_model": 32, "context": 16, "batch_tokens": 64, "threads": 1, "tokenizer": "byte", "sample_every": 0,
}  # fmt: skip


class Notes(Observer):
    def __init__(self):
        self.notes = []

    def on_note(self, text):
        self.notes.append(text)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"The mill {i % 9} turns by the river {i % 7}.\n" for i in range(60)), encoding="utf-8")
    return str(path)


def train(text, out, **given):
    notes = Notes()
    result = mingyue.train(**{"sources": [text], "out": str(out), "steps": 6, **TINY, **given}, observer=notes)
    return result, notes.notes


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("less", [{"steps": 3}, {"steps": 6}, {"epochs": 0.01}, {"minutes": 1e-6}, {}], ids=str)
def test_a_finished_run_is_not_resumed_with_less(text, tmp_path, less):
    """Whatever the kind of the budget, it must ask for more than was done."""
    train(text, tmp_path / "run")
    before = content(tmp_path / "run")
    with pytest.raises(TrainingError, match="nothing is left to do: 6 steps"):
        mingyue.resume(tmp_path / "run", changes={"steps": None, **less} if less else {})
    assert content(tmp_path / "run") == before


def test_a_finished_run_is_resumed_with_more_epochs(text, tmp_path):
    result, _ = train(text, tmp_path / "run", steps=None, epochs=0.1)
    longer = mingyue.resume(tmp_path / "run", epochs=0.2)
    assert longer.training.step > result.training.step
    with pytest.raises(TrainingError, match="nothing is left to do"):
        mingyue.resume(tmp_path / "run", epochs=0.2)


def test_a_warm_up_longer_than_the_run_is_reported(text, tmp_path):
    _, notes = train(text, tmp_path / "run", warmup=100)
    assert any("warm-up of 100 steps is longer than the run of 6" in note for note in notes), notes
    _, notes = train(text, tmp_path / "other", warmup=6)
    assert not any("warm-up" in note for note in notes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sources": ["nosuch.txt"]},
        {"tokenizer": "nosuch.json"},
        {"tokenizer_size": 1000},
        {"n_heads": 5},
        {"n_heads": 4, "n_kv_heads": 3},
        {"batch_tokens": 999_999_999, "micro_batch_tokens": 999_999_999},
        {"watch": "x" * 100},
    ],
    ids=str,
)
def test_overwrite_leaves_the_old_run_in_its_place_until_settings_and_data_are_checked(text, tmp_path, wrong):
    train(text, tmp_path / "run")
    before = content(tmp_path / "run")
    with pytest.raises(MingyueError):
        train(text, tmp_path / "run", overwrite=True, **wrong)
    assert content(tmp_path / "run") == before
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]
    _, notes = train(text, tmp_path / "run", overwrite=True)
    assert any("run.1" in note for note in notes)
    assert content(tmp_path / "run.1") == before


def test_overwrite_leaves_the_old_run_where_an_extra_is_missing(text, tmp_path, monkeypatch):
    train(text, tmp_path / "run")
    before = content(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match="tensorboard"):
        train(text, tmp_path / "run", overwrite=True, tensorboard=True)
    assert content(tmp_path / "run") == before


def test_the_demo_sets_nothing_without_effect(text, tmp_path, monkeypatch):
    """Its own prompt of samples gives way to --sample-every 0."""
    monkeypatch.setattr("mingyue.api.demo._TEXT", text)
    settings = TrainSettings.from_flat(**TINY, steps=2)
    assert mingyue.api.text_demo(tmp_path / "run", settings).training.step == 2


@pytest.mark.parametrize("given", [{"tokenizer_size": 1000}, {"preset": "gpt2", "rotary_base": 500.0}], ids=str)
def test_a_setting_without_effect_is_refused_before_any_work(text, tmp_path, given):
    with pytest.raises(SettingsError, match="has an effect only with"):
        train(text, tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
