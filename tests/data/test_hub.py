"""hf:// data sets, on a file system of this machine that has the layout of the hub."""

from __future__ import annotations

import builtins

import pytest

from mingyue.data import hub
from mingyue.errors import DataError, MissingExtraError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
DirFileSystem = pytest.importorskip("fsspec.implementations.dirfs").DirFileSystem
LocalFileSystem = pytest.importorskip("fsspec.implementations.local").LocalFileSystem


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Puts a Parquet file with texts at a path of the hub."""
    files = DirFileSystem(str(tmp_path / "hub"), LocalFileSystem())
    monkeypatch.setattr(hub, "_filesystem", lambda source: files)

    def run(path, *rows, field="text"):
        place = tmp_path / "hub" / "datasets" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({field: list(rows)}), place)

    return run


CONVERTED = "li/bai@refs/convert/parquet"


def texts(found):
    return [document.text for document in found[0]]


def test_every_file_of_a_split_is_read_in_order(read, put):
    put(f"{CONVERTED}/default/train/0001.parquet", "c")
    put(f"{CONVERTED}/default/train/0000.parquet", "a", "b")
    put(f"{CONVERTED}/default/test/0000.parquet", "t")
    found = read("hf://li/bai")
    assert texts(found) == ["a", "b", "c"]
    assert found[1].files == 1
    assert texts(read("hf://li/bai:test")) == ["t"]
    assert texts(read("hf://datasets/li/bai/default:test")) == ["t"]


def test_config_and_split_that_are_not_there_are_listed(read, put):
    put(f"{CONVERTED}/zh/train/0000.parquet", "明月", field="body")
    put(f"{CONVERTED}/en/train/0000.parquet", "moon", field="body")
    with pytest.raises(DataError, match=r"more than one config; it has: en, zh(.|\n)*hf://li/bai/en"):
        read("hf://li/bai")
    with pytest.raises(DataError, match="no config 'fr'; it has: en, zh"):
        read("hf://li/bai/fr")
    with pytest.raises(DataError, match="no split 'dev'; it has: train"):
        read("hf://li/bai/zh:dev")
    assert texts(read("hf://li/bai/zh", field="body")) == ["明月"]
    with pytest.raises(DataError, match="no column 'text'; columns found: 'body'"):
        read("hf://li/bai/zh")


def test_files_of_the_repository_serve_without_a_converted_branch(read, put):
    put("li/bai/data/train-00000-of-00001.parquet", "a")
    put("li/bai/data/test-00000-of-00001.parquet", "t")
    assert texts(read("hf://li/bai")) == ["a"]
    assert texts(read("hf://li/bai:test")) == ["t"]
    with pytest.raises(DataError, match="no files of a split 'dev'"):
        read("hf://li/bai:dev")


def test_what_is_not_there_is_an_error(read, put):
    put("li/bai/data/train.parquet", "a")
    with pytest.raises(DataError, match="hf://no/thing"):
        read("hf://no/thing")
    with pytest.raises(DataError, match="not a data set of the hub"):
        read("hf://onlyone")


def test_a_network_that_fails_is_reported_without_its_own_traceback(read, monkeypatch):
    class Broken:
        def ls(self, path, detail=True):
            raise TimeoutError("no route")

    monkeypatch.setattr(hub, "_filesystem", lambda source: Broken())
    with pytest.raises(DataError, match="hf://li/bai cannot be read: TimeoutError: no route"):
        read("hf://li/bai")


def test_without_the_extra_it_says_what_to_install(read, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **words):
        if name.startswith("huggingface_hub"):
            raise ImportError(name)
        return real(name, *rest, **words)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"mingyue\[data\]"):
        read("hf://li/bai")


def test_the_mark_of_a_file_changes_with_its_content(put):
    put("li/bai/data/train.parquet", "a")
    first = hub.hub_files("hf://li/bai")[1]
    put("li/bai/data/train.parquet", "a longer text than before")
    assert hub.hub_files("hf://li/bai")[1] != first
