"""Texts that a verb works on: given in words, in files, or on standard input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mingyue.errors import DataError


@dataclass(frozen=True)
class Given:
    """A text and where it came from (None: the command line itself)."""

    text: str
    source: str | None = None


def collect(texts: Sequence[str], files: Sequence[str]) -> list[Given]:
    """The texts, then the content of the files; `-` among either is standard input, which can be read once.

    Raises `DataError` for a file that cannot be read or is not UTF-8, with the byte.
    """
    if [*texts, *files].count("-") > 1:
        raise DataError("`-` is given twice, but standard input can be read only once")
    given = [read("-") if text == "-" else Given(_checked(text)) for text in texts]
    return given + [read(name) for name in files]


def read(name: str) -> Given:
    """The content of a UTF-8 file, or of standard input for `-`; a byte order mark is not part of it."""
    if name == "-":
        content, source = sys.stdin.buffer.read(), "standard input"
    else:
        try:
            content, source = Path(name).read_bytes(), name
        except OSError as error:
            raise DataError(f"{name} cannot be read: {error.strerror}", advice="Is the path right?") from error
    try:
        return Given(content.decode("utf-8-sig").replace("\r\n", "\n"), source)
    except UnicodeDecodeError as error:
        wrong = content[error.start]
        raise DataError(
            f"{source} is not UTF-8: byte {error.start} is 0x{wrong:02x}",
            advice="Save it as UTF-8 (iconv -f gbk -t utf-8 does it on most systems), then try again.",
        ) from error


def without_last_line_end(given: Given) -> Given:
    """A prompt from a file or `echo` ends in a line end that nobody meant; one is taken away."""
    return given if given.source is None else Given(given.text.removesuffix("\n"), given.source)


def _checked(text: str) -> str:
    """Arguments that were not text in the encoding of the system arrive as lone surrogates: refuse them by name."""
    for place, character in enumerate(text):
        if 0xD800 <= ord(character) <= 0xDFFF:
            raise DataError(
                f"the text on the command line is not {sys.getfilesystemencoding()} at character {place}",
                advice="Put the text into a UTF-8 file, or pipe it in and give `-`.",
            )
    return text


def unescape(text: str) -> str:
    r"""`\n`, `\t`, `\r` and `\\` as the characters they stand for: not every shell can type a line end."""
    marks = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
    parts: list[str] = []
    rest = text
    while (cut := rest.find("\\")) >= 0 and cut + 1 < len(rest):
        mark = rest[cut + 1]
        parts.append(rest[:cut] + marks.get(mark, "\\" + mark))
        rest = rest[cut + 2 :]
    return "".join(parts) + rest
