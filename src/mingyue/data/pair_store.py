"""Pairs kept for further passes: in memory while they are few, in a temporary file when they are many."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from mingyue.data.pairs import Pair

_RECORD = struct.Struct("<QQQ")


class PairStore:
    """Add pairs once, then go through them as often as needed; use it as a context manager."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self._file = tempfile.SpooledTemporaryFile(memory_bytes, dir=str(folder), prefix=".pairs-", suffix=".tmp")  # noqa: SIM115
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._count

    def add(self, pair: Pair) -> None:
        """Keep a pair."""
        parts = [pair.source.encode("utf-8"), pair.target.encode("utf-8"), pair.where.encode("utf-8")]
        self._file.write(_RECORD.pack(*map(len, parts)) + b"".join(parts))
        self._count += 1

    def __iter__(self) -> Iterator[Pair]:
        self._file.seek(0)
        while head := self._file.read(_RECORD.size):
            yield Pair(*(self._file.read(size).decode("utf-8") for size in _RECORD.unpack(head)))
