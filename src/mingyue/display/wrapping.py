"""Text broken into lines of a terminal: between words, and between Chinese characters; never inside a word."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.measure import Measurement
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_WIDE = "\u2e80-\u303f\u3041-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef"
_CLOSING = "、。，；：！？）》」』】〕”’…·"
_OPENING = "（《「『【〔“‘"
_UNIT = re.compile(
    rf"\s+|[{_OPENING}]*(?:[^\s{_WIDE}{_OPENING}{_CLOSING}]+|[{_WIDE}])[{_CLOSING}]*|.",
    re.DOTALL,
)
"""White space, a word, or one wide character; with the punctuation that must not begin or end a line."""


def wrap(text: str, width: int) -> list[str]:
    """The lines of `text` in `width` columns; only a word that is wider by itself is cut. Its line breaks are kept."""
    return [line for paragraph in text.split("\n") for line in _filled(paragraph, max(1, width))]


def _filled(text: str, width: int) -> list[str]:
    lines: list[str] = []
    line = ""
    for unit in _UNIT.findall(text):
        if cell_len(line + unit.rstrip()) > width and line.strip():
            lines.append(line.rstrip())
            line = unit.lstrip()
        else:
            line += unit
        while cell_len(line.rstrip()) > width:
            fits = next(n for n in range(len(line), 0, -1) if n == 1 or cell_len(line[:n]) <= width)
            lines.append(line[:fits])
            line = line[fits:]
    return [*lines, line.rstrip()]


@dataclass(frozen=True)
class Wrapped:
    """A text for rich that is wrapped by `wrap`."""

    text: Text

    def __str__(self) -> str:
        return self.text.plain

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        start, plain = 0, self.text.plain
        for line in wrap(plain, options.max_width):
            start = plain.index(line, start)
            yield self.text[start : start + len(line)]
            start += len(line)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        units = _UNIT.findall(self.text.plain)
        longest = max(map(cell_len, self.text.plain.split("\n")))
        return Measurement(
            min(max(map(cell_len, units), default=0), options.max_width), min(longest, options.max_width)
        )
