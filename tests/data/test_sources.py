"""What a user names, and the files behind it."""

from __future__ import annotations

import errno
import gzip
import io
import os
import sys
from types import SimpleNamespace

import pytest

from mingyue.data import sources
from mingyue.errors import DataError

LONG = "明月几时有\n" * 40


def texts(found):
    return [document.text for document in found[0]]


def test_a_folder_is_read_recursively_in_sorted_order(read, write, tmp_path):
    for name in ("b.txt", "a/z.md", "a/y.py", "a/b/x.txt", "a.txt"):
        write(name, name)
    assert texts(read(tmp_path)) == ["a/b/x.txt", "a/y.py", "a/z.md", "a.txt", "b.txt"]


def test_hidden_and_binary_files_of_a_folder_are_left_out_and_counted(read, write, tmp_path):
    write("a.txt", "text")
    write("picture.png", b"\x89PNG\r\n" + bytes(range(200)))
    write("late.bin", b"text " * 4000 + b"\x00")
    write(".hidden", "no")
    write(".git/config", "no")
    write("empty.txt", "")
    found = read(tmp_path)
    assert texts(found) == ["text"]
    assert found[1].dropped == {
        "hidden file or folder": 2,
        "binary file": 2,
        "file without text (empty, or only whitespace)": 1,
    }
    report = "\n".join(found[1].describe())
    assert "binary file" in report and "late.bin" in report and "hidden" in report


def test_text_in_no_sure_encoding_stops_the_reading_of_a_folder(read, write, tmp_path):
    """D4: a folder is no excuse to lose text."""
    write("a.txt", "text")
    write("b.txt", "明月几时".encode("gbk"))
    with pytest.raises(DataError, match=r"b\.txt, line 1"):
        read(tmp_path)
    found = read(tmp_path, skip_bad=True)
    assert texts(found) == ["text"] and sum(found[1].dropped.values()) == 1


def test_globs_and_their_errors(read, write, tmp_path):
    write("a/one.txt", "1")
    write("a/two.md", "2")
    write("three.txt", "3")
    assert texts(read(f"{tmp_path}/*/*.txt")) == ["1"]
    assert texts(read(f"{tmp_path}/**/*.txt")) == ["1", "3"]
    assert texts(read(f"{tmp_path}/*")) == ["1", "2", "3"]
    with pytest.raises(DataError, match="nothing matches"):
        read(f"{tmp_path}/*.zip")


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(read, write):
    assert texts(read(write("poems[1].txt", "text"))) == ["text"]


def test_a_file_named_twice_is_read_once_and_reported(read, write, tmp_path):
    path = write("a.txt", "text")
    found = read(path, tmp_path)
    assert texts(found) == ["text"]
    assert any("more than once" in note for note in found[1].notes)


def test_a_missing_file_is_named_with_its_neighbour(read, write, tmp_path):
    write("poems.txt", "text")
    with pytest.raises(DataError, match=r"poem\.txt(.|\n)*poems\.txt"):
        read(tmp_path / "poem.txt")
    with pytest.raises(DataError, match="known corpus python-docs"):
        read("pyton-docs")
    with pytest.raises(DataError, match="too long"):
        read("x" * 5000)
    with pytest.raises(DataError, match="no text was named"):
        sources.expand_sources([], None)


def test_an_empty_folder_is_an_error(read, tmp_path):
    """D10: a folder without anything to read."""
    with pytest.raises(DataError, match="holds no files"):
        read(tmp_path)


def test_packed_text_and_damaged_packed_text(read, write):
    packed = gzip.compress(LONG.encode("utf-8"))
    assert texts(read(write("a.txt.gz", packed))) == [LONG]
    for name, content in (("cut.txt.gz", packed[:-9]), ("not.txt.gz", b"plain"), ("bad.txt.gz", packed[:30] + b"xxxx")):
        with pytest.raises(DataError, match=f"{name} is damaged"):
            read(write(name, content))


@pytest.mark.parametrize("memory", [0, 1 << 24])
def test_large_and_small_files_are_read_alike(read, write, monkeypatch, memory):
    monkeypatch.setattr(sources, "_IN_MEMORY", memory)
    plain, packed = write("a.txt", LONG), write("a.txt.gz", gzip.compress(LONG.encode("gbk")))
    assert texts(read(plain, packed)) == [LONG, LONG]
    with pytest.raises(DataError, match="damaged"):
        read(write("b.txt.gz", gzip.compress(LONG.encode())[:-9]))


@pytest.mark.parametrize("memory", [0, 1 << 24])
def test_standard_input_is_read_in_any_encoding(read, monkeypatch, memory):
    monkeypatch.setattr(sources, "_IN_MEMORY", memory)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(LONG.encode("gbk"))))
    found = read("-")
    assert texts(found) == [LONG]
    assert found[0][0].source == "standard input"


def test_standard_input_holds_json_lines_when_a_field_is_named(read, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"body": "a"}\n{"body": "b"}\n')))
    assert texts(read("-", field="body")) == ["a", "b"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_read_like_a_file(read, tmp_path):
    import threading

    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(LONG.encode("utf-8")))
    writer.start()
    assert texts(read(tmp_path / "pipe")) == [LONG]
    writer.join()


def test_a_field_that_nothing_uses_is_reported(read, write):
    found = read(write("a.txt", "text"), field="body")
    assert any("--field body is not used" in note for note in found[1].notes)


def test_the_report_says_what_was_read_in_numbers(read, write):
    found = read(write("a.txt", "床前\n\n明月\n"), separator="blank-line")
    assert found[1].describe()[0] == "read 1 file: 2 documents, 7 characters, 15 bytes as UTF-8"
    assert found[1].documents == 2


def test_progress_ends_at_the_whole(write):
    from mingyue.config import DataSettings
    from mingyue.data import ReadReport, read_documents

    paths = [str(write(name, LONG)) for name in ("a.txt", "b.txt")]
    seen = []
    list(read_documents(DataSettings(sources=paths), ReadReport(), lambda *step: seen.append(step)))
    size = len(LONG.encode("utf-8")) * 2
    assert seen[-1] == ("reading", size, size)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


@pytest.mark.skipif(os.name == "nt" or getattr(os, "geteuid", lambda: 0)() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(read, write):
    path = write("a.txt", "text")
    path.chmod(0)
    with pytest.raises(DataError, match=r"a\.txt cannot be read"):
        read(path)


def test_a_full_folder_of_temporary_files_is_named_and_not_the_input(monkeypatch, read):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("TMPDIR", "/scratch")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"text"), encoding="utf-8"))
    monkeypatch.setattr(sources.tempfile, "SpooledTemporaryFile", lambda **_: Full())
    with pytest.raises(DataError, match=r"disk is full.*/scratch") as caught:
        read("-")
    assert "TMPDIR" in caught.value.advice and "standard input" not in caught.value.message
