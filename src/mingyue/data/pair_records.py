"""Files in which a record holds both sides of a pair: TSV, CSV, JSON lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mingyue.config import PairSettings
from mingyue.data.csv_rows import csv_rows
from mingyue.data.formats import ABSENT, json_objects, text_value
from mingyue.data.report import BadRecords
from mingyue.data.sources import Kind
from mingyue.errors import DataError, SettingsError
from mingyue.words import joined, tr

_DEFAULTS = tuple(PairSettings.model_fields[name].default for name in ("source_field", "target_field"))
_ADVICE = tr("Name the two sides with --source-field and --target-field.")
_SHOWN = 40  # characters of a text in a note


class Sides(NamedTuple):
    """Both texts of a record, and the line where it begins."""

    source: str
    target: str
    line: int


class Fields(NamedTuple):
    """Where a record holds its two sides: names, column numbers from 1, or dotted names of nested JSON objects."""

    source: str
    target: str


def pair_records(kind: Kind, lines: Iterable[str], name: str, fields: Fields, bad: BadRecords) -> Iterator[Sides]:
    r"""The pairs of a file of records. Anything but JSON lines and CSV is read as TSV.

    In TSV a quotation mark is an ordinary character; CSV follows RFC 4180. Both may begin with a header, which is
    recognised by holding both names; with the default names and no header, the sides are columns 1 and 2. A JSON name
    such as translation.en also finds {"translation": {"en": …}}. Blank lines are skipped.

    `lines` end with \n. A record without both sides goes to `bad`, which counts it or raises `DataError` (line, what
    was found). Names that no column has raise `DataError` at once.
    """
    if kind == "jsonl":
        yield from _json(lines, name, fields, bad)
    elif kind == "csv":
        with csv_rows(lines, name, bad) as rows:
            yield from _columns(rows, name, fields, bad)
    else:
        cells = ((number, line.removesuffix("\n").split("\t")) for number, line in enumerate(lines, start=1))
        yield from _columns(cells, name, fields, bad)


def _json(lines: Iterable[str], name: str, fields: Fields, bad: BadRecords) -> Iterator[Sides]:
    for number, record in json_objects(enumerate(lines, start=1), name, bad):
        texts: list[str] = []
        for field in fields:
            where = tr("{name}, line {number}", name, number)
            text = text_value(_find(record, field), field, where, bad, keys=_keys(record), advice=_ADVICE)
            if text is None:
                break
            texts.append(text)
        else:
            yield Sides(texts[0], texts[1], number)


def _find(record: dict[str, object], field: str) -> object:
    if field in record:
        return record[field]
    here: object = record
    for part in field.split("."):
        if not isinstance(here, dict) or part not in here:
            return ABSENT
        here = here[part]
    return here


def _keys(record: dict[str, object]) -> Iterator[str]:
    """Every key, as it must be named to be found."""
    for key, value in record.items():
        if isinstance(value, dict) and value:
            yield from (f"{key}.{inner}" for inner in value)
        else:
            yield key


def _columns(rows: Iterable[tuple[int, list[str]]], name: str, fields: Fields, bad: BadRecords) -> Iterator[Sides]:
    columns: tuple[int, int] | None = None
    first = width = 0
    for line, row in rows:
        if len(row) <= 1 and not "".join(row).strip():
            continue
        where = tr("{name}, line {line}", name, line)
        if columns is None:
            found, header = _sides_of(row, where, fields)
            if max(found) >= len(row):
                message = tr("column {found} was asked for, and there {are}", max(found) + 1, _are(len(row)))
                bad(tr("row with too few columns"), where, message, _ADVICE)
                continue
            columns, first, width = found, line, len(row)
            if header:
                continue
            one, other = (row[column][:_SHOWN] for column in columns)
            bad.report.note(
                tr("{name} has no header that names the sides; its first pair is {one!r} → {other!r}", name, one, other)
            )
        if len(row) == width:
            yield Sides(row[columns[0]], row[columns[1]], line)
        else:
            message = tr("there {are}, and line {first} has {width}", _are(len(row)), first, width)
            bad(tr("row with another number of columns"), where, message)


def _sides_of(row: list[str], where: str, fields: Fields) -> tuple[tuple[int, int], bool]:
    """Columns of both sides, from 0, and whether the first row is a header. A number is never read as a name."""
    found = [_number(field) if field.isdecimal() else _index(row, field) for field in fields]
    absent = [field for field, column in zip(fields, found, strict=True) if column is None]
    if absent and fields == _DEFAULTS:
        return (0, 1), False
    if absent:
        shown = ", ".join(repr(cell[:40]) for cell in row[:8])
        raise DataError(
            tr("{where}: no column {absent!r}; columns found: {shown}", where, absent[0], shown),
            advice=joined([_ADVICE, tr("Columns without names are numbered from 1.")]),
        )
    source, target = (column or 0 for column in found)
    return (source, target), not all(field.isdecimal() for field in fields)


def _number(field: str) -> int:
    if int(field) < 1:
        raise SettingsError(tr("there is no column {field}: columns are numbered from 1", field), advice=_ADVICE)
    return int(field) - 1


def _index(row: list[str], field: str) -> int | None:
    return row.index(field) if field in row else None


def _are(columns: int) -> str:
    return tr("is {columns} column", columns) if columns == 1 else tr("are {columns} columns", columns)
