"""Pieces of text kept for further passes: in memory while they are few, in a temporary file when they are many."""

from __future__ import annotations

import struct
import tempfile
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self, cast

from mingyue.data.reading import Piece
from mingyue.errors import DataError
from mingyue.files import explain_os_error

MEMORY_BYTES = 1 << 28
_OVERHEAD = 250  # bytes of Python objects around a piece
_RECORD = struct.Struct("<QQ??")


class Stored(NamedTuple):
    """A piece as it comes back: its text, the separator after it, and whether a document begins and ends with it."""

    text: str
    tail: str
    first: bool
    last: bool


class PieceStore:
    """Add pieces once, then go through them as often as needed; use it as a context manager.

    Its memory is bounded by `memory_bytes`, besides 16 bytes a document.
    """

    def __init__(self, folder: Path, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._folder, self._memory = folder, memory_bytes
        self._pieces: list[Stored] = []
        self._held = 0
        self._file: BinaryIO | None = None
        self.characters = 0
        self._text_ends = array("q")  # where the text of each document ends, in characters from the start
        self._ends = array("q")  # where its separator ends: the next document begins there

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def documents(self) -> int:
        """Documents stored."""
        return len(self._ends)

    def add(self, piece: Piece) -> None:
        """Keep a piece."""
        stored = Stored(piece.text, piece.tail, piece.first, piece.last)
        self.characters += len(piece.text)
        if piece.last:
            self._text_ends.append(self.characters)
            self.characters += len(piece.tail)
            self._ends.append(self.characters)
        if self._file is not None:
            self._spill(self._file, stored)
            return
        self._pieces.append(stored)
        self._held += len(piece.text) * 2 + _OVERHEAD
        if self._held > self._memory:
            self._move_to_disk()

    def __iter__(self) -> Iterator[Stored]:
        if self._file is None:
            yield from self._pieces
            return
        self._file.seek(0)
        while head := self._file.read(_RECORD.size):
            text, tail, first, last = _RECORD.unpack(head)
            data = self._file.read(text + tail)
            yield Stored(data[:text].decode("utf-8"), data[text:].decode("utf-8"), first, last)

    def cut(self, held_out: float) -> int:
        """The character where the held-out part begins: its share of the characters, rounded down, from the end.

        With several documents it moves to the nearest start of one, if that is less than 1 % of the text away; it
        never stands inside a separator.
        """
        total = self.characters
        cut = total - int(Fraction(str(held_out)) * total)
        if cut >= total:
            return cut
        last = self.documents - 1
        if last:
            at = bisect_left(self._ends, cut, hi=last)
            near = min((self._ends[i] for i in (at - 1, at) if 0 <= i < last), key=lambda start: abs(start - cut))
            if abs(near - cut) * 100 < total:
                return near
        document = bisect_right(self._ends, cut)
        return self._ends[document] if cut >= self._text_ends[document] else cut

    def _move_to_disk(self) -> None:
        try:
            file = tempfile.TemporaryFile(dir=self._folder, prefix=".text-", suffix=".tmp")  # noqa: SIM115
        except OSError as error:
            raise self._refused(error) from None
        self._file = cast(BinaryIO, file)
        for stored in self._pieces:
            self._spill(self._file, stored)
        self._pieces.clear()

    def _spill(self, file: BinaryIO, stored: Stored) -> None:
        text, tail = stored.text.encode("utf-8"), stored.tail.encode("utf-8")
        try:
            file.write(_RECORD.pack(len(text), len(tail), stored.first, stored.last) + text + tail)
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> DataError:
        message, advice = explain_os_error("a temporary copy of the text", self._folder, error)
        return DataError(message, advice=advice)
