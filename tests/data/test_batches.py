"""Batches: which targets have a loss, and each held-out target once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mingyue.data import IGNORE, SampleOrder, batch_at, fit_context, heldout_batches, padded_batch
from mingyue.errors import DataError

BOS, EOS = 1, 2


def test_targets_are_the_next_tokens_and_bos_has_no_loss(view):
    """S8: EOS has loss; the step into the next document has none."""
    (batch,) = heldout_batches(view([BOS, 5, 6, EOS, BOS, 7, EOS]), 6, 4)
    assert batch.inputs_BT.tolist() == [[BOS, 5, 6, EOS, BOS, 7]]
    assert batch.targets_BT.tolist() == [[5, 6, EOS, IGNORE, 7, EOS]]
    assert batch.tokens == 5
    assert batch.inputs_BT.dtype == batch.targets_BT.dtype == torch.int64
    assert batch.documents_BT is None


def test_documents_of_a_window_are_numbered(view):
    (batch,) = heldout_batches(view([5, EOS, BOS, 6, EOS, BOS, 7, 8]), 7, 1, documents=True)
    assert batch.documents_BT.tolist() == [[0, 0, 1, 1, 1, 2, 2]]
    (batch,) = heldout_batches(view([BOS, 6, EOS, BOS, 7]), 4, 1, documents=True)
    assert batch.documents_BT.tolist() == [[0, 0, 0, 1]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 5))
def test_every_held_out_target_comes_exactly_once_in_order(view, length, context, rows):
    """D2: also the last ones, which do not fill a window; no batch is ragged and nothing is padded."""
    ids = (np.arange(length) + 10).tolist()
    seen = []
    for batch in heldout_batches(view(ids), context, rows):
        count, width = batch.inputs_BT.shape
        assert width == context or count == 1
        assert count <= rows and batch.tokens == count * width
        assert torch.equal(batch.targets_BT, batch.inputs_BT + 1)
        seen += batch.targets_BT.flatten().tolist()
    assert seen == ids[1:]


def test_a_limit_takes_whole_windows_spread_over_the_text(view):
    ids = list(range(10, 110))
    found = [batch.inputs_BT for batch in heldout_batches(view(ids), 10, 2, limit=40)]
    assert torch.cat(found)[:, 0].tolist() == [10, 30, 50, 70]
    assert sum(batch.tokens for batch in heldout_batches(view(ids), 10, 2, limit=10_000)) == 99
    assert sum(batch.tokens for batch in heldout_batches(view(ids), 200, 2, limit=5)) == 99


def test_a_batch_holds_the_windows_of_its_step(corpus_of):
    corpus = corpus_of(list(range(10, 210)), [5, 6])
    order = SampleOrder(200, 16, seed=1)
    batch = batch_at(corpus, order, 3, rows=4)
    assert (batch.inputs_BT[:, 0] - 10).tolist() == order.starts(3, 4).tolist()
    assert torch.equal(batch.targets_BT, batch.inputs_BT + 1)
    assert batch.tokens == 64


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 6])
def test_micro_batches_together_are_the_batch_of_the_step(corpus_of, micro_batches):
    """T4, T3: however a step of 6 rows is divided among micro-batches or ranks, its windows are the same."""
    corpus = corpus_of(list(range(10, 210)), [5, 6])
    order = SampleOrder(200, 16, seed=1)
    whole = batch_at(corpus, order, 5, rows=6).inputs_BT
    parts = [
        batch_at(corpus, order, 5, micro, rows=6 // micro_batches, micro_batches=micro_batches).inputs_BT
        for micro in range(micro_batches)
    ]
    assert torch.equal(torch.cat(parts), whole)
    with pytest.raises(DataError, match="a step has 2"):
        batch_at(corpus, order, 5, 2, rows=3, micro_batches=2)


def test_training_resumed_in_the_second_epoch_sees_the_same_batches(corpus_of):
    """T2: same sample ids, same order as never stopped."""
    corpus = corpus_of([BOS, *range(10, 99), EOS] * 3, [5, 6])
    make = lambda: SampleOrder(len(corpus.train), 16, seed=7)  # noqa: E731
    order = make()
    steps = [batch_at(corpus, order, step, rows=5, documents=True) for step in range(14)]
    middle = next(step for step in range(14) if 1 < order.epoch_of(step * 5) < 2)
    assert order.windows % 5  # some steps hold windows of two epochs
    resumed = make()
    for step in range(middle + 1, 14):
        again = batch_at(corpus, resumed, step, rows=5, documents=True)
        assert torch.equal(again.inputs_BT, steps[step].inputs_BT)
        assert torch.equal(again.targets_BT, steps[step].targets_BT)
        assert torch.equal(again.documents_BT, steps[step].documents_BT)


def test_rows_of_unequal_length_count_only_real_targets():
    """T3: padding has no loss and is not counted, so a mean over a step weighs every target alike."""
    rows = [np.array([BOS, 5, 6, EOS]), np.array([BOS, 7]), np.array([8, EOS, BOS, 9, 5])]
    batch = padded_batch(rows, pad_id=0, bos_id=BOS)
    assert batch.inputs_BT.tolist() == [[BOS, 5, 6, EOS], [BOS, 7, 0, 0], [8, EOS, BOS, 9]]
    assert batch.targets_BT.tolist() == [[5, 6, EOS, IGNORE], [7, IGNORE, IGNORE, IGNORE], [EOS, IGNORE, 9, 5]]
    assert batch.tokens == 3 + 1 + 3
    alone = [padded_batch([row], pad_id=0, bos_id=BOS).tokens for row in rows]
    assert batch.tokens == sum(alone)
    with pytest.raises(DataError, match="row 1 has no target"):
        padded_batch([rows[0], np.array([5])], pad_id=0, bos_id=BOS)
    with pytest.raises(DataError, match="needs rows"):
        padded_batch([], pad_id=0, bos_id=BOS)


def test_a_short_held_out_part_is_noted_in_numbers(corpus_of):
    """D1: 5145 tokens, 10 % held out, context 1024."""
    corpus = corpus_of(np.arange(4631) % 100, np.arange(515) % 100)
    fit = fit_context(corpus, 1024)
    assert fit.context == 1024
    assert fit.notes == ("held-out targets 514 < context 1,024: they are scored as one window of 514",)
    assert sum(batch.inputs_BT.numel() for batch in heldout_batches(corpus.held_out, 1024, 8)) == 514


def test_the_context_shrinks_to_a_short_training_part_and_says_so(corpus_of):
    """D1: in numbers, and the order then has its window."""
    corpus = corpus_of(np.arange(100), np.arange(12))
    fit = fit_context(corpus, 1024)
    assert fit.context == 99
    assert "context 99 instead of 1024" in fit.notes[0] and "100 tokens" in fit.notes[0]
    assert SampleOrder(len(corpus.train), fit.context, 1).windows == 1
    assert fit_context(corpus, 99).notes[0].startswith("held-out targets 11")
    assert fit_context(corpus, 11).notes == ()


def test_a_hopeless_text_is_refused_in_numbers(corpus_of):
    """D1: one token predicts nothing."""
    with pytest.raises(DataError, match="training part has 1 tokens"):
        fit_context(corpus_of([5], [6, 7]), 16)
    assert "no text is held out" in fit_context(corpus_of([5, 6, 7], []), 2).notes[0]


def test_data_smaller_than_one_batch_fills_it_and_says_so(corpus_of):
    """D11: trains on whole batches, and says what it did."""
    corpus = corpus_of(np.arange(41) + 10, np.arange(20))
    fit = fit_context(corpus, 16, rows=10)
    assert fit.notes == (
        "one step takes 160 tokens and the training part has 40 targets: each step passes over it 4.0 times",
    )
    batch = batch_at(corpus, SampleOrder(41, fit.context, 1), 0, rows=10)
    assert batch.inputs_BT.shape == (10, 16) and batch.tokens == 160
    assert set(batch.targets_BT.flatten().tolist()) == set(range(11, 51))
