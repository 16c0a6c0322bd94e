"""What is read of folders and globs, and that everything else is counted."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from mingyue.data import ReadReport, sources
from mingyue.errors import DataError

posix = pytest.mark.skipif(os.name == "nt", reason="needs links and named pipes")


def names(found):
    return [document.text for document in found[0]]


def run_folder(write, name):
    write(f"{name}/run.toml", "[run]\n")
    write(f"{name}/run.lock", "")
    write(f"{name}/metrics.jsonl", '{"event": "start"}\n')
    model_folder(write, f"{name}/model")


def model_folder(write, name):
    write(f"{name}/config.json", "{}")
    write(f"{name}/model.safetensors", "weights")
    write(f"{name}/tokenizer.json", "{}")


@posix
def test_linked_folders_are_followed_once_and_broken_links_and_pipes_are_counted(read, write, tmp_path):
    """D12: a linked folder was left out without a word, and so were a broken link and a pipe."""
    write("elsewhere/far.txt", "far")
    write("corpus/near.txt", "near")
    corpus = tmp_path / "corpus"
    (corpus / "linked").symlink_to(tmp_path / "elsewhere")
    (corpus / "loop").symlink_to(corpus)
    (corpus / "broken.txt").symlink_to(tmp_path / "nothing")
    (corpus / "itself.txt").symlink_to(corpus / "itself.txt")
    (corpus / "same.txt").symlink_to(corpus / "near.txt")
    os.mkfifo(corpus / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    here = os.open(".", os.O_RDONLY)
    os.chdir(corpus)  # names of sockets are short
    listener.bind("socket")
    os.fchdir(here)
    os.close(here)
    expected = {
        "broken link": 2,
        "named pipe, socket or device": 2,
        "folder that is read under another name": 1,
        "file that is read under another name": 1,
    }
    for source in (corpus, f"{corpus}/*"):
        documents, report = read(source)
        assert [document.text for document in documents] == ["far", "near"]
        loops = expected if source is corpus else {**expected, "folder that is read under another name": 1}
        assert report.dropped == loops
        assert any("broken.txt" in line for line in report.describe())
    listener.close()


def test_run_and_model_folders_inside_a_source_are_left_out_and_counted(read, write, tmp_path, monkeypatch):
    """D13: a run inside its own source was trained on its settings and its log."""
    write("a.txt", "text")
    run_folder(write, "runs/a")
    model_folder(write, "exported")
    write("data/corpus.json", "{}")
    write("data/train-00000.tokens", "MINGYUE")
    monkeypatch.chdir(tmp_path)
    for source in (".", "*", "**/*", f"{tmp_path}/**/*"):
        documents, report = read(source)
        assert [document.text for document in documents] == ["text"], source
        assert {why: n for why, n in report.dropped.items() if n} == {
            "run folder": 1,
            "model folder": 1,
            "folder of prepared data": 1,
        } | ({"folder without files to read": 1} if source == "*" else {})
    with pytest.raises(DataError, match="is a run folder of Mingyue, not text"):
        read("runs/a")
    assert names(read("runs/a/run.toml")) == ["[run]\n"]  # named itself: what the user wants
    assert names(read("runs/a/*.toml")) == ["[run]\n"]  # so are the files of a folder that the pattern names


def test_folders_that_only_look_like_runs_are_read(read, write):
    write("a/run.toml", "my own")
    write("b/config.json", "{}")
    write("c/corpus.json", "{}")
    assert len(read()[0]) == 3


def test_a_glob_that_matches_an_empty_folder_reads_the_rest(read, write, tmp_path):
    """D12: an empty folder beside the texts stopped everything."""
    write("a.txt", "text")
    (tmp_path / "empty").mkdir()
    write("hidden/.only", "no")
    documents, report = read(f"{tmp_path}/*")
    assert [document.text for document in documents] == ["text"]
    assert report.dropped == {"folder without files to read": 2, "hidden file or folder": 1}
    with pytest.raises(DataError, match="no text in"):
        read(f"{tmp_path}/emp*")


def test_a_folder_that_matches_a_pattern_for_any_depth_is_read(read, write, tmp_path):
    """D12: `**/poems` matched the folder, and nothing of it was read."""
    write("a/b/poems/one.txt", "1")
    write("a/poems.txt", "2")
    assert names(read(f"{tmp_path}/**/poems")) == ["1"]
    assert names(read(f"{tmp_path}/**/poems*")) == ["1", "2"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs links")
def test_every_entry_of_a_folder_is_read_or_counted(write, tmp_path):
    """D12: entries = files read + entries left out, for any mixture."""
    for number in range(3):
        write(f"in/{number}.txt", "x")
        write(f"in/.{number}", "x")
        (tmp_path / "in" / f"link{number}").symlink_to(tmp_path / f"nothing{number}")
        os.mkfifo(tmp_path / "in" / f"pipe{number}")
    report = ReadReport()
    found = sources.expand_sources([str(tmp_path / "in")], report)
    assert len(found) + sum(report.dropped.values()) == len(os.listdir(tmp_path / "in"))  # noqa: PTH208
