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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

from mingyue.config import nearest
from mingyue.data.corpora import CORPORA, resolve_corpus
from mingyue.data.encodings import Opener
from mingyue.data.report import ReadReport, readable
from mingyue.errors import DataError, SettingsError
from mingyue.files import explain_os_error, path_of, reason_of

Kind = Literal["text", "jsonl", "csv", "tsv", "parquet", "hub"]
_KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_IN_MEMORY = 1 << 24  # bytes of a file that is read once; a larger one is read twice, first to find its encoding


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

    Hidden files are counted in `report`. Raises `DataError` for a name that stands for nothing.
    """
    if not sources:
        raise DataError("no text was named", advice="Name a file, a folder, a known corpus, or - for standard input.")
    found: list[Source] = []
    seen: set[str] = set()
    for name in sources:
        here = list(_expand(name, report, with_field=with_field))
        for source in here:
            key = source.name if source.path is None else os.path.normcase(source.path.resolve())
            if key in seen:
                report.note(f"{source.name} was named more than once: it is read once")
                continue
            seen.add(key)
            found.append(source)
    return found


@contextmanager
def opened(source: Source) -> Generator[Opener]:
    """A function that opens the bytes of a text source from the start, as often as needed."""
    if not source.repeatable:
        yield from _spooled(source)
        return
    path = cast(Path, source.path)
    packed = path.suffix.lower() == ".gz"
    with _readable(source.name), gzip.open(path) if packed else path.open("rb") as file:
        head = cast(BinaryIO, file).read(_IN_MEMORY + 1)
    if len(head) <= _IN_MEMORY:
        yield lambda: io.BytesIO(head)
        return

    @contextmanager
    def reopen() -> Generator[BinaryIO]:
        with _readable(source.name), gzip.open(path) if packed else path.open("rb") as file:
            yield cast(BinaryIO, file)

    yield reopen


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
            message, _ = explain_os_error("a temporary copy of the text", folder, error)
            raise DataError(message, advice="Free some space, or set TMPDIR to another folder.") from error


@contextmanager
def _readable(name: str) -> Generator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{name} is damaged, or not compressed by gzip: {error}", advice="Download or compress it again."
        ) from None
    except OSError as error:
        raise DataError(f"{name} cannot be read: {reason_of(error)}") from None


def _expand(name: str, report: ReadReport, *, with_field: bool) -> Iterator[Source]:
    if name == "-":
        yield Source("standard input", "jsonl" if with_field else "text", None, named=True)
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
        yield from _globbed(name, report)
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
    found: list[Path] = []
    hidden = "hidden file or folder"
    for root, folders, files in os.walk(folder, onerror=_refuse):
        for name in sorted(n for n in folders if n.startswith(".")):
            report.drop(hidden, str(Path(root) / name))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in sorted(files):
            if name.startswith("."):
                report.drop(hidden, str(Path(root) / name))
            elif (Path(root) / name).is_file():
                found.append(Path(root) / name)
    found.sort(key=lambda path: path.relative_to(folder).parts)
    if not found:
        raise DataError(f"the folder {folder} holds no files to read", advice="Name another folder, or files.")
    for path in found:
        yield _file(path, str(path), named=False)


def _refuse(error: OSError) -> None:
    raise DataError(f"the folder {error.filename} cannot be read: {reason_of(error)}")


def _globbed(pattern: str, report: ReadReport) -> Iterator[Source]:
    paths = [Path(name) for name in glob.glob(str(path_of(pattern)), recursive=True)]  # noqa: PTH207
    paths.sort(key=lambda path: path.parts)
    if not paths:
        raise DataError(f"nothing matches {pattern}", advice="Check the pattern; ** also matches inside folders.")
    for path in paths:
        if path.is_file():
            yield _file(path, str(path), named=False)
        elif path.is_dir() and "**" not in pattern:
            yield from _folder(path, report)


def _nothing(name: str, path: Path) -> DataError:
    near = None
    with suppress(OSError):
        near = nearest(path.name, [entry.name for entry in path.parent.iterdir()])
    corpus = nearest(name, CORPORA)
    hints = [f"Did you mean {path.parent / near}?"] if near else []
    hints += [f"There is a known corpus {corpus}."] if corpus else []
    return DataError(
        f"there is no file, folder or known corpus {name}",
        advice=" ".join(hints) or "Check the name; `mingyue data list` shows the known corpora.",
    )
