"""Texts kept for further passes: in memory while they are few, in a temporary file when they are many."""

from __future__ import annotations

import struct
import tempfile
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Generic, NamedTuple, Self, TypeVar, cast

from mingyue.data.holdout import FileSplit, spread_over_files
from mingyue.errors import DataError
from mingyue.files import explain_os_error
from mingyue.words import tr

MEMORY_BYTES = 1 << 28
_OVERHEAD = 250  # bytes of Python objects around a record

RecordT = TypeVar("RecordT", bound=tuple[Any, ...])


class RecordStore(Generic[RecordT]):
    """Add records once, then iterate over them as often as needed; use it as a context manager.

    A record is a named tuple of `texts` strings followed by `flags` booleans; `make` builds it from these. Memory is
    bounded by `memory_bytes`: records beyond that move to a temporary file in `folder`.
    """

    def __init__(
        self,
        make: Callable[..., RecordT],
        folder: Path,
        *,
        texts: int,
        flags: int = 0,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._make, self._texts = make, texts
        self._head = struct.Struct(f"<{texts}Q{flags}?")
        self._folder, self._memory = folder, memory_bytes
        self._records: list[RecordT] = []
        self._held = self._count = 0
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return self._count

    def add(self, record: RecordT) -> None:
        """Keep a record. Raises `DataError` when the temporary file cannot be written."""
        self._count += 1
        if self._file is not None:
            self._spill(self._file, record)
            return
        self._records.append(record)
        self._held += sum(map(len, record[: self._texts])) * 2 + _OVERHEAD
        if self._held > self._memory:
            self._move_to_disk()

    def __iter__(self) -> Iterator[RecordT]:
        if self._file is None:
            yield from self._records
            return
        self._file.seek(0)
        while head := self._file.read(self._head.size):
            fields = self._head.unpack(head)
            texts = [self._file.read(size).decode("utf-8") for size in fields[: self._texts]]
            yield self._make(*texts, *fields[self._texts :])

    def _move_to_disk(self) -> None:
        try:
            file = tempfile.TemporaryFile(dir=self._folder, prefix=".text-", suffix=".tmp")  # noqa: SIM115
        except OSError as error:
            raise self._refused(error) from None
        self._file = cast(BinaryIO, file)
        for record in self._records:
            self._spill(self._file, record)
        self._records.clear()

    def _spill(self, file: BinaryIO, record: RecordT) -> None:
        texts = [text.encode("utf-8") for text in record[: self._texts]]
        try:
            file.write(self._head.pack(*map(len, texts), *record[self._texts :]) + b"".join(texts))
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> DataError:
        message, advice = explain_os_error(tr("a temporary copy of the text"), self._folder, error)
        return DataError(message, advice=advice)


class StoredPiece(NamedTuple):
    """A piece of text, the separator after it, and whether a document begins and ends with it."""

    text: str
    tail: str
    first: bool
    last: bool


class PieceStore(RecordStore[StoredPiece]):
    """The pieces of a text, and where its documents end (16 bytes of memory for each)."""

    def __init__(self, folder: Path, *, memory_bytes: int = MEMORY_BYTES) -> None:
        super().__init__(StoredPiece, folder, texts=2, flags=2, memory_bytes=memory_bytes)
        self.characters = 0
        self._text_ends = array("q")  # where the text of each document ends, in characters from the start
        self._ends = array("q")  # where its separator ends: the next document begins there
        self._files: list[tuple[str, int]] = []  # name of each file, and its first document

    @property
    def documents(self) -> int:
        """Documents stored."""
        return len(self._ends)

    def add(self, record: StoredPiece) -> None:
        """Keep a piece. Raises `DataError` when the temporary file cannot be written."""
        self.characters += len(record.text)
        if record.last:
            self._text_ends.append(self.characters)
            self.characters += len(record.tail)
            self._ends.append(self.characters)
        super().add(record)

    def begin_file(self, name: str) -> None:
        """The next documents are of this file; one without documents does not count."""
        if self._files and self._files[-1][1] == self.documents:
            self._files.pop()
        self._files.append((name, self.documents))

    def splits(self, held_out: float) -> list[FileSplit]:
        """Where the held-out part of each file begins."""
        starts = [(name, first) for name, first in self._files or [("", 0)] if first < self.documents]
        files = []
        for (name, first), (_, stop) in pairwise([*starts, ("", self.documents)]):
            start = self._ends[first - 1] if first else 0
            files.append(FileSplit(name, start, self.cut(held_out, first, stop), self._ends[stop - 1]))
        return spread_over_files(files, held_out)

    def cut(self, held_out: float, first: int = 0, stop: int | None = None) -> int:
        """The character where the held-out part begins: its share of the characters, rounded down, from the end.

        With several documents it moves to the nearest start of one, if that is less than 1 % of the text away; it
        is never inside a separator. `first`, `stop`: the text is that of documents first … stop − 1.
        """
        last = (self.documents if stop is None else stop) - 1
        start, end = self._ends[first - 1] if first else 0, self._ends[last]
        total = end - start
        cut = end - int(Fraction(str(held_out)) * total)
        if cut >= end:
            return cut
        if last > first:
            at = bisect_left(self._ends, cut, lo=first, hi=last)
            near = min((self._ends[i] for i in (at - 1, at) if first <= i < last), key=lambda begin: abs(begin - cut))
            if abs(near - cut) * 100 < total:
                return near
        document = bisect_right(self._ends, cut)
        return self._ends[document] if cut >= self._text_ends[document] else cut
