"""Files of records: JSON lines, CSV, TSV, Parquet. A record is one document."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mingyue.data.report import BadRecords
from mingyue.errors import DataError, MissingExtraError

DEFAULT_FIELD = "text"
SURROGATE = re.compile("[\ud800-\udfff]")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_FIELD_LIMIT = (1 << 31) - 1


@dataclass(frozen=True)
class Record:
    """The text of one record, and the line (or row) that it begins at."""

    text: str
    line: int


def lines_of(chunks: Iterable[str]) -> Iterator[str]:
    r"""Lines with their \n; nothing else ends a line (str.splitlines would also cut at U+2028 and the like)."""
    rest = ""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split("\n")
        for line in whole:
            yield line + "\n"
    if rest:
        yield rest


def json_records(lines: Iterable[str], name: str, field: str | None, bad: BadRecords) -> Iterator[Record]:
    """Records of a JSON lines file: objects with a text under `field`. Blank lines are passed over."""
    key = field or DEFAULT_FIELD
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        if SURROGATE.search(line):
            bad("line that does not fit the encoding", where, "the bytes of this line do not fit the encoding")
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            bad("line that is not JSON", where, f"not JSON: {error.msg} at column {error.colno}")
            continue
        except (RecursionError, ValueError) as error:
            bad("line that is not JSON", where, f"not JSON that can be read: {error}")
            continue
        if not isinstance(value, dict):
            bad("line that is not an object", where, f"a JSON object was expected, not {type(value).__name__}")
        elif key not in value:
            keys = ", ".join(repr(found) for found in value) or "none"
            bad(f"record without {key!r}", where, f"no key {key!r}; keys found: {keys}", "Name the key with --field.")
        elif not isinstance(value[key], str):
            kind = type(value[key]).__name__
            bad(f"record whose {key!r} is not text", where, f"{key!r} holds {kind}, not text")
        elif SURROGATE.search(value[key]):
            bad("record with half a surrogate pair", where, f"{key!r} holds half of a surrogate pair, which is no text")
        else:
            yield Record(value[key], number)


def csv_records(lines: Iterable[str], name: str, field: str | None, bad: BadRecords) -> Iterator[Record]:
    """Records of a CSV file with a header; quoted fields may hold commas and newlines (RFC 4180)."""
    rows = csv.reader(lines, strict=True)
    before = csv.field_size_limit(_FIELD_LIMIT)
    try:
        yield from _columns(_csv_rows(rows, name, bad), name, field, bad)
    finally:
        csv.field_size_limit(before)


def tsv_records(lines: Iterable[str], name: str, field: str | None, bad: BadRecords) -> Iterator[Record]:
    """Records of a TSV file with a header.

    A quotation mark is a character, except around a field that holds doubled marks and no single ones, as
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
        raise DataError(f"{name} is not a whole Parquet file: {error}") from None


def _csv_rows(rows: Iterator[list[str]], name: str, bad: BadRecords) -> Iterator[tuple[int, list[str]]]:
    while True:
        line = getattr(rows, "line_num", 0) + 1
        try:
            yield line, next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            bad("row that is not CSV", f"{name}, line {line}", f"not CSV: {error}")


def _columns(rows: Iterable[tuple[int, list[str]]], name: str, field: str | None, bad: BadRecords) -> Iterator[Record]:
    column = field or DEFAULT_FIELD
    header: list[str] | None = None
    place = 0
    for line, row in rows:
        if not any(cell.strip() for cell in row):
            continue
        where = f"{name}, line {line}"
        if header is None:
            header = row
            if column not in header:
                raise _no_column(name, column, header)
            place = header.index(column)
        elif len(row) != len(header):
            message = f"{len(row)} columns where the header has {len(header)}"
            bad("row with another number of columns", where, message)
        elif SURROGATE.search(row[place]):
            bad("row that does not fit the encoding", where, "the bytes of this row do not fit the encoding")
        else:
            yield Record(row[place], line)


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
