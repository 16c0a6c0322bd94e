"""Text in English and Chinese, the language of the interface, and tables of text for terminals and pages.

`tr("{n} files", 3)` makes a text of both languages. The English is in the code; its Chinese is in `words.zh.toml`,
the one dictionary of all messages, help texts, titles and labels (`python docs/write_words.py` finds what it lacks).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any, Literal, Self, get_args

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
_DICTIONARY = Path(__file__).with_suffix(".zh.toml")

CHOSEN_LANGUAGE: ContextVar[Language | None] = ContextVar("CHOSEN_LANGUAGE", default=None)
"""The language of the interface as chosen with --language; None: that of the system."""


class Words(str):
    """A text in English and Chinese. As a string it is the English, so that it can be passed on as any message is.

    Whoever shows it to a person asks for the language of that person (`of`, or `localized` for the interface).
    """

    _zh: str | Callable[[], str]

    def __new__(cls, en: str, zh: str | Callable[[], str]) -> Self:
        """`zh` may be a function, which is called when the Chinese is needed."""
        words = super().__new__(cls, en)
        words._zh = zh
        return words

    @property
    def en(self) -> str:
        """The English."""
        return str(self)

    @property
    def zh(self) -> str:
        """The Chinese."""
        return self._zh if isinstance(self._zh, str) else self._zh()

    def of(self, language: Language) -> str:
        """The text in that language. Raises `SettingsError` for one that is neither English nor Chinese."""
        check_language(language)
        return self.zh if language == "zh" else str(self)

    def mapped(self, change: Callable[[str], str]) -> Words:
        """The text with `change` applied to it in each language."""
        return Words(change(str(self)), lambda: change(self.zh))

    def __add__(self, other: str) -> Words:
        """Two texts one after the other, in each language."""
        return Words("".join((self, other)), lambda: self.zh + in_language(other, "zh"))

    def __radd__(self, other: str) -> Words:
        return Words(other + str(self), lambda: in_language(other, "zh") + self.zh)

    def __reduce__(self) -> tuple[type[Words], tuple[str, str]]:
        return Words, (self.en, self.zh)


def tr(text: str, /, *values: object) -> Words:
    """A text of both languages, its `{names}` filled with `values` in the order in which they first occur.

    Format specs are those of `str.format`. Without `values` the text is taken as it is. A value that is itself in both
    languages (another `Words`, an error) is filled in in the language that is asked for.
    """
    filling = dict(zip(_names(text), map(_held, values), strict=True)) if values else {}
    return Words(_filled(text, filling, "en"), lambda: _filled(dictionary().get(text, text), filling, "zh"))


def listed(parts: Sequence[str]) -> Words:
    """Several texts as one, separated by commas."""
    return Words(", ".join(parts), lambda: "、".join(in_language(part, "zh") for part in parts))


def joined(parts: Sequence[str], *, en: str = " ", zh: str = "") -> Words:
    """Sentences one after another, with what stands between two of them in each language."""
    return Words(en.join(parts), lambda: zh.join(in_language(part, "zh") for part in parts))


def sentences(parts: Sequence[str], language: Language) -> str:
    """Sentences one after another in one language, without the empty ones."""
    return joined([part for part in parts if part]).of(language)


def stacked(lines: Sequence[str]) -> Words:
    """Lines one below another."""
    return joined(lines, en="\n", zh="\n")


def stored(text: str) -> Words:
    """A text that was kept in a file, in English: its Chinese is looked up, where it is a text without values."""
    if isinstance(text, Words):
        return text
    return Words(text, lambda: dictionary().get(text, text))


def in_language(text: str, language: Language) -> str:
    """A text in that language, if it has it; a plain string is what it is."""
    return text.of(language) if isinstance(text, Words) else text


def localized(text: str) -> str:
    """A text in the language of the interface."""
    return in_language(text, interface_language())


def interface_language() -> Language:
    """The language of messages, help and screens: as chosen with --language, else that of the system."""
    return CHOSEN_LANGUAGE.get() or language_of_system()


def language_of_system() -> Language:
    """Language of the locale: zh for Chinese, else en."""
    found = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    return "zh" if found.lower().startswith("zh") else "en"


def check_language(language: str) -> None:
    """Raise `SettingsError` for a language other than English and Chinese."""
    if language not in LANGUAGES:
        from mingyue.errors import SettingsError  # the errors are made of texts

        raise SettingsError(
            tr("there are no words in the language {language!r}", language),
            advice=tr("Give en (English) or zh (Chinese)."),
        )


@cache
def dictionary() -> Mapping[str, str]:
    """The Chinese of every English text, by the text with its `{names}`."""
    with _DICTIONARY.open("rb") as file:
        # An empty translation is one that is still to be written.
        return {en: zh for section in tomllib.load(file).values() for en, zh in section.items() if zh}


@cache
def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for _, name, _, _ in Formatter().parse(text) if name is not None))


def _held(value: object) -> object:
    """A value as a message keeps it: an error as its text, so that no traceback stays alive."""
    if isinstance(value, BaseException):
        words = getattr(value, "words", None)
        return words if isinstance(words, Words) else str(value)
    return value


def _filled(text: str, values: Mapping[str, object], language: Language) -> str:
    if not values:
        return text
    return text.format_map(
        {name: value.of(language) if isinstance(value, Words) else value for name, value in values.items()}
    )


@dataclass(frozen=True)
class TextTable:
    """A table of plain text, for a terminal or below the charts of a page."""

    title: str
    columns: Sequence[str]
    """Headings; may be empty."""
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    """Headings of the columns that are aligned right (numbers)."""
    note: str = ""
    """A sentence under the table."""
    spared: Sequence[str] = ()
    """Headings of the columns that a narrow terminal leaves out."""

    def to_dict(self) -> dict[str, Any]:
        """The table, ready for JSON."""
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "note": self.note,
        }
