r"""Splits text into documents: a file is one document unless a separator is given.

Texts and separators joined are the text that was read (except blank lines before the first document): nothing is
trimmed. Lines end at \n only; \r\n was replaced by \n before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mingyue.errors import SettingsError
from mingyue.words import tr

PIECE_CHARACTERS = 1 << 23
"""A longer document is split into pieces of about this many characters, so that memory is bounded."""
_AHEAD = 1 << 12


@dataclass(frozen=True)
class Separator:
    """Where documents end. `pattern` None: only where the file ends."""

    pattern: re.Pattern[str] | None
    grows: bool = False
    """A match at the end of the buffer may become longer with more text."""
    at_end: bool = False
    """A newline at the end of the text belongs to the separator, as between documents."""


class Part(NamedTuple):  # there may be millions: cheaper to make than a dataclass
    """A document, or a piece of a long one. `tail` is the separator after it ("" before the last piece)."""

    text: str
    tail: str
    line: int
    first: bool
    last: bool


def parse_separator(value: str) -> Separator:
    r"""The separator for a --separator value: file, blank-line, line, or a text (with \n, \t and \\ as escapes)."""
    if value == "file":
        return Separator(None)
    if value == "line":
        return Separator(re.compile("\n"), at_end=True)
    if value == "blank-line":
        return Separator(re.compile(r"\n(?:[^\S\n]*\n)+"), grows=True, at_end=True)
    text = re.sub(r"\\([nt\\])", lambda match: {"n": "\n", "t": "\t", "\\": "\\"}[match[1]], value)
    if not text:
        raise SettingsError(
            tr("the separator is empty"), advice=tr("Use file, blank-line, line, or the text between documents.")
        )
    return Separator(re.compile(re.escape(text)))


def split_documents(
    chunks: Iterable[str], separator: Separator, *, piece_characters: int = PIECE_CHARACTERS
) -> Iterator[Part]:
    """Cut a stream of text into documents; the chunks of the stream make no difference.

    Empty text or white space between two separators is not a document: it becomes part of the tail before it.
    """
    waiting: Part | None = None
    for part in _cut(chunks, separator, piece_characters):
        if part.first and part.last and (not part.text or part.text.isspace()):
            if waiting is not None:
                waiting = waiting._replace(tail=waiting.tail + part.text + part.tail)
            continue
        if waiting is not None:
            yield waiting
        waiting = part
    if waiting is not None:
        yield waiting


def _cut(chunks: Iterable[str], separator: Separator, piece_characters: int) -> Iterator[Part]:
    buffer, line, first = "", 1, True
    for chunk in chunks:
        buffer += chunk
        start = 0
        if separator.pattern is not None:
            for match in separator.pattern.finditer(buffer):
                if separator.grows and match.end() == len(buffer):
                    break
                yield Part(buffer[start : match.start()], match[0], line, first, True)
                line += buffer.count("\n", start, match.end())
                start, first = match.end(), True
        while len(buffer) - start > piece_characters + _AHEAD:
            at = _safe_cut(buffer, start, start + piece_characters)
            yield Part(buffer[start:at], "", line, first, False)
            line += buffer.count("\n", start, at)
            start, first = at, False
        buffer = buffer[start:]
    yield from _rest(buffer, separator, line, first)


def _rest(buffer: str, separator: Separator, line: int, first: bool) -> Iterator[Part]:
    """What is left when the stream has ended: at most one match that touches its end."""
    end = len(buffer)
    if separator.at_end:
        newline = buffer.find("\n", len(buffer.rstrip()))
        end = len(buffer) if newline < 0 else newline
    if buffer or not first:
        yield Part(buffer[:end], buffer[end:], line, first, True)


def _safe_cut(text: str, start: int, limit: int) -> int:
    """A position in the second half of start … limit where a tokenizer cuts too: after a newline, before a word."""
    end = limit
    while (at := text.rfind("\n", (start + limit) // 2, end)) >= 0:
        if not text[at + 1].isspace():
            return at + 1
        end = at
    return limit
