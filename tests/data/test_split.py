"""Text into documents, without losing any of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.data.split import parse_separator, split_documents
from mingyue.errors import SettingsError


def parts(text, separator, *, size=1000, piece=1 << 20):
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    return list(split_documents(chunks, parse_separator(separator), piece_characters=piece))


def pairs(text, separator, **how):
    return [(part.text, part.tail) for part in parts(text, separator, **how)]


def test_a_file_is_one_document_and_keeps_every_character():
    text = "\n\n  a \n\n\n b\t\n\n"
    assert pairs(text, "file") == [(text, "")]


def test_blank_lines_separate_and_may_hold_spaces():
    assert pairs("床前\n明月\n\n疑是\n \t\n\n地上\n", "blank-line") == [
        ("床前\n明月", "\n\n"),
        ("疑是", "\n \t\n\n"),
        ("地上", "\n"),
    ]


def test_lines_end_at_newlines_only():
    odd = "a\u2028b\x0bc\x0cd\re\x85f"
    assert pairs(f"{odd}\ng", "line") == [(odd, "\n"), ("g", "")]


def test_empty_lines_are_no_documents_but_are_kept_beside_one():
    assert pairs("a\n\n \nb\n", "line") == [("a", "\n\n \n"), ("b", "\n")]


@pytest.mark.parametrize(
    ("value", "text"),
    [("<|end|>", "<|end|>"), (r"\n---\n", "\n---\n"), (r"a\\n", r"a\n"), (r"\t", "\t"), (".*", ".*")],
)
def test_any_text_separates_with_newline_and_tab_escapes(value, text):
    assert pairs(f"one{text}two", value) == [("one", text), ("two", "")]


def test_an_empty_separator_is_refused():
    with pytest.raises(SettingsError, match="empty"):
        parse_separator("")


def test_each_document_knows_the_line_it_begins_at():
    assert [part.line for part in parts("a\nb\n\nc\n\n\nd\n", "blank-line")] == [1, 4, 7]


@pytest.mark.parametrize("size", range(1, 8))
def test_a_separator_cut_by_a_chunk_is_whole(size):
    assert pairs("a\n\n \n\nb--c", "blank-line", size=size) == [("a", "\n\n \n\n"), ("b--c", "")]
    assert pairs("a--b---c", "--", size=size) == [("a", "--"), ("b", "--"), ("-c", "")]


texts = st.text(st.sampled_from("ab\n\n\n\t-明\r"), max_size=60)


@given(texts, st.sampled_from(["file", "line", "blank-line", "--", r"\n-"]), st.integers(1, 7))
def test_chunks_make_no_difference_and_no_character_is_lost(text, separator, size):
    whole = parts(text, separator, size=10_000)
    assert parts(text, separator, size=size) == whole
    joined = "".join(part.text + part.tail for part in whole)
    assert text.endswith(joined)
    lost = text[: len(text) - len(joined)]
    assert not lost.strip(" \t\n\r-") and (not lost or separator != "file" or not text.strip())
    assert all(part.text.strip() for part in whole)


@given(st.text(st.sampled_from("ab 明\n"), min_size=1, max_size=50), st.integers(9000, 9500), st.integers(100, 3000))
def test_a_long_document_comes_in_pieces_that_do_not_depend_on_chunks(seed, length, size):
    text = ("." + seed * length)[:length]
    whole = parts(text, "file", size=100_000, piece=1500)
    assert "".join(part.text for part in whole) == text
    assert parts(text, "file", size=size, piece=1500) == whole
    assert [part.first for part in whole] == [True] + [False] * (len(whole) - 1)
    assert [part.last for part in whole] == [False] * (len(whole) - 1) + [True]


def test_a_long_document_is_cut_where_a_tokenizer_cuts_too():
    text = "word word\n" * 2000
    pieces = parts(text, "file", piece=1500)
    assert len(pieces) > 5
    assert all(piece.text.endswith("\n") and piece.text.startswith("word") for piece in pieces)
