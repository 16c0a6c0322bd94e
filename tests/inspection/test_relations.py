"""Heads looked for by relation: the places of lines by hand, choice and measurement on different halves, controls."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mingyue.errors import GenerationError
from mingyue.inspection import Subject
from mingyue.inspection import relations as module
from mingyue.inspection.parts import attention_parts
from mingyue.inspection.relations import RELATION_NAMES, relations_view
from mingyue.models import build_model
from mingyue.text import train_char

POEM = "abcd,efgd.\nijkd,mnod.\n"


def subject(seed: int = 0) -> Subject:
    from mingyue.config import ModelConfig

    words = train_char([POEM])
    config = ModelConfig(vocab_size=words.vocab_size, context=32, d_model=16, n_layers=2, n_heads=2, n_kv_heads=2,
                         d_head=8, d_ff=16)  # fmt: skip
    return Subject(build_model(config, seed=seed).eval(), words)


def keys(relation: str, query: int) -> list[int]:
    """The keys of a query of the poem that count for a relation."""
    looked = subject()
    (part,) = attention_parts(looked)
    masks = dict(zip(RELATION_NAMES, module._masks(looked, part, looked.read(POEM).ids_T), strict=True))
    return masks[relation][query].nonzero()[:, 0].tolist()


def test_places_of_lines_are_those_a_reader_sees():
    #  a b c d , e f g d . ⏎  i  j  k  d  ,  m
    #  0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
    assert keys("previous", 7) == [6]
    assert keys("punctuation", 7) == [4] and keys("punctuation", 13) == [10]
    assert keys("punctuation", 5) == []  # it is the previous token
    assert keys("line start", 7) == [5] and keys("line start", 13) == [11] and keys("line start", 6) == []
    assert keys("line above", 7) == [] and keys("line above", 13) == [7]  # the window may begin within a line
    assert keys("line end", 7) == [3]  # d is next, which ends its line
    assert keys("line end", 13) == [3, 8]
    assert keys("line end", 12) == [] and keys("line end", 2) == []


def test_the_head_made_by_hand_for_the_previous_token_is_found(known):
    text = "".join(np.random.default_rng(0).permutation(list("abcdefghijklmnopqrstuvwxyz" * 6)))
    view = relations_view(known, known.read(text, any_length=True))
    (found,) = view.found  # the text has neither punctuation nor lines
    assert (found.relation, found.layer, found.head) == ("previous", 0, 0)
    assert found.weight > 0.9 and found.follows
    assert found.uniform < 0.2 and found.untrained < 0.9


def test_a_head_is_measured_where_it_was_not_chosen_and_chance_is_not_followed(monkeypatch):
    looked = subject()
    reading = looked.read(POEM * 8, any_length=True)
    n_windows = len(module._windows(looked, reading))

    def shares(subject, part, windows, masks):
        """Head 0.1 is best where heads are chosen, and nothing elsewhere."""
        counts_WP = np.array([[float(mask.any(-1).sum()) for mask in own] for own in masks])
        found = np.zeros((n_windows, len(RELATION_NAMES), 2, 2))
        found[0::2, :, 0, 1] = counts_WP[0::2]
        return found

    monkeypatch.setattr(module, "_shares", shares)
    view = relations_view(looked, reading)
    assert {(one.layer, one.head, one.weight) for one in view.found} == {(0, 1, 0.0)}
    assert not any(one.follows for one in view.found)


def test_weights_of_a_random_model_are_shares_and_intervals_contain_them():
    looked = subject()
    view = relations_view(looked, looked.read(POEM * 20, any_length=True))
    assert [one.relation for one in view.found] == list(RELATION_NAMES)
    for one in view.found:
        assert 0 <= one.low <= one.weight <= one.high <= 1
        assert 0 < one.uniform < 1 and 0 < one.untrained < 1
    assert relations_view(looked, looked.read(POEM * 20, any_length=True)) == view
    for language in ("en", "zh"):
        (table,) = view.tables(language)
        assert len(table.rows) == len(RELATION_NAMES)
        assert view.charts(language)[0].spec()
    assert view.to_dict()["found"][0]["relation"] == "previous"


def test_the_interval_is_that_of_a_mean_over_windows():
    generator = torch.Generator().manual_seed(0)
    shares_W = torch.rand(400, generator=generator).numpy().astype(np.float64)
    mean, low, high = module._mean(shares_W, np.ones(400, dtype=np.int64))
    assert mean == pytest.approx(shares_W.mean())
    assert high - mean == pytest.approx(mean - low) == pytest.approx(1.96 * shares_W.std(ddof=1) / 20, rel=1e-6)
    assert module._mean(np.array([0.5]), np.array([1]))[1:] == (0.0, 1.0)  # one window tells nothing about others


def test_a_short_text_is_refused_with_what_is_needed():
    with pytest.raises(GenerationError, match="22 tokens"):
        relations_view(subject(), subject().read(POEM))
