"""Tokens joined by lines: what is drawn is the weights, in the image and on the page."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from mingyue.charts import TokenLines, page_of_charts
from mingyue.charts.token_lines import LEAST_WEIGHT, MOST_LINES


def chart(weights=None, **changes) -> TokenLines:
    if weights is None:
        weights = np.array([[[1.0, 0.0], [0.25, 0.75]], [[0.5, 0.5], [0.04, 0.96]]])
    series, left, right = weights.shape
    names = {
        "left": [f"q{number}" for number in range(left)],
        "right": [f"k{number}" for number in range(right)],
        "series": [f"head {number}" for number in range(series)],
    }
    return TokenLines("Lines", weights, **{**names, **changes})


def test_every_weight_above_the_least_is_one_line_the_largest_on_top():
    lines = chart().lines
    found = {(line.series, line.left, line.right): line.weight for line in lines}
    assert found == {
        (0, 0, 0): 1.0, (0, 1, 0): 0.25, (0, 1, 1): 0.75, (1, 0, 0): 0.5, (1, 0, 1): 0.5, (1, 1, 1): 0.96,
    }  # fmt: skip
    assert [line.weight for line in lines] == sorted(line.weight for line in lines)


def test_lines_join_the_rows_of_their_tokens_and_series_are_side_by_side():
    lines = {(line.series, line.left, line.right): line for line in chart().lines}
    labels = {(label.side, label.number): label.y for label in chart().labels()}
    for (_, left, right), line in lines.items():
        assert abs(line.y1 - labels["left", left]) <= 6
        assert abs(line.y2 - labels["right", right]) <= 6
    assert lines[0, 0, 0].y1 != lines[1, 0, 0].y1
    (alone,) = chart(np.ones((1, 1, 1))).lines
    assert alone.y1 == alone.y2 == next(chart(np.ones((1, 1, 1))).labels()).y


def test_the_image_has_the_lines_with_their_weights():
    spec = chart().spec()
    rules = spec["layer"][0]["data"]["values"]
    assert len(rules) == 6
    widths = [rule["w"] for rule in rules]
    assert widths == sorted(widths)
    texts = [row["t"] for layer in spec["layer"][1:] for row in layer["data"]["values"]]
    assert {"q0", "q1", "k0", "k1", "head 0", "head 1"} <= set(texts)
    assert "head 0" not in json.dumps(chart(np.ones((1, 1, 1))).spec())


def test_the_page_has_a_button_for_each_series_and_hover_lines_for_each_token():
    page = chart(left=["<b>", "x"]).html()
    assert page.count("<line ") == 6
    assert len(re.findall(r'<button type="button" data-series="\d"', page)) == 2
    assert "<b>" not in page
    hover = re.search(r'data-left="1" data-hover="([^"]*)"', page)
    assert hover is not None
    assert hover[1].splitlines() == ["x (1)", "head 1: → k1 (1) 0.96", "head 0: → k1 (1) 0.75", "head 0: → k0 (0) 0.25"]
    whole = page_of_charts([chart(), chart()], title="t", language="en")
    assert whole.count("function singleOut") == 1


@pytest.mark.parametrize(
    ("language", "says"), [("en", "Weights below {} are not drawn."), ("zh", "小于 {} 的权重不画。")]
)
def test_the_caption_says_which_weights_are_not_drawn(language, says):
    assert chart(language=language).caption == says.format(LEAST_WEIGHT)
    many = np.linspace(0.5, 1.0, 4 * 40 * 40).reshape(4, 40, 40)
    crowded = chart(many, language=language)
    assert len(crowded.lines) == MOST_LINES
    least = min(line.weight for line in crowded.lines)
    assert crowded.caption == says.format(f"{least:.2g}")


def test_no_weights_at_all_are_drawn_as_tokens_alone():
    empty = chart(np.zeros((2, 3, 3)))
    assert empty.lines == ()
    assert empty.spec()["layer"][0]["data"]["values"] == []
    assert "<line " not in empty.html()


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"weights of shape \(2, 2, 2\) with labels for \(2, 2, 1\)"):
        chart(right=["k"])


def test_values_go_through_json():
    found = json.loads(json.dumps(chart().to_dict(), allow_nan=False))
    np.testing.assert_allclose(found["data"], chart().weights)
    assert found["series"] == ["head 0", "head 1"]


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_it_is_drawn(kind):
    render = pytest.importorskip("mingyue.charts.render")
    pytest.importorskip("vl_convert", reason="extra `plot` is not installed")
    drawn = getattr(render, kind)(render.stacked([chart(left=["a\x07", "月"]), chart()]))
    assert drawn[:4] == (b"\x89PNG" if kind == "png" else "<svg")
