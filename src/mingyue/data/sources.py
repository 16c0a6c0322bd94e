"""From the names that the user gave to sources: files, folders, globs, standard input, known corpora, hub data sets."""

from __future__ import annotations

import glob
import gzip
import io
import os
import sys
import tempfile
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

from mingyue.config import nearest, nearest_path
from mingyue.data.corpora import CORPORA, resolve_corpus
from mingyue.data.encodings import READ_AGAIN, Opener
from mingyue.data.folders import entries_of, files_of_folder, files_of_glob, own_folder
from mingyue.data.report import ReadReport, readable
from mingyue.errors import DataError, SettingsError
from mingyue.files import explain_os_error, reason_of
from mingyue.paths import path_of
from mingyue.words import joined, tr

Kind = Literal["text", "jsonl", "csv", "tsv", "parquet", "hub"]
_KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_DAMAGE = (gzip.BadGzipFile, EOFError, zlib.error)
_State = tuple[int, int, int, int]  # of a file: device, number, size, time of change
_AGAIN = tr("file that is read under another name")
_IN_MEMORY = 1 << 24  # bytes of a file that is read once; a larger one is read twice, first to find its encoding


class DamagedFileError(DataError):
    """A compressed file cannot be unpacked."""


@dataclass(frozen=True)
class Source:
    """One thing to read. `path` is None for standard input and hub data sets."""

    name: str
    kind: Kind
    path: Path | None
    named: bool
    """The user named this file itself: a problem is an error, and the file is not left out."""
    size: int = 0
    changed: int = 0

    @property
    def repeatable(self) -> bool:
        """Whether it can be read again, and its size and time of change are known (not a pipe)."""
        return self.kind == "hub" or (self.path is not None and self.path.is_file())


def expand_sources(sources: Sequence[str], report: ReadReport, *, with_field: bool = False) -> list[Source]:
    """The sources that these names stand for, in the order named; inside folders and globs sorted by path.

    What is not read inside folders and globs is counted in `report`. Raises `DataError` for a name that stands
    for nothing.
    """
    if not sources:
        raise DataError(
            tr("no text was named"), advice=tr("Name a file, a folder, a known corpus, or - for standard input.")
        )
    found: list[Source] = []
    seen: dict[str, bool] = {}  # whether the user named it
    for name in sources:
        here = list(_expand(name, report, with_field=with_field))
        for source in here:
            key = source.name if source.path is None else os.path.normcase(source.path.resolve())
            if key in seen:
                if source.named or seen[key]:
                    report.note(tr("{name} was named more than once: it is read once", source.name))
                else:
                    report.drop(_AGAIN, source.name)
                continue
            seen[key] = source.named
            found.append(source)
    return found


@contextmanager
def opened(source: Source) -> Generator[Opener]:
    """A function that opens the bytes of a text source from the start, as often as needed."""
    if not source.repeatable:
        yield from _spooled(source)
        return
    with _readable(source.name), _bytes_of(source) as (file, state):
        head = file.read(_IN_MEMORY + 1)
    if len(head) <= _IN_MEMORY:
        yield lambda: io.BytesIO(head)
        return

    @contextmanager
    def reopen() -> Generator[BinaryIO]:
        with _readable(source.name), _bytes_of(source, state) as (file, _):
            yield file

    yield reopen


@contextmanager
def unchanged(source: Source) -> Generator[None]:
    """Raise `DataError` if a file is not the same after the block as before it. The file is read inside by its path."""
    path = cast(Path, source.path)
    before = _state(path.stat())
    try:
        yield
    except DataError:
        if path.exists() and _state(path.stat()) == before:
            raise
        raise _changed(source) from None
    if not path.exists() or _state(path.stat()) != before:
        raise _changed(source)


@contextmanager
def _bytes_of(source: Source, expected: _State | None = None) -> Generator[tuple[BinaryIO, _State]]:
    """The unpacked bytes of a file. Raises `DataError` if it changes while it is read, or is not as `expected`."""
    path = cast(Path, source.path)
    with path.open("rb") as raw:
        state = _state(os.fstat(raw.fileno()))
        if expected is not None and state != expected:
            raise _changed(source)
        try:
            if path.suffix.lower() == ".gz":
                with gzip.open(raw) as file:
                    yield cast(BinaryIO, file), state
            else:
                yield raw, state
        except _DAMAGE:
            if _state(os.fstat(raw.fileno())) == state:
                raise
            raise _changed(source) from None
        if _state(os.fstat(raw.fileno())) != state:
            raise _changed(source)


def _state(found: os.stat_result) -> _State:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _changed(source: Source) -> DataError:
    return DataError(tr("{name} was changed while it was read", source.name), advice=READ_AGAIN)


def _spooled(source: Source) -> Generator[Opener]:
    """A pipe can be read only once: its bytes are kept in a temporary file, which can be read again."""
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as copy:
        with _readable(source.name):
            if source.path is None:
                _pour(sys.stdin.buffer, copy)
            else:
                with source.path.open("rb") as pipe:
                    _pour(pipe, copy)

        @contextmanager
        def rewind() -> Generator[BinaryIO]:
            copy.seek(0)
            yield cast(BinaryIO, copy)

        yield rewind


def _pour(pipe: BinaryIO, copy: tempfile.SpooledTemporaryFile[bytes]) -> None:
    while data := pipe.read(1 << 20):
        try:
            copy.write(data)
        except OSError as error:
            folder = Path(os.environ.get("TMPDIR", "/tmp"))
            message, _ = explain_os_error(tr("a temporary copy of the text"), folder, error)
            raise DataError(message, advice=tr("Free some space, or set TMPDIR to another folder.")) from error


@contextmanager
def _readable(name: str) -> Generator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise DamagedFileError(
            tr("{name} is damaged, or not compressed by gzip: {error}", name, error),
            advice=tr("Download or compress it again."),
        ) from None
    except OSError as error:
        raise DataError(tr("{name} cannot be read: {reason}", name, reason_of(error))) from None


def _expand(name: str, report: ReadReport, *, with_field: bool) -> Iterator[Source]:
    if name == "-":
        yield Source(tr("standard input"), "jsonl" if with_field else "text", None, named=True)
        return
    if name.startswith("hf://"):
        yield Source(name, "hub", None, named=True)
        return
    try:
        path = path_of(name)
    except SettingsError as error:
        raise DataError(error.message, advice=error.advice) from error
    if _is_there(path):
        yield from _folder(path, report) if path.is_dir() else [_file(path, name, named=True)]
        return
    corpus = resolve_corpus(name, report)
    if corpus is not None:
        yield _file(corpus, name, named=True)
        return
    if glob.has_magic(name):
        for found in files_of_glob(name, report):
            yield _file(found, str(found), named=False)
        return
    raise _nothing(name, path)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no file can have this name: too long, or with a NUL
        return False


def _file(path: Path, name: str, *, named: bool) -> Source:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    kind = _KINDS.get(suffixes[-1], "text") if suffixes else "text"
    state = path.stat()
    return Source(readable(name), kind, path, named, state.st_size, state.st_mtime_ns)


def _folder(folder: Path, report: ReadReport) -> Iterator[Source]:
    own = own_folder(entries_of(folder))
    if own is not None:
        raise DataError(
            tr("{folder} is a {own} of Mingyue, not text", folder, own),
            advice=tr("Name the text that it was made from, or single files."),
        )
    found = files_of_folder(folder, report)
    if not found:
        left_out = "; ".join(f"{count:,} × {reason}" for reason, count in report.dropped.items())
        why = tr("; left out: {left_out}", left_out) if left_out else ""
        raise DataError(
            tr("the folder {folder} holds no files to read{why}", folder, why),
            advice=tr("Name another folder, or files."),
        )
    for path in found:
        yield _file(path, str(path), named=False)


def _nothing(name: str, path: Path) -> DataError:
    near, corpus = nearest_path(path), nearest(name, CORPORA)
    hints = [tr("Did you mean {near}?", near)] if near else []
    hints += [tr("There is a known corpus {corpus}.", corpus)] if corpus else []
    return DataError(
        tr("there is no file, folder or known corpus {name}", name),
        advice=joined(hints) if hints else tr("Check the name; `mingyue data list` shows the known corpora."),
    )
