"""The character tokenizer: its vocabulary, its bytes for anything else, its fast path."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.errors import TokenizerError
from mingyue.text import train_char

ANY_TEXT = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.text("明月光the \r\n", max_size=8),
        st.sampled_from(
            ["<pad>", "<bos>", "<eos>", "<0x41>", "<0x0A>", "\x00", "\ufeff", "😀", "🜁", "\U0010ffff", "\r\n"]
        ),
    ),
    max_size=8,
).map("".join)


def test_ids_are_ordered_by_frequency_then_code_point():
    tokenizer = train_char(["bba", "月月", "cab"])
    assert [tokenizer.token_text(index) for index in range(259, tokenizer.vocab_size)] == ["b", "a", "月", "c"]
    assert tokenizer.encode("ab月c") == [260, 259, 261, 262]
    assert [tokenizer.token_bytes(3 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]


def test_a_character_never_seen_is_spelled_in_bytes():
    """S5: a prompt with a character that training never saw encodes, without UNK, and is read back."""
    tokenizer = train_char(["abc"])
    assert tokenizer.encode("a好é😀") == [259, *(3 + byte for byte in "好é😀".encode())]
    assert tokenizer.decode(tokenizer.encode("a好é😀")) == "a好é😀"


def test_characters_below_min_count_are_spelled_in_bytes():
    tokenizer = train_char(["aab"], min_count=2)
    assert tokenizer.describe()["characters"] == 1
    assert tokenizer.encode("ab") == [259, 3 + ord("b")]


@given(ANY_TEXT)
def test_table_equals_the_plain_library_and_round_trips(char, plain, text):
    ids = char.encode_array(text)
    assert ids.dtype == np.int32
    assert ids.tolist() == char.encode(text) == plain(char).encode(text, add_special_tokens=False).ids
    assert char.decode(ids) == text


@given(st.lists(st.text("ab月😀 \n", max_size=6), max_size=6))
def test_vocabulary_does_not_depend_on_how_the_text_comes_in_pieces(pieces):
    text = "x" + "".join(pieces)
    assert train_char(["x", *pieces]).to_json() == train_char([text]).to_json() == train_char(list(text)).to_json()


def test_more_than_a_million_characters_are_counted_across_blocks():
    pieces = ["ab" * 300_000, "b", "月" * 700_000]
    tokenizer = train_char(pieces)
    assert [tokenizer.token_text(index) for index in (259, 260, 261)] == ["月", "b", "a"]


def test_ids_above_65535_are_kept():
    """D3: a vocabulary larger than 16 bits."""
    text = "".join(chr(code) for code in range(0x20, 0x12000) if not 0xD800 <= code < 0xE000)
    tokenizer = train_char([text])
    ids = tokenizer.encode_array(text)
    assert ids.max() == tokenizer.vocab_size - 1 > 65535
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("pieces", [[], [""], ["", ""]])
def test_empty_training_text_is_refused(pieces):
    """D10: nothing to learn from."""
    with pytest.raises(TokenizerError, match="empty"):
        train_char(pieces)


def test_training_text_of_white_space_is_refused():
    """D10: only white space; the size is said."""
    with pytest.raises(TokenizerError, match=r"only white space \(5 characters\)"):
        train_char([" \n", "\t\u3000 "])


def test_mixed_text_is_in_the_vocabulary_whole(char, mixed):
    assert len(char.encode(mixed)) == len(mixed)


def test_a_text_of_few_characters_gives_each_an_id_of_its_own():
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 2048)))
    assert train_char([text], min_count=None).describe()["characters"] == 2048


def test_of_many_characters_the_rarest_are_left_to_the_bytes_up_to_half_a_percent_of_the_text():
    """Unless asked for: half of the characters of poems are half a percent of them, and as much of the output layer."""
    often = "".join(map(chr, range(0x4E00, 0x4E00 + 3000))) * 100  # 300,000 characters: 0.5 % are 1,500
    once = "".join(map(chr, range(0x7000, 0x7000 + 700)))
    twice = "".join(map(chr, range(0x8000, 0x8000 + 500))) * 2  # with those seen once 1,700: too many
    tokenizer = train_char([often, once, twice], min_count=None)
    assert tokenizer.describe()["characters"] == 3500
    assert "700 of 4,200 characters, seen fewer than 2 times" in tokenizer.notes[0]
    assert tokenizer.decode(tokenizer.encode(once + twice)) == once + twice
    assert train_char([often, once, twice]).describe()["characters"] == 4200  # 1 is what it was given


def test_however_rare_enough_characters_have_an_id():
    text = "的" * 1_000_000 + "".join(map(chr, range(0x5000, 0x5000 + 3000)))
    assert train_char([text], min_count=None).describe()["characters"] == 3001  # all alike: none is rarer
    rarer = text + "".join(map(chr, range(0x5000, 0x5000 + 2100)))
    assert train_char([rarer], min_count=None).describe()["characters"] == 2101
