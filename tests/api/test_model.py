"""A loaded model: notes of its calls, of its tokenizer and of its checkpoint."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers

import mingyue
from mingyue.api import Model
from mingyue.bundle import save_bundle
from mingyue.cli import main
from mingyue.config import ModelSettings
from mingyue.models import build_model, resolve_config
from mingyue.text import Tokenizer, train_char


def saved(folder: Path, tokenizer: Tokenizer, training: dict[str, Any] | None = None) -> Path:
    settings = ModelSettings.model_validate({"preset": "modern", "d_model": 32})
    config = resolve_config(settings, vocab_size=tokenizer.vocab_size, depth=1, context=8)
    model = build_model(config, seed=3)
    save_bundle(folder, config, model.state_dict(), tokenizer, {"starts_with_bos": True, **(training or {})})
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return mingyue.load(saved(tmp_path / "model", train_char(["the mill turns"])), threads=1)


def lowercased() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = LibraryTokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer.from_json(backend.to_str())


def test_notes_are_those_of_the_calls_of_this_thread(model: Model) -> None:
    """T22: one thread's long prompts are not noted to another."""
    wrong: list[str] = []
    gate = threading.Barrier(4)

    def work(number: int) -> None:
        prompt = "t" * (number + 9) if number % 2 else "t"
        gate.wait()
        for _ in range(20):
            model.generate(prompt, max_new_tokens=1)
            notes = model.notes
            expected = [f"The prompt has {number + 10} tokens"] if number % 2 else []
            if [note[: len(start)] for note, start in zip(notes, expected, strict=False)] != expected or (
                len(notes) != len(expected)
            ):
                wrong.append(f"{number}: {notes}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert model.notes == [], "this thread has made no call"


def test_notes_of_a_stream_arrive_in_the_thread_that_asked_for_it(model: Model) -> None:
    stream = model.stream("the mill turns", max_new_tokens=3)
    assert "The prompt has 15 tokens" in model.notes[0]
    list(stream)
    model.score("the")
    assert model.notes == []


def test_a_model_can_be_copied_and_pickled(model: Model) -> None:
    expected = model.generate("the", max_new_tokens=3)[0].text
    for other in (copy.copy(model), pickle.loads(pickle.dumps(model._latest))):
        assert other.notes == []
    assert copy.copy(model).generate("the", max_new_tokens=3)[0].text == expected


def test_a_tokenizer_that_loses_text_is_told_with_every_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """D20: THE MILL is scored as the mill; bytes are those of the original text."""
    folder = saved(tmp_path / "model", lowercased())
    model = mingyue.load(folder, threads=1)
    assert len(model.loading_notes) == 1 and "letter case" in model.loading_notes[0]
    score = model.score("THE MİLL")
    assert score.scored_bytes == len("THE MİLL".encode())
    for verb in (["generate", "--max-new-tokens", "1"], ["score", "--text", "THE"], ["info"]):
        assert main([verb[0], str(folder), *verb[1:]]) == 0
        assert "letter case" in " ".join(capsys.readouterr().err.split())


def test_a_file_without_permission_or_below_a_file_is_named_with_the_reason(tmp_path: Path) -> None:
    """T20: for paths of any kind, and without a traceback."""
    folder = saved(tmp_path / "model", train_char(["the mill turns"]))
    for path, reason in (
        (folder / "config.json", "not a model folder|neither"),
        (folder / "config.json" / "below", "does not exist|Not a directory"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        with pytest.raises(mingyue.MingyueError, match=reason):
            mingyue.load(path)
    training = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    assert training["checksums"]
