"""The copy report equals a plain search, whatever the texts."""

from __future__ import annotations

from unittest import mock

import numpy as np
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


@pytest.mark.parametrize("chunk", [8, 13, 64])
def test_a_run_longer_than_a_chunk_is_found_however_the_training_text_comes(chunk: int) -> None:
    training = "".join(chr(0x4E00 + (i * i) % 3001) for i in range(400))
    text = "xyz" + training[37:137] + "xyz" + training[300:310]
    for pieces in (
        training,
        [training[i : i + 5] for i in range(0, 400, 5)],
        iter([training[:399], "", training[399:]]),
    ):
        with mock.patch.object(copying, "_CHUNK", chunk):
            report = copy_report([text], pieces)
        assert report.longest == training[37:137]
        assert report.share_of_ngrams == pytest.approx((93 + 3) / (len(text) - 7))
        assert (report.written, report.compared) == (len(text), 400)


def test_runs_do_not_cross_from_one_text_into_another() -> None:
    report = copy_report(["abcdefgh", "ijklmnop"], "abcdefghijklmnop")
    assert (len(report.longest), report.share_of_ngrams) == (8, 1.0)
    assert copy_report(["abcdefgh\x00ijklmnop"], "abcdefgh\x00ijklmnop").longest == "abcdefgh\x00ijklmnop"


def test_texts_too_short_or_missing_have_a_report_too() -> None:
    for texts, training, longest in (
        ([], "abc", ""),
        ([""], "abc", ""),
        (["xabx"], "", ""),
        (["xabx"], "zabz", "ab"),
        (["床前😀明月光照我床"], "x床前😀明月光照我x", "床前😀明月光照我"),
    ):
        report = copy_report(texts, training)
        assert report.longest == longest
        assert report.share_of_ngrams == pytest.approx(1 / 2 if len(longest) == 8 else 0.0)


def test_texts_that_collide_under_such_hashes_are_told_apart() -> None:
    """Thue-Morse strings of 2048 letters have equal polynomial hashes mod 2⁶⁴ whatever the base."""
    one = "".join("ab"[bin(i).count("1") % 2] for i in range(2048))
    other = one.translate(str.maketrans("ab", "ba"))
    codes, here = copying._codes(other), np.array([0])
    sums = copying._Sums(codes)
    assert copying._Sums(copying._codes(one)).hashes(here, 2048) == sums.hashes(here, 2048)
    assert copying._Search([one], 8)._find(codes, sums, here, 2048) is None
    report = copy_report([one], other, n=2048)
    assert report.share_of_ngrams == 0.0
    assert 1024 <= len(report.longest) < 2048
    assert report.longest in one
    assert report.longest in other
