"""Positions: the paper's sinusoids number by number, rotary angles by hand, scaling against other implementations."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mingyue.config import RotaryScaling
from mingyue.nn import LearnedPositions, Positions, RotaryPositions, SinusoidalPositions, sinusoid_table
from mingyue.nn.positions import rotary_frequencies


@pytest.mark.parametrize("d_model", [1, 2, 3, 7, 8])
def test_sinusoids_are_the_papers_formula_at_every_cell_odd_widths_too(d_model):
    table = sinusoid_table(50, d_model)
    for pos in (0, 1, 2, 49):
        for dim in range(d_model):
            angle = pos / 10000 ** (2 * (dim // 2) / d_model)
            expected = math.sin(angle) if dim % 2 == 0 else math.cos(angle)
            assert table[pos, dim].item() == pytest.approx(expected, abs=1e-6)


def test_sinusoids_of_width_four_by_hand():
    """PE(1) = sin 1, cos 1, sin 1/100, cos 1/100."""
    expected = torch.tensor([0.8414710, 0.5403023, 0.0099998, 0.9999500])
    torch.testing.assert_close(sinusoid_table(2, 4)[1], expected, rtol=0, atol=1e-6)
    assert sinusoid_table(2, 4)[0].tolist() == [0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("d_model", [1, 2, 5, 8])
def test_sinusoids_in_halves_are_the_same_numbers_sines_first(d_model):
    interleaved, halves = sinusoid_table(9, d_model), sinusoid_table(9, d_model, "halves")
    assert torch.equal(halves, torch.cat([interleaved[:, 0::2], interleaved[:, 1::2]], dim=1))


def test_what_is_added_depends_on_the_given_positions_only():
    x = torch.zeros(2, 3, 6)
    positions = torch.tensor([[4, 0, 2], [1, 1, 7]])
    learned, fixed = LearnedPositions(8, 6), SinusoidalPositions(8, 6)
    assert torch.equal(learned.add(x, positions), learned.table[positions])
    assert torch.equal(fixed.add(x, positions), sinusoid_table(8, 6)[positions])
    assert torch.equal(fixed.add(x.half(), positions), sinusoid_table(8, 6)[positions].half())
    assert Positions().add(x, positions) is x
    assert not list(fixed.state_dict())  # what follows from the config is not stored
    for kind in (Positions(), learned, fixed):
        assert kind.rotation(positions).rotate(x) is x


def test_rotary_turns_the_pairs_of_the_two_halves_by_position_times_frequency():
    """D = 4, base 100: pair (0, 2) turns 1 radian a position, pair (1, 3) turns 1/10."""
    rotary = RotaryPositions(8, 4, base=100.0)
    x = torch.tensor([[[[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]]])
    turned = rotary.rotation(torch.tensor([[3, 3, 3]])).rotate(x)[0, 0]
    cos3, sin3, cos03, sin03 = math.cos(3), math.sin(3), math.cos(0.3), math.sin(0.3)
    expected = torch.tensor([[cos3, 0.0, sin3, 0.0], [0.0, cos03, 0.0, sin03], [-sin3, 0.0, cos3, 0.0]])
    torch.testing.assert_close(turned, expected)
    assert torch.equal(rotary.rotation(torch.tensor([[0, 0, 0]])).rotate(x), x)
    assert not list(rotary.state_dict())


@given(
    first=st.integers(0, 40), second=st.integers(0, 40), shift=st.integers(0, 80), half=st.integers(1, 4),
    seed=st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_rotary_scores_depend_on_the_distance_alone_and_lengths_stay(first, second, shift, half, seed):
    rotary = RotaryPositions(128, 2 * half)
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, 1, 1, 1, 2 * half, generator=generator)

    def rotate(x: torch.Tensor, position: int) -> torch.Tensor:
        return rotary.rotation(torch.tensor([[position]])).rotate(x)

    score = (rotate(query, first) * rotate(key, second)).sum()
    shifted = (rotate(query, first + shift) * rotate(key, second + shift)).sum()
    torch.testing.assert_close(score, shifted, rtol=0, atol=1e-4)
    torch.testing.assert_close(rotate(query, first).norm(), query.norm())


def test_rotary_angles_far_from_the_start_are_exact():
    """Angles are made in double precision: at position 100,000 a single-precision product would be off by 0.004."""
    rotary = RotaryPositions(100_001, 4, base=7.0)
    angle = 100_000 / math.sqrt(7.0)
    assert rotary.cosine[100_000, 1].item() == pytest.approx(math.cos(angle), abs=1e-7)
    assert rotary.signed_sine[100_000, 3].item() == pytest.approx(math.sin(angle), abs=1e-7)
    assert rotary.signed_sine[100_000, 1].item() == pytest.approx(-math.sin(angle), abs=1e-7)


def test_linear_scaling_divides_positions_and_ntk_keeps_the_first_pair_and_stretches_the_last_by_the_factor():
    plain = rotary_frequencies(8, 10000.0, None)
    assert plain.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])
    assert torch.equal(rotary_frequencies(8, 10000.0, RotaryScaling(kind="linear", factor=4.0)), plain / 4)
    ntk = rotary_frequencies(8, 10000.0, RotaryScaling(kind="ntk", factor=4.0))
    assert ntk[0] == 1.0
    assert ntk[-1].item() == pytest.approx(plain[-1].item() / 4)
    for kind in ("linear", "ntk"):
        torch.testing.assert_close(rotary_frequencies(8, 10000.0, RotaryScaling(kind=kind)), plain)


def test_llama3_scaling_keeps_high_frequencies_divides_low_ones_and_joins_them():
    scaling = RotaryScaling(kind="llama3", factor=8.0, original_context=100)
    plain = rotary_frequencies(64, 10000.0, None)
    scaled = rotary_frequencies(64, 10000.0, scaling)
    wavelengths = 2 * math.pi / plain
    high, low = wavelengths < 100 / 4, wavelengths > 100 / 1
    assert high.any()
    assert low.any()
    assert (~high & ~low).any()
    torch.testing.assert_close(scaled[high], plain[high])
    torch.testing.assert_close(scaled[low], plain[low] / 8)
    between = (scaled / plain)[~high & ~low]
    assert ((between < 1) & (between > 1 / 8)).all()
    assert (between.diff() < 0).all()
