"""The copy report equals a plain search, whatever the texts."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.scoring import copy_report, copying

LETTERS = st.text(alphabet="ab月\n😀", max_size=40)


def longest_by_search(texts: list[str], training: str) -> int:
    runs = {text[i:j] for text in texts for i in range(len(text)) for j in range(i + 1, len(text) + 1)}
    return max((len(run) for run in runs if run in training), default=0)


def share_by_search(texts: list[str], training: str, n: int) -> float:
    runs = [text[i : i + n] for text in texts for i in range(len(text) - n + 1)]
    return sum(run in training for run in runs) / len(runs) if runs else 0.0


@given(st.lists(LETTERS, max_size=3), LETTERS, st.integers(1, 5))
def test_the_report_is_what_a_plain_search_finds(texts: list[str], training: str, n: int) -> None:
    report = copy_report(texts, training, n=n)
    assert len(report.longest) == longest_by_search(texts, training)
    assert report.longest in training
    assert not report.longest or any(report.longest in text for text in texts)
    assert report.share_of_ngrams == pytest.approx(share_by_search(texts, training, n))


@given(st.lists(LETTERS, max_size=2), LETTERS)
def test_a_run_across_the_border_of_two_chunks_is_found(texts: list[str], training: str) -> None:
    with mock.patch.object(copying, "_CHUNK", 3):
        assert len(copy_report(texts, training).longest) == longest_by_search(texts, training)


def test_a_text_taken_from_the_training_text_is_copied_whole() -> None:
    training = "床前明月光，疑是地上霜。举头望明月，低头思故乡。" * 50
    report = copy_report([training[30:60]], training)
    assert report.longest == training[30:60]
    assert report.share_of_ngrams == 1.0
    assert "30 characters" in report.describe()[0]


def test_a_text_of_its_own_copies_nothing() -> None:
    report = copy_report(["zzzzzzzzzzzz"], "床前明月光" * 10)
    assert (report.longest, report.share_of_ngrams) == ("", 0.0)
