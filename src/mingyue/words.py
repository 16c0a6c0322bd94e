"""Text in both languages, and tables of it for terminals and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mingyue.errors import GenerationError, SettingsError

Language = Literal["en", "zh"]
_LANGUAGES = get_args(Language)


def check_language(language: str) -> None:
    """Raise `SettingsError` for a language that views and pages do not speak."""
    if language not in _LANGUAGES:
        raise SettingsError(
            f"there are no words in the language {language!r}", advice="Give en (English) or zh (Chinese)."
        )


@dataclass(frozen=True)
class Words:
    """One text in English and Chinese."""

    en: str
    zh: str

    def of(self, language: Language) -> str:
        """The text in that language. Raises `SettingsError` for one that is neither."""
        check_language(language)
        return self.zh if language == "zh" else self.en


class NothingToShowError(GenerationError):
    """A view has no answer to this text, and says why in both languages: a page of many views goes on without it."""

    def __init__(self, words: Words, *, advice: str | None = None) -> None:
        super().__init__(words.en, advice=advice)
        self.words = words


@dataclass(frozen=True)
class TextTable:
    """A table of plain text: what a view prints in a terminal, and shows below its charts."""

    title: str
    columns: Sequence[str]
    """Headings; empty = none."""
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    """Headings of the columns that hold numbers."""
    note: str = ""
    """A sentence under the table."""
    spared: Sequence[str] = ()
    """Headings of columns that a narrow terminal leaves out."""
