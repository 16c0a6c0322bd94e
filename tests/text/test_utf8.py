"""The automaton of UTF-8 against Python's decoder."""

import contextlib
import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mingyue.text import byte_tokenizer, train_bpe, train_char
from mingyue.text.utf8 import BOUNDARY, INVALID, N_STATES, utf8_steps

EDGES = bytes.fromhex("00 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")


def of_python(data: bytes) -> str:
    """How Python's strict decoder finds `data` as the beginning of a text: it, or it with up to three more bytes."""
    for n_more in range(4):
        for more in itertools.product((0x80, 0xBF), repeat=n_more):
            with contextlib.suppress(UnicodeDecodeError):
                (data + bytes(more)).decode("utf-8")
                return "inside" if n_more else "boundary"
    return "invalid"


def of_state(state: int) -> str:
    return "invalid" if state == INVALID else "boundary" if state == BOUNDARY else "inside"


def test_beginnings_of_texts_are_judged_as_by_python():
    """N12: all texts of one and two bytes; of three and four, those at the ends of ranges (overlong, surrogates)."""
    short = [bytes(data) for n in (1, 2) for data in itertools.product(range(256), repeat=n)]
    three = [bytes(data) for data in itertools.product(EDGES, repeat=3)]
    four = [data + bytes([last]) for data in three if data[0] > 0xEF for last in EDGES]
    beginnings = [*short, *three, *four]
    steps = utf8_steps(beginnings)
    assert [of_state(state) for state in steps[BOUNDARY]] == [of_python(data) for data in beginnings]


@given(st.lists(st.one_of(st.binary(max_size=5), st.text(max_size=3).map(str.encode)), min_size=1, max_size=8))
def test_a_text_in_tokens_is_the_text_of_their_bytes(tokens):
    """A token without bytes, such as a special one, changes nothing; several tokens are one after the other."""
    steps, state = utf8_steps(tokens), BOUNDARY
    for index in range(len(tokens)):
        state = int(steps[state, index]) if state != INVALID else INVALID
    assert of_state(state) == of_python(b"".join(tokens))
    assert utf8_steps([b""])[:, 0].tolist() == list(range(N_STATES))


def test_each_tokenizer_has_the_steps_of_its_tokens():
    for tokenizer in (byte_tokenizer(), train_char(["春眠不觉晓"]), train_bpe(["处处闻啼鸟。" * 20], vocab_size=300)):
        steps = tokenizer.utf8_steps
        assert steps.shape == (N_STATES, tokenizer.vocab_size)
        assert steps is tokenizer.utf8_steps  # made once
        assert np.array_equal(steps, utf8_steps([tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]))


def test_a_whole_text_ends_before_a_character_that_is_cut():
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("a好")
    assert [tokenizer.decode(ids[:n], whole=True) for n in range(5)] == ["", "a", "a", "a", "a好"]
    assert tokenizer.decode([*ids[:2], *tokenizer.encode("b")], whole=True) == "a\ufffdb"
