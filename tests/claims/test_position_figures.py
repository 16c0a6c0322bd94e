"""The clock of sinusoidal positions and the rotation of rotary ones: the hands are the numbers of the models."""

from __future__ import annotations

import math

import pytest
from small_forms import small

from mingyue.charts import DialGrid
from mingyue.claims.registry import find


def test_hands_of_the_clock_begin_upright_and_the_fast_one_goes_one_radian_a_position():
    rows = {(row["position"], row["period"]): row for row in small("sinusoid").tables["clock"]}
    first = [row for (position, _), row in rows.items() if position == "0"]
    assert all((row["x"], row["y"]) == (0, 1) for row in first)
    assert (rows["1", "6.3"]["x"], rows["1", "6.3"]["y"]) == pytest.approx((math.sin(1), math.cos(1)))
    assert all(math.hypot(row["x"], row["y"]) == pytest.approx(1) for row in rows.values())


def test_turned_pairs_have_one_product_for_each_distance():
    rows = small("rotary").tables["turned"]
    for distance in {row["distance"] for row in rows}:
        scores = [row["score"] for row in rows if row["distance"] == distance]
        assert scores == pytest.approx([math.cos(distance * 10000 ** (-4 / 16))] * len(scores), abs=1e-4)
    assert len({(round(row["x"], 3), round(row["y"], 3)) for row in rows}) > 8


@pytest.mark.parametrize("name", ["sinusoid", "rotary"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_they_are_the_first_figure(name, language):
    chart = find(name).draw(small(name), language)[0]
    assert isinstance(chart, DialGrid) and chart.html() and chart.spec()
