"""Batches of a run: the same windows however a step is cut, and exact counts of what is held out."""

from __future__ import annotations

import math

import pytest
import torch

from mingyue.data import IGNORE
from mingyue.training import CorpusBatches, measure_peak


@pytest.fixture
def batches(corpus):
    text = corpus()

    def make(rows=6, micro_rows=4, **options):
        return CorpusBatches(text, context=16, rows=rows, micro_rows=micro_rows, seed=1, **options)

    return make


def test_micro_batches_are_one_step_cut_up(batches):
    """T3: a step holds the same windows in the same order, in one piece or in several."""
    (whole,) = batches(micro_rows=6).step(3)
    for micro_rows, n_micro in ((4, 2), (3, 2), (2, 3), (5, 2), (1, 6), (99, 1)):
        pieces = batches(micro_rows=micro_rows).step(3)
        assert len(pieces) == n_micro
        assert torch.equal(torch.cat([piece.inputs_BT for piece in pieces]), whole.inputs_BT)
        assert torch.equal(torch.cat([piece.targets_BT for piece in pieces]), whole.targets_BT)
        assert sum(piece.tokens for piece in pieces) == whole.tokens


def test_micro_batches_of_a_prime_number_of_rows(batches):
    """Rows that nothing divides are taken one by one rather than in another order."""
    assert len(batches(rows=7, micro_rows=4).step(0)) == 7


def test_steps_are_a_pure_function_of_their_number(batches):
    """T2: asked out of order, again, or of another object: the same step."""
    one, two = batches(), batches()
    expected = [one.step(step)[0].inputs_BT for step in (40, 3, 0)]
    again = [two.step(step)[0].inputs_BT for step in (0, 3, 40)]
    assert all(torch.equal(a, b) for a, b in zip(expected, reversed(again), strict=True))


def test_held_out_counts(batches):
    """What is counted as held-out is what an evaluation meets; bytes are spread over it."""
    source = batches()
    full = list(source.held_out(None))
    assert sum(batch.tokens for batch in full) == source.sizes.heldout_tokens == source.heldout_targets
    assert source.bytes_per_token == pytest.approx(300 / source.heldout_targets)
    some = list(source.held_out(48))
    assert 0 < sum(batch.tokens for batch in some) <= 48
    assert torch.equal(some[0].inputs_BT, next(source.held_out(48)).inputs_BT)


def test_nothing_held_out(corpus):
    source = CorpusBatches(corpus(held_out=0), context=16, rows=4, micro_rows=4, seed=1)
    assert source.sizes.heldout_tokens == 0
    assert math.isnan(source.bytes_per_token)
    assert list(source.held_out(None)) == []


def test_documents_are_told_when_asked(batches):
    assert batches().step(0)[0].documents_BT is None
    (batch, _) = batches(rows=8, micro_rows=4, documents=True).step(0)
    starts = (batch.inputs_BT[:, 1:] == 1).sum(dim=1)
    assert torch.equal(batch.documents_BT[:, -1], starts)
    assert (batch.targets_BT == IGNORE).any()


def test_peak_is_a_speed():
    """The probe takes about the time it is given and finds a plausible number."""
    peak = measure_peak(rows=64, width=64, seconds=0.02)
    assert 1e8 < peak < 1e15
