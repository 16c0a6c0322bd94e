"""The model is saved before anything else is done with it: what a report meets costs the report, never the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mingyue
from mingyue.api import RunResult
from mingyue.runs import text_run, verdict
from mingyue.text import Tokenizer
from mingyue.training import Observer

TEXT = "".join(f"床前明月光，疑是地上霜。举头望明月，低头思故乡。{number}\n" for number in range(60))
TINY = {"depth": 1, "context": 32, "batch_tokens": 128, "d_model": 32, "threads": 1, "evaluate_every": 2, "steps": 4}


class Listener(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)


def train(tmp_path: Path, listener: Observer | None = None, text: str = TEXT, **given: object) -> RunResult:
    source = tmp_path / "poems.txt"
    source.write_text(text, encoding="utf-8")
    return mingyue.train(sources=[str(source)], out=str(tmp_path / "run"), observer=listener, **(TINY | given))


def no_memory(*_: object, **__: object) -> None:
    raise MemoryError("not enough memory for it")


@pytest.mark.parametrize(
    ("module", "name", "missing"),
    [
        (verdict, "copy_report", "copy report"),
        (verdict, "read_log", "verdict"),
        (text_run, "generate", "generated texts"),
        (text_run, "judge", "verdict"),
    ],
)
def test_a_report_that_fails_costs_itself_and_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str, missing: str
) -> None:
    monkeypatch.setattr(module, name, no_memory)
    listener = Listener()
    run = train(tmp_path, listener)
    assert mingyue.load(run.folder).generate("床", max_new_tokens=2)
    said = [note for note in listener.notes if note.startswith(f"No {missing}")]
    assert said
    assert "not enough memory" in said[0]
    card = json.loads((run.model_folder / "training.json").read_text(encoding="utf-8"))
    assert card["verdict"] == run.outcome.verdict
    with pytest.raises(mingyue.MingyueError, match="nothing is left to do"):
        mingyue.resume(run.folder)


def test_the_model_is_on_the_disk_when_the_first_report_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    judge = text_run.judge

    def spy(*args: object, **given: object) -> object:
        found.append((tmp_path / "run" / "model" / "training.json").is_file())
        return judge(*args, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(text_run, "judge", spy)
    train(tmp_path)
    assert found == [True]


def test_samples_that_fail_during_training_do_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_run, "generate", no_memory)
    assert train(tmp_path, sample_every=1).training.step == 4


WRONG = [
    '{"event": "evaluate", "step": "2", "tokens": 1, "seconds": 1.0, "heldout_loss": 2.0}',
    '{"event": "evaluate", "step": 2, "tokens": 1, "seconds": 1.0, "heldout_loss": "low"}',
    '{"event": "evaluate", "step": 2, "tokens": [1], "seconds": 1.0, "heldout_loss": {}}',
    '{"event": "evaluate", "step": 2, "tokens": 1, "seconds": null, "heldout_loss": true}',
    '{"event": ["evaluate"], "step": 2, "tokens": 1, "seconds": 1.0}',
    '{"event": "train", "step": 2, "tokens": 1, "seconds": 1.0, "train_loss": "x"}',
    "[" * 100_000,
    "1" * 5_000,
    "null",
]


@pytest.mark.parametrize("line", WRONG, ids=range(len(WRONG)))
def test_a_log_line_of_wrong_types_costs_nothing(tmp_path: Path, line: str) -> None:
    class Spoiler(Listener):
        def on_evaluate(self, report: object) -> None:
            with (tmp_path / "run" / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    run = train(tmp_path, Spoiler())
    assert run.outcome.verdict != "not measured"
    assert (run.model_folder / "model.safetensors").is_file()


def test_the_copy_report_decodes_the_text_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training text takes no memory that grows with it, and a passage may lie across two pieces."""
    most = 0
    decode = Tokenizer.decode

    def spy(self: Tokenizer, ids: object) -> str:
        nonlocal most
        most = max(most, len(ids))  # type: ignore[arg-type]
        return decode(self, ids)  # type: ignore[arg-type]

    monkeypatch.setattr(Tokenizer, "decode", spy)
    monkeypatch.setattr(verdict, "_PIECE", 100, raising=False)
    run = train(tmp_path, tokenizer="byte", steps=1)
    assert most < 2_000  # the generated texts
    copying = run.outcome.copying
    assert copying is not None
    assert copying.compared > 1_000


def test_pieces_are_the_text(tmp_path: Path) -> None:
    """Joined, they are the decoded text, though a piece of bytes may end within a character."""
    run = train(tmp_path, tokenizer="byte", steps=1)
    tokenizer, corpus, _ = text_run.load_corpus(run.folder / "data")
    pieces = list(verdict._training_text(tokenizer, corpus, piece=7))
    assert len(pieces) > 100
    assert "".join(pieces) == tokenizer.decode(corpus.train.read().tolist())
