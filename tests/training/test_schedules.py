"""Learning-rate schedules: values by hand, and what must hold for all of them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.training.schedules import decay_start, multiplier, paper_peak, warmup_steps

KINDS = ("wsd", "cosine", "paper", "constant")


def rates(kind, total, warmup, *, decay_share=0.5, final_share=0.0):
    start = decay_start(kind, total, warmup, decay_share)
    return [
        multiplier(kind, step, total_steps=total, warmup=warmup, decay_from=start, final_share=final_share)
        for step in range(total)
    ]


def test_wsd_by_hand():
    assert rates("wsd", 8, 2) == [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert rates("wsd", 4, 0, decay_share=1.0, final_share=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4])
    assert rates("wsd", 4, 1, decay_share=0.0) == [1.0] * 4


def test_cosine_by_hand():
    assert rates("cosine", 5, 1) == pytest.approx([1.0, 1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])
    assert rates("cosine", 2, 0, final_share=0.5) == pytest.approx([1.0, 0.75])


def test_constant_by_hand():
    assert rates("constant", 4, 2) == [0.5, 1.0, 1.0, 1.0]


def test_paper_is_its_formula():
    """Section 5.3: d_model^-0.5 · min(n^-0.5, n · warmup^-1.5), with n from 1."""
    d_model, warmup = 512, 40
    peak = paper_peak(d_model, warmup)
    for step, rate in enumerate(rates("paper", 200, warmup)):
        number = step + 1
        assert peak * rate == pytest.approx(d_model**-0.5 * min(number**-0.5, number * warmup**-1.5))


@given(st.sampled_from(KINDS), st.integers(1, 300), st.integers(0, 300), st.floats(0, 1), st.floats(0, 1))
def test_rate_is_above_zero_at_every_step(kind, total, warmup, decay_share, final_share):
    """T8: no step is wasted at rate 0, none is above the peak, warm-up may be 0 or all steps or more."""
    warmup = warmup_steps(kind, float(warmup), total) if warmup else 0
    values = rates(kind, total, warmup, decay_share=decay_share, final_share=final_share)
    assert all(0 < value <= 1 + 1e-12 for value in values)
    rising = values[:warmup]
    assert all(a < b for a, b in pairwise(rising))
    falling = values[max(warmup - 1, 0) :]
    assert all(a >= b - 1e-12 for a, b in pairwise(falling))


@pytest.mark.parametrize("kind", KINDS)
def test_warm_up_of_all_steps(kind):
    """T8: warm-up = total steps rises to the peak at the last step, without a division by zero."""
    assert rates(kind, 4, 4) == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates(kind, 1, 1) == [1.0]


def test_warm_up_is_a_share_or_a_number():
    """T8: below 1 a share (at least a step of it), from 1 on steps, never more than there are."""
    assert warmup_steps("wsd", 0.1, 100) == 10
    assert warmup_steps("wsd", 0.02, 10) == 1
    assert warmup_steps("wsd", 0.0, 10) == 0
    assert warmup_steps("wsd", 1.0, 100) == 1
    assert warmup_steps("wsd", 250.0, 100) == 100
    # The paper's curve has its shape from the length of its warm-up: a shorter run is its beginning.
    assert warmup_steps("paper", 4000.0, 100) == 4000
