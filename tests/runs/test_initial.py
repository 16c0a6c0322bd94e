"""Runs that start from a trained model (`--init`): what is kept, what is refused, what a resume needs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import mingyue
from mingyue.api import info
from mingyue.bundle import load_bundle
from mingyue.data.unseen import from_ranges
from mingyue.errors import MingyueError, SettingsError
from mingyue.training import Observer, RunFolder, StepReport, read_log

OLD = "".join(f"The mill {number % 9} turns by the river {number % 7}.\n" for number in range(120))
NEW = "".join(f"Zwölf Räder {number % 9} drehen am Fluss {number % 7}.\n" for number in range(120))
TINY: dict[str, Any] = {"separator": "line", "batch_tokens": 256, "threads": 1, "seed": 3, "sample_every": 0}


class Recorder(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)


class KilledError(Exception):
    pass


class KilledAt(Recorder):
    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def on_step(self, report: StepReport) -> None:
        if report.step == self.step:
            raise KilledError


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both texts and a run on the old one."""
    place = tmp_path_factory.mktemp("init")
    (place / "old.txt").write_text(OLD, encoding="utf-8")
    (place / "new.txt").write_text(NEW, encoding="utf-8")
    sizes = {"depth": 1, "d_model": 32, "context": 32}
    mingyue.train(sources=place / "old.txt", out=place / "old", steps=30, observer=Recorder(), **sizes, **TINY)
    return place


def go_on(place: Path, out: Path, init: Path | None = None, **given: Any) -> tuple[mingyue.RunResult, list[str]]:
    observer = given.pop("observer", Recorder())
    values = {**TINY, "steps": 20, **given}
    init = place / "old" if init is None else init
    result = mingyue.train(sources=place / "new.txt", out=out, init=init, observer=observer, **values)
    return result, observer.notes


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_bundle(folder / "model").model.state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_weights_architecture_and_tokenizer_are_those_of_the_model(place: Path, tmp_path: Path) -> None:
    """T30: the first loss of the new run is the one that the model has on the new text, so nothing began anew."""
    result, notes = go_on(place, tmp_path / "new")
    old, new = mingyue.load(place / "old"), mingyue.load(result.folder)
    assert new.config == old.config
    assert new.tokenizer.to_json() == old.tokenizer.to_json()
    before = next(line for line in read_log(result.folder / "metrics.jsonl") if line["event"] == "compare")
    assert before["step"] == 0
    assert same(load_bundle(result.folder / "init").model.state_dict(), weights(place / "old"))
    assert any("keeps" in note or "are kept" in note for note in notes)


def test_the_loss_of_both_texts_is_told_before_and_after(place: Path, tmp_path: Path) -> None:
    """T30: of the new text it falls; of the old one it is measured on the old run's held-out tokens."""
    result, notes = go_on(place, tmp_path / "new")
    old = next(line for line in reversed(read_log(place / "old" / "metrics.jsonl")) if line["event"] == "end")
    first, last = [line for line in read_log(result.folder / "metrics.jsonl") if line["event"] == "compare"]
    assert first["old_heldout_loss"] == pytest.approx(old["heldout_loss"], abs=1e-6)
    assert last["heldout_loss"] < first["heldout_loss"]
    assert [note for note in notes if note.startswith("Before training")]
    told = "\n".join(result.outcome.sentences)
    for value in (first["heldout_loss"], last["heldout_loss"], first["old_heldout_loss"], last["old_heldout_loss"]):
        assert f"{value:.3f}" in told


def test_a_model_folder_alone_is_enough(place: Path, tmp_path: Path) -> None:
    """T30: without the old run's tokens its loss is not measured, and that is told."""
    shutil.copytree(place / "old" / "model", tmp_path / "given")
    result, notes = go_on(place, tmp_path / "new", tmp_path / "given")
    lines = [line for line in read_log(result.folder / "metrics.jsonl") if line["event"] == "compare"]
    assert "old_heldout_loss" not in lines[0]
    assert any("not at hand" in note for note in notes)


def test_what_the_tokenizer_cannot_spell_is_counted(place: Path, tmp_path: Path) -> None:
    """T30: characters outside the vocabulary use byte fallback; how many there are is told."""
    _, notes = go_on(place, tmp_path / "new")
    known = set(OLD)
    missing = sum(character not in known for character in NEW.replace("\n", ""))
    told = [note for note in notes if "not in the vocabulary of the model" in note]
    assert len(told) == 1
    assert told[0].startswith(f"{missing:,} of ")


def test_ids_seen_by_either_training_are_seen(place: Path, tmp_path: Path) -> None:
    """T30: only ids that neither text uses are unseen: of characters of the old text, and of bytes of the new one."""
    result, _ = go_on(place, tmp_path / "new")
    new, old = mingyue.load(result.folder), mingyue.load(place / "old")
    unseen = set(from_ranges(json.loads((result.model_folder / "training.json").read_text(encoding="utf-8"))["unseen"]))
    assert unseen == set(new.unseen) < set(old.unseen)
    assert not unseen.intersection(new.tokenizer.encode(NEW[: len(NEW) * 9 // 10].replace("\n", "")))
    assert not unseen.intersection(new.tokenizer.encode(OLD.replace("\n", "")))
    assert set(old.unseen) - unseen == set(old.unseen) & set(new.tokenizer.encode(NEW.replace("\n", "")))


@pytest.mark.parametrize("killed", [3, 17])
def test_a_resume_is_exact_and_needs_neither_model_nor_old_text(place: Path, tmp_path: Path, killed: int) -> None:
    """T2, T30: killed before or after its first checkpoint, with the model that it started from gone."""
    whole, _ = go_on(place, tmp_path / "whole", checkpoint_every=8)
    shutil.copytree(place / "old", tmp_path / "start")
    with pytest.raises(KilledError):
        go_on(place, tmp_path / "broken", tmp_path / "start", checkpoint_every=8, observer=KilledAt(killed))
    shutil.rmtree(tmp_path / "start")
    resumed = mingyue.resume(tmp_path / "broken", observer=Recorder())
    assert same(weights(whole.folder), weights(resumed.folder))
    told = [sentence for sentence in resumed.outcome.sentences if "before training" in sentence]
    assert told == [sentence for sentence in whole.outcome.sentences if "before training" in sentence]


@pytest.mark.parametrize(
    "given",
    [
        {"d_model": 64},
        {"depth": 2},
        {"preset": "gpt2"},
        {"context": 64},
        {"tied_output": False},
        {"tokenizer": "bpe"},
        {"tokenizer": "bpe", "tokenizer_size": 300},
        {"min_count": 3},
    ],
)
def test_settings_that_contradict_the_model_are_refused(place: Path, tmp_path: Path, given: dict[str, object]) -> None:
    """T30: the model's architecture and tokenizer are kept, so another one is an error that names the setting."""
    with pytest.raises(SettingsError) as refusal:
        go_on(place, tmp_path / "new", **given)
    for name, value in given.items():
        assert f"{name} {value}" in str(refusal.value)
    assert not (tmp_path / "new").exists()


def test_settings_that_agree_with_the_model_and_its_dropout_are_taken(place: Path, tmp_path: Path) -> None:
    """T30: what the model has may be given, and dropout changes no weight's meaning."""
    result, _ = go_on(place, tmp_path / "new", d_model=32, depth=1, preset="modern", tokenizer="char", dropout=0.1)
    assert mingyue.load(result.folder).config.dropout == 0.1


@pytest.mark.parametrize("preset", ["modern", "speed", "gpt2", "llama"])
def test_every_preset_can_be_trained_further_and_its_run_toml_replayed(
    place: Path, tmp_path: Path, preset: str
) -> None:
    """T30: run.toml holds the whole architecture and the model's folder: it starts the same run again."""
    sizes = {"depth": 1, "d_model": 32, "context": 32, "preset": preset}
    mingyue.train(sources=place / "old.txt", out=tmp_path / "first", steps=3, observer=Recorder(), **{**TINY, **sizes})
    result, _ = go_on(place, tmp_path / "new", tmp_path / "first", steps=3)
    settings = RunFolder(result.folder).read_settings()
    assert settings.run.init == str(tmp_path / "first") == info(result.folder).init
    again = mingyue.train(settings, out=tmp_path / "again", observer=Recorder())
    assert same(weights(result.folder), weights(again.folder))


def test_a_text_shorter_than_the_context_leaves_the_model_its_context(place: Path, tmp_path: Path) -> None:
    """T30: a short new text is read in shorter windows, but the model's context stays."""
    (tmp_path / "short.txt").write_text("The river turns.", encoding="utf-8")
    result = mingyue.train(
        sources=tmp_path / "short.txt",
        out=tmp_path / "new",
        init=place / "old",
        steps=2,
        threads=1,
        observer=Recorder(),
    )
    assert mingyue.load(result.folder).config.context == 32


def test_pairs_and_the_folder_of_the_new_run_are_refused(place: Path, tmp_path: Path) -> None:
    """T30: a run on pairs takes no init; a run does not start from the folder that it replaces."""
    with pytest.raises(SettingsError, match="init"):
        mingyue.train(source=place / "old.txt", target=place / "new.txt", init=place / "old", out=tmp_path / "pairs")
    with pytest.raises(SettingsError, match="folder of the new run"):
        go_on(place, place / "old", overwrite=True)
    with pytest.raises(MingyueError, match="does not exist"):
        go_on(place, tmp_path / "new", tmp_path / "nothing")
    assert not (tmp_path / "new").exists()
