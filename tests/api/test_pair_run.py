"""A run from pairs of texts to a model that translates."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import re
import shutil
import signal
import tomllib
from pathlib import Path

import pytest
import torch

import mingyue
from mingyue.api import RunResult, run_path
from mingyue.config import TrainSettings
from mingyue.errors import CheckpointError, DataError, MingyueError, MissingExtraError, SettingsError
from mingyue.runs import pair_run, text_run
from mingyue.training import Checkpoints, Observer, RunFolder, final_weights, read_log

TINY = {
    "d_model": 32, "n_layers": 1, "n_heads": 2, "d_ff": 64, "context": 32, "batch_tokens": 256, "tokenizer": "char",
    "threads": 1, "evaluate_every": 5, "steps": 10,
}  # fmt: skip
needs_sacrebleu = pytest.mark.skipif(
    importlib.util.find_spec("sacrebleu") is None, reason="extra `translate` is not installed"
)


def write_pairs(folder: Path, name: str, count: int, seed: int = 1) -> dict[str, str]:
    """Two files of lines: letters, and the same backwards in another script."""
    draw = random.Random(seed)
    sources = ["".join(draw.choices("abcdef", k=draw.randint(1, 12))) for _ in range(count)]
    targets = [source[::-1].translate(str.maketrans("abcdef", "甲乙丙丁戊己")) for source in sources]
    folder.mkdir(parents=True, exist_ok=True)
    files = {"source": folder / f"{name}.en", "target": folder / f"{name}.zh"}
    for path, lines in zip(files.values(), (sources, targets), strict=True):
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return {side: str(path) for side, path in files.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_pairs(tmp_path_factory.mktemp("pairs"), "train", 300)


@pytest.fixture(scope="module")
def run(files: dict[str, str]) -> RunResult:
    return mingyue.train(**files, out=str(Path(files["source"]).parent / "run"), bleu_lines=0, **TINY)


class Listener(Observer):
    """Hears the notes; asks for a stop after a step, as Ctrl-C does."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.notes: list[str] = []
        self.samples: list[str] = []
        self.stop_after = stop_after

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_sample(self, step: int, text: str) -> None:
        self.samples.append(text)

    def on_step(self, report: mingyue.training.StepReport) -> None:
        if report.step == self.stop_after:
            signal.raise_signal(signal.SIGINT)


def settings_in(result: RunResult) -> dict[str, dict[str, object]]:
    return tomllib.loads((result.folder / "run.toml").read_text(encoding="utf-8"))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(mingyue.load_translator(folder).module.state_dict())


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_leaves_a_model_that_translates(run: RunResult) -> None:
    for name in ("run.toml", "metrics.jsonl", "plan.json", "checkpoints", "data", "model"):
        assert (run.folder / name).exists(), name
    assert {path.name for path in run.model_folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "training.json",
    }
    assert run.of_pairs
    assert run.training.reason == "finished"
    translator = mingyue.load_translator(run.folder)
    assert translator.source_tokenizer is translator.tokenizer
    written = translator.translate(["abc", "f"], beam=1)
    assert all(isinstance(best[0].text, str) for best in written)
    assert same(weights(run.folder), weights(run.model_folder))


def test_training_json_says_how_the_model_was_made(run: RunResult) -> None:
    card = json.loads((run.model_folder / "training.json").read_text(encoding="utf-8"))
    log = read_log(run.folder / "metrics.jsonl")
    assert card["steps"] == run.training.weights_step
    assert card["heldout_loss"] == run.training.evaluation.loss == log[-1]["heldout_loss"]  # type: ignore[union-attr]
    assert card["train_pairs"] > 200
    assert card["train_target_tokens"] > card["train_pairs"]
    assert card["verdict"] == run.outcome.verdict
    for name in ("config.json", "training.json", "tokenizer.json"):
        assert str(run.folder.parent) not in (run.model_folder / name).read_text(encoding="utf-8"), name


def test_pairs_get_label_smoothing_and_a_preset_and_all_is_written_down(run: RunResult) -> None:
    values = settings_in(run)
    assert values["optimiser"]["label_smoothing"] == 0.1
    assert values["tokenizer"]["tokenizer"] == "char"  # given, so it wins over bpe
    assert values["model"]["preset"] == "translate-small"
    assert values["model"]["context"] == 32


def test_what_is_open_is_chosen(files: dict[str, str], tmp_path: Path) -> None:
    listener = Listener()
    given = {name: value for name, value in TINY.items() if name not in {"tokenizer", "context", "batch_tokens"}}
    result = mingyue.train(**files, out=str(tmp_path / "run"), observer=listener, **{**given, "steps": 1})
    values = settings_in(result)
    assert values["tokenizer"]["tokenizer"] == "bpe"
    assert values["model"]["context"] == pair_run.DEFAULT_PAIR_CONTEXT
    assert values["batch"]["batch_tokens"] == 2048
    said = "\n".join(listener.notes)
    for word in ("pairs", "parameters", "depth 1 + 1", "memory", "expected time", "uniform guess"):
        assert word in said, word


def test_run_toml_replays_the_run(run: RunResult, tmp_path: Path) -> None:
    """T14: the settings that a run wrote down make the same model once more."""
    settings = TrainSettings.read(settings_in(run), source="run.toml")
    again = mingyue.train(settings, out=str(tmp_path / "again"))
    assert same(weights(run.folder), weights(again.folder))


@pytest.mark.parametrize("changes", [{}, {"shared_vocabulary": False}])
def test_stopped_and_resumed_equals_never_stopped(
    files: dict[str, str], tmp_path: Path, changes: dict[str, object]
) -> None:
    """T2: Ctrl-C in the second epoch, then `mingyue.resume`: the weights of a run never stopped; usable in between."""
    options = {
        **files, **TINY, **changes, "dropout": 0.2, "micro_batch_tokens": 128, "batch_tokens": 400, "steps": 10,
        "bleu_lines": 0, "average_last": 2, "checkpoint_every": 3,
    }  # fmt: skip
    whole = mingyue.train(**options, out=str(tmp_path / "whole"))
    listener = Listener(stop_after=8)
    stopped = mingyue.train(**options, out=str(tmp_path / "run"), observer=listener)
    epoch = next(re.search(r"an epoch has (\d+) steps", note) for note in listener.notes if "an epoch has" in note)
    assert epoch is not None and 4 < int(epoch[1]) < 8
    assert (stopped.training.reason, stopped.training.step) == ("stopped", 8)
    assert mingyue.load_translator(stopped.folder).translate("abc", beam=1)[0][0].text is not None
    resumed = mingyue.resume(stopped.folder)
    assert resumed.training.reason == "finished"
    assert resumed.training.evaluation == whole.training.evaluation
    assert same(weights(resumed.folder), weights(whole.folder))
    assert len(read_log(whole.folder / "metrics.jsonl")) > 5


def test_a_run_killed_before_its_end_translates_from_its_best_checkpoint(run: RunResult, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.folder, copy)
    shutil.rmtree(copy / "model")
    assert same(weights(copy), weights(run.folder))
    lines = ["abc", "fed"]
    here, there = mingyue.load_translator(copy), mingyue.load_translator(run.folder)
    assert [best[0].text for best in here.translate(lines)] == [best[0].text for best in there.translate(lines)]


def test_a_run_killed_before_anything_was_trained_says_so(files: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    folder, _ = RunFolder.create(out, TrainSettings.from_flat(**files, out=str(out), **TINY))
    folder.unlock()
    with pytest.raises(CheckpointError, match="before anything was trained"):
        mingyue.resume(out)


def test_a_vocabulary_for_each_side(files: dict[str, str], tmp_path: Path) -> None:
    """Two tokenizers, two tables: trained, saved, loaded and used."""
    result = mingyue.train(**files, out=str(tmp_path / "run"), shared_vocabulary=False, bleu_lines=2, **TINY)
    assert (result.model_folder / "source_tokenizer.json").is_file()
    translator = mingyue.load_translator(result.folder)
    assert translator.source_tokenizer is not translator.tokenizer
    assert translator.source_tokenizer.decode(translator.source_tokenizer.encode("abc")) == "abc"
    assert translator.config.source_vocab_size == translator.source_tokenizer.vocab_size == 259 + 6
    assert translator.config.vocab_size == translator.tokenizer.vocab_size
    (best,) = translator.translate("abcdef", beam=2)
    assert isinstance(best[0].text, str)
    shutil.rmtree(result.model_folder)
    assert mingyue.load_translator(result.folder).source_tokenizer is not None


def test_pairs_in_records(tmp_path: Path) -> None:
    files = write_pairs(tmp_path, "train", 60)
    lines = [Path(files[side]).read_text(encoding="utf-8").splitlines() for side in ("source", "target")]
    records = tmp_path / "both.jsonl"
    text = "".join(json.dumps({"en": en, "zh": zh}) + "\n" for en, zh in zip(*lines, strict=True))
    records.write_text(text, encoding="utf-8")
    result = mingyue.train(
        pairs=str(records), source_field="en", target_field="zh", out=str(tmp_path / "run"), bleu_lines=0,
        **{**TINY, "steps": 2},
    )  # fmt: skip
    assert mingyue.load_translator(result.folder).tokenizer.encode("甲") != []


# --- validation -------------------------------------------------------------------------------------------------------


def test_without_validation_files_the_last_pairs_are_held_out(run: RunResult) -> None:
    card = json.loads((run.model_folder / "training.json").read_text(encoding="utf-8"))
    assert run.training.evaluation is not None
    assert 20 <= 300 - card["train_pairs"] <= 100  # a tenth, and words that occur twice
    assert run.training.evaluation.tokens == card["heldout_tokens"] > 50


def test_given_validation_files_are_what_is_measured(files: dict[str, str], tmp_path: Path) -> None:
    valid = write_pairs(tmp_path, "valid", 9, seed=5)
    result = mingyue.train(
        **files, valid_source=valid["source"], valid_target=valid["target"], out=str(tmp_path / "run"),
        **{**TINY, "steps": 2},
    )  # fmt: skip
    texts = Path(valid["target"]).read_text(encoding="utf-8").splitlines()
    assert result.training.evaluation is not None
    assert result.training.evaluation.tokens == sum(len(text) + 1 for text in texts)


def test_nothing_held_out_is_said(files: dict[str, str], tmp_path: Path) -> None:
    result = mingyue.train(**files, held_out=0.0, out=str(tmp_path / "run"), **{**TINY, "steps": 2})
    assert result.training.evaluation is None
    assert result.outcome.verdict == "not measured"
    assert mingyue.load_translator(result.folder).translate("ab", beam=1)


@needs_sacrebleu
def test_bleu_of_validation_pairs_is_in_the_log_and_may_choose(files: dict[str, str], tmp_path: Path) -> None:
    """Measured at every evaluation, on the same pairs, with the model as it is; the best step is the one with most."""
    listener = Listener()
    result = mingyue.train(
        **files, out=str(tmp_path / "run"), select="bleu", sample_every=1, observer=listener, bleu_lines=5, **TINY
    )
    lines = [line for line in read_log(result.folder / "metrics.jsonl") if line["event"] == "evaluate"]
    assert [line["step"] for line in lines] == [5, 10]
    assert all(0.0 <= line["bleu"] <= 100.0 for line in lines)
    best = max(lines, key=lambda line: (line["bleu"], -line["step"]))
    assert result.training.weights_step == best["step"]
    assert len(listener.samples) == 1  # the last one would repeat the texts of the end
    for mark in ("→", "="):
        assert listener.samples[0].count(f"\n  {mark} ") == 3
    assert result.outcome.texts[0].count("\n  → ") == 3


def test_bleu_without_its_library_or_without_validation(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choosing by what cannot be measured is refused, with what to do; not choosing by it just goes without."""
    with pytest.raises(SettingsError, match="validation pairs") as caught:
        mingyue.train(**files, held_out=0.0, select="bleu", out=str(tmp_path / "none"), **TINY)
    assert "install" not in str(caught.value.advice)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "sacrebleu" else real(name))
    with pytest.raises(MissingExtraError, match="sacrebleu"):
        mingyue.train(**files, select="bleu", out=str(tmp_path / "none"), **TINY)
    assert not (tmp_path / "none").exists()
    result = mingyue.train(**files, out=str(tmp_path / "run"), **{**TINY, "steps": 2})
    assert all("bleu" not in line for line in read_log(result.folder / "metrics.jsonl"))


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the text or the pairs fails: what is refused must be so before hours are spent on them."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the data were read")

    monkeypatch.setattr(pair_run, "prepare_pairs", fail)
    monkeypatch.setattr(text_run, "prepare_corpus", fail)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"preset": "modern"}, "preset modern is a decoder-only model"),
        ({"preset": "gpt2"}, "preset gpt2 is a decoder-only model"),
        ({"window": 8}, "leave window out"),
        ({"d_model": 33, "n_heads": 4}, "d_model 33 is not a multiple of n_heads 4"),
        ({"separator": "line"}, "leave separator out"),
        ({"sample_prompt": "The ", "attend_across_documents": False}, "attend_across_documents, sample_prompt out"),
        ({"sources": ("text.txt",)}, "both are given .*text.txt"),
    ],
)
def test_pairs_refuse_what_is_for_text(
    files: dict[str, str], tmp_path: Path, wrong: dict[str, object], words: str
) -> None:
    out = tmp_path / "run"
    with pytest.raises(SettingsError, match=words):
        mingyue.train(out=str(out), **{**files, **TINY, **wrong})
    assert not out.exists()


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"preset": "translate-small"}, "preset translate-small is an encoder-decoder model"),
        ({"preset": "paper-base"}, "preset paper-base is an encoder-decoder model"),
        ({"n_encoder_layers": 2}, "leave n_encoder_layers out"),
        ({"select": "bleu"}, "leave select out"),
        ({"shared_vocabulary": False, "bleu_lines": 3}, "leave shared_vocabulary, bleu_lines out"),
        ({"d_model": 33, "n_heads": 4}, "d_model 33 is not a multiple of n_heads 4"),
    ],
)
def test_text_refuses_what_is_for_pairs(tmp_path: Path, wrong: dict[str, object], words: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abc\n" * 200, encoding="utf-8")
    out = tmp_path / "run"
    with pytest.raises(SettingsError, match=words):
        mingyue.train(sources=(str(text),), out=str(out), depth=1, context=16, threads=1, steps=1, **wrong)
    assert not out.exists()


def test_sides_of_unlike_length_leave_nothing_behind(files: dict[str, str], tmp_path: Path) -> None:
    short = tmp_path / "short.zh"
    short.write_text("甲\n", encoding="utf-8")
    with pytest.raises(DataError, match="300"):
        mingyue.train(source=files["source"], target=str(short), out=str(tmp_path / "run"), **TINY)
    assert not (tmp_path / "run").exists()


def test_a_resume_refuses_another_vocabulary(run: RunResult) -> None:
    with pytest.raises(SettingsError, match="shared_vocabulary"):
        mingyue.resume(run.folder, shared_vocabulary=False, steps=99)
    with pytest.raises(MingyueError, match="nothing is left to do"):
        mingyue.resume(run.folder)


@pytest.mark.parametrize("name", ["news.en", "news.en.gz"])
def test_a_run_is_named_after_its_source(name: str) -> None:
    settings = TrainSettings.from_flat(source=f"corpora/{name}", target="corpora/news.de")
    assert run_path(settings) == Path("runs") / "news"


def test_compressed_sides(tmp_path: Path) -> None:
    files = write_pairs(tmp_path, "train", 40)
    for path in files.values():
        Path(f"{path}.gz").write_bytes(gzip.compress(Path(path).read_bytes()))
    packed = {side: f"{path}.gz" for side, path in files.items()}
    one, two = (
        mingyue.train(**these, out=str(tmp_path / name), bleu_lines=0, **{**TINY, "steps": 2})
        for name, these in (("plain", files), ("packed", packed))
    )
    assert same(weights(one.folder), weights(two.folder))


def test_a_resume_refuses_what_is_for_text(run: RunResult) -> None:
    with pytest.raises(SettingsError, match="leave sample_prompt out"):
        mingyue.resume(run.folder, sample_prompt="a", steps=99)


def test_the_bundle_says_what_was_averaged(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 6.1: a model that is a mean says of which steps."""

    def as_good(checkpoints: Checkpoints, last: int) -> tuple[dict[str, torch.Tensor], list[int]]:
        return checkpoints.load(10).model, checkpoints.steps()[-last:]

    monkeypatch.setattr(final_weights, "average_weights", as_good)
    for last, mean in ((1, []), (3, [8, 9, 10])):
        result = mingyue.train(
            **files, out=str(tmp_path / f"run{last}"), average_last=last, checkpoint_every=1, bleu_lines=0,
            learning_rate=1e-4, muon_learning_rate=1e-4, **TINY,
        )  # fmt: skip
        card = json.loads((result.model_folder / "training.json").read_text(encoding="utf-8"))
        assert card.get("averaged_steps", []) == list(result.training.averaged) == mean
