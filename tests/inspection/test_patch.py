"""The command of activation patching: its defaults, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection.patch import patch_view
from mingyue.inspection.patching import patching


def test_the_defaults_find_the_answers_of_both_texts(known):
    """The answer after `…b` is what followed b; only the token after the earlier b tells the two texts apart."""
    reading = known.read("abcdefab")
    view = patch_view(known, reading, other="abxdefab")
    assert (view.answer, view.instead, view.position) == ("c", "x", 7)
    assert view.places == ("blocks.0.output", "blocks.1.output")
    np.testing.assert_allclose(view.recovered_PT[:, [2, 7]], [[1, 0], [0, 1]], atol=1e-3)
    same = patching(known, reading, known.read("abxdefab"), answer="c", instead="x")
    np.testing.assert_array_equal(view.recovered_PT, same.recovered_PT)


def test_a_given_token_is_compared_with_the_likeliest_other_one(known):
    reading = known.read("abcdefab")
    assert patch_view(known, reading, other="abxdefab", answer="d").instead == "x"
    assert patch_view(known, reading, other="abxdefab", instead="c").answer != "c"


def test_by_default_the_last_position_whose_predictions_differ_is_compared(lively):
    subject = lively(seed=3)
    clean, corrupted = subject.read("abcde"), subject.read("axcde")
    best = [subject.logits(reading).argmax(-1) for reading in (clean, corrupted)]
    apart = (best[0] != best[1]).nonzero()[-1]
    view = patch_view(subject, clean, other="axcde")
    assert view.position == int(apart)
    assert patch_view(subject, clean, other="axcde", position=1).position == 1


def test_source_texts_are_patched_in_the_encoder_at_the_first_position_that_differs(lively_pairs):
    subject = lively_pairs()
    clean = subject.read("abcd", "xyzw")
    best = [subject.logits(reading).argmax(-1) for reading in (clean, subject.read("abcd", "xqzw"))]
    view = patch_view(subject, clean, other="xqzw")
    assert view.places == tuple(f"encoder.blocks.{layer}.output" for layer in range(3))
    assert view.clean_pieces == ("x", "y", "z", "w", "<eos>")
    assert view.position == int((best[0] != best[1]).nonzero()[0])


def test_other_taps_can_be_patched(lively):
    subject = lively(seed=3)
    taps = ["blocks.*.attention.output", "blocks.0.feedforward.output"]
    view = patch_view(subject, subject.read("abcde"), other="axcde", tap=taps)
    assert view.places == ("blocks.0.attention.output", "blocks.0.feedforward.output", "blocks.1.attention.output")


@pytest.mark.parametrize(
    ("other", "given", "error", "says"),
    [
        ("abcdex", {}, GenerationError, "the clean text has 5 tokens, the corrupted one 6"),
        ("abcde", {}, GenerationError, "after both texts"),
        ("axcde", {"answer": "xy"}, GenerationError, "'xy' is 2 tokens"),
        ("axcde", {"position": 5}, SettingsError, "there is no position 5"),
        ("axcde", {"tap": ["blocks.0.outputs"]}, SettingsError, "no tap 'blocks.0.outputs'"),
    ],
)
def test_what_cannot_be_compared_says_why(lively, other, given, error, says):
    subject = lively(seed=3)
    with pytest.raises(error, match=says):
        patch_view(subject, subject.read("abcde"), other=other, **given)


def test_unequal_texts_are_shown_token_by_token(lively):
    subject = lively()
    with pytest.raises(GenerationError) as caught:
        patch_view(subject, subject.read("abc"), other="ab")
    assert "Clean: a b c\nCorrupted: a b" in str(caught.value.advice)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_short_text_has_every_share_in_its_table(known, language):
    view = patch_view(known, known.read("abcdefab"), other="abxdefab")
    most, shares = view.tables(language)
    assert [row[1:] for row in shares.rows] == [
        [f"{value + 0:.2f}" for value in np.round(row, 2)] for row in view.recovered_PT
    ]
    assert len(most.rows) == 12
    chart = view.charts(language)[0]
    assert chart.limits[1] >= 1.0 and chart.limits[0] == -chart.limits[1]
    assert json.loads(json.dumps(view.to_dict(), allow_nan=False))["position"] == 7
