"""A run from text to verdict, and the model that comes out of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import mingyue
from mingyue.api import RunResult, info
from mingyue.cli import main
from mingyue.config import TrainSettings
from mingyue.errors import BundleError, CheckpointError, MingyueError, SettingsError, TrainingError
from mingyue.training import Observer, RunFolder, read_log

TEXT = "".join(f"床前明月光，疑是地上霜。举头望明月，低头思故乡。{number}\n" for number in range(120))
TINY = {"depth": 1, "context": 32, "batch_tokens": 128, "d_model": 32, "threads": 1, "evaluate_every": 5}


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "poems.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(text_file: Path) -> RunResult:
    return mingyue.train(sources=[str(text_file)], out=str(text_file.parent / "run"), steps=150, **TINY)


def test_a_run_leaves_everything_that_its_folder_promises(run: RunResult) -> None:
    for name in ("run.toml", "metrics.jsonl", "plan.json", "checkpoints", "data", "model"):
        assert (run.folder / name).exists(), name
    assert {path.name for path in run.model_folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "training.json",
    }


def test_the_verdict_compares_with_a_bigram_model_of_the_same_text(run: RunResult) -> None:
    assert run.outcome.verdict in {"learning", "overfitting"}  # 3,000 characters are soon known by heart
    assert "beats a bigram model" in run.outcome.sentences[0]


def test_text_known_by_heart_shows_in_the_copy_report(run: RunResult) -> None:
    copying = run.outcome.copying
    assert copying is not None
    assert copying.share_of_ngrams > 0.2


def test_the_bundle_names_no_path_of_this_machine(run: RunResult) -> None:
    for name in ("config.json", "training.json", "tokenizer.json"):
        content = (run.model_folder / name).read_text(encoding="utf-8")
        assert str(run.folder.parent) not in content, name


def test_a_bundle_works_without_the_rest_of_its_run(run: RunResult, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for path in run.model_folder.iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    here, there = mingyue.load(run.folder), mingyue.load(moved)
    wanted = {"max_new_tokens": 20, "temperature": 0.0}
    assert here.generate("床前", **wanted)[0].text == there.generate("床前", **wanted)[0].text


def test_pieces_of_a_stream_join_to_the_text(run: RunResult) -> None:
    model = mingyue.load(run.folder)
    wanted = {"max_new_tokens": 30, "seed": 3}
    assert "".join(model.stream("床前", **wanted)) == model.generate("床前", **wanted)[0].text


def test_score_is_the_sum_of_what_logits_say(run: RunResult) -> None:
    model = mingyue.load(run.folder)
    text = "床前明月光"
    ids = model.tokenizer.encode(text)
    logs = model.logits(text).log_softmax(dim=-1)
    expected = sum(float(logs[t, ids[t + 1]]) for t in range(len(ids) - 1))
    assert model.score(text).total == pytest.approx(expected, abs=1e-4)


def test_run_toml_replays_the_run(run: RunResult, text_file: Path, tmp_path: Path) -> None:
    import tomllib

    values = tomllib.loads((run.folder / "run.toml").read_text(encoding="utf-8"))
    again = mingyue.train(TrainSettings.read(values, source="run.toml"), out=str(tmp_path / "again"))
    first, second = mingyue.load(run.folder).module, mingyue.load(again.folder).module
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name]), name


def test_chosen_sizes_are_written_down(text_file: Path, tmp_path: Path) -> None:
    result = mingyue.train(sources=[str(text_file)], out=str(tmp_path / "run"), steps=2, context=16, threads=1)
    import tomllib

    values = tomllib.loads((result.folder / "run.toml").read_text(encoding="utf-8"))
    assert values["model"]["depth"] >= 1
    assert values["batch"]["batch_tokens"] % 16 == 0
    assert info(result.folder).config["n_layers"] == values["model"]["depth"]
    assert info(result.folder).config["rotary_base"] == values["model"]["rotary_base"] == 100.0


def test_a_run_without_a_bundle_still_loads_its_best_checkpoint(run: RunResult, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run.folder, copy)
    shutil.rmtree(copy / "model")
    expected = mingyue.load(run.folder).score("床前明月光").total  # the best weights, not the last
    assert mingyue.load(copy).score("床前明月光").total == expected


def test_an_existing_run_is_not_overwritten_unless_asked(run: RunResult, text_file: Path) -> None:
    before = (run.folder / "run.toml").read_bytes()
    with pytest.raises(CheckpointError, match="already holds a run"):
        mingyue.train(sources=[str(text_file)], out=str(run.folder), steps=1, **TINY)
    assert (run.folder / "run.toml").read_bytes() == before


def test_no_source_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no text"):
        mingyue.train(out=str(tmp_path / "run"), steps=1)
    assert not (tmp_path / "run").exists()


def test_a_misspelled_setting_names_the_nearest_one() -> None:
    with pytest.raises(SettingsError, match="minutes"):
        mingyue.train(sources=["x"], minuts=3)


def test_loading_what_is_not_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="neither a model folder nor a run folder"):
        mingyue.load(tmp_path)
    with pytest.raises(BundleError, match="does not exist"):
        mingyue.load(tmp_path / "nothing")


def test_the_log_has_the_promised_keys(run: RunResult) -> None:
    lines = read_log(run.folder / "metrics.jsonl")
    trained = next(line for line in lines if line["event"] == "train")
    assert {"step", "tokens", "seconds", "train_loss", "tokens_per_second", "learning_rate"} <= set(trained)
    evaluated = next(line for line in lines if line["event"] == "evaluate")
    assert {"heldout_loss", "heldout_tokens", "bits_per_byte"} <= set(evaluated)
    assert lines[-1]["event"] == "end"


def test_before_the_first_step_the_user_hears_what_will_be_done(text_file: Path, tmp_path: Path) -> None:
    class Listener(Observer):
        def __init__(self) -> None:
            self.notes: list[str] = []

        def on_note(self, text: str) -> None:
            self.notes.append(text)

    listener = Listener()
    mingyue.train(sources=[str(text_file)], out=str(tmp_path / "run"), steps=1, observer=listener, **TINY)
    said = "\n".join(listener.notes)
    for word in ("read 1 file", "parameters", "memory", "uniform", "unigram", "bigram"):
        assert word in said, word


def test_training_json_says_how_the_model_was_made(run: RunResult) -> None:
    card = json.loads((run.model_folder / "training.json").read_text(encoding="utf-8"))
    assert card["starts_with_bos"] is False
    assert card["heldout_loss"] < card["baselines"]["bigram"]
    assert card["verdict"] == run.outcome.verdict


@pytest.mark.parametrize("wrong", [{"tokenizer": "no.json"}, {"encoding": "nonsense"}, {"d_model": 33, "n_heads": 4}])
def test_a_train_that_fails_before_its_first_step_leaves_nothing_in_the_way(
    text_file: Path, tmp_path: Path, wrong: dict[str, object]
) -> None:
    """The same command, corrected, must run: nothing was trained that could be lost."""
    out = tmp_path / "run"
    with pytest.raises(MingyueError):
        mingyue.train(sources=[str(text_file)], out=str(out), steps=1, **{**TINY, **wrong})
    assert not out.exists()


def test_what_a_kill_before_the_first_checkpoint_left_is_no_run(text_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "data").mkdir(parents=True)
    (out / "run.toml").write_text("", encoding="utf-8")
    (out / "data" / "half").write_bytes(b"half")
    result = mingyue.train(sources=[str(text_file)], out=str(out), steps=1, **TINY)
    assert result.folder == out
    assert not (out / "data" / "half").exists()


def test_a_finished_run_says_that_nothing_is_left_to_do_and_stays_as_it_is(run: RunResult) -> None:
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file() and path.name != "run.lock"}
    for changes in ({}, {"steps": 100}, {"minutes": 0.001}):
        with pytest.raises(TrainingError, match="nothing is left to do: 150 steps"):
            mingyue.resume(run.folder, changes=dict(changes))
    assert {path: path.read_bytes() for path in before} == before


def test_a_finished_run_goes_on_with_a_larger_budget(text_file: Path, tmp_path: Path) -> None:
    first = mingyue.train(sources=[str(text_file)], out=str(tmp_path / "run"), steps=2, **TINY)
    assert mingyue.resume(first.folder, steps=4).training.step == 4


def test_a_model_shows_what_it_is(run: RunResult) -> None:
    assert "depth 1, width 32, context 32, char tokenizer" in repr(mingyue.load(run.folder))


def test_one_stop_text_needs_no_list(run: RunResult) -> None:
    model = mingyue.load(run.folder)
    wanted = {"max_new_tokens": 60, "seed": 1}
    assert model.generate("床", stop="。", **wanted) == model.generate("床", stop=["。"], **wanted)


def test_a_run_stopped_before_it_trained_names_a_command_that_works(text_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = TrainSettings.from_flat(sources=[str(text_file)], out=str(out), steps=1, **TINY)
    folder, _ = RunFolder.create(out, settings)
    folder.unlock()
    with pytest.raises(CheckpointError, match="before anything was trained") as caught:
        mingyue.resume(out)
    command = caught.value.advice
    assert command is not None
    assert main(command.partition("mingyue ")[2].split()) == 0
    assert (out / "model").is_dir()


def test_a_run_killed_before_it_wrote_what_it_chose_is_not_resumed_with_other_sizes(
    text_file: Path, tmp_path: Path
) -> None:
    """The text is prepared, run.toml still holds only what was asked for: going on would train another model."""
    out = tmp_path / "run"
    mingyue.train(sources=[str(text_file)], out=str(out), steps=1, **TINY)
    for name in ("checkpoints", "model"):
        shutil.rmtree(out / name)
    (out / "plan.json").unlink()
    with pytest.raises(CheckpointError, match="before anything was trained"):
        mingyue.resume(out)


def test_a_longer_budget_killed_before_its_bundle_is_not_called_done(text_file: Path, tmp_path: Path) -> None:
    """The log says finished, and model/ is that of the shorter budget: the resume makes the new one."""
    out = tmp_path / "run"
    mingyue.train(sources=[str(text_file)], out=str(out), steps=1, **TINY)
    shutil.copytree(out / "model", tmp_path / "old")
    mingyue.resume(out, steps=3)
    shutil.rmtree(out / "model")
    (tmp_path / "old").rename(out / "model")
    mingyue.resume(out)
    assert mingyue.load(out).training["steps"] == 3
    with pytest.raises(TrainingError, match="nothing is left to do"):
        mingyue.resume(out)


@pytest.mark.parametrize("several", [True, False])
def test_names_of_files_are_texts_or_paths(tmp_path, several):
    (tmp_path / "a.txt").write_text("The mill turns by the river.\n" * 40, encoding="utf-8")
    source = tmp_path / "a.txt"
    small = {"steps": 2, "depth": 1, "d_model": 32, "context": 16, "threads": 1, "sample_every": 0}
    result = mingyue.train(sources=[source] if several else source, out=tmp_path / "run", **small)
    assert mingyue.train(sources=str(source), out=result.folder, overwrite=True, **small).folder == result.folder


def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_again(tmp_path):
    """Its model is sound, and would be replaced by one of a run from the start."""
    (tmp_path / "a.txt").write_text("The mill turns by the river.\n" * 40, encoding="utf-8")
    small = {"depth": 1, "d_model": 32, "context": 16, "threads": 1, "sample_every": 0}
    mingyue.train(sources=str(tmp_path / "a.txt"), out=tmp_path / "run", steps=4, **small)
    for weights in (tmp_path / "run" / "checkpoints").glob("*/model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-9])
    before = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    for _ in range(2):
        with pytest.raises(CheckpointError, match="holds no sound checkpoint"):
            mingyue.resume(tmp_path / "run", steps=6)
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("bit", [0x01, 0x40])
def test_damaged_tokens_are_made_again_whatever_id_they_became(tmp_path, bit):
    """An id outside the vocabulary was an error that named no file."""
    (tmp_path / "a.txt").write_text("The mill turns by the river.\n" * 40, encoding="utf-8")
    small = {"depth": 1, "d_model": 32, "context": 16, "threads": 1, "sample_every": 0}
    mingyue.train(sources=str(tmp_path / "a.txt"), out=tmp_path / "run", steps=2, **small)
    path = tmp_path / "run" / "data" / "train-00000.tokens"
    content = bytearray(path.read_bytes())
    for at in (300, 301):
        content[at] ^= bit
    path.write_bytes(bytes(content))
    mingyue.resume(tmp_path / "run", steps=3)
    assert path.read_bytes() != bytes(content)
