"""Tokens that the training text does not use: which they are, and where they stand in for others in training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.config import DataSettings, TokenizerSettings
from mingyue.data import SampleOrder, batch_at, load_corpus, prepare_corpus
from mingyue.data.unseen import Substitution, begin_id, from_ranges, spellings_of, to_ranges, unseen_ids
from mingyue.text import make_tokenizer

TEXT = "the mill turns by the river.\nand the wheel sings,\n" * 60


def tokenizer(kind: str = "char", text: str = TEXT):
    size = {"tokenizer_size": 300} if kind == "bpe" else {}
    return make_tokenizer(TokenizerSettings(tokenizer=kind, **size), [text])


def missing(words, text: str = TEXT) -> tuple[int, ...]:
    return unseen_ids(np.bincount(words.encode(text), minlength=words.vocab_size), words.special_ids)


@given(st.sets(st.integers(0, 400)))
def test_ids_survive_being_written_as_ranges(ids):
    assert from_ranges(to_ranges(sorted(ids))) == tuple(sorted(ids))


def test_ranges_of_a_byte_fallback_are_few():
    assert to_ranges(missing(tokenizer())) == [[3, 258]]


@pytest.mark.parametrize("kind", ["char", "bpe", "byte"])
def test_every_spelling_is_what_the_tokenizer_makes_of_an_unseen_text(kind):
    words = tokenizer(kind)
    unseen = set(missing(words))
    spellings = spellings_of(words, sorted(unseen))
    assert spellings
    for spelling in set(spellings):
        assert unseen.intersection(spelling)
        assert len(spelling) == 1 or tuple(words.encode(words.decode(spelling))) == spelling
    alone = [one for one in spellings if len(one) == 1]
    assert {words.encode(sign)[0] for sign in "0123456789$#"} <= {one[0] for one in alone}
    assert 0.3 < len(alone) / len(spellings) < 0.7, "characters of one id and of several have about half each"


def test_a_text_that_uses_every_id_is_left_alone():
    every = "".join(map(chr, range(256))).encode("latin-1").decode("latin-1")
    words = tokenizer("byte")
    assert spellings_of(words, ()) == ()
    rows = np.arange(2)
    ids = np.array([words.encode(every)[:20]] * 2)
    assert np.array_equal(Substitution.of(words, (), share=0.5, seed=1)(ids, step=3, rows=rows, of=2), ids)


@pytest.mark.parametrize(("share", "width", "n_rows"), [(0.001, 64, 4000), (0.05, 7, 400), (0.02, 700, 40)])
def test_the_share_of_substituted_positions_is_the_one_asked_for(share, width, n_rows):
    words = tokenizer()
    unseen = missing(words)
    singles = replace(
        Substitution.of(words, unseen, share=share, seed=1), spellings=tuple((index,) for index in unseen)
    )
    ids = np.full((n_rows, width), words.encode("e")[0])
    steps = [singles(ids, step=step, rows=np.arange(n_rows), of=n_rows) for step in range(5)]
    found = np.mean([np.isin(one, unseen).mean() for one in steps])
    assert found == pytest.approx(share, rel=6 / np.sqrt(share * width * n_rows * 5))


def test_a_row_changes_by_seed_step_and_number_and_by_nothing_else(prepared):
    words, corpus = prepared
    order = SampleOrder(len(corpus.train), 16, 1)
    substitution = Substitution.of(words, corpus.unseen, share=0.2, seed=1)

    def inputs(step: int, micro_batches: int, one: Substitution = substitution) -> np.ndarray:
        rows = 12 // micro_batches
        parts = [
            batch_at(corpus, order, step, micro, rows=rows, micro_batches=micro_batches, substitution=one)
            for micro in range(micro_batches)
        ]
        return np.concatenate([part.inputs_BT.numpy() for part in parts])

    whole = inputs(5, 1)
    for micro_batches in (2, 3, 12):
        assert np.array_equal(inputs(5, micro_batches), whole)
    plain = batch_at(corpus, order, 5, rows=12)
    assert not np.array_equal(whole, plain.inputs_BT.numpy())
    assert not np.array_equal(inputs(5, 1, replace(substitution, seed=2)), whole)
    other = replace(substitution, share=0.0, spellings=())
    assert np.array_equal(inputs(5, 1, other), plain.inputs_BT.numpy())


def test_targets_stay_the_text(prepared):
    words, corpus = prepared
    order = SampleOrder(len(corpus.train), 16, 1)
    substitution = Substitution.of(words, corpus.unseen, share=0.3, seed=1)
    changed = batch_at(corpus, order, 2, rows=8, substitution=substitution)
    plain = batch_at(corpus, order, 2, rows=8)
    assert changed.targets_BT.equal(plain.targets_BT)
    assert changed.tokens == plain.tokens
    assert not changed.inputs_BT.equal(plain.inputs_BT)


def test_marks_and_padding_are_never_replaced():
    words = tokenizer()
    substitution = Substitution.of(words, missing(words), share=0.5, seed=1)
    ids = np.array([[words.bos_id, *words.encode("the mill"), words.eos_id, *[words.pad_id] * 6]] * 50)
    lengths = np.full(50, 10)
    for step in range(20):
        found = substitution(ids, lengths, step=step, rows=np.arange(50), of=50)
        marks = np.isin(ids, list(words.special_ids))
        assert np.array_equal(found[marks], ids[marks])


def test_how_far_rows_are_padded_changes_nothing():
    words = tokenizer()
    substitution = Substitution.of(words, missing(words), share=0.3, seed=1)
    ids = np.array([words.encode("the mill turns")] * 30)
    lengths, rows = np.full(30, ids.shape[1]), np.arange(30)
    wide = np.pad(ids, ((0, 0), (0, 40)), constant_values=words.pad_id)
    narrow = substitution(ids, lengths, step=4, rows=rows, of=30)
    assert np.array_equal(substitution(wide, lengths, step=4, rows=rows, of=30)[:, : ids.shape[1]], narrow)
    assert not np.array_equal(narrow, ids)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("one line\nand another\n" * 50, "\n"),
        ("A sentence of words. Another one. Or one? " * 50, "."),
        ("words and words and words and words and " * 50, " "),
        ("春眠不觉晓。处处闻啼鸟。" * 50, "。"),
        ("abcabcabca" * 50, "a"),
    ],
)
def test_a_text_begins_after_the_end_of_a_line_or_else_a_sentence_or_else_a_word(text, end):
    words = tokenizer("char", text)
    assert words.decode([begin_id(words, np.array(words.encode(text)))]) == end


def test_nothing_begins_where_there_are_no_tokens():
    assert begin_id(tokenizer(), np.array([], dtype=np.int64)) is None


@pytest.fixture
def prepared(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    settings = DataSettings(sources=(str(tmp_path / "text.txt"),))
    words, corpus, _ = prepare_corpus(settings, TokenizerSettings(tokenizer="char"), tmp_path / "data")
    return words, corpus


def test_the_unseen_ids_of_a_prepared_text_are_those_of_its_training_part(prepared, tmp_path):
    words, corpus = prepared
    expected = set(range(words.vocab_size)) - set(corpus.train.read().tolist()) - words.special_ids
    assert set(corpus.unseen) == expected
    assert load_corpus(tmp_path / "data")[1].unseen == corpus.unseen
