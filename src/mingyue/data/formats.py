"""Files of records: JSON lines, CSV, TSV, Parquet. A record is one document (or a pair: `pair_records`)."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mingyue.data.report import BadRecords
from mingyue.errors import DataError, MissingExtraError

DEFAULT_FIELD = "text"
SURROGATE = re.compile("[\ud800-\udfff]")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_FIELD_LIMIT = (1 << 31) - 1
ABSENT = object()
"""Stands for the value of a key that a record does not have."""


@dataclass(frozen=True)
class Record:
    """The text of one record, and the line (or row) where it begins."""

    text: str
    line: int


def lines_of(chunks: Iterable[str]) -> Iterator[str]:
    r"""Lines with their \n; nothing else ends a line (str.splitlines also cuts at U+2028 and the like)."""
    rest = ""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split("\n")
        for line in whole:
            yield line + "\n"
    if rest:
        yield rest


def json_objects(
    lines: Iterable[tuple[int, str]], name: str, bad: BadRecords
) -> Iterator[tuple[int, dict[str, object]]]:
    """The objects of a JSON lines file, from numbered lines; blank lines are skipped, other values go to `bad`."""
    for number, line in lines:
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            bad("line that is not JSON", where, f"not JSON: {error.msg} at column {error.colno}")
            continue
        except (RecursionError, ValueError) as error:
            bad("line that is not JSON", where, f"not JSON that can be read: {error}")
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            bad("line that is not an object", where, f"a JSON object was expected, not {type(value).__name__}")


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
        bad(f"record without {field!r}", where, f"no key {field!r}; keys found: {shown}", advice)
    else:
        bad(f"record whose {field!r} is not text", where, f"{field!r} holds {type(found).__name__}, not text")
    return None


def json_records(lines: Iterable[str], name: str, field: str | None, bad: BadRecords) -> Iterator[Record]:
    """Records of a JSON lines file: objects with a text under `field`. Blank lines are skipped."""
    key = field or DEFAULT_FIELD
    for number, value in json_objects(_decoded(lines, name, bad), name, bad):
        where = f"{name}, line {number}"
        text = text_value(value.get(key, ABSENT), key, where, bad, keys=value, advice="Name the key with --field.")
        if text is None:
            continue
        if SURROGATE.search(text):
            bad(
                "record with half a surrogate pair", where, f"{key!r} holds half of a surrogate pair, which is not text"
            )
        else:
            yield Record(text, number)


@contextmanager
def csv_rows(lines: Iterable[str], name: str, bad: BadRecords) -> Generator[Iterator[tuple[int, list[str]]]]:
    """Rows of a CSV file with their line numbers; inside the block, fields may be of any length (RFC 4180)."""
    before = csv.field_size_limit(_FIELD_LIMIT)
    try:
        yield _csv_rows(csv.reader(lines, strict=True), name, bad)
    finally:
        csv.field_size_limit(before)


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


def parquet_records(file: Path | BinaryIO, name: str, field: str | None, bad: BadRecords) -> Iterator[Record]:
    """Records of a Parquet file, read in batches. `MissingExtraError` without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError(
            f"reading {name} needs pyarrow", advice="Install the extra: pip install 'mingyue[data]'."
        ) from None
    column = field or DEFAULT_FIELD
    try:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        if column not in names:
            raise _no_column(name, column, names)
        row = 0
        for batch in table.iter_batches(columns=[column], batch_size=4096):
            for value in batch.column(0).to_pylist():
                row += 1
                if isinstance(value, str):
                    yield Record(value, row)
                else:
                    what = "empty" if value is None else type(value).__name__
                    reason = f"record whose {column!r} is not text"
                    bad(reason, f"{name}, row {row}", f"{column!r} is {what}, not text")
    except pa.ArrowException as error:
        raise DataError(f"{name} is not a complete Parquet file: {error}") from None


def _decoded(lines: Iterable[str], name: str, bad: BadRecords) -> Iterator[tuple[int, str]]:
    """Numbered lines, without those whose bytes do not fit the encoding."""
    for number, line in enumerate(lines, start=1):
        if SURROGATE.search(line):
            where = f"{name}, line {number}"
            bad("line that does not fit the encoding", where, "the bytes of this line do not fit the encoding")
        else:
            yield number, line


def _csv_rows(rows: Any, name: str, bad: BadRecords) -> Iterator[tuple[int, list[str]]]:  # noqa: ANN401
    while True:
        line = rows.line_num + 1
        try:
            yield line, next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            bad("row that is not CSV", f"{name}, line {line}", f"not CSV: {error}")


def _columns(rows: Iterable[tuple[int, list[str]]], name: str, field: str | None, bad: BadRecords) -> Iterator[Record]:
    column = field or DEFAULT_FIELD
    header: list[str] | None = None
    index = 0
    for line, row in rows:
        if not any(cell.strip() for cell in row):
            continue
        where = f"{name}, line {line}"
        if header is None:
            header = row
            if column not in header:
                raise _no_column(name, column, header)
            index = header.index(column)
        elif len(row) != len(header):
            message = f"{len(row)} columns where the header has {len(header)}"
            bad("row with another number of columns", where, message)
        elif SURROGATE.search(row[index]):
            bad("row that does not fit the encoding", where, "the bytes of this row do not fit the encoding")
        else:
            yield Record(row[index], line)


def _no_column(name: str, column: str, names: list[str]) -> DataError:
    return DataError(
        f"{name} has no column {column!r}; columns found: {', '.join(repr(found) for found in names)}",
        advice="Name the column of the text with --field.",
    )


def _unquote(cell: str) -> str:
    if '""' in cell:
        match = _QUOTED.fullmatch(cell)
        if match and '""' in match[1]:
            return match[1].replace('""', '"')
    return cell
