"""Bytes to text: nothing is lost silently."""

from __future__ import annotations

import codecs
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.data import encodings
from mingyue.errors import DataError, SettingsError

POEM = "床前明月光，疑是地上霜。\n举头望明月，低头思故乡。\n"


def only(found):
    (document,) = found[0]
    return document.text


@pytest.mark.parametrize("encoding", ["gbk", "gb18030"])
def test_a_gbk_file_is_detected_and_reported(read, write, encoding):
    """D4: a GBK file without any mark is read right, and the report says as what."""
    found = read(write("poem.txt", POEM.encode(encoding)))
    assert only(found) == POEM
    assert found[1].encodings == {"gb18030 (detected)": 1}
    assert any("poem.txt" in line and "gb18030" in line and "--encoding" in line for line in found[1].describe())


@pytest.mark.parametrize(
    "encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)
def test_a_byte_order_mark_names_the_encoding_and_is_no_character(read, write, encoding):
    """D4, D10: UTF-16 and UTF-32 by their mark; the mark is not part of the text."""
    mark = b"" if encoding in ("utf-8-sig", "utf-16", "utf-32") else "\ufeff".encode(encoding)
    found = read(write("poem.txt", mark + POEM.encode(encoding)))
    assert only(found) == POEM
    assert found[1].characters == len(POEM)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_detected(read, write, encoding):
    """D4: zero bytes do not make it binary."""
    text = "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate.\n"
    found = read(write("a.txt", text.encode(encoding)))
    assert only(found) == text
    assert list(found[1].encodings) == [f"{encoding} (detected)"]


def test_an_uncertain_encoding_is_an_error_with_file_line_byte_and_flag(read, write):
    """D4: four characters are too few to guess from."""
    path = write("short.txt", b"abc\n" + "明月几时".encode("gbk"))
    with pytest.raises(DataError) as error:
        read(path)
    message = str(error.value)
    assert "short.txt, line 2: byte 4 (0xc3)" in message
    assert "--encoding gb18030" in message


def test_latin_1_is_asked_about_rather_than_guessed_among_its_likes(read, write):
    """D4: single-byte encodings differ in few letters; a wrong one would go unseen."""
    path = write("a.txt", "déjà".encode("latin-1"))
    with pytest.raises(DataError, match=r"line 1: byte 1 \(0xe9\)"):
        read(path)
    assert only(read(path, encoding="latin-1")) == "déjà"


@pytest.mark.parametrize("where", [0, 7, 30])
def test_utf_8_with_a_broken_byte_is_damaged_not_another_encoding(read, write, where):
    """D4: one bad byte in UTF-8 must not turn the file into Mojibake of some other encoding."""
    lines = (POEM * 20).encode("utf-8").split(b"\n")
    lines[where] += b"\xff"
    path = write("poem.txt", b"\n".join(lines))
    offset = path.read_bytes().index(b"\xff")
    with pytest.raises(DataError) as error:
        read(path)
    assert f"poem.txt, line {where + 1}: byte {offset} (0xff)" in str(error.value)
    assert "--skip-bad" in str(error.value)


def test_a_character_cut_off_at_the_end_of_a_file_is_an_error(read, write):
    """D4: the last bytes count too."""
    path = write("poem.txt", (POEM * 5).encode("utf-8")[:-2])
    with pytest.raises(DataError, match=f"line 10: byte {len((POEM * 5).encode()) - 4} "):
        read(path)


def test_skip_bad_leaves_out_the_documents_with_bad_bytes_and_counts_them(read, write):
    """D4: the others are whole."""
    path = write("poems.txt", b"\n\n".join([POEM.encode(), b"bad \xff", POEM.encode() + b"\xfe", POEM.encode()]))
    documents, report = read(path, skip_bad=True, separator="blank-line")
    assert [document.text for document in documents] == [POEM.rstrip("\n")] * 2
    assert list(report.dropped.values()) == [2]
    assert "poems.txt, line 5" in next(iter(report.examples.values()))


def test_a_given_encoding_is_used_and_checked(read, write):
    """D4: both when it fits and when not."""
    path = write("poem.txt", POEM.encode("big5", errors="ignore"))
    assert only(read(path, encoding="big5")) == POEM.encode("big5", errors="ignore").decode("big5")
    with pytest.raises(DataError, match=r"poem\.txt, line 1: byte 0 \(0xa7\) does not fit utf-8 as given"):
        read(path, encoding="utf-8")
    with pytest.raises(SettingsError, match="Did you mean gbk"):
        read(path, encoding="gkb")
    with pytest.raises(SettingsError, match="rot13"):
        read(path, encoding="rot13")


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030", "utf-16-le"])
def test_the_place_of_a_fault_is_right_in_any_chunk(read, write, monkeypatch, encoding):
    """D4: also when the fault is far into the file, behind characters cut in two by a chunk."""
    monkeypatch.setattr(encodings, "CHUNK", 7)
    good = (POEM * 3).encode(encoding)
    bad = {"utf-8": b"\xff", "gb18030": b"\xff\xff", "utf-16-le": b"\x00\xdc"}[encoding]
    path = write("a.txt", good + bad + good)
    with pytest.raises(DataError, match=f"line 7: byte {len(good)} "):
        read(path, encoding=encoding)


def test_a_mark_does_not_excuse_bytes_that_do_not_fit(read, write):
    """D4: the advice is not to take back a flag that was never given."""
    with pytest.raises(DataError, match=r"line 2: byte 7 \(0xff\) does not fit utf-8\nRepair the file"):
        read(write("a.txt", codecs.BOM_UTF8 + b"abc\n\xff"))


def test_binary_content_is_refused_when_named(read, write):
    """D4: it is not text in some encoding."""
    with pytest.raises(DataError, match="line 2: byte 4 is NUL"):
        read(write("a.txt", b"abc\n\x00def"))
    with pytest.raises(DataError, match="line 1001: byte 10000 is NUL"):
        read(write("a.txt", b"some text\n" * 1000 + b"\x00" + b"some text\n" * 1000 + b"!"))
    with pytest.raises(DataError, match="PNG image"):
        read(write("a.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256))))
    with pytest.raises(DataError, match="office document"):
        read(write("a.docx", b"PK\x03\x04" + bytes(range(256))))
    with pytest.raises(DataError):
        read(write("a.bin", bytes(range(256)) * 9))


def test_crlf_and_lf_are_the_same_text_and_a_mark_is_no_symbol(read, write, monkeypatch):
    r"""D10: BOM, \r\n and \n; a lone \r is a character."""
    monkeypatch.setattr(encodings, "CHUNK", 3)
    text = "one\ntwo\n\nthree\rfour\n"
    unix = read(write("a.txt", text))
    windows = read(write("b.txt", codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode("utf-8")))
    assert only(unix) == only(windows) == text
    assert unix[1].characters == windows[1].characters == len(text)


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1))
def test_any_text_comes_back_as_it_was_written(text):
    text = "." + text.replace("\r\n", "\n")
    for encoding in ("utf-8", "gb18030", "utf-16-le"):
        data = text.encode(encoding)
        opener = lambda data=data: __import__("io").BytesIO(data)  # noqa: E731
        found = encodings.find_encoding("a", opener, encoding)
        assert "".join(encodings.read_text("a", opener, found)) == text


def test_empty_and_whitespace_only_files_are_clear_errors(read, write):
    """D10: both are reported as what they are."""
    for name, content in (("empty.txt", ""), ("blank.txt", " \n\t\n"), ("mark.txt", codecs.BOM_UTF8)):
        with pytest.raises(DataError, match=rf"no text in .*{name} .* bytes\).*empty, or only whitespace"):
            read(write(name, content))


def test_reading_does_not_depend_on_the_encoding_of_the_platform(tmp_path):
    """D5: under an ASCII locale with UTF-8 mode off, Chinese is read, prepared, and written the same."""
    (tmp_path / "poems.txt").write_bytes((POEM * 20).encode("utf-8"))
    code = f"""
import sys
from pathlib import Path
from mingyue.config import DataSettings, TokenizerSettings
from mingyue.data import ReadReport, load_corpus, prepare_corpus, read_documents
from mingyue.data.corpora import get_corpus
from mingyue.data.tang import write_text_atomically
folder = Path({str(tmp_path)!a})
(text,) = [d.text for d in read_documents(DataSettings(sources=[str(folder)]), ReadReport())]
write_text_atomically(folder / "out.txt", text)
prepare_corpus(DataSettings(sources=[str(folder / "poems.txt")]), TokenizerSettings(), folder / "prepared")
tokenizer, corpus, report = load_corpus(folder / "prepared")
assert tokenizer.decode(corpus.train.read().tolist()) == text[:corpus.train_characters]
print(ascii(text[:5]), get_corpus("python-docs", folder=folder / "corpora").stat().st_size > 100000)
"""
    env = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": "ascii"}
    env["PYTHONCOERCECLOCALE"] = "0"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    assert done.stdout.decode("ascii").strip() == f"{POEM[:5]!a} True"
    assert (tmp_path / "out.txt").read_bytes() == (POEM * 20).encode("utf-8")
