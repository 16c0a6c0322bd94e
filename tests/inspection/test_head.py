"""One head step by step: the steps are the equation, and their end is what the model computed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection import head as module
from mingyue.inspection.head import TOLERANCE, head_view
from mingyue.nn import Taps

KINDS = [
    {},
    {"n_kv_heads": 4, "positions": "learned"},
    {"n_kv_heads": 1},
    {"qk_norm": True},
    {"window": 3},
    {"qk_norm": True, "window": 2, "n_kv_heads": 2},
    {"positions": "sinusoidal", "norm": "layer", "bias_qkv": True, "norm_placement": "post"},
    {"positions": "none", "d_head": 8},
]


def recorded(subject, reading, prefix: str) -> dict[str, torch.Tensor]:
    taps = Taps(f"{prefix}.*")
    with torch.no_grad():
        subject.logits(reading, taps)
    return {name.removeprefix(f"{prefix}."): value[0] for name, value in taps.values.items()}


@pytest.mark.parametrize("changes", KINDS)
@pytest.mark.parametrize(("layer", "head"), [(0, 0), (1, 3)])
def test_the_steps_are_those_of_the_model(lively, changes, layer, head):
    subject = lively(**changes)
    reading = subject.read("abcabcxyz")
    view = head_view(subject, reading, layer=layer, head=head)
    values = recorded(subject, reading, f"blocks.{layer}.attention")
    np.testing.assert_allclose(view.query_TD, values["query"][head], atol=1e-6)
    np.testing.assert_allclose(view.scores_TS, values["scores"][head], atol=1e-5)
    np.testing.assert_allclose(view.weights_TS, values["weights"][head], atol=TOLERANCE)
    np.testing.assert_allclose(view.output_TD, values["heads"][head], atol=TOLERANCE)
    # the equation again, from what the view shows
    d_head = view.query_TD.shape[1]
    np.testing.assert_allclose(view.query_TD @ view.key_SD.T, view.products_TS)
    np.testing.assert_allclose(view.products_TS / np.sqrt(d_head), view.scores_TS)
    exponents_TS = np.where(view.allowed_TS, np.exp(view.scores_TS), 0.0)
    np.testing.assert_allclose(exponents_TS / exponents_TS.sum(1, keepdims=True), view.weights_TS)
    np.testing.assert_allclose(view.weights_TS @ view.value_SD, view.output_TD)
    assert (view.weights_TS[~view.allowed_TS] == 0).all()
    window = changes.get("window", len(reading.pieces))
    assert view.allowed_TS.sum(1).tolist() == [min(t + 1, window) for t in range(len(reading.pieces))]


@pytest.mark.parametrize("part", ["encoder", "decoder", "cross", None])
@pytest.mark.parametrize("changes", [{}, {"qk_norm": True, "positions": "sinusoidal", "n_kv_heads": 1}])
def test_the_heads_of_an_encoder_decoder_model_are_chosen_by_their_part(lively_pairs, part, changes):
    subject = lively_pairs(**changes)
    reading = subject.read("abc", "xyzxyz")
    view = head_view(subject, reading, layer=1, head=2, part=part)
    prefix = {"encoder": "encoder.blocks.1.attention", "decoder": "decoder.blocks.1.attention"}
    values = recorded(subject, reading, prefix.get(part, "decoder.blocks.1.cross_attention"))
    np.testing.assert_allclose(view.output_TD, values["heads"][2], atol=TOLERANCE)
    assert view.part == (part or "cross")
    assert view.weights_TS.shape == {"encoder": (7, 7), "decoder": (4, 4)}.get(part, (4, 7))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_short_text_is_printed_whole_and_the_row_of_a_query_ends_in_its_output(lively, language):
    subject = lively()
    view = head_view(subject, subject.read("abca"), position=2)
    tables = view.tables(language)
    assert len(tables) == 9
    masked = tables[4].rows
    assert [row.count("−∞") for row in masked] == [3, 2, 1, 0]
    row = tables[-1]
    assert row.rows[-1][6:] == [f"{value + 0:.3f}" for value in np.round(view.output_TD[2, :6], 3)]
    assert [cells[4] for cells in row.rows[:4]].count("−∞") == 1
    assert "2" in row.title


def test_a_longer_text_has_only_the_row_and_its_largest_weights(lively):
    subject = lively()
    view = head_view(subject, subject.read("abcdefghijklmnopqrstuv"))
    (row,) = view.tables()
    assert len(row.rows) == 16 + 1
    kept = {int(cells[0]) for cells in row.rows[:-1]}
    assert kept == set(np.argsort(-view.weights_TS[-1], kind="stable")[:16].tolist())


def test_shared_keys_are_said_to_be_shared(lively):
    subject = lively(n_kv_heads=2)
    view = head_view(subject, subject.read("abc"), head=3)
    assert (view.kv_head, view.n_sharing) == (1, 2)
    assert "key-value head 1, which 2 heads share" in view.tables()[-1].note
    alone = lively(n_kv_heads=4)
    assert "share" not in head_view(alone, alone.read("abc"), head=3).tables()[-1].note


@pytest.mark.parametrize("language", ["en", "zh"])
def test_pictures_follow_the_equation_and_json_has_every_matrix(lively, language):
    subject = lively()
    view = head_view(subject, subject.read("abcabc"))
    charts = view.charts(language)
    assert len(charts) == 8
    assert [chart.title[:1] for chart in charts[2:6]] == ["1", "2", "3", "4"]
    found = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    np.testing.assert_allclose(found["weights_TS"], view.weights_TS, rtol=1e-5)
    assert np.array(found["value_SD"]).shape == (6, 6)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"layer": 2}, "there is no layer 2"),
        ({"head": 4}, "there is no head 4"),
        ({"position": 3}, "there is no position 3: the text has 3 tokens"),
        ({"part": "cross"}, "no attention called 'cross'"),
    ],
)
def test_what_is_not_there_is_refused(lively, given, says):
    subject = lively()
    with pytest.raises(SettingsError, match=says):
        head_view(subject, subject.read("abc"), **given)


def test_steps_that_do_not_give_the_output_are_an_error(lively, monkeypatch):
    subject = lively()
    monkeypatch.setattr(module, "TOLERANCE", -1.0)
    with pytest.raises(GenerationError, match="differs from the model's"):
        head_view(subject, subject.read("abc"))
