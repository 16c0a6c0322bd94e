"""Rows of CSV files (RFC 4180), with their line numbers. A broken row costs its own line and no other."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

from mingyue.data.report import BadRecords
from mingyue.words import tr

_FIELD_LIMIT = (1 << 31) - 1
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
"""What may separate columns: the first of these in the first line (spreadsheets of many languages write semicolons)."""


@contextmanager
def csv_rows(lines: Iterable[str], name: str, bad: BadRecords) -> Generator[Iterator[tuple[int, list[str]]]]:
    """Rows of a CSV file with their line numbers; inside the block, fields may be of any length.

    Columns are separated by commas, or by semicolons or tabs where the first line has no comma, with a note. A
    quotation mark that is never closed makes one row of all lines up to the next mark, or to the end. Such a row (it
    breaks off, or has another number of columns than the first row) goes to `bad`, and reading starts again at the line
    after its first.
    """
    before = csv.field_size_limit(_FIELD_LIMIT)
    lines = iter(lines)
    first = next(lines, "")
    delimiter = next((mark for mark in _DELIMITERS if mark in first), ",")
    if delimiter != ",":
        bad.report.note(
            tr("{name}: its columns are separated by {delimiters}, not commas", name, _DELIMITERS[delimiter])
        )
    try:
        yield _rows(_Lines(chain([first] if first else [], lines)), name, bad, delimiter)
    finally:
        csv.field_size_limit(before)


class _Lines:
    """An iterator over lines that can go back to the second line of a row."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._again: deque[str] = deque()
        self._row: list[str] = []
        self._next = 1

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self._row.append(line)
        return line

    @property
    def taken(self) -> int:
        """Lines of the current row."""
        return len(self._row)

    def begin_row(self) -> int:
        """The number of the line where the next row begins."""
        self._next += len(self._row)
        self._row.clear()
        return self._next

    def back(self) -> None:
        """Give all lines of the row but the first once more."""
        self._again.extendleft(reversed(self._row[1:]))
        del self._row[1:]


def _rows(lines: _Lines, name: str, bad: BadRecords, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    width: int | None = None
    while True:
        line = lines.begin_row()
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            wrong = tr("not CSV: {error}", error)
        else:
            width = width or len(row)
            if lines.taken == 1 or len(row) == width:
                yield line, row
                continue
            wrong = tr("not CSV: {n_row} columns where the first row has {width}", len(row), width)
        if lines.taken > 1:
            wrong += tr("; its quoted field reaches line {line}", line + lines.taken - 1)
        bad(tr("row that is not CSV"), tr("{name}, line {line}", name, line), wrong)
        lines.back()
