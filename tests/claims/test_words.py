"""What claims say is spelled as it should be: it stands in pages, figures and terminals in both languages."""

from __future__ import annotations

import ast
import random
import re
import string
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

import mingyue.claims
from mingyue.claims.claim import Number, Size, Verdict
from mingyue.claims.figures import WordTable
from mingyue.claims.registry import GROUPS, NAMES, find
from mingyue.claims.summary import text_of
from mingyue.claims.wording import Phrase, Wording, constants, read_texts
from mingyue.words import Words

FILES = sorted(Path(mingyue.claims.__path__[0]).rglob("*.py"))

# Two pieces of one string on two lines of code, and the characters that meet there.
_SEAM = re.compile(r"""([^\s"])"[ ]*\n\s*f?"([^\s"])""")
_CHINESE = "\u4e00-\u9fff"
_FAULTS = {
    "two spaces": re.compile(r"\S  +\S"),
    "space before a sign": re.compile(r"[A-Za-z0-9] [,;:.!?](?=\s|$)"),
    "no space after a sign": re.compile(r"[A-Za-z]{2}[,;!?](?!r\})[A-Za-z]|[a-z]{2}[.:][A-Z]"),
    "words run together": re.compile(r"(?<![A-Za-z])(?!PyTorch|AdamW|MiB|NaN|LayerNorm)[A-Za-z]*[a-z]{2}[A-Z]"),
    "half-width sign in Chinese": re.compile(rf"[{_CHINESE}][,;:.!?](?=[{_CHINESE}])"),
    "space between Chinese characters": re.compile(rf"[{_CHINESE}，。；：] +(?=[{_CHINESE}，。；：])"),
    "two signs": re.compile(r"[，。；：、]{2}|[,;:]{2}|,\."),
}


def seams_without_space(code: str) -> list[str]:
    """Where a string goes over two lines of code and an English word or sign meets the next word without a space."""
    ends, begins = re.compile(r"[\w.,;:)}!?%]", re.ASCII), re.compile(r"[\w({]", re.ASCII)
    return [one[0] for one in _SEAM.finditer(code) if ends.match(one[1]) and begins.match(one[2])]


def strings(code: str) -> list[str]:
    """Every string of a file but docstrings; 0 stands for what an f-string computes."""
    tree = ast.parse(code)
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    specs = [node.format_spec for node in ast.walk(tree) if isinstance(node, ast.FormattedValue) and node.format_spec]
    left_out |= {id(node) for spec in specs for node in ast.walk(spec)}
    found = []
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
            found.append("".join(part.value if isinstance(part, ast.Constant) else "0" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def faults(text: str) -> list[str]:
    return [f"{kind}: {text}" for kind, pattern in _FAULTS.items() if pattern.search(text)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_space_is_lost_where_a_string_goes_over_two_lines(path):
    assert seams_without_space(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_claim_says_has_no_stray_spaces_and_the_signs_of_its_language(path):
    assert [fault for text in strings(path.read_text(encoding="utf-8")) for fault in faults(text)] == []


def test_both_checks_find_what_they_are_for():
    assert seams_without_space('Words(\n    "each token"\n    f"given "\n)')
    assert seams_without_space('"it ends."\n    "Then"') and not seams_without_space('"it ends. "\n    "Then"')
    assert strings('"""Doc."""\nx = f"{a} and " "b"\n') == ["0 and b"]
    wrong = [
        "two  words",
        "a word , then",
        "one,two",
        "it ends.Then",
        "tokenGiven",
        "成立,不成立",
        "成立。 不成立",
        "成立。。",
    ]
    assert [text for text in wrong if len(faults(text)) != 1] == []
    assert faults("PyTorch's AdamW: 打 in 打篮球, 打酱油; −log P(目标), 1.5 MiB") == []


CLAIMS = {name: find(name) for name in NAMES}
LANGUAGES = ("en", "zh")
_BROKEN_LINE = re.compile(r"[^，。；：、？！（）“”《》—\s]\n\s*(?=\S)")


def leaves(value, path=()):
    """(path, text) of every text of a file of words."""
    for key, one in value.items():
        if isinstance(one, dict):
            yield from leaves(one, (*path, key))
        else:
            yield (*path, key), one


def fields(text):
    """Names that a text is filled with, without attributes and indices."""
    return {re.split(r"[.\[]", name)[0] for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def mentioned(claim):
    """Every string and every keyword of a claim's module, and patterns of its f-strings."""
    tree = ast.parse(Path(sys.modules[claim.module].__file__).read_text(encoding="utf-8"))
    found = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [re.escape(part.value) if isinstance(part, ast.Constant) else r"\w+" for part in node.values]
            found.add("".join(parts))
    return found | {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg}


def known(name, allowed):
    return name in allowed or any("\\w+" in one and re.fullmatch(one, name) for one in allowed)


def words_file(claim, language):
    return Path(sys.modules[claim.module].__file__).with_suffix(f".{language}.toml")


@pytest.mark.parametrize("name", CLAIMS)
def test_both_languages_say_the_same_things(name):
    english, chinese = (dict(leaves(read_texts(CLAIMS[name].module, language))) for language in LANGUAGES)
    assert list(english) == list(chinese)
    for path, text in english.items():
        assert text and chinese[path]
        assert fields(text) == fields(chinese[path]), path


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_words_have_no_stray_spaces_and_the_signs_of_their_language(name, language):
    claim = CLAIMS[name]
    texts = [re.sub(r"\{[^}]*\}", "0", text) for _, text in leaves(read_texts(claim.module, language))]
    assert [fault for text in texts for fault in faults(text)] == []
    if language == "zh":  # its lines are joined with nothing between them
        raw = tomllib.loads(words_file(claim, language).read_text(encoding="utf-8"))
        assert [text for _, text in leaves(raw) if _BROKEN_LINE.search(text.strip())] == []


@pytest.mark.parametrize("name", CLAIMS)
def test_a_text_names_only_what_exists(name):
    claim = CLAIMS[name]
    fixed, numbers = set(constants(claim.module)), set(claim.labels)
    added = mentioned(claim)  # by judge or by a figure
    allowed = {
        "claim": fixed,
        "prediction": fixed,
        "method": fixed,
        "correction": fixed,
        "labels": fixed,
        "reasons": fixed | numbers | added,
        "names": fixed | numbers | added,
        "figures": fixed | numbers | added | {"hover"},
    }
    for path, text in leaves(read_texts(claim.module, "en")):
        assert [name for name in fields(text) if not known(name, allowed[path[0]])] == [], path


@pytest.mark.parametrize("name", CLAIMS)
def test_every_text_of_a_claim_is_used(name):
    claim, texts = CLAIMS[name], read_texts(CLAIMS[name].module, "en")
    used = mentioned(claim)
    assert set(texts) <= {"claim", "prediction", "method", "correction", "reasons", "labels", "names", "figures"}
    assert set(texts["reasons"]) <= used  # keys of reasons are written out in the code
    figures = {figure.name: figure for figure in claim.figures}
    assert set(texts["figures"]) == set(figures)
    for key, said in texts["figures"].items():
        assert set(said) <= figures[key].words
        assert set(said.get("rules", {})) == set(getattr(figures[key], "rules", {}))
    columns = {part for figure in claim.figures for part in named_columns(figure)}
    assert set(texts.get("names", {})) <= columns
    named = [value for names in texts.get("names", {}).values() for value in names if not value.isdigit()]
    assert [value for value in named if not known(value, used)] == []


def named_columns(figure):
    """Columns whose values a figure looks up in [names]."""
    series = getattr(figure, "series", ())
    sides = ("x", "panel", "row", "column")
    return {*((series,) if isinstance(series, str) else series), *(getattr(figure, side, None) for side in sides),
            *({"row", "column", "word"} if isinstance(figure, WordTable) else ())}  # fmt: skip


@pytest.mark.parametrize("name", CLAIMS)
def test_every_reason_can_be_written_whatever_the_numbers(name):
    """Numbers as no measurement gives them lead to reasons that one run does not reach."""
    claim, draw = CLAIMS[name], random.Random(0)
    verdicts = set()
    for _ in range(300):
        numbers = {}
        for label in claim.labels:
            value = draw.choice((0.0, 1e-9, 0.01, 0.3, 0.5, 0.9, 1.0, 2.0, 8.0, 100.0, 1e4))
            numbers[label] = Number(value, 0.9 * value, 1.1 * value)
        try:
            finding = claim.finding(numbers)
        except ZeroDivisionError:  # a ratio to a number that no measurement gives as 0
            continue
        verdicts.add(finding.verdict)
        assert finding.reason.en.strip() and finding.reason.zh.strip()
        assert not set("{}") & set(finding.reason.en + finding.reason.zh)
    assert verdicts


@pytest.mark.parametrize("name", [name for name in CLAIMS if name != "trained-embedding"])
def test_numbers_that_are_nan_support_nothing(name):
    """A NaN is neither above nor below a tolerance."""
    claim, nan = CLAIMS[name], Number.exact(float("nan"))
    assert claim.judge(dict.fromkeys(claim.labels, nan)).verdict == "not supported"


def test_a_text_without_its_value_is_an_error():
    with pytest.raises(KeyError):
        Wording(CLAIMS["variance"].module, "en").text("reasons", "found")


def test_values_are_formatted_as_asked_and_phrases_are_texts(monkeypatch):
    claim = CLAIMS["one-matrix"]
    wording = Wording(claim.module, "en", {"apart": Number(2e-7, 1e-7, 3e-7), "one_token": Number.exact(2.0)})
    assert wording.text("reasons", "equal") == "equal to 2.0e-07"
    assert wording.text("labels", "apart") == "largest difference of the results"
    values = {"most_tokens": 1.5, "faster": 0.0, "sizes": 2.0, "how": Phrase("equal")}
    assert wording.reason(["never"], values).startswith("The results are equal to 2.0e-07. Head by head took 2.00")
    assert wording.text("reasons", "no such text") == ""


SUMMARY = "mingyue.claims.summary"


def test_the_words_of_results_say_the_same_in_both_languages():
    english, chinese = (dict(leaves(read_texts(SUMMARY, language))) for language in LANGUAGES)
    assert list(english) == list(chinese)
    assert [path for path, text in english.items() if fields(text) != fields(chinese[path])] == []
    for texts in (english, chinese):
        assert [fault for text in texts.values() for fault in faults(re.sub(r"\{[^}]*\}", "0", text))] == []
    assert set(GROUPS) == set(read_texts(SUMMARY, "en")["groups"])
    assert {*get_args(Verdict), "failed"} == set(read_texts(SUMMARY, "en")["verdicts"])
    assert set(get_args(Size)) == set(read_texts(SUMMARY, "en")["sizes"])


def test_a_text_of_results_is_filled_in_its_language_and_a_missing_one_is_an_error():
    verdict = text_of("verdicts", "not supported")
    assert text_of("label", part=verdict) == Words("not supported:", "不成立：")
    with pytest.raises(KeyError, match=r"verdicts\.none"):
        text_of("verdicts", "none")
    with pytest.raises(KeyError, match="part"):
        text_of("label")
