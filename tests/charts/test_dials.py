"""Dials: where the tips of hands are, what is written, and that both forms draw the same."""

from __future__ import annotations

import re

import pytest

from mingyue.charts import Dial, DialGrid, Hand, colours, markup, write_charts


def grid() -> DialGrid:
    up, right = Hand(0.0, 1.0, "key"), Hand(1.0, 0.0, "query")
    return DialGrid("Dials", [[Dial([up, right], "q·k = 0")], [Dial([right])]], row_labels=["甲", "b <"],
                    column_labels=["6.3"], row_title="position", column_title="period")  # fmt: skip


def test_the_tip_of_a_hand_is_its_pair_of_numbers_with_y_upward():
    drawn = grid()
    (first, second), strokes = list(drawn.rims()), list(drawn.strokes())
    assert first[0] == second[0] and first[1] < second[1]
    up, right, lower = strokes
    assert (up.x2, up.y2) == (first[0], first[1] - drawn.radius)
    assert (right.x2, right.y2) == (first[0] + drawn.radius, first[1])
    assert (lower.x, lower.y) == second
    assert up.colour != right.colour == lower.colour


def test_both_forms_draw_each_hand_and_each_text(tmp_path):
    html, spec = grid().html(), grid().spec()
    assert len(re.findall("<line", html)) == 3 == len(spec["layer"][1]["data"]["values"])
    assert len(re.findall("<circle", html)) == 2 == len(spec["layer"][0]["data"]["values"])
    for text in ("甲", "b &lt;", "6.3", "position", "period", "q·k = 0", "▬ key", "▬ query"):
        assert text in html
    write_charts(tmp_path / "dials.svg", [grid()], title="Dials")
    assert (tmp_path / "dials.svg").read_text(encoding="utf-8").count("<svg") == 1
    assert grid().to_dict()["data"][1][0]["hands"] == [{"x": 1.0, "y": 0.0, "series": "query"}]


def test_hands_and_their_names_have_the_colours_of_dark_pages():
    """V9: they kept the dark blue of light pages."""
    html = grid().html()
    for name in ("key", "query"):
        light = colours.SERIES[("key", "query").index(name)]
        dark = colours.DARK[light]
        assert re.search(f'<line [^>]*style="--dark:{dark}" stroke="{light}"', html)
        assert re.search(f'<text [^>]*style="--dark:{dark}" fill="{light}">▬ {name}', html)
    assert {".hand { stroke: var(--dark); }", ".of-dial { fill: var(--dark); }"} <= {
        line.strip() for line in markup.asset("page.css").splitlines()
    }


def test_labels_that_do_not_fit_are_an_error():
    with pytest.raises(ValueError, match="2 row labels"):
        DialGrid("Dials", [[Dial([])]], row_labels=["a", "b"], column_labels=["c"])
