"""How much texts repeat themselves: values by hand, loops, the comparison with held-out text, and the advice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mingyue.config import GenerateSettings
from mingyue.scoring import repetition, repetition_report
from mingyue.scoring.repetition import Loop, loop_at_end, repetition_of_pieces, words_of

VARIED = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The mill turns, slowly.", ["The", "mill", "turns", ",", "slowly", "."]),
        ("床前明月光，疑是", ["床", "前", "明", "月", "光", "，", "疑", "是"]),
        ("GPT2模型 et l'été", ["GPT2", "模", "型", "et", "l", "'", "été"]),
        (" \n\t", []),
    ],
)
def test_words_are_words_characters_and_marks(text, words):
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("texts", "distinct"),
    [
        (["a b a b a"], (2 / 5, 2 / 4, 2 / 3, 2 / 2)),  # ab ba ab ba; aba bab aba; abab baba
        (["春眠春眠"], (2 / 4, 2 / 3, 2 / 2, 1 / 1)),
        (["a b c", "a b c"], (1.0, 1.0, 1.0, 1.0)),  # a passage in two texts is no repetition
        (["a a a", "b c"], (3 / 5, 2 / 3, 1 / 1, 1.0)),  # of all n-grams of both: aa aa bc; aaa; none
        ([], (1.0, 1.0, 1.0, 1.0)),
    ],
)
def test_distinct_n_grams_by_hand(texts, distinct):
    found = repetition(texts)
    assert found.distinct == pytest.approx(distinct)
    assert found.repeated == pytest.approx([1 - share for share in distinct])


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("He said the river the river the river", Loop(" the river", 3)),
        ("the river the river the river the riv", Loop("the river ", 3)),  # cut inside the fourth
        ("the river the river", None),
        ("春风春风春风", Loop("春风", 3)),
        ("花落花落花", None),
        ("ab\nab  ab\n\nab", Loop("ab ", 3)),  # white space counts once
        ("and so on ...", None),
        ("a" * 40, Loop("a", 40)),
        ("x" + "ab" * 9, Loop("ab", 9)),
        ("    \n\n   ", None),
        ("", None),
    ],
)
def test_loops_by_hand(text, loop):
    """The shortest passage that the end of a text repeats three times or more."""
    assert loop_at_end(text) == loop


@given(st.text("ab ", max_size=8), st.text("ab", min_size=1, max_size=4), st.integers(3, 9))
def test_a_loop_is_found_whatever_comes_before_it(before, period, times):
    text = before + (period + "c") * times
    found = loop_at_end(text)
    if len((period + "c") * times) < 6:
        return
    assert found is not None
    assert text.split()[-1].endswith("".join(found.period.split())[-1:])
    assert len(found.period) <= len(period) + 1


def test_held_out_text_is_measured_in_pieces_of_the_same_length():
    """A long text repeats more than a short one: it is no measure for it."""
    assert repetition([VARIED * 4]).distinct[0] < 0.3
    pieces = repetition_of_pieces(" ".join([VARIED] * 4), [16, 16])
    assert pieces is not None
    assert (pieces.texts, pieces.words, pieces.distinct) == (4, 64, (1.0, 1.0, 1.0, 1.0))
    assert repetition_of_pieces(VARIED, [17]) is None  # too short
    assert repetition_of_pieces(VARIED, []) is None
    last = repetition_of_pieces("a b c d e e", [2])  # the first and the last words are in a piece
    assert last is not None
    assert (last.texts, last.distinct[0]) == (3, pytest.approx(5 / 6))


LOOPED = "so it goes and so it goes and so it goes and so it goes and"


@pytest.mark.parametrize(
    ("texts", "given", "advice"),
    [
        ([VARIED], {}, []),
        ([LOOPED], {"settings": GenerateSettings(temperature=0)}, ["temperature 0, where"]),
        ([LOOPED], {"settings": GenerateSettings(top_k=1)}, ["temperature 0.8, where"]),
        ([LOOPED], {"settings": GenerateSettings()}, ["--repetition-penalty"]),
        ([LOOPED], {"verdict": "overfitting"}, ["more text"]),
        ([LOOPED], {"verdict": "not learning"}, ["train longer"]),
        ([LOOPED], {"verdict": "learning", "improving": True}, ["still falling"]),
        ([LOOPED], {}, ["Train longer, or on more text"]),
    ],
    ids=str,
)
def test_the_advice_fits_the_numbers(texts, given, advice):
    for held_out in (None, " ".join([VARIED] * 4)):
        report = repetition_report(texts, held_out, **given)
        assert len(report.advice) == len(advice)
        assert all(words in line for words, line in zip(advice, report.advice, strict=True))
        assert report.describe()[-len(advice) :] == list(report.advice) or not advice
        assert (report.held_out is None) == (held_out is None)


def test_text_that_repeats_as_much_as_the_held_out_text_needs_no_advice():
    song = "la la la la hey hey hey hey " * 40
    assert repetition_report([song[:100]], song, settings=GenerateSettings()).advice == ()
    looped = repetition_report(["hey " * 60], song, settings=GenerateSettings())
    assert "The held-out text repeats itself as well: train on text with more variety." in looped.advice


def test_texts_that_are_the_same_are_counted():
    report = repetition_report([VARIED, VARIED, VARIED[4:]], settings=GenerateSettings(temperature=0))
    assert report.generated.same == 2
    assert "Texts that equal another one: 2 of 3." in report.describe()
    assert "temperature 0, where" in report.advice[0]
    assert repetition_report([VARIED] * 2, " ".join([VARIED] * 4)).advice == ()  # as the held-out text


def test_the_report_says_both_numbers_and_the_loop():
    lines = repetition_report([LOOPED, VARIED], " ".join([VARIED] * 4)).describe()
    assert lines[0].startswith("Repeated within the same generated text: ")
    assert "held-out text of the same length 0% and 0%." in lines[0]
    assert lines[1] == "Texts that end in a loop: 1 of 2. The longest is 3 × 'so it goes and '."
    rows = repetition_report([LOOPED]).table()
    assert rows[0][0] == "distinct 1-grams"
    assert all(held_out == "–" for *_, held_out in rows)
