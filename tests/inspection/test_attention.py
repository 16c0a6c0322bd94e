"""Attention as it is shown: the weights of the model's own pass, whole or in blocks, in tables and in charts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection import attention_weights as shown_weights
from mingyue.inspection.attention import attention_view
from mingyue.nn import Taps


def cells(table):
    return [list(row) for row in table.rows]


@pytest.mark.parametrize("changes", [{}, {"window": 4}, {"positions": "learned", "norm_placement": "post"}])
def test_rows_sum_to_one_and_hidden_cells_are_exactly_zero(lively, changes):
    subject = lively(**changes)
    reading = subject.read("abcabcxyzab")
    view = attention_view(subject, reading)
    weights_LHTS = view.weights_LHTS
    assert weights_LHTS.shape == (2, 4, 11, 11)
    np.testing.assert_allclose(weights_LHTS.sum(-1), 1.0, atol=1e-5)
    place = np.arange(11)
    seen_TS = place[:, None] >= place
    if "window" in changes:
        seen_TS &= place[:, None] - place < 4
    assert (weights_LHTS[:, :, ~seen_TS] == 0).all()
    assert (weights_LHTS[:, :, seen_TS] > 0).all()
    np.testing.assert_array_equal(view.part("self").allowed_TS, seen_TS)


def test_the_weights_are_those_of_the_pass_itself(lively):
    subject = lively()
    reading = subject.read("hello")
    taps = Taps("blocks.1.attention.weights")
    with torch.no_grad():
        subject.logits(reading, taps)
    shown_HTS = attention_view(subject, reading).weights_LHTS[1]
    np.testing.assert_allclose(shown_HTS, taps.values["blocks.1.attention.weights"][0].numpy(), atol=1e-5)


def test_a_pair_has_three_sets_with_source_and_target_of_different_length(lively_pairs):
    subject = lively_pairs()
    view = attention_view(subject, subject.read("xyz", "abcdef"))
    shapes = {part.part: part.weights_LHTS.shape for part in view.parts}
    assert shapes == {"encoder": (3, 4, 7, 7), "decoder": (2, 4, 4, 4), "cross": (2, 4, 4, 7)}
    for part in view.parts:
        np.testing.assert_allclose(part.weights_LHTS.sum(-1), 1.0, atol=1e-5)
    assert (view.part("encoder").weights_LHTS > 0).all()
    assert (np.triu(view.part("decoder").weights_LHTS, 1) == 0).all()
    assert view.part("cross").columns == ("a", "b", "c", "d", "e", "f", "<eos>")
    assert view.part("cross").rows == ("<bos>", "x", "y", "z")
    with pytest.raises(ValueError, match="unpack"):
        _ = view.weights_LHTS


def test_known_heads_have_the_numbers_that_they_must_have(known):
    text = "abcdeabcde"
    statistics = attention_view(known, known.read(text)).part("self").statistics
    steps = np.arange(10)
    assert statistics.distance_LH[0, 0] == pytest.approx(0.9, abs=1e-3)  # the first of ten sees only itself
    assert statistics.distance_LH[0, 1] == pytest.approx(0.0, abs=1e-3)
    assert statistics.distance_LH[0, 2] == pytest.approx(steps.mean(), abs=1e-3)
    assert statistics.distance_LH[0, 3] == pytest.approx((steps / 2).mean(), abs=1e-3)
    assert statistics.entropy_LH[0, :3] == pytest.approx([0, 0, 0], abs=1e-3)
    assert statistics.entropy_LH[0, 3] == pytest.approx(np.log2(steps + 1).mean(), abs=1e-3)
    assert statistics.first_LH[0] == pytest.approx([0.2, 0.1, 1.0, (1 / (steps + 1)).mean()], abs=1e-3)
    uniform = attention_view(known, known.read(text)).part("self").uniform
    assert uniform.entropy_LH[0, 0] == pytest.approx(statistics.entropy_LH[0, 3], abs=1e-3)
    query, key = statistics.strongest_LH2[0, 2]
    assert query > 0, "the first token has no choice"
    assert key == 0


def test_the_share_on_the_end_mark_is_counted_where_there_is_one(known_pairs):
    view = attention_view(known_pairs, known_pairs.read("abc", "defgh"))
    assert view.part("cross").statistics.end_LH[0, 1] == pytest.approx(1.0, abs=1e-3)
    assert view.part("encoder").statistics.end_LH[0, 1] == pytest.approx(1.0, abs=1e-3)
    assert np.isnan(view.part("decoder").statistics.end_LH).all()
    assert np.isnan(view.part("cross").statistics.distance_LH).all()


def test_without_a_head_a_table_has_a_row_for_each_head_and_one_of_uniform_attention(lively, lively_pairs):
    subject = lively()
    (table,) = attention_view(subject, subject.read("abcd")).tables()
    assert [row[:2] for row in cells(table)[:-1]] == [[str(i), str(h)] for i in range(2) for h in range(4)]
    assert cells(table)[-1][0] == "uniform"
    assert set(table.right) < set(table.columns)
    subject = lively_pairs()
    tables = attention_view(subject, subject.read("abcd", "xyz")).tables("zh")
    assert [len(table.rows) for table in tables] == [13, 9, 9]
    assert tables[2].title == "交叉注意力：各个头的权重"
    assert "平均距离" not in tables[2].columns, "tokens of two texts have no distance"


def test_one_layer_shows_its_heads_and_one_head_all_its_layers(lively):
    subject = lively()
    reading = subject.read("abcd")
    every = attention_view(subject, reading).weights_LHTS
    layer = attention_view(subject, reading, layer=1)
    np.testing.assert_allclose(layer.weights_LHTS, every[1:], atol=1e-5)
    assert [row[0] for row in layer.tables()[0].rows] == ["1"] * 4 + ["uniform"]
    head = attention_view(subject, reading, head=2)
    np.testing.assert_array_equal(head.weights_LHTS, every[:, 2:3])
    assert head.part("self").heads == (2,)


def test_a_short_map_is_printed_as_numbers_with_hidden_cells_empty(known):
    (table,) = attention_view(known, known.read("abc"), layer=0, head=0).tables()
    assert table.columns == ["", "0:a", "1:b", "2:c"]
    assert cells(table) == [["0:a", "1.00", "", ""], ["1:b", "1.00", "0.00", ""], ["2:c", "0.00", "1.00", "0.00"]]


def test_a_long_map_is_printed_as_the_three_tokens_most_looked_at(known):
    (table,) = attention_view(known, known.read("abcdefghijklmnopqrst"), layer=0, head=0).tables("en")
    assert len(table.rows) == 20
    assert cells(table)[7][:3] == ["7", "h", "6:g 1.00"]
    assert cells(table)[0] == ["0", "a", "0:a 1.00", "", ""]


def test_a_layer_that_only_the_encoder_has_shows_the_encoder(lively_pairs):
    subject = lively_pairs()
    reading = subject.read("abcd", "xyz")
    assert [part.part for part in attention_view(subject, reading, layer=2, head=1).parts] == ["encoder"]
    assert len(attention_view(subject, reading, layer=1, head=1).tables()) == 3


@pytest.mark.parametrize(
    ("given", "says"), [({"layer": 2}, "no layer 2.*0 to 1"), ({"head": -1}, "no head -1.*0 to 3")]
)
def test_a_layer_or_head_that_is_not_there_is_named_with_those_that_are(lively, given, says):
    subject = lively()
    with pytest.raises(SettingsError, match=f"(?s){says}"):
        attention_view(subject, subject.read("abcd"), **given)


def test_large_inputs_are_kept_in_blocks_whose_rows_still_sum_to_one(lively, monkeypatch):
    subject = lively()
    reading = subject.read("abcdefghijklmnopqrstu")
    whole = attention_view(subject, reading)
    monkeypatch.setattr(shown_weights, "MOST_CELLS_KEPT", 8 * 6 * 6)
    view = attention_view(subject, reading)
    part = view.part("self")
    assert part.weights_LHTS.shape == (2, 4, 6, 6)
    assert part.in_blocks
    assert part.rows[0] == "0–3:a…"
    assert part.rows[-1] == "20:u…"
    np.testing.assert_allclose(part.weights_LHTS.sum(-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(
        part.weights_LHTS[0, 0, 1, 0], whole.weights_LHTS[0, 0, 4:8, :4].sum(-1).mean(), atol=1e-6
    )
    assert (np.triu(part.weights_LHTS, 1) == 0).all()
    np.testing.assert_allclose(part.statistics.entropy_LH, whole.part("self").statistics.entropy_LH, atol=1e-5)
    assert "21 × 21 tokens are shown as 6 × 6 blocks" in view.charts()[0].note
    assert "6 × 6 块" in view.charts("zh")[0].note


def test_a_picture_of_all_heads_tells_the_text(lively, lively_pairs, monkeypatch):
    subject = lively()
    assert attention_view(subject, subject.read("a bc")).charts()[0].note.endswith("Tokens: a ␣ b c")
    cross = attention_view(lively_pairs(), lively_pairs().read("xy", "ab")).charts("zh")[2]
    assert cross.note.endswith("行的 token：<bos> x y；列的 token：a b <eos>")
    monkeypatch.setattr("mingyue.inspection.attention.MOST_TOKENS_LISTED", 3)
    assert attention_view(subject, subject.read("abcdef")).charts()[0].note.endswith("Tokens: a b c …")


def test_a_text_too_long_to_look_at_is_refused_with_both_numbers(lively, monkeypatch):
    monkeypatch.setattr(shown_weights, "MOST_CELLS_OF_A_LAYER", 4 * 20 * 20)
    subject = lively()
    with pytest.raises(GenerationError, match=r"4 × 21 × 21 = 1,764 weights.*1,600(?s:.*)at most 20 tokens"):
        attention_view(subject, subject.read("abcdefghijklmnopqrstu"))
    attention_view(subject, subject.read("abcdefghijklmnopqrst"))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_charts_of_every_choice_are_drawn_for_pages(lively_pairs, language):
    subject = lively_pairs()
    reading = subject.read("abcd", "xyz")
    every = attention_view(subject, reading)
    one = attention_view(subject, reading, layer=0, head=1)
    assert [chart.to_dict()["kind"] for chart in every.charts(language)] == ["matrix_grid"] * 3
    assert [chart.to_dict()["kind"] for chart in one.charts(language)] == ["matrix"] * 3
    assert all(chart.html() for chart in [*every.charts(language), *one.charts(language)])
    assert one.charts("en")[0].title == "Encoder self-attention, layer 0, head 1"
    assert one.charts("zh")[0].title == "编码器自注意力，第 0 层，头 1"


def test_the_arrays_go_through_json(lively_pairs):
    subject = lively_pairs()
    view = attention_view(subject, subject.read("abcd", "xyz"))
    read = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    np.testing.assert_allclose(read["cross"]["weights_LHTS"], view.part("cross").weights_LHTS, atol=1e-6)
    assert read["cross"]["keys"] == ["x", "y", "z", "<eos>"]
    assert read["decoder"]["end_LH"][0][0] is None


def test_a_space_is_seen_in_tables(lively):
    subject = lively()
    (table,) = attention_view(subject, subject.read("a b"), layer=0, head=0).tables()
    assert table.columns[2] == "1:␣"
    assert table.rows[1][0] == "1:␣"


def test_weights_are_on_a_scale_from_0_to_1_in_every_picture(lively, lively_pairs):
    """V3: so that the same colour is the same weight in all maps of all texts."""
    text, pairs = lively(), lively_pairs()
    for subject, reading in ((text, text.read("abcabc")), (pairs, pairs.read("xyz", "abcdef"))):
        for place in ({}, {"layer": 1}, {"head": 2}, {"layer": 1, "head": 2}):
            charts = attention_view(subject, reading, **place).charts()
            assert {chart.limits for chart in charts} == {(0.0, 1.0)}
            assert all('"low":0.0,"high":1.0' in chart.html() for chart in charts), "the bar on a page"
