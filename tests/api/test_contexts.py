"""The training text that nearest contexts are searched in: of a run, or of a file."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import mingyue
from mingyue.errors import SettingsError
from mingyue.runs import RunResult

TINY = {"d_model": 32, "n_heads": 2, "context": 32, "batch_tokens": 128, "threads": 1, "steps": 4}
POEM = "床前明月光，疑是地上霜。"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run on poems, which begin with BOS."""
    place = tmp_path_factory.mktemp("text")
    poems = [f"{POEM}举头望明月，低头思故乡。{number}" for number in range(60)]
    (place / "poems.txt").write_text("\n\n".join(poems), encoding="utf-8")
    return mingyue.train(
        sources=[str(place / "poems.txt")], separator="blank-line", out=str(place / "run"), depth=1, **TINY
    )


@pytest.fixture(scope="module")
def pair_run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run on pairs: letters, and the same backwards."""
    place, draw = tmp_path_factory.mktemp("pairs"), random.Random(1)
    lines = ["".join(draw.choices("abcdef", k=draw.randint(1, 9))) for _ in range(200)]
    for name, side in (("a", lines), ("b", [line[::-1] for line in lines])):
        (place / name).write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    return mingyue.train(
        source=str(place / "a"), target=str(place / "b"), out=str(place / "run"), n_layers=1, n_encoder_layers=1,
        bleu_lines=0, tokenizer="char", **TINY,
    )  # fmt: skip


def test_windows_are_of_the_training_text_and_begin_as_the_model_reads_a_text(run: RunResult) -> None:
    look = mingyue.inspect(run.folder, POEM)
    sample = look.training_sample(200, seed=1)
    tokenizer = look.subject.tokenizer
    assert look.subject.starts_with_bos
    assert all(row[0] == tokenizer.bos_id and len(row) == 32 for row in sample.rows)
    assert 150 < sum(map(len, sample.rows)) < 250 < sample.total
    whole = Path(run.folder.parent / "poems.txt").read_text(encoding="utf-8").replace("\n", "")
    assert all(tokenizer.decode(row).replace("\n", "") in whole for row in sample.rows)
    again, other = look.training_sample(200, seed=1), look.training_sample(200, seed=2)
    assert all(np.array_equal(one, two) for one, two in zip(sample.rows, again.rows, strict=True))
    assert not all(np.array_equal(one, two) for one, two in zip(sample.rows, other.rows, strict=True))


def test_a_run_finds_its_own_text(run: RunResult) -> None:
    view = mingyue.inspect(run.folder, "床前明月").contexts(tokens=5_000, top=3)
    assert view.query.token == "月"
    assert view.cosines_K[0] > np.quantile(view.random_P, 0.99)


def test_rows_of_a_run_on_pairs_are_source_texts(pair_run: RunResult) -> None:
    look = mingyue.inspect(pair_run.folder, "abc", target="cba")
    lines = set((pair_run.folder.parent / "a").read_text(encoding="utf-8").split())
    rows = look.training_sample(100, seed=0).rows
    assert 100 <= sum(map(len, rows)) < 112
    tokenizer = look.subject.source_tokenizer
    assert tokenizer is not None
    assert all(tokenizer.decode(row) in lines and row[-1] == tokenizer.eos_id for row in rows)
    assert look.contexts(tokens=300, top=4).position == 2


def test_a_file_takes_the_place_of_the_training_text(run: RunResult, pair_run: RunResult, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("望明月。\n思故乡。\n" * 20, encoding="utf-8")
    view = mingyue.inspect(run.model_folder, POEM).contexts(corpus=str(tmp_path / "c.txt"), top=2)
    assert view.text.en == "c.txt"
    assert view.total == 200
    (tmp_path / "s").write_text("abc\n\nfed\n" + "a" * 99, encoding="utf-8")
    rows = mingyue.inspect(pair_run.model_folder, "abc", target="cba").training_sample(99, 0, str(tmp_path / "s")).rows
    assert sorted(map(len, rows)) == [4, 4], "a line longer than the context is left out"


def test_a_model_folder_and_a_loaded_model_have_no_training_text(run: RunResult) -> None:
    for model in (run.model_folder, mingyue.load(run.folder)):
        with pytest.raises(SettingsError, match="holds no training text") as caught:
            mingyue.inspect(model, POEM).contexts()
        assert "--corpus" in str(caught.value.advice)


@pytest.mark.parametrize(
    ("content", "says"), [(None, "cannot be read"), (b"\xff\xfe", "is not UTF-8"), (b"", "holds no text")]
)
def test_a_corpus_that_cannot_be_read_is_named(
    run: RunResult, tmp_path: Path, content: bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "c.txt").write_bytes(content)
    with pytest.raises(SettingsError, match=says):
        mingyue.inspect(run.folder, POEM).contexts(corpus=str(tmp_path / "c.txt"))
