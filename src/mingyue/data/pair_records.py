"""Files in which a record holds both sides of a pair: TSV, CSV, JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mingyue.config import PairSettings
from mingyue.data.report import BadRecords
from mingyue.data.sources import Kind
from mingyue.errors import DataError, SettingsError

_DEFAULTS = tuple(PairSettings.model_fields[name].default for name in ("source_field", "target_field"))
_ADVICE = "Name the two sides with --source-field and --target-field."
_FIELD_LIMIT = (1 << 31) - 1
_ABSENT = object()
_SHOWN = 40  # characters of a text in a note


class Sides(NamedTuple):
    """Both texts of a record, and the line that it begins at."""

    source: str
    target: str
    line: int


class Fields(NamedTuple):
    """Where a record holds its two sides: names, column numbers from 1, or dotted names of nested JSON objects."""

    source: str
    target: str


def pair_records(kind: Kind, lines: Iterable[str], name: str, fields: Fields, bad: BadRecords) -> Iterator[Sides]:
    r"""The pairs of a file of records. Anything but JSON lines and CSV is read as TSV.

    In TSV a quotation mark is a character like any other; CSV is that of RFC 4180. Both may begin with a header, known
    by holding both names; with the default names and no header, the sides are columns 1 and 2. A JSON name such as
    translation.en also finds {"translation": {"en": …}}. Lines that are blank are no records.

    `lines` end with \n. A record without both sides goes to `bad`, which counts it or raises `DataError` (line, what
    was found); names that no column has are an error at once.
    """
    if kind == "jsonl":
        yield from _json(lines, name, fields, bad)
    elif kind == "csv":
        before = csv.field_size_limit(_FIELD_LIMIT)
        try:
            yield from _columns(_csv_rows(lines, name, bad), name, fields, bad)
        finally:
            csv.field_size_limit(before)
    else:
        rows = ((number, line.removesuffix("\n").split("\t")) for number, line in enumerate(lines, start=1))
        yield from _columns(rows, name, fields, bad)


def _json(lines: Iterable[str], name: str, fields: Fields, bad: BadRecords) -> Iterator[Sides]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            bad("line that is not JSON", where, f"not JSON: {error.msg} at column {error.colno}")
            continue
        except (RecursionError, ValueError) as error:
            bad("line that is not JSON", where, f"not JSON that can be read: {error}")
            continue
        if not isinstance(record, dict):
            bad("line that is not an object", where, f"a JSON object was expected, not {type(record).__name__}")
            continue
        texts: list[str] = []
        for field in fields:
            found = _find(record, field)
            if found is _ABSENT:
                keys = ", ".join(map(repr, _keys(record))) or "none"
                bad(f"record without {field!r}", where, f"no key {field!r}; keys found: {keys}", _ADVICE)
                break
            if not isinstance(found, str):
                kind = type(found).__name__
                bad(f"record whose {field!r} is not text", where, f"{field!r} holds {kind}, not text")
                break
            texts.append(found)
        else:
            yield Sides(texts[0], texts[1], number)


def _find(record: dict[str, object], field: str) -> object:
    if field in record:
        return record[field]
    here: object = record
    for part in field.split("."):
        if not isinstance(here, dict) or part not in here:
            return _ABSENT
        here = here[part]
    return here


def _keys(record: dict[str, object]) -> Iterator[str]:
    """Every key as it would have to be named."""
    for key, value in record.items():
        if isinstance(value, dict) and value:
            yield from (f"{key}.{inner}" for inner in value)
        else:
            yield key


def _csv_rows(lines: Iterable[str], name: str, bad: BadRecords) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader(lines, strict=True)
    while True:
        line = rows.line_num + 1
        try:
            yield line, next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            bad("row that is not CSV", f"{name}, line {line}", f"not CSV: {error}")


def _columns(rows: Iterable[tuple[int, list[str]]], name: str, fields: Fields, bad: BadRecords) -> Iterator[Sides]:
    places: tuple[int, int] | None = None
    first = width = 0
    for line, row in rows:
        if len(row) <= 1 and not "".join(row).strip():
            continue
        where = f"{name}, line {line}"
        if places is None:
            found, header = _places(row, where, fields)
            if max(found) >= len(row):
                message = f"column {max(found) + 1} was asked for, and there {_are(len(row))}"
                bad("row with too few columns", where, message, _ADVICE)
                continue
            places, first, width = found, line, len(row)
            if header:
                continue
            one, other = (row[place][:_SHOWN] for place in places)
            bad.report.note(f"{name} has no header that names the sides; its first pair is {one!r} → {other!r}")
        if len(row) == width:
            yield Sides(row[places[0]], row[places[1]], line)
        else:
            message = f"there {_are(len(row))}, and line {first} has {width}"
            bad("row with another number of columns", where, message)


def _places(row: list[str], where: str, fields: Fields) -> tuple[tuple[int, int], bool]:
    """Columns of both sides, from 0, and whether the first row is a header. A number is never taken for a name."""
    found = [_number(field) if field.isdecimal() else _index(row, field) for field in fields]
    absent = [field for field, place in zip(fields, found, strict=True) if place is None]
    if absent and fields == _DEFAULTS:
        return (0, 1), False
    if absent:
        shown = ", ".join(repr(cell[:40]) for cell in row[:8])
        raise DataError(
            f"{where}: no column {absent[0]!r}; columns found: {shown}",
            advice=f"{_ADVICE} Columns without names are numbered from 1.",
        )
    source, target = (place or 0 for place in found)
    return (source, target), not all(field.isdecimal() for field in fields)


def _number(field: str) -> int:
    if int(field) < 1:
        raise SettingsError(f"there is no column {field}: columns are numbered from 1", advice=_ADVICE)
    return int(field) - 1


def _index(row: list[str], field: str) -> int | None:
    return row.index(field) if field in row else None


def _are(columns: int) -> str:
    return f"is {columns} column" if columns == 1 else f"are {columns} columns"
