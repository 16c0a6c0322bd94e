"""Batches of pairs: shifted targets, padding on the right, and an order that depends on seed, epoch and step alone."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mingyue.data import IGNORE, PairOrder, PairRows, heldout_pair_batches, pair_batch
from mingyue.data.order import cut_by_budget
from mingyue.errors import DataError

PAD, BOS, EOS = 0, 1, 2
MARKS = {"pad_id": PAD, "bos_id": BOS}


def rows_of(*pairs):
    return PairRows.of([[*source, EOS] for source, _ in pairs], [[*target, EOS] for _, target in pairs])


def rows_of_lengths(source, target):
    """Pairs of these lengths; the first id says which pair it is."""
    return PairRows.of(
        [[3 + n] * (length - 1) + [EOS] for n, length in enumerate(source)],
        [[3 + n] * (length - 1) + [EOS] for n, length in enumerate(target)],
    )


THREE = rows_of(([5, 6, 7], [8]), ([9], [10, 11]), ([], []))


def test_the_decoder_reads_the_target_shifted_right():
    batch = pair_batch(THREE, [0, 1], **MARKS)
    assert batch.source_BS.tolist() == [[5, 6, 7, EOS], [9, EOS, PAD, PAD]]
    assert batch.inputs_BT.tolist() == [[BOS, 8, PAD], [BOS, 10, 11]]
    assert batch.targets_BT.tolist() == [[8, EOS, IGNORE], [10, 11, EOS]]
    assert batch.source_lengths_B is not None and batch.source_lengths_B.tolist() == [4, 2]
    assert (batch.tokens, batch.rows) == (5, 2)
    for tensor in (batch.source_BS, batch.inputs_BT, batch.targets_BT, batch.source_lengths_B):
        assert tensor.dtype == torch.int64 and tensor.is_contiguous()


def test_an_empty_text_is_eos_alone():
    batch = pair_batch(THREE, np.array([2, 0]), **MARKS)
    assert batch.source_BS.tolist() == [[EOS, PAD, PAD, PAD], [5, 6, 7, EOS]]
    assert batch.inputs_BT.tolist() == [[BOS, PAD], [BOS, 8]]
    assert batch.targets_BT.tolist() == [[EOS, IGNORE], [8, EOS]]


def test_lengths_are_left_out_when_no_source_is_padded():
    """Equal sources need no mask, whatever the targets are."""
    rows = rows_of(([5, 6], [8]), ([7, 9], [3, 4, 5]))
    assert pair_batch(rows, [0, 1], **MARKS).source_lengths_B is None
    assert pair_batch(rows, [1], **MARKS).source_lengths_B is None
    assert pair_batch(THREE, [0, 1], **MARKS).source_lengths_B is not None


def test_a_batch_needs_pairs():
    with pytest.raises(DataError, match="needs pairs"):
        pair_batch(THREE, [], **MARKS)


def test_a_batch_moves_to_a_device():
    batch = pair_batch(THREE, [0, 1], **MARKS)
    moved = batch.to("meta")
    assert {t.device.type for t in (moved.source_BS, moved.source_lengths_B, moved.inputs_BT, moved.targets_BT)} == {
        "meta"
    }
    assert (moved.tokens, moved.rows) == (5, 2)
    assert pair_batch(THREE, [0], **MARKS).to("meta").source_lengths_B is None


lengths = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=60).map(np.array)
budgets = st.integers(1, 60)


@given(lengths, st.data())
def test_a_batch_is_its_rows_and_padding(sizes, data):
    rows = rows_of_lengths(*sizes.T)
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1))
    batch = pair_batch(rows, index, **MARKS)
    for at, number in enumerate(index):
        source, target = sizes[number].tolist()
        assert batch.source_BS[at].tolist() == rows.source(number).tolist() + [PAD] * (
            batch.source_BS.shape[1] - source
        )
        text = rows.target(number).tolist()
        rest = batch.targets_BT.shape[1] - target
        assert batch.targets_BT[at].tolist() == text + [IGNORE] * rest
        assert batch.inputs_BT[at].tolist() == [BOS, *text[:-1]] + [PAD] * rest
    assert batch.tokens == int((batch.targets_BT != IGNORE).sum()) == int(sizes[index, 1].sum())
    assert (batch.source_lengths_B is None) == (len(set(sizes[index, 0].tolist())) == 1)


@given(lengths, budgets, st.integers(0, 2**63), st.integers(0, 4))
def test_every_pair_comes_once_an_epoch_within_the_budget(sizes, budget, seed, epoch):
    order = PairOrder(*sizes.T, budget=budget, seed=seed)
    steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
    batches = [order.rows_of(step) for step in steps]
    assert np.sort(np.concatenate(batches)).tolist() == list(range(len(sizes)))
    for batch in batches:
        assert batch.dtype == np.int64 and len(batch)
        assert len(batch) == 1 or len(batch) * sizes[batch].max() <= budget


@given(lengths, budgets, st.lists(st.integers(0, 200), min_size=1, max_size=8))
def test_a_step_gives_the_same_pairs_whatever_was_asked_before(sizes, budget, steps):
    """T2: resumed at any step, in any epoch, the pairs are the same; what a caller does to them changes nothing."""
    order = PairOrder(*sizes.T, budget=budget, seed=5)
    for step in steps:
        found = order.rows_of(step)
        assert np.array_equal(found, PairOrder(*sizes.T, budget=budget, seed=5).rows_of(step))
        found[:] = -1
        assert np.array_equal(order.rows_of(step), PairOrder(*sizes.T, budget=budget, seed=5).rows_of(step))


@given(lengths, budgets, st.integers(0, 3))
def test_lengths_alone_decide_the_cuts(sizes, budget, seed):
    """Every epoch of every seed has batches of the same sizes, in an order of its own."""
    shapes = []
    for number in (seed, seed + 1):
        order = PairOrder(*sizes.T, budget=budget, seed=number)
        for epoch in range(3):
            first = epoch * order.steps_per_epoch
            batches = [order.rows_of(first + at) for at in range(order.steps_per_epoch)]
            shapes.append(sorted(sorted(map(tuple, sizes[batch].tolist())) for batch in batches))
    assert all(shape == shapes[0] for shape in shapes)


def test_each_epoch_and_each_seed_has_an_order_of_its_own():
    sizes = np.random.default_rng(0).integers(1, 20, (2000, 2))
    order = PairOrder(*sizes.T, budget=200, seed=3)
    steps = order.steps_per_epoch
    epochs = [[order.rows_of(epoch * steps + at).tolist() for at in range(steps)] for epoch in range(4)]
    epochs.append([PairOrder(*sizes.T, budget=200, seed=4).rows_of(at).tolist() for at in range(steps)])
    for one in range(5):
        for other in range(one):
            assert sum(a == b for a, b in zip(epochs[one], epochs[other], strict=True)) < steps / 10
            assert len({tuple(b) for b in epochs[one]} & {tuple(b) for b in epochs[other]}) < steps  # new company too
    longest = [max(sizes[b].max() for b in [batch]) for batch in epochs[0]]
    assert longest != sorted(longest)  # batches do not go from short to long


def test_a_known_order():
    """T14: the same seed gives this order in every version of numpy."""
    sizes = np.array([2, 2, 2, 2, 2, 2, 3, 3, 4, 9])
    order = PairOrder(sizes, sizes, budget=8, seed=1)
    assert order.steps_per_epoch == 5
    assert [order.rows_of(step).tolist() for step in range(6)] == [[3, 5, 0, 4], [1, 2], [8], [7, 6], [9], [5, 4, 3, 2]]


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 80))
def test_a_batch_takes_as_many_pairs_as_fit(longest, budget):
    """Equal to the plain loop; a pair above the budget is alone."""
    expected, at = [0], 0
    while at < len(longest):
        stop = at + 1
        while stop < len(longest) and (stop + 1 - at) * max(longest[at : stop + 1]) <= budget:
            stop += 1
        expected.append(stop)
        at = stop
    assert cut_by_budget(np.array(longest, dtype=np.int64), budget).tolist() == expected


def test_no_pairs_or_no_budget_make_no_step():
    with pytest.raises(DataError, match="0 pairs"):
        PairOrder(np.array([], dtype=np.int64), np.array([], dtype=np.int64), budget=8, seed=1)
    with pytest.raises(DataError, match="batches of 0 tokens"):
        PairOrder(np.array([1]), np.array([1]), budget=0, seed=1)
    with pytest.raises(DataError, match="1 source lengths and 2 target lengths"):
        PairOrder(np.array([1]), np.array([1, 2]), budget=4, seed=1)


def pairs_in(batches):
    """Every (source, target) of the batches without padding, sorted."""
    found = []
    for batch in batches:
        for source, target in zip(batch.source_BS.tolist(), batch.targets_BT.tolist(), strict=True):
            found.append((tuple(x for x in source if x != PAD), tuple(y for y in target if y != IGNORE)))
    return sorted(found)


@given(lengths, budgets, st.randoms())
def test_held_out_pairs_come_once_each_in_whatever_order_they_are_stored(sizes, budget, random):
    """Summed over the batches, a loss is that of the pairs: neither their order nor the budget adds or loses one."""
    rows = rows_of_lengths(*sizes.T)
    batches = list(heldout_pair_batches(rows, budget=budget, **MARKS))
    everything = sorted((tuple(rows.source(n)), tuple(rows.target(n))) for n in range(len(rows)))
    assert pairs_in(batches) == everything
    assert sum(batch.tokens for batch in batches) == int(sizes[:, 1].sum())
    for batch in batches:
        assert batch.rows == 1 or batch.rows * max(batch.source_BS.shape[1], batch.targets_BT.shape[1]) <= budget
    numbers = list(range(len(rows)))
    random.shuffle(numbers)
    other = PairRows.of([rows.source(n).tolist() for n in numbers], [rows.target(n).tolist() for n in numbers])
    shuffled = list(heldout_pair_batches(other, budget=budget, **MARKS))
    assert pairs_in(shuffled) == everything
    assert [(b.source_BS.shape, b.tokens) for b in shuffled] == [(b.source_BS.shape, b.tokens) for b in batches]


def test_a_limit_takes_pairs_spread_evenly():
    rows = rows_of_lengths([5] * 100, [4] * 100)

    def first_ids(limit):
        found = pairs_in(heldout_pair_batches(rows, budget=64, limit=limit, **MARKS))
        return [source[0] - 3 for source, _ in found]

    assert first_ids(40) == list(range(0, 100, 10))
    assert first_ids(1) == [0]
    assert first_ids(400) == first_ids(10_000) == first_ids(None) == list(range(100))


@given(lengths, st.integers(1, 800))
def test_a_limit_is_kept_about_and_the_same_every_time(sizes, limit):
    rows = rows_of_lengths(*sizes.T)
    first = list(heldout_pair_batches(rows, budget=30, limit=limit, **MARKS))
    again = list(heldout_pair_batches(rows, budget=30, limit=limit, **MARKS))
    assert pairs_in(first) == pairs_in(again)
    wanted = min(1.0, limit / int(sizes[:, 1].sum())) * len(rows)
    assert abs(sum(batch.rows for batch in first) - max(1, wanted)) <= 0.5
    left = pairs_in(heldout_pair_batches(rows, budget=30, **MARKS))
    for pair in pairs_in(first):
        left.remove(pair)  # each pair at most once


def test_no_held_out_pairs_make_no_batch():
    assert list(heldout_pair_batches(PairRows.of([], []), budget=8, **MARKS)) == []
    assert list(heldout_pair_batches(PairRows.of([], []), budget=8, limit=3, **MARKS)) == []


def test_a_batch_takes_far_less_time_than_a_step():
    """150 rows of 15 tokens in about 0.15 ms; 10 times that is allowed here."""
    rows = PairRows.of([[3] * 14 + [EOS]] * 1000, [[4] * (n % 9 + 9) + [EOS] for n in range(1000)])
    index = np.arange(150) * 5
    pair_batch(rows, index, **MARKS)
    best = 1.0
    for _ in range(20):
        start = time.perf_counter()
        pair_batch(rows, index, **MARKS)
        best = min(best, time.perf_counter() - start)
    assert best < 0.0015
