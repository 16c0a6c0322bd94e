"""Input texts of a verb: from arguments, files, or standard input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from mingyue.errors import DataError
from mingyue.files import reason_of
from mingyue.paths import path_of
from mingyue.words import tr


@dataclass(frozen=True)
class InputText:
    """A text and its source (None for the command line)."""

    text: str
    source: str | None = None


def collect(texts: Sequence[str], files: Sequence[str]) -> list[InputText]:
    """The texts, then the contents of the files; `-` in either is standard input, which can be read once.

    Raises `DataError` for a file that cannot be read, or is not UTF-8 (with the byte).
    """
    if [*texts, *files].count("-") > 1:
        raise DataError(tr("`-` is given twice, but standard input can be read only once"))
    given = [read("-") if text == "-" else InputText(_checked(text)) for text in texts]
    return given + [read(name) for name in files]


def read(name: str) -> InputText:
    """The content of a UTF-8 file, or of standard input for `-`; a byte order mark is not part of it."""
    if name == "-":
        content, source = sys.stdin.buffer.read(), tr("standard input")
    else:
        try:
            content, source = path_of(name).read_bytes(), name
        except OSError as error:
            raise DataError(
                tr("{name} cannot be read: {reason}", name, reason_of(error)), advice=tr("Check the path.")
            ) from error
    try:
        return InputText(content.decode("utf-8-sig").replace("\r\n", "\n"), source)
    except UnicodeDecodeError as error:
        wrong = content[error.start]
        raise DataError(
            tr("{source} is not UTF-8: byte {start} is 0x{wrong:02x}", source, error.start, wrong),
            advice=tr("Convert it to UTF-8 (for example with iconv -f gbk -t utf-8), then try again."),
        ) from error


def collect_prompts(texts: Sequence[str], files: Sequence[str], files_of_lines: Sequence[str]) -> list[str]:
    """Prompts from arguments, from files with one each, and from files with one on each line (perhaps an empty one).

    Raises `DataError` as `collect` does.
    """
    found = [without_final_newline(one) for one in collect([*texts], [*files, *files_of_lines])]
    n_whole = len(texts) + len(files)
    lines = [line for one in found[n_whole:] if one.text for line in one.text.split("\n")]
    return [*(one.text for one in found[:n_whole]), *lines]


def without_final_newline(given: InputText) -> InputText:
    """A text from a file or standard input without its last line break, which `echo` and editors add."""
    return given if given.source is None else InputText(given.text.removesuffix("\n"), given.source)


def _checked(text: str) -> str:
    """Refuse arguments with lone surrogates: bytes that are not text in the encoding of the system."""
    for index, character in enumerate(text):
        if 0xD800 <= ord(character) <= 0xDFFF:
            raise DataError(
                tr(
                    "the text on the command line is not {getfilesystemencoding} at character {index}",
                    sys.getfilesystemencoding(),
                    index,
                ),
                advice=tr("Put the text into a UTF-8 file, or pipe it in with `-`."),
            )
    return text


def unescape(text: str) -> str:
    r"""`\n`, `\t`, `\r` and `\\` as the characters they stand for: not every shell can type a line break."""
    marks = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
    parts: list[str] = []
    rest = text
    while (cut := rest.find("\\")) >= 0 and cut + 1 < len(rest):
        mark = rest[cut + 1]
        parts.append(rest[:cut] + marks.get(mark, "\\" + mark))
        rest = rest[cut + 2 :]
    return "".join(parts) + rest
