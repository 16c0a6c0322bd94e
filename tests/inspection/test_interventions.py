"""Edits change what they should and nothing before it; patching says where the difference of two texts is held."""

from __future__ import annotations

import doctest
import json

import numpy as np
import pytest
import torch

from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection import capture, interventions
from mingyue.inspection.interventions import edited_logits, patching, replace_vector, switch_off
from mingyue.inspection.taps import tap_names

PARTS = {
    "encoder": "encoder.blocks.1.attention.heads",
    "decoder": "decoder.blocks.1.attention.heads",
    "cross": "decoder.blocks.1.cross_attention.heads",
}


def test_the_example_of_the_module_runs():
    result = doctest.testmod(interventions)
    assert result.attempted > 10
    assert result.failed == 0


def test_a_head_that_is_off_changes_what_comes_after_it_and_nothing_before(lively):
    subject = lively()
    reading = subject.read("abcabc")
    places = tap_names(subject)
    plain = capture(subject, reading, "*").values
    edited = capture(subject, reading, "*", switch_off(1, 2)).values
    at = places.index("blocks.1.attention.heads")
    for place in places[:at]:
        assert torch.equal(plain[place], edited[place]), place
    assert (edited["blocks.1.attention.heads"][2] == 0).all()
    others = [0, 1, 3]
    assert torch.equal(edited["blocks.1.attention.heads"][others], plain["blocks.1.attention.heads"][others])
    for place in places[at + 1 :]:
        assert not torch.equal(plain[place], edited[place]), place


@pytest.mark.parametrize("part", PARTS)
def test_heads_of_pairs_are_switched_off_by_their_part(lively_pairs, part):
    subject = lively_pairs()
    reading = subject.read("abcd", "xyzuv")
    seen = capture(subject, reading, "*.blocks.*.*.heads", switch_off(1, 3, part)).values
    silent = [place for place, heads_HTD in seen.items() if bool((heads_HTD[3] == 0).all())]
    assert silent == [PARTS[part]]


def test_a_vector_goes_to_its_position_and_earlier_positions_stay(lively):
    subject = lively()
    reading = subject.read("abcabc")
    plain_TV = subject.logits(reading).detach()
    vector = torch.arange(16.0)
    edits = replace_vector("blocks.0.output", 3, vector)
    seen = capture(subject, reading, "blocks.0.output", edits)
    np.testing.assert_allclose(seen.values["blocks.0.output"][3], vector)
    assert torch.equal(seen.logits_TV, edited_logits(subject, reading, edits))
    np.testing.assert_allclose(seen.logits_TV[:3], plain_TV[:3], rtol=0, atol=1e-5)
    assert ((seen.logits_TV[3:] - plain_TV[3:]).abs().amax(-1) > 1e-3).all()


def test_vectors_of_heads_and_numbers_fit_too(lively):
    subject = lively()
    reading = subject.read("abc")
    for vector in (torch.randn(4, 6), torch.randn(6), [0.5] * 6, 0.0):
        place = "blocks.0.attention.query"
        value = capture(subject, reading, place, replace_vector(place, -1, vector)).values[place]
        expected = torch.as_tensor(vector).expand(4, 6)
        np.testing.assert_allclose(value[:, 2], expected)


def test_several_edits_are_one_dict(lively):
    subject = lively()
    reading = subject.read("abcabc")
    both = edited_logits(subject, reading, switch_off(0, 1) | switch_off(1, 1))
    assert not torch.equal(both, edited_logits(subject, reading, switch_off(0, 1)))
    assert not torch.equal(both, edited_logits(subject, reading, switch_off(1, 1)))


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        (
            switch_off(2, 0),
            "no tap 'blocks.2.attention.heads'(?s:.*)Did you mean 'blocks.[01].attention.heads'",
        ),
        (switch_off(0, 4), "no head 4 at blocks.0.attention.heads(?s:.*)0 to 3"),
        (switch_off(0, -1), "no head -1"),
        (replace_vector("block.0.output", 0, 0.0), "'block.0.output'(?s:.*)Did you mean 'blocks.0.output'"),
        (replace_vector("blocks.0.output", 3, 0.0), "no position 3 at blocks.0.output(?s:.*)0 to 2"),
        (
            replace_vector("blocks.0.output", 0, [1.0, 2.0]),
            r"shape \[2\] does not fit blocks.0.output, which has \[16\]",
        ),
        ({"blocks.*.atention.heads": lambda value: value}, "no tap"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(lively, edits, says):
    subject = lively()
    with pytest.raises(SettingsError, match=says):
        edited_logits(subject, subject.read("abc"), edits)


def test_an_unknown_part_is_refused_at_once():
    with pytest.raises(SettingsError, match="'heads' is not one of self, encoder, decoder, cross"):
        switch_off(0, 0, "heads")


def test_patching_finds_where_a_known_model_holds_the_difference(known):
    """The answer after `…b` is what followed b; only the token after the earlier b tells the two texts apart."""
    clean, corrupted = known.read("abcdefab"), known.read("abxdefab")
    view = patching(known, clean, corrupted, answer="c", instead="x", places=["embeddings", "blocks.*.output"])
    assert view.places == ("embeddings", "blocks.0.output", "blocks.1.output")
    assert view.clean_difference > 5
    assert view.corrupted_difference < -5
    expected = np.zeros((3, 8))
    expected[0, 2] = expected[1, 2] = 1.0  # where the token stands, until the second block has moved it
    expected[2, 7] = 1.0  # to where the answer is read
    np.testing.assert_allclose(view.recovered_PT, expected, atol=1e-3)
    assert view.tables()[0].rows[0][4] in ("1.00",)
    assert view.tables()[0].rows[0][2] in ("x←c", "b")


def test_the_last_vector_is_all_that_the_answer_sees(lively_pairs):
    subject = lively_pairs()
    clean, corrupted = subject.read("xyz", "abcde"), subject.read("xyz", "abfde")
    view = patching(subject, clean, corrupted, answer="k", instead="m")
    assert view.places == ("decoder.blocks.0.output", "decoder.blocks.1.output")
    np.testing.assert_allclose(view.recovered_PT[-1, -1], 1.0, atol=1e-4)
    np.testing.assert_allclose(view.recovered_PT[-1, :-1], 0.0, atol=1e-4)
    source = patching(subject, clean, corrupted, answer="k", instead="m", places="encoder.embeddings")
    np.testing.assert_allclose(source.recovered_PT[0], [0, 0, 1, 0, 0, 0], atol=1e-4)
    assert source.clean_pieces == ("a", "b", "c", "d", "e", "<eos>")
    keys = patching(subject, clean, corrupted, answer="k", instead="m", places="decoder.blocks.*.cross_attention.key")
    assert keys.recovered_PT.shape == (2, 6)


@pytest.mark.parametrize("place", ["blocks.0.attention.value", "blocks.1.attention.weights", "final", "logits"])
def test_any_place_can_be_patched_and_batches_change_nothing(lively, monkeypatch, place):
    subject = lively()
    clean, corrupted = subject.read("abcabc"), subject.read("xbcabc")
    whole = patching(subject, clean, corrupted, answer="a", instead="b", places=place)
    monkeypatch.setattr("mingyue.inspection.patching.MOST_LOGITS", 1)
    alone = patching(subject, clean, corrupted, answer="a", instead="b", places=place)
    np.testing.assert_allclose(alone.recovered_PT, whole.recovered_PT, atol=1e-4)
    by_hand = replace_vector(place, 5, capture(subject, clean, place).values[place][..., 5, :])
    logits_V = edited_logits(subject, corrupted, by_hand)[-1]
    a, b = (subject.tokenizer.encode(letter)[0] for letter in "ab")
    assert whole.difference_PT[0, 5] == pytest.approx(float(logits_V[a] - logits_V[b]), abs=1e-4)


@pytest.mark.parametrize(
    ("corrupted", "given", "error", "says"),
    [
        ("abcd", {}, GenerationError, "clean text has 3 tokens, the corrupted one 4"),
        ("xbc", {"answer": "ab"}, GenerationError, "'ab' is 2 tokens, not 1"),
        ("xbc", {"answer": 999}, GenerationError, "no token 999"),
        ("abc", {}, GenerationError, "same logit difference"),
        ("xbc", {"places": "blocks.*.outputs"}, SettingsError, "no tap 'blocks.[*].outputs'"),
        ("xbc", {"at": 3}, SettingsError, "no position 3: the texts have 3 tokens"),
    ],
)
def test_what_cannot_be_patched_says_why(lively, corrupted, given, error, says):
    subject = lively()
    with pytest.raises(error, match=says):
        patching(subject, subject.read("abc"), subject.read(corrupted), **{"answer": "a", "instead": "b", **given})


def test_places_of_both_texts_are_not_patched_together(lively_pairs):
    subject = lively_pairs()
    clean, corrupted = subject.read("xyz", "abc"), subject.read("xyz", "abd")
    with pytest.raises(SettingsError, match="different positions"):
        patching(subject, clean, corrupted, answer="a", instead="b", places=["encoder.final", "decoder.final"])


def test_names_of_places_are_those_of_the_running_code(lively, lively_pairs):
    places = tap_names(lively())
    assert places[:2] == ("embeddings", "blocks.0.attention.query")
    assert places[-2:] == ("final", "logits")
    assert len(places) == 3 + 2 * 11
    assert "decoder.blocks.1.cross_attention.weights" in tap_names(lively_pairs())


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_patching_view_is_drawn_and_goes_through_json(lively, language):
    subject = lively()
    view = patching(subject, subject.read("abc"), subject.read("xbc"), answer="a", instead="b")
    (chart,) = view.charts(language)
    assert chart.to_dict()["column_labels"] == ["x←a", "b", "c"]
    layers = ["layer 0", "layer 1"] if language == "en" else ["第 0 层", "第 1 层"]
    assert chart.to_dict()["row_labels"] == layers
    assert chart.html()
    assert len(view.tables(language)[0].rows) == 6
    read = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    np.testing.assert_allclose(read["recovered_PT"], view.recovered_PT, rtol=1e-5, atol=1e-6)


def test_places_of_different_kinds_are_shown_by_their_whole_names(lively):
    subject = lively()
    places = ["embeddings", "blocks.0.attention.output", "blocks.0.feedforward.output"]
    view = patching(subject, subject.read("abc"), subject.read("xbc"), answer="a", instead="b", places=places)
    assert view.charts()[0].to_dict()["row_labels"] == places
    view = patching(subject, subject.read("abc"), subject.read("xbc"), answer="a", instead="b", places=places[:1])
    assert view.charts()[0].to_dict()["row_labels"] == places[:1]
