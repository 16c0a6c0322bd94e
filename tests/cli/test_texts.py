"""Texts given in words, files or standard input."""

from __future__ import annotations

import io
import sys

import pytest

from mingyue.cli.texts import InputText, collect, unescape, without_final_newline
from mingyue.errors import DataError
from mingyue.printable import printable


@pytest.fixture
def stdin(monkeypatch):
    def give(content: bytes):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))

    return give


def test_order_is_words_then_files(tmp_path, stdin):
    (tmp_path / "a.txt").write_bytes("甲\n".encode())
    stdin("乙\n".encode())
    path = str(tmp_path / "a.txt")
    expected = [InputText("丙"), InputText("乙\n", "standard input"), InputText("甲\n", path)]
    assert collect(["丙", "-"], [path]) == expected


def test_standard_input_is_utf_8_whatever_the_platform_says(stdin):
    """D5: the encoding is explicit."""
    stdin("床前\n".encode())
    assert collect(["-"], [])[0].text == "床前\n"


def test_marks_and_windows_line_ends_are_not_text(tmp_path):
    """D10: BOM and CRLF."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert collect([], [str(path)])[0].text == "one\ntwo\n"


def test_a_file_in_another_encoding_is_an_error_with_the_byte(tmp_path):
    """D4: file, byte and what to do; never silent loss."""
    path = tmp_path / "gbk.txt"
    path.write_bytes(b"ab" + "床".encode("gbk"))
    with pytest.raises(DataError, match=r"gbk\.txt is not UTF-8: byte 2 is 0xb4") as caught:
        collect([], [str(path)])
    assert caught.value.advice is not None


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(DataError, match=r"nowhere\.txt cannot be read"):
        collect([], ["nowhere.txt"])


def test_standard_input_twice_is_refused(stdin):
    stdin(b"x")
    with pytest.raises(DataError, match="twice"):
        collect(["-"], ["-"])


def test_arguments_that_are_not_text_are_refused():
    with pytest.raises(DataError, match="character 1"):
        collect(["a\udcff"], [])


def test_a_prompt_from_a_file_loses_one_line_end_and_words_lose_none():
    assert without_final_newline(InputText("a\n\n", "f")).text == "a\n"
    assert without_final_newline(InputText("a\n")).text == "a\n"


@pytest.mark.parametrize(
    ("text", "meant"),
    [(r"\n", "\n"), (r"a\tb", "a\tb"), (r"\\n", r"\n"), (r"\x", r"\x"), ("end\\", "end\\"), ("", ""), ("\n", "\n")],
)
def test_escapes_stand_for_what_a_shell_cannot_type(text, meant):
    assert unescape(text) == meant


def test_control_characters_of_a_text_do_not_reach_a_terminal():
    assert printable("a\x1b[31mb\x07\tc\nd\x7f") == "a␛[31mb␇\tc\nd␡"
