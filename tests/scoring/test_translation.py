"""Scores of translations: counted by hand, told with their signature, refused where lines do not match."""

from __future__ import annotations

import importlib.metadata
import math
import subprocess
import sys

import pytest

from mingyue.errors import DataError, MissingExtraError
from mingyue.scoring import translation_scores

pytest.importorskip("sacrebleu", reason="extra `translate` is not installed")


def test_bleu_is_the_mean_of_the_matched_ngrams_counted_by_hand():
    # "the" stands twice in the translation, once in the reference, and counts once.
    # 1: the cat sat on mat (of 6); 2: the-cat cat-sat sat-on (of 5); 3: two of 4; 4: the-cat-sat-on (of 3)
    scores = translation_scores(["the cat sat on the mat"], ["the cat sat on a mat"])
    by_hand = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** (1 / 4)
    assert scores.bleu == pytest.approx(by_hand, abs=1e-9)


def test_bleu_counts_over_all_lines_and_punishes_what_is_too_short():
    # Line 1: everything matches, but 5 words for 7. Line 2: 3 of 4 words, 2 of 3 pairs, 1 of 2 triples, 0 of 1.
    scores = translation_scores(["a b c d e", "p q r x"], ["a b c d e f g", "p q r s"])
    precisions = (5 + 3) / 9, (4 + 2) / 7, (3 + 1) / 5, (2 + 0) / 3
    by_hand = 100 * math.exp(1 - 11 / 9) * math.prod(precisions) ** (1 / 4)
    assert scores.bleu == pytest.approx(by_hand, abs=1e-9)


def test_chrf_by_hand():
    # Letters: 1 of 2 both ways; pairs: 0 of 1; longer ones are in neither. Means of 1/4 and 1/4, so F = 1/4.
    assert translation_scores(["ab"], ["ac"]).chrf == pytest.approx(25)


def test_the_same_lines_score_100():
    lines = ["Ein Hund läuft über die Wiese.", "Zwei Männer spielen Schach."]
    scores = translation_scores(lines, lines)
    assert (scores.bleu, scores.chrf) == pytest.approx((100, 100))
    assert (scores.exact, scores.lines) == (1.0, 2)


def test_case_counts():
    assert translation_scores(["THE CAT SAT ON"], ["the cat sat on"]).bleu < 50


def test_the_full_stop_is_a_word_of_its_own_but_the_line_is_not_exact():
    scores = translation_scores(["the cat sat on the mat ."], ["the cat sat on the mat."])
    assert scores.bleu == pytest.approx(100)
    assert scores.exact == 0


def test_the_signatures_say_version_tokenizer_case_and_references():
    version = f"version:{importlib.metadata.version('sacrebleu')}"
    scores = translation_scores(["a b c d"], ["a b c d"])
    assert scores.bleu_signature.split("|") == ["nrefs:1", "case:mixed", "eff:no", "tok:13a", "smooth:exp", version]
    assert {"nrefs:1", "case:mixed", "nc:6", "nw:0", version} <= set(scores.chrf_signature.split("|"))


@pytest.mark.parametrize(
    ("reference", "language", "tokenizer"),
    [
        ("The cat sat on the mat.", None, "13a"),
        ("床前明月光，疑是地上霜。", None, "zh"),
        ("他用 Python 写了一个很小的程序。", None, "zh"),
        ("The word 月 means moon.", None, "13a"),
        ("猫がマットの上に座っていた。", None, "char"),
        ("日本の首都は東京である", None, "char"),
        ("고양이가 매트 위에 앉았다.", None, "13a"),
        ("", None, "13a"),
        ("12345", "zh", "zh"),
        ("12345", "zh_Hans", "zh"),
        ("12345", "ZH-cn", "zh"),
        ("12345", "cmn", "zh"),
        ("12345", "ja", "char"),
        ("床前明月光", "ja", "char"),
        ("床前明月光", "en", "13a"),
        ("Hund", "de-AT", "13a"),
    ],
)
def test_the_tokenizer_follows_the_target_language(reference, language, tokenizer):
    scores = translation_scores([reference], [reference], target_language=language)
    assert f"|tok:{tokenizer}|" in scores.bleu_signature


def test_the_references_decide_on_the_tokenizer_not_what_a_model_wrote():
    assert "|tok:zh|" in translation_scores(["the the the"], ["床前明月光"]).bleu_signature


def test_chinese_is_counted_by_characters():
    # 4 of 5 characters, 3 of 4 pairs, 2 of 3 triples, 1 of 2 fours
    scores = translation_scores(["床前明月亮"], ["床前明月光"])
    assert scores.bleu == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4), abs=1e-9)


def test_of_several_references_each_line_may_match_any():
    hypotheses = ["a b c d e", "p q r s t"]
    streams = [["a b c d e", "- - - - -"], ["- - - - -", "p q r s t"]]
    scores = translation_scores(hypotheses, streams)
    assert (scores.bleu, scores.exact) == pytest.approx((100, 1.0))
    assert scores.bleu_signature.startswith("nrefs:2|")
    assert translation_scores(hypotheses, streams[:1]).exact == 0.5
    assert translation_scores(hypotheses, streams[0]).exact == 0.5


@pytest.mark.parametrize("references", [["a", "b"], ["a", "b", "c", "d"], []])
def test_unequal_counts_of_lines_are_refused_with_both(references):
    with pytest.raises(DataError, match=rf"3 translations but {len(references)} lines in the references"):
        translation_scores(["a", "b", "c"], references)


def test_the_stream_that_is_too_short_is_named():
    with pytest.raises(DataError, match="2 translations but 1 lines in reference stream 2 of 2"):
        translation_scores(["a", "b"], [["a", "b"], ["a"]])


@pytest.mark.parametrize("references", [[], [[]], [[], []]])
def test_nothing_to_score_is_refused(references):
    with pytest.raises(DataError, match="nothing to score"):
        translation_scores([], references)


def test_empty_translations_score_nothing_but_do_not_fail():
    scores = translation_scores(["", ""], ["a b c d", "e"])
    assert (scores.bleu, scores.chrf, scores.exact) == (0, 0, 0)


def test_lines_that_look_tokenized_write_nothing_to_the_screen(capfd, caplog):
    translation_scores(["a b c d ."] * 200, ["a b c d ."] * 200)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_without_sacrebleu_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'mingyue\[translate\]'"):
        translation_scores(["a"], ["a"])


def test_importing_the_scores_imports_no_sacrebleu():
    code = "import sys, mingyue.scoring; print('sacrebleu' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert found.stdout.strip() == "False"
