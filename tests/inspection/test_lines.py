"""Attention as lines: the weights are those of the model, for the layers, heads and parts that are chosen."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mingyue.errors import NothingToShowError, SettingsError
from mingyue.inspection import capture
from mingyue.inspection.lines import MOST_TOKENS, lines_view


@pytest.mark.parametrize(("layer", "head"), [(None, None), (1, None), (None, 2), (0, 3)])
def test_each_layer_is_a_chart_with_the_weights_of_its_heads(lively, layer, head):
    subject = lively()
    reading = subject.read("abcabc")
    view = lines_view(subject, reading, layer=layer, head=head)
    layers = [0, 1] if layer is None else [layer]
    heads = [0, 1, 2, 3] if head is None else [head]
    charts = view.charts()
    assert len(charts) == len(layers)
    seen = capture(subject, reading, "blocks.*.attention.weights").values
    for number, chart in zip(layers, charts, strict=True):
        expected = seen[f"blocks.{number}.attention.weights"][heads]
        np.testing.assert_allclose(chart.weights, expected, atol=1e-6)
        assert list(chart.left) == list(reading.pieces)
        assert len(chart.series) == len(heads)
        assert f"layer {number}" in chart.title


def test_an_encoder_decoder_model_has_three_parts_or_the_chosen_one(lively_pairs):
    subject = lively_pairs()
    reading = subject.read("abc", "xy")
    assert [part.part for part in lines_view(subject, reading).parts] == ["encoder", "decoder", "cross"]
    assert len(lines_view(subject, reading).charts()) == 3 + 2 + 2
    (cross,) = lines_view(subject, reading, part="cross", layer=1).charts()
    assert (len(cross.left), len(cross.right)) == (4, 3)
    assert [part.part for part in lines_view(subject, reading, layer=2).parts] == ["encoder"]


def test_the_largest_weights_leave_out_queries_without_a_choice(known):
    (table,) = lines_view(known, known.read("abcab"), layer=0, head=0).tables()
    assert [row[2:6] for row in table.rows] == [
        ["1", "b", "0", "a"], ["2", "c", "1", "b"], ["3", "a", "2", "c"], ["4", "b", "3", "a"],
    ]  # fmt: skip
    assert {row[6] for row in table.rows} == {"1.00"}


def test_json_has_the_weights(lively):
    subject = lively()
    view = lines_view(subject, subject.read("abc"), layer=1)
    found = json.loads(json.dumps(view.to_dict(), allow_nan=False))["self"]
    assert np.array(found["weights_LHTS"]).shape == (1, 4, 3, 3)
    assert found["queries"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"layer": 2}, "there is no layer 2"),
        ({"head": 4}, "there is no head 4"),
        ({"part": "cros"}, "no attention called 'cros'"),
    ],
)
def test_what_is_not_there_is_refused(lively, given, says):
    subject = lively()
    with pytest.raises(SettingsError, match=says):
        lines_view(subject, subject.read("abc"), **given)


def test_a_text_of_too_many_tokens_is_refused_with_the_view_that_takes_it(lively):
    subject = lively(context=MOST_TOKENS + 1)
    reading = subject.read("ab" * (MOST_TOKENS // 2) + "c")
    with pytest.raises(NothingToShowError, match="129 tokens are too many") as caught:
        lines_view(subject, reading)
    assert "inspect attention" in str(caught.value.advice)
