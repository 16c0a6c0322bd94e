"""One word in several contexts: the vectors are the model's, and what cannot differ does not."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from mingyue.charts.side_labels import shown
from mingyue.errors import GenerationError
from mingyue.inspection import Subject
from mingyue.inspection.tokens import occurrences
from mingyue.inspection.vectors import vectors_view
from mingyue.inspection.word_vectors import MOST_OCCURRENCES, principal_plane
from mingyue.nn import Taps
from mingyue.text import byte_tokenizer, train_bpe


def test_the_vectors_are_those_of_the_pass_and_the_static_one_is_the_same(lively):
    subject = lively(positions="learned")
    texts = ["abcwd", "xyzzw"]
    view = vectors_view(subject, "w", texts)
    assert view.places_L == ("static", "embeddings", "blocks.0.output", "blocks.1.output", "final")
    for number, text in enumerate(texts):
        taps = Taps("*")
        with torch.no_grad():
            subject.logits(subject.read(text), taps)
        spot = text.index("w")
        row = subject.module.embedding.weight[subject.tokenizer.encode("w")[0]]
        np.testing.assert_array_equal(view.vectors_LNM[0, number], row.detach().numpy())
        for place in (1, 2, 3, 4):
            expected = taps.values[view.places_L[place]][0, spot].numpy()
            np.testing.assert_allclose(view.vectors_LNM[place, number], expected, atol=1e-5)
    one, other = view.vectors_LNM[-1].astype(float)
    cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    assert view.cosines_LNN[-1, 0, 1] == pytest.approx(cosine, abs=1e-6)
    assert view.cosines_LNN[0] == pytest.approx(np.ones((2, 2)), abs=1e-6)
    assert view.cosines_LNN[-1, 0, 1] < 0.99
    assert view.alike == ()


def test_in_a_causal_model_what_follows_the_word_changes_nothing_and_the_view_says_so(lively):
    view = vectors_view(lively(), "w", ["wabc", "wxyz", "pqwab", "pqwzz", "aw"])
    assert view.alike == ((0, 1), (2, 3))
    assert view.alike_apart < 1e-5
    english, chinese = view.tables("en")[0].note, view.tables("zh")[0].note
    assert "Occurrences (1 = 2, 3 = 4)" in english
    assert "cannot differ" in english
    assert "有几处（1 = 2、3 = 4）" in chinese
    assert "不可能不同" in chinese
    assert view.tables("en")[1].rows[0][-1] == "only itself"
    different = vectors_view(lively(), "w", ["aw", "bw"])
    assert "cannot differ" not in different.tables("en")[0].note


def test_in_an_encoder_the_same_beginning_does_not_make_vectors_equal(lively_pairs):
    subject = lively_pairs()
    view = vectors_view(subject, "w", ["wabc", "wxyz", "wxyz"])
    assert view.places_L[1:] == (
        "encoder.embeddings", *(f"encoder.blocks.{layer}.output" for layer in range(3)), "encoder.final",
    )  # fmt: skip
    assert view.alike == ((1, 2),)
    assert view.cosines_LNN[-1, 0, 1] < 0.999
    assert view.cosines_LNN[-1, 1, 2] == pytest.approx(1.0, abs=1e-5)
    assert "whole text" in view.tables("en")[0].note
    with torch.no_grad():
        ids = torch.tensor([[*subject.source_tokenizer.encode("wabc"), subject.source_tokenizer.eos_id]])
        memory = subject.module.encode(ids)[0, 0].numpy()
    np.testing.assert_allclose(view.vectors_LNM[-1, 0], memory, atol=1e-5)


def test_a_source_side_with_its_own_vocabulary_has_its_own_static_vectors(lively_pairs, letters):
    subject = lively_pairs(source_vocab_size=letters.vocab_size)
    view = vectors_view(subject, "w", ["aw", "bw"])
    row = subject.module.source_embedding.weight[letters.encode("w")[0]].detach().numpy()
    np.testing.assert_array_equal(view.vectors_LNM[0, 0], row)


def test_a_word_of_several_tokens_has_the_vector_of_its_last_one_and_every_occurrence_counts(lively):
    view = vectors_view(lively(), "bc", ["abcxbc", "xxbc"])
    assert view.pieces == ("b", "c")
    assert view.text_N.tolist() == [0, 0, 1]
    assert view.position_N.tolist() == [2, 5, 3]
    assert "2 tokens (b + c)" in view.tables("en")[0].note
    assert "最后一个 token" in view.tables("zh")[0].note
    assert view.pieces_N == ("c", "c", "c")
    assert [row[3] for row in view.tables("en")[1].rows] == ["c", "c", "c"]
    assert view.labels_N == ("1. a[bc]xbc", "2. abcx[bc]", "3. xx[bc]")


def test_more_occurrences_than_can_be_shown_are_said(lively):
    view = vectors_view(lively(), "a", ["ab" * 16, "ba" * 16])
    assert (len(view.labels_N), view.found) == (MOST_OCCURRENCES, 32)
    more = vectors_view(lively(), "a", ["ab" * 16, "ba" * 16, "ac"])
    assert (len(more.labels_N), more.found) == (MOST_OCCURRENCES, 33)
    assert "first 32 of 33" in more.tables("en")[0].note


def test_the_baseline_is_other_tokens_only_and_depends_on_the_seed_alone(lively):
    texts = ["abcdefghwklm", "nopqrstuvwxyz"]
    subject = lively()
    one, again, other = (vectors_view(subject, "w", texts, seed=seed).baseline_L3 for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one[:, 1] <= one[:, 0]).all()
    assert (one[:, 0] <= one[:, 2]).all()
    assert np.isfinite(other).all()
    # Two other tokens make one pair: its cosine is known.
    small = vectors_view(subject, "w", ["awb", "w"])
    with torch.no_grad():
        a, b = (subject.module.embedding.weight[subject.tokenizer.encode(c)[0]] for c in "ab")
        expected = torch.cosine_similarity(a, b, dim=0).item()
    assert small.baseline_L3[0].tolist() == pytest.approx([expected] * 3, abs=1e-6)
    nothing = vectors_view(subject, "w", ["aw", "w"])
    assert np.isnan(nothing.baseline_L3).all()
    assert "no other tokens" in nothing.tables("en")[0].note
    nothing.charts("en")


def test_the_plane_is_the_one_of_the_largest_variance():
    generator = np.random.default_rng(0)
    flat = generator.normal(size=(20, 2)) * [5.0, 2.0]
    basis = np.linalg.qr(generator.normal(size=(6, 2)))[0].T
    vectors = (flat @ basis + 3.0).astype(np.float32)
    plane, shares = principal_plane(vectors)
    distances = np.linalg.norm(flat[:, None] - flat, axis=-1)
    found = np.linalg.norm(plane[:, None] - plane, axis=-1)
    np.testing.assert_allclose(found, distances, atol=1e-4)
    assert shares.sum() == pytest.approx(1.0, abs=1e-5)
    assert shares[0] > shares[1] > 0
    same, none = principal_plane(np.ones((3, 6), dtype=np.float32))
    assert (same == 0).all()
    assert (none == 0).all()


@pytest.mark.parametrize(
    ("word", "texts", "message"),
    [
        ("w", ["aw", "bcd"], "text 2 does not have the word 'w': 'bcd'"),
        ("w", ["aw"], "occurs 1 time"),
        ("w", [], "occurs 0 times"),
        ("", ["aw", "w"], "is empty"),
        ("w", ["w" + "a" * 40, "w"], "text 1: the text has 41 tokens"),
        ("w", ["w"] * 65, "65 texts, at most 64"),
    ],
)
def test_what_cannot_be_compared_is_said(lively, word, texts, message):
    with pytest.raises(GenerationError, match=message):
        vectors_view(lively(), word, texts)


def test_a_source_that_is_too_long_is_named(lively_pairs):
    with pytest.raises(GenerationError, match=r"text 2: the source text has 41 tokens"):
        vectors_view(lively_pairs(), "w", ["w", "w" * 40])


@pytest.mark.parametrize(("text", "word", "places"), [("a打b打", "打", [(1, 3), (5, 7)]), ("打", "打", [(0, 2)])])
def test_words_are_found_by_characters_where_tokens_are_parts_of_them(text, word, places):
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(text)
    assert [(spot.first, spot.last) for spot in occurrences(tokenizer, ids, word)] == places
    marked = [tokenizer.bos_id, *ids]
    assert [(spot.first - 1, spot.last - 1) for spot in occurrences(tokenizer, marked, word)] == places


def test_a_word_that_is_another_token_elsewhere_is_said(lively):
    words = train_bpe(["a king a king a king\nking "] * 50, vocab_size=270)
    subject = Subject(lively(vocab_size=words.vocab_size).module, words)
    view = vectors_view(subject, "king", ["a king", "king"])
    assert len(set(view.token_N.tolist())) == 2
    assert "last token is not the same everywhere" in view.tables("en")[0].note
    assert view.cosines_LNN[0, 0, 1] < 0.99


def test_a_word_may_be_a_part_of_a_token():
    tokenizer = train_bpe(["the cat the cat the cat "] * 50, vocab_size=290)
    ids = tokenizer.encode("the cat")
    assert len(ids) < 7
    (spot,) = occurrences(tokenizer, ids, "at")
    assert spot.last == len(ids) - 1
    assert spot.first == spot.last


@pytest.mark.parametrize(
    "texts",
    [
        ["abcdefghwijklmnop", "w", "wabcdefghijklm", "abcdefghijklmw"],
        ["abcdefxyzuvwxyzabcdefgh", "xyzuvwxyz"],
    ],
)
def test_the_labels_of_matrices_hold_the_word(lively, texts):
    """Labels of 16 columns ended before the word that they are about."""
    word = "w" if "w" in texts else "xyzuvwxyz"
    view = vectors_view(lively(), word, texts)
    for chart in view.charts("en")[1:3]:
        drawn = shown(chart.row_labels)
        assert len(set(drawn)) == len(view.labels_N)
        assert all(f"[{word}]" in label for label in drawn)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_charts_and_dict(lively, language):
    view = vectors_view(lively(), "w", ["abwcd", "xyw", "w"])
    charts = view.charts(language)
    assert len(charts) == 4
    quote = "“w”" if language == "zh" else '"w"'
    assert all(chart.title.startswith(quote) for chart in charts)
    found = json.loads(json.dumps(view.to_dict()))
    assert np.array(found["cosines_LNN"]).shape == (5, 3, 3)
    assert found["labels_N"][0].startswith("1. ab[w]cd")


def test_with_a_start_mark_the_first_word_still_sees_only_what_all_texts_have(lively):
    subject: Subject = lively(starts_with_bos=True)
    view = vectors_view(subject, "w", ["wa", "wb"])
    assert view.position_N.tolist() == [1, 1]
    assert view.alike == ((0, 1),)
    assert view.alike_apart < 1e-5


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    ("texts", "drawn"),
    [
        (["abwcd", "xyw"], False),
        (["abw", "abw"], False),
        (["abw", "xyw", "abw", "xyw"], False),
        (["abw", "xyw", "w"], True),
        (["abw", "xyw", "w", "mnopw"], True),
    ],
)
def test_a_pca_is_drawn_only_where_it_says_something(lively, texts, drawn, language):
    """V7: two points with 0 % of the variance on the second axis were a picture."""
    view = vectors_view(lively(), "w", texts)
    charts = view.charts(language)
    assert [chart.kind for chart in charts] == ["line", "matrix_grid", "matrix", *(["scatter"] if drawn else [])]
    assert ("PCA" in view.tables(language)[0].note) is not drawn


def test_a_pca_of_vectors_on_a_line_is_a_sentence(lively):
    """V7: and of more than two different vectors too."""
    view = vectors_view(lively(), "w", ["abw", "xyw", "mnow"])
    line_NM = np.outer(np.array([0.0, 1.0, 3.0]), np.ones(view.vectors_LNM.shape[2])).astype(np.float32)
    vectors_LNM = view.vectors_LNM.copy()
    vectors_LNM[-1] = line_NM
    plane_N2, explained_2 = principal_plane(line_NM)
    flat = replace(view, vectors_LNM=vectors_LNM, plane_N2=plane_N2, explained_2=explained_2)
    assert len(flat.charts("en")) == 3
    assert "on a line" in flat.tables("en")[0].note


def test_equal_vectors_are_one_point_with_the_numbers_of_all(lively):
    """V7: their labels lay on one another."""
    view = vectors_view(lively(), "w", ["abw", "xyw", "abw", "mnow"])
    (plane,) = (chart for chart in view.charts("en") if chart.kind == "scatter")
    assert [row["label"] for row in plane.rows] == ["1, 3", "2. xy[w]", "4. mno[w]"]


@pytest.mark.parametrize("scale", [1.0, 0.2, 0.02, 0.002, 0.0])
def test_the_scale_of_the_maps_shows_the_differences(lively, scale):
    """V7: on a scale from 0 maps of cosines above 0.9 were all of one colour."""
    view = vectors_view(lively(), "w", ["abw", "xyw", "mnow"])
    cosines_LNN = (1 - scale * (1 - view.cosines_LNN)).astype(np.float32)
    close = replace(view, cosines_LNN=cosines_LNN)
    grid, last = close.charts("en")[1:3]
    assert (grid.low, grid.high) == (last.low, last.high), "one scale in one picture"
    least = float(cosines_LNN.min())
    assert grid.low <= least + 1e-6
    if scale:
        assert (1 - least) / (grid.high - grid.low) > 0.3, "the largest difference takes a good part of the colours"
    assert grid.row_labels == view.labels_N
    assert grid.column_labels == ["1", "2", "3"]
