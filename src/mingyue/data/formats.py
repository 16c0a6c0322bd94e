"""Files of records: JSON lines, CSV, TSV (Parquet: `parquet`). A record is one document (or a pair: `pair_records`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mingyue.data.csv_rows import csv_rows
from mingyue.data.report import BadRecords
from mingyue.errors import DataError
from mingyue.words import tr

DEFAULT_FIELD = "text"
SURROGATE = re.compile("[\ud800-\udfff]")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_ARRAY = tr("JSON lines have one object per line: `jq -c '.[]' array.json > lines.jsonl` writes those of an array.")
ABSENT = object()
"""Stands for the value of a key that a record does not have."""


@dataclass(frozen=True)
class Record:
    """The text of one record, and the line (or row) where it begins."""

    text: str
    line: int


def lines_of(chunks: Iterable[str]) -> Iterator[str]:
    r"""Lines with their \n; nothing else ends a line (str.splitlines also cuts at U+2028 and the like)."""
    held: list[str] = []  # a line over many chunks is joined once: the time is linear
    for chunk in chunks:
        first, *others = chunk.split("\n")
        held.append(first)
        for line in others:
            yield "".join(held) + "\n"
            held = [line]
    if rest := "".join(held):
        yield rest


def json_objects(
    lines: Iterable[tuple[int, str]], name: str, bad: BadRecords
) -> Iterator[tuple[int, dict[str, object]]]:
    """The objects of a JSON lines file, from numbered lines; blank lines are skipped, other values go to `bad`."""
    for number, line in lines:
        if not line.strip():
            continue
        where = tr("{name}, line {number}", name, number)
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            advice = _ARRAY if line.strip() in ("[", "{") else None
            bad(
                tr("line that is not JSON"),
                where,
                tr("not JSON: {msg} at column {colno}", error.msg.removesuffix(" at"), error.colno),
                advice,
            )
            continue
        except (RecursionError, ValueError) as error:
            bad(tr("line that is not JSON"), where, tr("not JSON that can be read: {error}", error))
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            advice = _ARRAY if isinstance(value, list) else None
            bad(
                tr("line that is not an object"),
                where,
                tr("a JSON object was expected, not {kind}", type(value).__name__),
                advice,
            )


def text_value(
    found: object, field: str, where: str, bad: BadRecords, *, keys: Iterable[str], advice: str
) -> str | None:
    """The value `found` under `field` if it is text; else None, after `bad` was called.

    `keys` (those of the record) and `advice` are for the message.
    """
    if isinstance(found, str):
        return found
    if found is ABSENT:
        shown = ", ".join(map(repr, keys)) or "none"
        bad(
            tr("record without {field!r}", field),
            where,
            tr("no key {field!r}; keys found: {shown}", field, shown),
            advice,
        )
    else:
        bad(
            tr("record whose {field!r} is not text", field),
            where,
            tr("{field!r} holds {kind}, not text", field, type(found).__name__),
        )
    return None


def json_records(lines: Iterable[str], name: str, field: str | None, bad: BadRecords) -> Iterator[Record]:
    """Records of a JSON lines file: objects with a text under `field`. Blank lines are skipped."""
    key = field or DEFAULT_FIELD
    for number, value in json_objects(_decoded(lines, name, bad), name, bad):
        where = tr("{name}, line {number}", name, number)
        text = text_value(value.get(key, ABSENT), key, where, bad, keys=value, advice=tr("Name the key with --field."))
        if text is None:
            continue
        if SURROGATE.search(text):
            bad(
                tr("record with half a surrogate pair"),
                where,
                tr("{key!r} holds half of a surrogate pair, which is not text", key),
            )
        else:
            yield Record(text, number)


def csv_records(lines: Iterable[str], name: str, field: str | None, bad: BadRecords) -> Iterator[Record]:
    """Records of a CSV file with a header; quoted fields may hold commas and newlines (RFC 4180)."""
    with csv_rows(lines, name, bad) as rows:
        yield from _columns(rows, name, field, bad)


def tsv_records(lines: Iterable[str], name: str, field: str | None, bad: BadRecords) -> Iterator[Record]:
    """Records of a TSV file with a header.

    A quotation mark is an ordinary character, except around a field that holds doubled marks and no single ones, as
    spreadsheet programs write it.
    """
    rows = ((n, [_unquote(cell) for cell in line.rstrip("\n").split("\t")]) for n, line in enumerate(lines, start=1))
    yield from _columns(rows, name, field, bad)


def _decoded(lines: Iterable[str], name: str, bad: BadRecords) -> Iterator[tuple[int, str]]:
    """Numbered lines, without those whose bytes do not fit the encoding."""
    for number, line in enumerate(lines, start=1):
        if SURROGATE.search(line):
            where = tr("{name}, line {number}", name, number)
            bad(tr("line that does not fit the encoding"), where, tr("the bytes of this line do not fit the encoding"))
        else:
            yield number, line


def _columns(rows: Iterable[tuple[int, list[str]]], name: str, field: str | None, bad: BadRecords) -> Iterator[Record]:
    column = field or DEFAULT_FIELD
    header: list[str] | None = None
    index = 0
    for line, row in rows:
        blank = not any(cell.strip() for cell in row)
        if blank and (header is None or len(row) <= 1):
            continue
        where = tr("{name}, line {line}", name, line)
        if header is None:
            header = row
            if column not in header:
                raise no_column(name, column, header)
            index = header.index(column)
        elif blank:
            yield Record("", line)  # counted as a record without text
        elif len(row) != len(header):
            message = tr("{n_row} columns where the header has {n_header}", len(row), len(header))
            bad(tr("row with another number of columns"), where, message)
        elif SURROGATE.search(row[index]):
            bad(tr("row that does not fit the encoding"), where, tr("the bytes of this row do not fit the encoding"))
        else:
            yield Record(row[index], line)


def no_column(name: str, column: str, names: list[str]) -> DataError:
    """The error when the column of the text is missing."""
    return DataError(
        tr(
            "{name} has no column {column!r}; columns found: {names}",
            name,
            column,
            ", ".join(repr(found) for found in names),
        ),
        advice=tr("Name the column of the text with --field."),
    )


def _unquote(cell: str) -> str:
    if '""' in cell:
        match = _QUOTED.fullmatch(cell)
        if match and '""' in match[1]:
            return match[1].replace('""', '"')
    return cell
