"""D14: files that other programs change while they are read: an error that says so, never a part or a crash."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys

import numpy as np
import pytest

from mingyue.config import DataSettings, PairSettings
from mingyue.data import PairReport, ReadReport, encodings, read_documents, read_lines, read_pairs, sources, tokens
from mingyue.data.tokens import TokenShards, TokenWriter
from mingyue.errors import DataError

LINE = "The mill turns by the river.\n"


@pytest.fixture
def change(monkeypatch):
    """Calls a function between two passes over a file: after its encoding is found, before its text is read."""

    def run(action, *, large):
        if large:
            monkeypatch.setattr(sources, "_IN_MEMORY", 0)
        real = encodings.find_encoding

        def then(*given, **how):
            found = real(*given, **how)
            action()
            return found

        monkeypatch.setattr("mingyue.data.reading.find_encoding", then)

    return run


def truncate(path):
    os.truncate(path, path.stat().st_size // 60)


def append(path):
    with path.open("ab") as file:
        file.write(b"more\n")


def rewrite(path):
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(0, 5))


def replace(path):
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[:70])
    other.replace(path)


@pytest.mark.parametrize("action", [truncate, append, rewrite, replace])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl", "a.csv"])
@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_source_that_changes_while_it_is_read_is_an_error(write, change, action, name, skip_bad):
    """D14: of a text cut short between two passes, the rest was trained on without a word."""
    content = {"a.jsonl": '{"text": "line"}\n' * 500, "a.csv": "text\n" + "line\n" * 500}.get(name, LINE * 500)
    path = write(name, gzip.compress(content.encode()) if name.endswith(".gz") else content)
    change(lambda: action(path), large=True)
    with pytest.raises(DataError, match=rf"{name} was changed while it was read\n.*make a copy"):
        list(read_documents(DataSettings(sources=[str(path)], skip_bad=skip_bad), ReadReport()))


@pytest.mark.parametrize("action", [truncate, append, rewrite, replace])
def test_a_small_source_is_read_at_once(write, change, action):
    """D14: what happens to it afterwards does not matter."""
    path = write("a.txt", LINE * 500)
    change(lambda: action(path), large=False)
    (document,) = read_documents(DataSettings(sources=[str(path)]), ReadReport())
    assert document.text == LINE * 500


def test_lines_and_pairs_are_read_alike(write, change):
    """D14: the files of pairs too."""
    source, target = write("s", LINE * 500), write("t", LINE * 500)
    change(lambda: append(source), large=True)
    with pytest.raises(DataError, match="s was changed while it was read"):
        list(read_lines(source, None, ReadReport()))
    with pytest.raises(DataError, match="was changed while it was read"):
        list(read_pairs(PairSettings(source=str(source), target=str(target)), DataSettings(), PairReport(), "train"))


def test_a_parquet_file_that_changes_is_an_error(tmp_path):
    """D14: not "damaged"."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["text"] * 50}), path, row_group_size=10)
    for action in (truncate, append):
        found = read_documents(DataSettings(sources=[str(path)]), ReadReport())
        next(found)
        action(path)
        with pytest.raises(DataError, match="was changed while it was read"):
            list(found)
        pq.write_table(pa.table({"text": ["text"] * 50}), path, row_group_size=10)


@pytest.fixture
def token_file(tmp_path):
    with TokenWriter(tmp_path, "train", vocab_size=300, fingerprint="00" * 32) as writer:
        writer.append(np.arange(100_000) % 300)
        return writer.finish()[0]


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be cut there")
def test_a_token_file_that_is_cut_short_is_an_error_not_the_end_of_the_process(token_file):
    """D14: reading a mapped file that was truncated ended training by SIGBUS."""
    code = f"""
import os, numpy as np
from pathlib import Path
from mingyue.data.tokens import TokenShards
from mingyue.errors import DataError
shards = TokenShards([Path({str(token_file)!r})])
os.truncate({str(token_file)!r}, 64)
try:
    print(shards.windows(np.array([90_000]), 64).sum())
except DataError as error:
    print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.returncode
    assert b"was changed while it was read" in done.stdout


@pytest.mark.parametrize("action", [truncate, append, rewrite, replace])
@pytest.mark.parametrize("copied", [0, 1 << 25])
def test_a_token_file_that_changes_is_an_error_or_has_been_copied(token_file, monkeypatch, action, copied):
    """D14: the ids are those that were checked, or none."""
    monkeypatch.setattr(tokens, "_COPIED", copied)
    shards = TokenShards([token_file])
    expected = shards.windows(np.array([5, 9_000]), 30).tolist()
    action(token_file)
    if copied:
        assert shards.windows(np.array([5, 9_000]), 30).tolist() == expected
    else:
        with pytest.raises(DataError, match="was changed while it was read"):
            shards.windows(np.array([5, 9_000]), 30)
        with pytest.raises(DataError, match="was changed while it was read"):
            shards.read(0, 10)


@pytest.mark.parametrize("copied", [0, 1 << 25])
def test_copied_and_read_ids_are_the_same(token_file, monkeypatch, copied):
    monkeypatch.setattr(tokens, "_COPIED", copied)
    shards = TokenShards([token_file])
    starts = np.array([0, 7, 99_900])
    expected = [[number % 300 for number in range(start, start + 100)] for start in starts]
    assert shards.windows(starts, 100).tolist() == expected
    assert shards.read(99_990, 100_000).tolist() == [number % 300 for number in range(99_990, 100_000)]
