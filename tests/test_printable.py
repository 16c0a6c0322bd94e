"""Text that can be shown: nothing that a terminal obeys or a picture cannot hold, and nothing else changed."""

from __future__ import annotations

import os
import unicodedata
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.errors import DataError
from mingyue.printable import printable, standing_alone

any_text = st.text(st.characters(codec=None, exclude_categories=()))


@given(any_text)
def test_what_is_shown_is_utf_8_and_xml_and_moves_no_cursor(text):
    shown = printable(text)
    ElementTree.fromstring(f"<a>{shown.replace('&', '').replace('<', '')}</a>".encode())
    left = {unicodedata.category(character) for character in shown.replace("\n", "").replace("\t", "")}
    assert not left & {"Cc", "Cs", "Zl", "Zp"}
    assert not any(unicodedata.bidirectional(c) in ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI") for c in shown)


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn", "Cf", "Zl", "Zp"))))
def test_other_text_stays_as_it_is(text):
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\tb\n", "a\tb\n"), ("\x07", "␇"), ("\x7f", "␡"), ("\x85", "\\x85"), ("\u202e", "\\u202e"),
     ("\ud800", "\\ud800"), ("\uffff", "\\uffff"), (os.fsdecode(b"caf\xe9"), "caf\\xe9"),
     ("👩‍👧", "👩‍👧"), ("שלום", "שלום")],
)  # fmt: skip
def test_symbols_and_escapes(text, shown):
    assert printable(text) == shown


def test_an_error_names_a_file_of_any_bytes():
    error = DataError(f"no file {os.fsdecode(bytes(range(1, 256)))}", advice="\x1b[31m")
    str(error).encode("utf-8")
    assert "\x1b" not in str(error) and "\\xff" in error.message


@pytest.mark.parametrize(("text", "shown"), [("\u0301", "◌\u0301"), ("e\u0301", "e\u0301"), ("", ""), ("床", "床")])
def test_a_combining_mark_does_not_join_what_stands_before_it(text, shown):
    assert standing_alone(text) == shown
