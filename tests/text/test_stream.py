"""Text from ids, whole and one at a time."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.errors import TokenizerError

MARK = "\ufffd"


def test_a_stream_of_many_byte_characters_never_shows_a_replacement_mark(made):
    """S7: 好😀 token by token; joined stream = whole decode."""
    text = "a好😀é龘\r\n\U0010ffff"
    ids = made.encode(text)
    stream = made.stream()
    parts = [stream.push(index) for index in ids]
    assert MARK not in "".join(parts)
    assert "".join(parts) == text and stream.finish() == ""


@given(st.text(max_size=12))
def test_no_beginning_of_a_text_shows_a_replacement_mark(made, text):
    text = text.replace(MARK, "")
    stream, shown = made.stream(), ""
    for index in made.encode(text):
        shown += stream.push(index)
        assert text.startswith(shown)
    assert shown + stream.finish() == text


@given(st.randoms(use_true_random=False), st.integers(0, 60))
def test_joined_stream_equals_whole_decode_for_any_ids(made, rng: random.Random, count):
    """S7: also for bytes that are no UTF-8, and special ids in between."""
    bytes_and_rest = [rng.randrange(259), rng.randrange(made.vocab_size)]
    ids = [rng.choice([*bytes_and_rest, rng.randrange(3 + 0x80, 259), rng.randrange(3)]) for _ in range(count)]
    stream = made.stream()
    joined = "".join([*(stream.push(index) for index in ids), stream.finish()])
    whole = b"".join(made.token_bytes(index) for index in ids)
    assert joined == made.decode(ids) == whole.decode("utf-8", "replace")


def test_a_cut_tail_is_flushed_at_the_end(made):
    """S7: a character that never ends is shown once, by finish; the decoder is then new."""
    ids = [3 + byte for byte in "好".encode()]
    stream = made.stream()
    assert [stream.push(index) for index in ids[:2]] == ["", ""]
    assert stream.finish() == MARK == made.decode(ids[:2])
    assert "".join(stream.push(index) for index in ids) == "好"


def test_bytes_that_cannot_become_a_character_show_at_once(made):
    stream = made.stream()
    assert stream.push(3 + 0xFF) == MARK
    assert stream.push(3 + 0xE5) == ""
    assert stream.push(3 + ord("x")) == MARK + "x"


def test_special_ids_are_silent(made):
    ids = [made.bos_id, *made.encode("明"), made.pad_id, made.eos_id]
    assert made.decode(ids) == "明"
    assert [made.token_bytes(index) for index in (made.pad_id, made.bos_id, made.eos_id)] == [b""] * 3
    assert [made.token_text(index) for index in range(3)] == ["<pad>", "<bos>", "<eos>"]


@pytest.mark.parametrize("bad", [-1, 10**6])
def test_an_id_outside_the_vocabulary_is_refused_with_both_numbers(made, bad):
    for use in (made.token_bytes, made.token_text, made.stream().push, lambda index: made.decode([index])):
        with pytest.raises(TokenizerError, match=f"id {bad} .*0 to {made.vocab_size - 1}"):
            use(bad)


def test_token_text_is_printable(bpe):
    texts = [bpe.token_text(index) for index in range(bpe.vocab_size)]
    assert all(text.isprintable() and text for text in texts)
    assert bpe.token_text(3 + 0x0A) == r"\n" and bpe.token_text(3 + 0xE5) == "<E5>"
    assert " the" in texts and "明月" in texts
