"""Text in English and Chinese, and tables of text for terminals and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mingyue.errors import GenerationError, SettingsError

Language = Literal["en", "zh"]
_LANGUAGES = get_args(Language)


def check_language(language: str) -> None:
    """Raise `SettingsError` for a language other than English and Chinese."""
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
        """The text in that language. Raises `SettingsError` for another one."""
        check_language(language)
        return self.zh if language == "zh" else self.en


class NothingToShowError(GenerationError):
    """A view has nothing to show for this text, with the reason in both languages; a page shows its other views."""

    def __init__(self, words: Words, *, advice: str | None = None) -> None:
        super().__init__(words.en, advice=advice)
        self.words = words


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
