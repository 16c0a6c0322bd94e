"""Reads documents from the sources that the user named, one by one, and reports everything that was left out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple, cast

from mingyue.config import DataSettings
from mingyue.data.encodings import CHUNK, Encoding, NotTextError, UndecodableError, find_encoding, read_text
from mingyue.data.formats import SURROGATE, Record, csv_records, json_records, lines_of, tsv_records
from mingyue.data.hub import hub_records
from mingyue.data.parquet import parquet_records
from mingyue.data.report import WAITING, BadRecords, Progress, ReadReport, readable
from mingyue.data.sources import DamagedFileError, Source, expand_sources, opened, unchanged
from mingyue.data.split import Part, Separator, parse_separator, split_documents
from mingyue.errors import DataError
from mingyue.words import joined, stored, tr

_LINE_FORMATS: dict[str, Callable[[Iterable[str], str, str | None, BadRecords], Iterator[Record]]] = {
    "jsonl": json_records,
    "csv": csv_records,
    "tsv": tsv_records,
}
_EMPTY = tr("file without text (empty, or only whitespace)")
_UNREADABLE = {
    NotTextError: tr("binary file"),
    UndecodableError: tr("file whose encoding is uncertain"),
    DamagedFileError: tr("damaged compressed file"),
}
_JSON = tr(
    "{name} is read as plain text, with its brackets and keys. To train on the texts in "
    "it, write one object per line to a .jsonl file (jq -c '.[]')."
)
_FILES_NAMED = 5  # files with a detected encoding that are named one by one; the others are in the counts


@dataclass(frozen=True, slots=True)
class Document:
    """One document."""

    text: str
    tail: str
    """The separator after it ("" if none): texts and tails joined are what was read."""
    source: str
    line: int
    """Where it begins in its source (a row for Parquet), counted from 1."""


class Piece(NamedTuple):
    """A document, or a piece of one that is too long to be held in memory."""

    text: str
    tail: str
    source: str
    line: int
    first: bool
    last: bool


def read_documents(settings: DataSettings, report: ReadReport, progress: Progress | None = None) -> Iterator[Document]:
    """The documents of `settings.sources`, in order; fills `report` on the way.

    Raises `DataError` (file, line, byte, what to do) for what cannot be read, unless `settings.skip_bad`.
    """
    texts: list[str] = []
    line = 1
    for piece in read_pieces(settings, report, progress):
        if piece.first:
            line = piece.line
        texts.append(piece.text)
        if piece.last:
            yield Document("".join(texts), piece.tail, piece.source, line)
            texts.clear()


def read_pieces(settings: DataSettings, report: ReadReport, progress: Progress | None = None) -> Iterator[Piece]:
    """As `read_documents`, in pieces of bounded size: a document longer than `split.PIECE_CHARACTERS` has several."""
    separator = parse_separator(settings.separator)
    sources = expand_sources(settings.sources, report, with_field=settings.field is not None)
    if settings.field is not None and all(source.kind == "text" for source in sources):
        report.note(tr("--field {field} is not used: it is for JSON lines, CSV, TSV and Parquet", settings.field))
    before = report.documents
    gauge = Gauge(sources, progress)
    for number, source in enumerate(sources):
        advance = gauge.of(number)
        if progress is not None and not source.repeatable and (source.path is not None or sys.stdin.isatty()):
            progress(f"{WAITING} {readable(source.name)}", 0, 0)
        if source.named and source.path is not None and source.path.suffix.lower() == ".json":
            report.note(_JSON.format(name=source.name))
        try:
            for piece in _read(source, settings, separator, report, advance):
                report.documents += piece.last
                report.characters += len(piece.text) + len(piece.tail)
                report.bytes += len(piece.text.encode("utf-8")) + len(piece.tail.encode("utf-8"))
                yield piece
        except (NotTextError, UndecodableError, DamagedFileError) as error:
            if not settings.skip_bad and (source.named or not isinstance(error, NotTextError)):
                raise
            report.drop(_UNREADABLE[type(error)], source.name)
        advance(source.size)
    if report.documents == before:
        raise _no_text(sources, report)


def _read(
    source: Source, settings: DataSettings, separator: Separator, report: ReadReport, advance: Callable[[int], None]
) -> Iterator[Piece]:
    bad = BadRecords(report, settings.skip_bad)
    if source.kind == "hub":
        report.files += 1
        yield from _records(hub_records(source.name, settings.field, bad), source, separator, report)
        return
    if source.kind == "parquet":
        report.files += 1
        records = parquet_records(cast(Path, source.path), source.name, settings.field, bad)
        with unchanged(source):
            yield from _records(records, source, separator, report)
        return
    with open_text(source, settings, report, advance) as (encoding, chunks):
        if source.kind == "text":
            yield from _documents(chunks, source, separator, report, bad, escape=encoding.escape)
        else:
            records = _LINE_FORMATS[source.kind](lines_of(chunks), source.name, settings.field, bad)
            yield from _records(records, source, separator, report)


@contextmanager
def open_text(
    source: Source,
    settings: DataSettings,
    report: ReadReport,
    advance: Callable[[int], None],
    *,
    offers_skipping: bool = True,
    keep_nul: bool = False,
) -> Generator[tuple[Encoding, Iterator[str]]]:
    """The encoding of a text source, and its text in chunks; the report counts it, `advance` gets the bytes read.

    Of `settings` the encoding and skip_bad are used. `offers_skipping`, `keep_nul`: see `find_encoding`.
    """
    with opened(source) as open_bytes:
        encoding = find_encoding(
            source.name,
            open_bytes,
            settings.encoding,
            skip_bad=settings.skip_bad,
            offers_skipping=offers_skipping,
            keep_nul=keep_nul,
        )
        report.files += 1
        report.count_encoding(encoding.label)
        if encoding.label.endswith("(detected)") and report.encodings[encoding.label] <= _FILES_NAMED:
            report.note(
                tr(
                    "{name}: read as {codec}: {evidence}; --encoding sets another",
                    source.name,
                    encoding.codec,
                    encoding.evidence,
                )
            )
        yield encoding, _counted(read_text(source.name, open_bytes, encoding), advance)


class Gauge:
    """Progress over several files, in bytes of their size on the disk; they may be read side by side."""

    def __init__(self, files: Sequence[Source], progress: Progress | None) -> None:
        self._sizes = [file.size for file in files]
        self._done = [0] * len(files)
        self._all_done, self._total = 0, sum(self._sizes)
        self._progress = progress

    def of(self, number: int) -> Callable[[int], None]:
        """What the reader of a file calls with the bytes that it has read."""

        def advance(size: int) -> None:
            done = min(size, self._sizes[number])
            self._all_done += done - self._done[number]
            self._done[number] = done
            if self._progress is not None:
                self._progress("reading", self._all_done, self._total)

        return advance


def _documents(
    chunks: Iterable[str], source: Source, separator: Separator, report: ReadReport, bad: BadRecords, *, escape: bool
) -> Iterator[Piece]:
    parts = split_documents(chunks, separator)
    first = next(parts, None)
    if first is None:
        report.drop(_EMPTY, source.name)
        return
    parts = chain([first], parts)
    for part in _sound(parts, source, bad) if escape else parts:
        yield Piece(part.text, part.tail, source.name, part.line, part.first, part.last)


def _sound(parts: Iterable[Part], source: Source, bad: BadRecords) -> Iterator[Part]:
    """The documents without lone surrogates; the pieces of one are held until its last, as it may have one there."""
    held: list[Part] = []
    wrong: int | None = None
    for part in parts:
        if wrong is None and (surrogate := SURROGATE.search(part.text)):
            wrong = part.line + part.text.count("\n", 0, surrogate.start())
        held.append(part)
        if not part.last:
            continue
        if wrong is None:
            yield from held
        else:
            message = tr("the bytes do not fit the encoding")
            bad(
                tr("document that does not fit the encoding"),
                tr("{name}, line {wrong}", source.name, wrong),
                message,
            )
        held.clear()
        wrong = None


def _records(records: Iterable[Record], source: Source, separator: Separator, report: ReadReport) -> Iterator[Piece]:
    for record in records:
        seen = False
        for part in split_documents([record.text.replace("\r\n", "\n")], separator):
            seen = True
            yield Piece(part.text, part.tail, source.name, record.line, part.first, part.last)
        if not seen:
            report.drop(
                tr("record without text (empty, or only whitespace)"),
                tr("{name}, line {line}", source.name, record.line),
            )


def _counted(chunks: Iterable[str], advance: Callable[[int], None]) -> Iterator[str]:
    """The chunks (of about CHUNK bytes each); `advance` gets the bytes read after each one is used."""
    for number, chunk in enumerate(chunks, start=1):
        yield chunk
        advance(number * CHUNK)


def _no_text(sources: list[Source], report: ReadReport) -> DataError:
    names: str = ", ".join(source.name for source in sources[:3])
    if len(sources) > 3:
        names = names + tr(" and {n_sources} more", len(sources) - 3)
    size = sum(source.size for source in sources)
    reasons = [tr("{count:,} × {reason}", count, stored(reason)) for reason, count in report.dropped.items()]
    message = tr(
        "there is no text in {names} ({size:,} bytes): {reasons}",
        names,
        size,
        joined(reasons, en="; ", zh="；") if reasons else tr("no records"),
    )
    return DataError(message, advice=tr("Name a file that holds text."))
