"""The claim that attention can be followed by hand: its arithmetic, its masks, its figures."""

from __future__ import annotations

import math

import pytest
import torch
from small_forms import CORRECTED, NOT_SUPPORTED, SUPPORTED, judged, small, value

from mingyue.claims.attention import worked_example
from mingyue.claims.registry import find


def test_two_tokens_by_hand_are_what_a_person_computes():
    steps = worked_example._steps_by_hand([[2, 0, 0, 0], [0, 0, 0, 4]], [[1, 0, 0, 0], [0, 0, 0, 0]],
                                          [[1, 0, 0, 0], [0, 1, 0, 0]], [[0, 1], [0, 0]])  # fmt: skip
    assert steps["products"] == [[2, 0], [0, 0]]
    assert steps["scores"] == [[1, 0], [0, 0]]  # divided by √4
    assert steps["masked"] == [[1, -math.inf], [0, 0]]
    assert steps["weights"] == [[1, 0], [0.5, 0.5]]
    assert steps["heads"] == [[1, 0, 0, 0], [0.5, 0.5, 0, 0]]


def test_the_example_agrees_with_the_library_and_the_given_rows_come_back():
    assert find("worked-example").judge(small("worked-example").numbers).verdict == CORRECTED
    assert value("worked-example", "numbers_compared") == 5 * 4 * 4 + 2 * 25
    assert value("worked-example", "seven_later") == pytest.approx(0.08)
    assert value("worked-example", "seven_causal") == pytest.approx(0.7 / 0.92)
    assert sum(worked_example._SEVEN_WEIGHTS) == pytest.approx(1)
    assert all(sum(row) == pytest.approx(1) for row in worked_example._FOUR_WEIGHTS)


def test_a_0_1_matrix_as_it_is_hides_nothing():
    hidden_TS = torch.tensor(worked_example._HIDDEN)
    assert hidden_TS.tolist() == torch.ones(5, 5, dtype=torch.long).triu(1).tolist()
    assert value("worked-example", "added_future") > 0.5
    assert value("worked-example", "multiplied_sum") < 0.9
    assert value("worked-example", "boolean_rows_wrong") == 5


def test_verdicts_follow_the_numbers():
    for name in ("apart", "drawn_apart", "four_apart", "seven_apart", "conventions_apart"):
        assert judged("worked-example", **{name: 1e-3}) == NOT_SUPPORTED
        assert judged("worked-example", **{name: math.nan}) == NOT_SUPPORTED
    assert judged("worked-example", mask_cells_that_differ=1) == NOT_SUPPORTED
    assert judged("worked-example", added_future=0, boolean_rows_wrong=0) == SUPPORTED


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_mask_is_drawn_beside_both_other_conventions_and_numbers_are_written_out(language):
    charts = find("worked-example").draw(small("worked-example"), language)
    assert len(charts) == 6
    mask, _, weights, *_ = charts
    written = [[mark.text for mark in row] for row in mask.cells]
    assert written[0] == ["", "0", "1", "1", "1", "1", "", "T", "F", "F", "F", "F", "", "0", "−∞", "−∞", "−∞", "−∞"]
    assert written[4] == ["", *"00000", "", *"TTTTT", "", *"00000"]
    assert [mark.text for mark in weights.cells[1]] == ["", "1", "1", "−∞", "−∞", "−∞", "", "0.5", "0.5", *"000"]
    given, causal = ([mark.text for mark in row] for row in charts[-1].cells)
    assert given == ["0.7", "0.05", "0.05", "0.1", "0.02", "0.03", "0.05"] and causal[5:] == ["0", "0"]
    assert set(small("worked-example").numbers) <= set(find("worked-example").labels)
    for chart in charts:
        assert chart.spec() and chart.html()
