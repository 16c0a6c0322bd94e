"""What a view or a claim says, in both languages, and tables for terminals and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Language = Literal["en", "zh"]


@dataclass(frozen=True)
class Words:
    """One text in English and Chinese."""

    en: str
    zh: str

    def of(self, language: Language) -> str:
        """The text in that language."""
        return self.zh if language == "zh" else self.en


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
