"""Surprise is the score of the text, token by token."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from mingyue.errors import GenerationError, SettingsError
from mingyue.inspection import Subject, surprise
from mingyue.inspection.surprise import surprise_view
from mingyue.scoring import score
from mingyue.text import train_char


@pytest.mark.parametrize("starts_with_bos", [False, True])
@pytest.mark.parametrize("text", ["abcab", "abcdefghij" * 3, "the quick brown fox " * 12])
def test_the_sum_and_every_token_are_those_of_score(lively, starts_with_bos, text):
    subject = lively(starts_with_bos=starts_with_bos)
    view = surprise_view(subject, subject.read(text, any_length=True))
    wanted = score(subject.module, subject.tokenizer, text, starts_with_bos=starts_with_bos)
    assert view.total == pytest.approx(wanted.total, abs=1e-4)
    assert view.scored == wanted.scored
    assert view.nats_per_token == pytest.approx(wanted.nats_per_token, abs=1e-5)
    expected = [math.nan if token.logprob is None else token.logprob for token in wanted.tokens]
    np.testing.assert_allclose(view.logprob_N, expected, atol=1e-5)
    assert view.pieces_N == tuple(token.text.replace(" ", "␣") for token in wanted.tokens)


def test_the_first_token_without_a_start_mark_has_no_colour_and_says_why(lively):
    view = surprise_view(lively(), lively().read("abc"))
    (chart,) = view.charts("en")
    assert chart.marks[0].value is None
    assert "there is no token before it" in chart.marks[0].hover[0]
    assert chart.marks[1].value == pytest.approx(-float(view.logprob_N[1]))
    assert "no probability" in chart.note
    marked = surprise_view(lively(starts_with_bos=True), lively(starts_with_bos=True).read("abc"))
    assert marked.charts("en")[0].marks[0].value is not None
    assert "no probability" not in marked.charts("en")[0].note


def test_alternatives_and_ranks_are_those_of_the_logits(lively):
    subject = lively()
    reading = subject.read("abcabc")
    view = surprise_view(subject, reading, top=3)
    with torch.no_grad():
        logprobs = subject.logits(reading).log_softmax(-1)[:-1]
    best = logprobs.exp().topk(3)
    np.testing.assert_array_equal(view.top_ids_NK[1:], best.indices.numpy())
    np.testing.assert_allclose(view.top_probabilities_NK[1:], best.values.numpy(), atol=1e-5)
    for t, index in enumerate(reading.targets_T.tolist()):
        assert view.rank_N[t + 1] == 1 + int((logprobs[t] > logprobs[t, index]).sum())
    hover = view.charts("en")[0].marks[2].hover
    assert len(hover) == 1 + 3
    assert f"rank {view.rank_N[2]}" in hover[0]


def test_of_a_pair_the_target_given_the_source_end_mark_included(lively_pairs):
    subject = lively_pairs()
    reading = subject.read("xyz", "abcd")
    view = surprise_view(subject, reading)
    with torch.no_grad():
        nats = torch.nn.functional.cross_entropy(subject.logits(reading), reading.targets_T, reduction="sum")
    assert view.total == pytest.approx(-float(nats), abs=1e-4)
    assert view.pieces_N == ("x", "y", "z", "<eos>")
    assert view.scored == 4
    assert "source text" in view.charts("en")[0].note
    other = surprise_view(subject, subject.read("xyz", "dcba"))
    assert abs(other.total - view.total) > 1e-3


def test_more_than_the_cap_is_cut_and_said(lively, monkeypatch):
    monkeypatch.setattr(surprise, "MOST_TOKENS", 50)
    for starts_with_bos in (False, True):
        subject = lively(starts_with_bos=starts_with_bos)
        text = "abcdefghij" * 9
        view = surprise_view(subject, subject.read(text, any_length=True))
        assert (len(view.pieces_N), view.n_tokens) == (50, 90)
        assert "first 50 of 90" in view.charts("en")[0].note
        first = score(subject.module, subject.tokenizer, text[:50], starts_with_bos=starts_with_bos)
        assert view.total == pytest.approx(first.total, abs=1e-4)


def test_line_ends_of_the_text_end_lines_of_the_picture(lively):
    words = train_char(["ab\n"])
    subject = Subject(lively(vocab_size=words.vocab_size).module, words)
    view = surprise_view(subject, subject.read("a\nb字"))
    assert view.texts_N == ("a", "\n", "b", "<E5>", "<AD>", "<97>")
    assert view.pieces_N[1] == "⏎"


def test_a_text_of_one_token_has_nothing_to_count(lively):
    view = surprise_view(lively(), lively().read("a"))
    assert view.scored == 0
    assert math.isnan(view.nats_per_token)
    assert view.tables("en")[0].rows[2][1] == "–"
    json.dumps(view.to_dict(), allow_nan=False)


def test_bad_input(lively):
    subject = lively()
    with pytest.raises(SettingsError, match="at least 1"):
        surprise_view(subject, subject.read("abc"), top=0)
    with pytest.raises(GenerationError, match="context of this model"):
        subject.read("ab" * 40)
    with torch.no_grad():
        subject.module.embedding.weight.fill_(math.nan)
    with pytest.raises(GenerationError, match="is NaN"):
        surprise_view(subject, subject.read("abc"))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_tables_and_dict(lively, language):
    subject = lively()
    view = surprise_view(subject, subject.read("abcd" * 30, any_length=True))
    whole, each = view.tables(language)
    assert whole.rows[1][1] == f"{-view.total:.4f}"
    assert "windows" in whole.note or "窗口" in whole.note
    values = [float(row[2]) for row in each.rows]
    assert values == sorted(values, reverse=True)
    assert len(values) == 40
    found = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    assert found["logprob_N"][0] is None
    assert len(found["logprob_N"]) == 120
