"""Files in a form that is nearly right are read, or answered with what to do."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from mingyue.config import DataSettings
from mingyue.data import ReadReport
from mingyue.data.reading import read_documents
from mingyue.data.sources import expand_sources
from mingyue.errors import DataError


def read(path, report=None, progress=None, **settings):
    asked = DataSettings(sources=(str(path),), **settings)
    report = ReadReport() if report is None else report
    return [document.text for document in read_documents(asked, report, progress)]


def test_a_json_file_is_text_and_says_so(tmp_path):
    path = tmp_path / "poems.json"
    path.write_text('[{"text": "春眠"}]', encoding="utf-8")
    report = ReadReport()
    assert read(path, report) == ['[{"text": "春眠"}]']
    assert "read as plain text" in report.notes[0]
    assert "jq -c" in report.notes[0]


@pytest.mark.parametrize("text", ['[{"text": "a"}, {"text": "b"}]\n', '[\n{"text": "a"}\n]\n', '{\n"text": "a"\n}\n'])
def test_a_json_array_in_a_file_of_json_lines_is_answered_with_how_to_convert_it(tmp_path, text):
    path = tmp_path / "poems.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"line 1(.|\n)*jq -c"):
        read(path)


@pytest.mark.parametrize(("mark", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_columns_may_be_separated_by_what_spreadsheets_write(tmp_path, mark, name):
    path = tmp_path / "poems.csv"
    path.write_text(f'id{mark}text\n1{mark}"one, two"\n2{mark}"three\nfour"\n', encoding="utf-8")
    report = ReadReport()
    assert read(path, report) == ["one, two", "three\nfour"]
    assert f"separated by {name}" in report.notes[0]


def test_commas_win_where_both_occur(tmp_path):
    path = tmp_path / "poems.csv"
    path.write_text("id,text\n1,one; two\n", encoding="utf-8")
    report = ReadReport()
    assert read(path, report) == ["one; two"]
    assert report.notes == []


def test_a_damaged_compressed_file_is_left_out_where_bad_ones_are_skipped(tmp_path):
    whole = gzip.compress(b"a text of some words " * 50)
    (tmp_path / "bad.txt.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "good.txt").write_text("a good text", encoding="utf-8")
    with pytest.raises(DataError, match="damaged, or not compressed"):
        read(tmp_path)
    report = ReadReport()
    assert read(tmp_path, report, skip_bad=True) == ["a good text"]
    assert report.dropped == {"damaged compressed file": 1}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_what_is_waited_for_is_said(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    stages: list[str] = []
    writer = threading.Thread(target=lambda: pipe.write_text("from a pipe", encoding="utf-8"))

    def progress(stage, done, total):
        if not stages:
            writer.start()  # nothing has been opened yet
        stages.append(stage)

    assert read(pipe, progress=progress) == ["from a pipe"]
    writer.join()
    assert stages[0] == f"waiting for {pipe}"


def test_a_pattern_reads_a_linked_folder_once_and_counts_it_once(tmp_path):
    """N13: `fold/**` followed links at every depth, and counted each file behind them again."""
    folder = tmp_path / "fold"
    (folder / "deep" / "deeper").mkdir(parents=True)
    for name in ("a.txt", "deep/b.txt", "deep/deeper/c.txt"):
        (folder / name).write_text("text", encoding="utf-8")
    (folder / "deep" / "again").symlink_to(folder)
    (folder / "other").symlink_to(folder / "deep")
    report = ReadReport()
    found = expand_sources([str(folder / "**")], report)
    assert sorted(Path(source.name).name for source in found) == ["a.txt", "b.txt", "c.txt"]
    assert report.dropped == {"folder that is read under another name": 2}


def test_a_folder_of_runs_only_says_that_they_were_left_out(tmp_path):
    """N13: `train runs` said only that the folder holds no files."""
    for name in ("a", "b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        for file in ("run.toml", "metrics.jsonl"):
            (tmp_path / "runs" / name / file).touch()
    with pytest.raises(DataError, match="holds no files to read; left out: 2 × run folder"):
        expand_sources([str(tmp_path / "runs")], ReadReport())


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("**", ["a.txt", "b.txt", "c.md"]),
        ("**/*.txt", ["a.txt", "b.txt"]),
        ("**/other/*.txt", ["b.txt"]),
        ("**/other", ["b.txt", "c.md"]),
        ("*/**/*.md", ["c.md"]),
        ("**/.hidden/*", ["d.txt"]),
    ],
)
def test_patterns_find_what_glob_finds(tmp_path, pattern, names):
    folder = tmp_path / "fold"
    (folder / "deep" / ".hidden").mkdir(parents=True)
    for name in ("a.txt", "deep/b.txt", "deep/c.md", "deep/.hidden/d.txt"):
        (folder / name).write_text("text", encoding="utf-8")
    (folder / "other").symlink_to(folder / "deep")
    found = expand_sources([str(folder / pattern)], ReadReport())
    assert sorted(Path(source.name).name for source in found) == names
