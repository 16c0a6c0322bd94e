"""Text coloured by attention: the colours are rows and columns of the model's own weights."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mingyue.errors import SettingsError
from mingyue.inspection import attention_weights, capture
from mingyue.inspection.attended import attended_view


@pytest.mark.parametrize(("layer", "head"), [(None, None), (1, None), (None, 2), (0, 3)])
@pytest.mark.parametrize("at_once", [True, False])
def test_weights_are_means_over_what_is_not_chosen(lively, monkeypatch, layer, head, at_once):
    if not at_once:
        monkeypatch.setattr(attention_weights, "MOST_CELLS_KEPT", 1)
    subject = lively()
    reading = subject.read("abcabc")
    view = attended_view(subject, reading, position=3, layer=layer, head=head)
    seen = capture(subject, reading, "blocks.*.attention.weights").values
    layers = [0, 1] if layer is None else [layer]
    heads = [0, 1, 2, 3] if head is None else [head]
    mean_TS = np.mean([seen[f"blocks.{one}.attention.weights"][heads].numpy() for one in layers], axis=(0, 1))
    np.testing.assert_allclose(view.weights_S, [*mean_TS[3, :4], np.nan, np.nan], atol=1e-6)
    np.testing.assert_allclose(view.received_T, [np.nan] * 3 + [*mean_TS[3:, 3]], atol=1e-6)
    assert view.key_position == view.position == 3


def test_by_default_the_last_position_is_shown_which_nothing_else_attends_to(lively):
    subject = lively()
    view = attended_view(subject, subject.read("abcd"))
    assert view.position == 3
    assert np.nansum(view.weights_S) == pytest.approx(1.0, abs=1e-5)
    assert len(view.charts()) == len(view.tables()) == 1
    assert "No other token can attend to this one" in view.tables()[0].note
    assert len(attended_view(subject, subject.read("abcd"), position=1).charts()) == 2


@pytest.mark.parametrize("part", ["encoder", "decoder", "cross", None])
def test_both_texts_of_a_pair_are_coloured(lively_pairs, part):
    subject = lively_pairs()
    view = attended_view(subject, subject.read("abc", "xyzw"), position=1, part=part)
    source, target = ("x", "y", "z", "w", "<eos>"), ("<bos>", "a", "b", "c")
    expected = {"encoder": (source, source), "decoder": (target, target)}.get(part, (target, source))
    assert (view.query_pieces, view.key_pieces) == expected
    if part in ("cross", None):
        assert view.key_position == int(np.argmax(view.weights_S))
        assert np.isfinite(view.received_T).all()
        assert "of the source text" in view.charts()[1].title
    assert view.received_T[1] == pytest.approx(view.weights_S[view.key_position])


def test_pictures_have_one_scale_and_no_colour_where_nothing_may_be_attended_to(known):
    view = attended_view(known, known.read("abc"), position=1, layer=0, head=0)
    first, second = view.charts()
    assert (first.low, first.high) == (second.low, second.high) == (0.0, 1.0)
    assert [mark.text for mark in first.marks] == ["a", "b", "c"]
    assert [mark.value is None for mark in first.marks] == [False, False, True]
    assert first.marks[0].value == pytest.approx(1.0, abs=1e-4)
    uniform = attended_view(known, known.read("abcdefghijklmnopqrstuvw"), layer=1, head=2)
    assert uniform.charts()[0].high == 0.1


@pytest.mark.parametrize("language", ["en", "zh"])
def test_tables_list_the_largest_weights_and_json_has_all(lively, language):
    subject = lively()
    view = attended_view(subject, subject.read("abcdefghijklmnopqrstuv"), position=20)
    table = view.tables(language)[0]
    weights = [float(row[2]) for row in table.rows]
    assert len(weights) == 16
    assert weights == sorted(weights, reverse=True)
    found = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    assert found["weights_S"][21] is None
    np.testing.assert_allclose(found["weights_S"][:21], view.weights_S[:21], rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"layer": 2}, "there is no layer 2"),
        ({"head": 4}, "there is no head 4"),
        ({"position": 3}, "there is no position 3"),
        ({"part": "decoder"}, "no attention called 'decoder'"),
    ],
)
def test_what_is_not_there_is_refused(lively, given, says):
    subject = lively()
    with pytest.raises(SettingsError, match=says):
        attended_view(subject, subject.read("abc"), **given)
