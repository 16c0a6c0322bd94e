"""The order of samples: a pure function of seed, epoch and step."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.data.order import SampleOrder
from mingyue.errors import DataError

sizes = st.integers(2, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1)))


@given(sizes, st.integers(0, 2**63), st.integers(0, 5))
def test_every_window_is_valid_and_an_epoch_uses_the_first_and_the_last_token(size, seed, epoch):
    """D2: every start index valid, last token used, no ragged batch."""
    tokens, context = size
    order = SampleOrder(tokens, context, seed)
    starts = order.starts_of(epoch * order.windows, order.windows)
    assert starts.shape == (order.windows,)
    assert starts.min() == 0
    assert starts.max() + context == tokens - 1
    used = {start + place for start in starts.tolist() for place in range(context + 1)}
    assert used == set(range(tokens))


@pytest.mark.parametrize(
    ("tokens", "context", "windows"), [(11, 10, 1), (12, 10, 3), (21, 10, 3), (22, 10, 4), (2, 1, 1), (3, 1, 3)]
)
def test_windows_of_an_epoch(tokens, context, windows):
    """D2: ⌈(N−1)/C⌉ + 1, or 1 where one window holds everything."""
    assert SampleOrder(tokens, context, 1).windows == windows


def test_a_known_order():
    """T14: the same seed gives this order in every version of numpy."""
    order = SampleOrder(101, 10, seed=1)
    assert order.starts_of(0, 11).tolist() == [60, 50, 40, 80, 30, 90, 90, 70, 10, 0, 20]
    assert order.starts_of(11, 3).tolist() == [34, 4, 74]


def test_each_epoch_has_an_order_and_a_cut_of_its_own():
    order = SampleOrder(10_000, 16, seed=3)
    epochs = [order.starts_of(e * order.windows, order.windows) for e in range(4)]
    for one in range(4):
        for other in range(one):
            assert (epochs[one] != epochs[other]).mean() > 0.9
    assert len({int(np.median(epoch % 16)) for epoch in epochs}) > 1
    assert not np.array_equal(epochs[0], SampleOrder(10_000, 16, seed=4).starts_of(0, order.windows))


@given(sizes, st.integers(1, 7), st.integers(0, 40))
def test_a_step_alone_gives_what_it_gives_in_sequence(size, rows, step):
    """T2: resumed at any step, in the middle of the second epoch or later, the samples are the same."""
    order = SampleOrder(*size, seed=5)
    sequence = [order.starts(number, rows) for number in range(step + 1)]
    assert np.array_equal(sequence[step], SampleOrder(*size, seed=5).starts(step, rows))
    assert np.array_equal(np.concatenate(sequence), order.starts_of(0, (step + 1) * rows))


def test_a_step_may_hold_windows_of_two_epochs_and_of_more():
    """D11: fewer windows than rows still fill a step."""
    order = SampleOrder(25, 8, seed=1)
    assert order.windows == 4
    starts = order.starts(0, 10)
    assert starts.shape == (10,)
    for epoch in range(2):
        assert np.array_equal(starts[epoch * 4 : epoch * 4 + 4], order.starts_of(epoch * 4, 4))
    assert order.epoch_of(10) == 2.5


def test_every_window_comes_once_an_epoch():
    order = SampleOrder(1001, 10, seed=2)
    seen = np.sort(order.starts_of(0, order.windows))
    assert (np.diff(seen) > 0).sum() >= order.windows - 2


def test_too_few_tokens_are_an_error_in_numbers():
    """D1: the caller shrinks the context; the order never makes a ragged window."""
    with pytest.raises(DataError, match="10 tokens do not fill a window of 10"):
        SampleOrder(10, 10, 1)


def test_a_permutation_is_not_made_anew_each_step():
    order = SampleOrder(300_001, 1, seed=1)
    order.starts(0, 4)
    begin = time.perf_counter()
    for step in range(200):
        order.starts(step, 4)
    assert time.perf_counter() - begin < 0.2
    assert order._epoch.cache_info().currsize == 1
    for epoch in range(6):
        order.starts_of(epoch * order.windows, 1)
    assert order._epoch.cache_info().currsize <= 3
