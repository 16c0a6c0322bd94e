"""Texts of both languages, the dictionary, and which language a person is spoken to in."""

from __future__ import annotations

import ast
import pickle
import re
import string
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import mingyue
from mingyue import errors, words
from mingyue.errors import DataError, MingyueError
from mingyue.printable import printable
from mingyue.words import Words, in_language, joined, language_of_system, listed, stacked, stored, tr

SOURCE = Path(mingyue.__file__).parent
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import write_words  # noqa: E402  (a script beside the package)

PROSE = re.compile(r"\b[a-z]{2,}[,:;.]? [a-z{(`'][a-z{]*")
"""What sentences and phrases have, and names, formats and paths have not."""


# --- the values


def test_a_text_is_its_english_and_knows_its_chinese(monkeypatch):
    monkeypatch.setattr(words, "dictionary", lambda: {"{n:,} of {total}": "{total} 中的 {n:,}"})
    text = tr("{n:,} of {total}", 1234, "many")
    assert text == "1,234 of many" and text.en == "1,234 of many"
    assert text.of("zh") == "many 中的 1,234" and text.of("en") == "1,234 of many"


def test_a_value_in_both_languages_is_filled_in_in_each(monkeypatch):
    monkeypatch.setattr(
        words, "dictionary", lambda: {"no {what}": "没有{what}", "file": "文件", "{a}: {b}": "{a}：{b}"}
    )
    error = DataError(tr("no {what}", tr("file")))
    assert tr("{a}: {b}", "x", error.message).of("zh") == "x：没有文件"
    assert tr("{a}: {b}", "x", error).of("zh") == "x：没有文件" and tr("{a}: {b}", "x", error) == "x: no file"


def test_a_text_that_the_dictionary_lacks_stays_english(monkeypatch):
    monkeypatch.setattr(words, "dictionary", dict)
    assert tr("a {b}", 1).of("zh") == "a 1"


def test_names_of_values_say_what_they_are():
    """A translator reads them: `{shape_2}` says less than `{config_shape}`."""
    numbered = re.compile(r"\{\w+_\d+[}:!]")
    assert [text for text in words.dictionary() if numbered.search(text)] == []


def test_without_values_braces_are_text():
    assert tr("a {b}") == "a {b}" and tr("a {b}").of("zh") == "a {b}"


def test_the_number_of_values_must_be_that_of_the_names():
    with pytest.raises(ValueError, match="zip"):
        tr("{a} and {b}", 1)


def test_texts_put_together_keep_both_languages():
    one, other = Words("one", "一"), Words("two", "二")
    assert (one + other).zh == "一二" and (one + "!").zh == "一!" and ("(" + one).zh == "(一"
    assert listed([one, other]).zh == "一、二" and listed([one, other]) == "one, two"
    assert joined([one, other]).zh == "一二" and joined([one, other]) == "one two"
    assert stacked([one, "x"]).zh == "一\nx"
    assert one.mapped(str.upper) == "ONE" and one.mapped(lambda text: text * 2).zh == "一一"
    assert printable(Words("a\x07", "甲\x07")).zh == "甲␇"


def test_a_text_survives_pickling_in_both_languages():
    assert pickle.loads(pickle.dumps(Words("one", "一"))).zh == "一"


def test_an_error_has_its_message_and_advice_in_both_languages():
    error = MingyueError(Words("bad", "坏"), advice=Words("Mend it.", "修好它。"))
    assert str(error) == "bad\nMend it." and error.words.zh == "坏\n修好它。"
    assert in_language(error.message, "zh") == "坏"


def test_a_stored_text_finds_its_chinese_again(monkeypatch):
    monkeypatch.setattr(words, "dictionary", lambda: {"binary file": "二进制文件"})
    assert stored("binary file").zh == "二进制文件" and stored("unknown").zh == "unknown"


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "en_US.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "C", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({"LANG": "de_DE"}, "en"),
        ({}, "en"),
    ],
)
def test_the_language_is_that_of_the_locale(monkeypatch, environment, language):
    for name in ("LANG", "LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert language_of_system() == language


# --- the dictionary


def dictionary() -> dict[str, str]:
    sections = tomllib.loads(write_words.DICTIONARY.read_text(encoding="utf-8"))
    return {en: zh for section in sections.values() for en, zh in section.items()}


def names_in(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def test_every_message_title_label_and_help_text_has_its_chinese():
    known = dictionary()
    lacking = [text for texts in write_words.wanted().values() for text in texts if not known.get(text)]
    assert not lacking, "add them to src/mingyue/words.zh.toml (python docs/write_words.py)"


def test_the_dictionary_is_as_its_script_writes_it():
    assert write_words.DICTIONARY.read_text(encoding="utf-8") == write_words.written(
        write_words.wanted(), dictionary()
    ), "run python docs/write_words.py"


def test_a_translation_uses_no_name_that_its_text_lacks():
    filled = {text: zh for text, zh in dictionary().items() if names_in(text) and "{" in zh}
    assert not {text: zh for text, zh in filled.items() if not names_in(zh) <= names_in(text)}


def test_a_translation_is_chinese():
    """A sentence is not left in English; names, units and formulas may be the same in both languages."""
    same = [text for text, zh in dictionary().items() if text == zh and len(PROSE.findall(text)) > 1]
    assert not same


# --- messages in the source

ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, MingyueError)}
REPORTS = {"note", "_note", "tell", "_tell", "print_note", "on_note", "say", "refused", "allowed", "Needs"}
"""Functions whose arguments a person reads."""
NAMES = {"message", "advice", "hint", "note", "sentence", "reason", "why"}
"""Variables that hold what a person reads."""


def messages_in(tree: ast.AST) -> Iterator[ast.expr]:
    """What errors, notes and findings are made of, and what is assigned to a name that says that it is a message."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ERRORS:
                yield from node.args[:1]
            elif name in REPORTS:
                yield from node.args
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "advice")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in NAMES:
            yield node.value


def plain_texts(node: ast.expr) -> Iterator[ast.expr]:
    """The strings of an expression that are not given to a function: an f-string, or a constant that is prose."""
    constant = node.value if isinstance(node, ast.Constant) else None
    if isinstance(node, ast.JoinedStr) or (isinstance(constant, str) and PROSE.search(constant)):
        yield node
    elif isinstance(node, ast.IfExp):
        yield from [*plain_texts(node.body), *plain_texts(node.orelse)]
    elif isinstance(node, ast.BinOp | ast.BoolOp):
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) else node.values
        yield from (one for part in parts for one in plain_texts(part))


def test_every_message_is_in_both_languages():
    """An f-string, or a sentence without `tr`, would be English for everybody, and so would what is put into it."""
    wrong = [
        f"{path.relative_to(SOURCE)}:{text.lineno}: {ast.unparse(text)[:80]}"
        for path in sorted(SOURCE.rglob("*.py"))
        for message in messages_in(ast.parse(path.read_text(encoding="utf-8")))
        for text in plain_texts(message)
    ]
    assert not wrong
