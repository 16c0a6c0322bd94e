"""Token ids on disk: files with a header, in several shards if there are many ids.

A file is 64 bytes of header and then the ids, all little-endian: magic, version, bytes of an id (2 or 4), number of
ids, size of the vocabulary, SHA-256 of the tokenizer. Ids take 2 bytes up to a vocabulary of 65,536 and 4 above.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from mingyue.errors import DataError
from mingyue.files import explain_os_error, reason_of, sha256_of
from mingyue.words import tr

Ids = npt.NDArray[np.unsignedinteger[Any]]
SHARD_TOKENS = 1 << 28
PREPARE_AGAIN = tr("Prepare the data again.")
_MAGIC = b"MINGYUE\x00"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQ32s")
_BUFFERED = 1 << 20
_COPIED = 1 << 25  # bytes of a token file that is kept in memory
_TYPES: dict[int, np.dtype[np.unsignedinteger[Any]]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


def stored_type(vocab_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """uint16 if every id of the vocabulary fits, else uint32."""
    return _TYPES[2] if vocab_size <= 1 << 16 else _TYPES[4]


class TokenWriter:
    """Appends ids to NAME-00000.tokens, NAME-00001.tokens… in a folder; each file appears when it is complete.

    Use it as a context manager: an exception removes the unfinished file. Raises `DataError` for an id outside the
    vocabulary, and when a file cannot be written.
    """

    def __init__(
        self, folder: Path, name: str, *, vocab_size: int, fingerprint: str, shard_tokens: int = SHARD_TOKENS
    ) -> None:
        self._folder, self._name = folder, name
        self._vocab_size, self._fingerprint = vocab_size, bytes.fromhex(fingerprint)
        self._type = stored_type(vocab_size)
        self._shard_tokens = shard_tokens
        self._waiting: list[npt.NDArray[np.integer]] = []
        self._waiting_tokens = 0
        self._file: BinaryIO | None = None
        self._in_shard = 0
        self.files: list[Path] = []
        self.tokens = 0
        self.counts = np.zeros(vocab_size, dtype=np.int64)
        """How often each id was written, [V]; complete once the files are finished."""

    def append(self, ids: npt.NDArray[np.integer] | Sequence[int]) -> None:
        """Add ids, shape [N]."""
        array = np.asarray(ids)
        if array.size == 0:
            return
        self._waiting.append(array)
        self._waiting_tokens += array.size
        self.tokens += array.size
        if self._waiting_tokens >= _BUFFERED:
            self._flush()

    def finish(self) -> list[Path]:
        """Close the last file (at least one, even without ids); returns the paths of all."""
        self._flush()
        if self._file is not None or not self.files:
            self._close_shard()
        return self.files

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._temporary.unlink(missing_ok=True)

    @property
    def _target(self) -> Path:
        return self._folder / f"{self._name}-{len(self.files):05d}.tokens"

    @property
    def _temporary(self) -> Path:
        return self._folder / f".{self._target.name}.{os.getpid()}.tmp"

    def _flush(self) -> None:
        if not self._waiting:
            return
        ids = np.concatenate(self._waiting)
        self._waiting.clear()
        self._waiting_tokens = 0
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self._vocab_size:
            raise DataError(
                tr(
                    "token id {low} is outside the vocabulary of {vocab_size:,}",
                    low if low < 0 else high,
                    self._vocab_size,
                )
            )
        self.counts += np.bincount(ids, minlength=self._vocab_size)
        ids = ids.astype(self._type)
        while ids.size:
            file = self._file or self._open_shard()
            now = ids[: self._shard_tokens - self._in_shard]
            self._write(file, now.tobytes())
            self._in_shard += now.size
            ids = ids[now.size :]
            if self._in_shard == self._shard_tokens:
                self._close_shard()

    def _open_shard(self) -> BinaryIO:
        try:
            self._file = self._temporary.open("wb")
        except OSError as error:
            raise self._refused(error) from None
        self._in_shard = 0
        self._write(self._file, bytes(_HEADER.size))
        return self._file

    def _close_shard(self) -> None:
        file = self._file or self._open_shard()
        header = _HEADER.pack(
            _MAGIC, _VERSION, self._type.itemsize, self._in_shard, self._vocab_size, self._fingerprint
        )
        try:
            file.seek(0)
            file.write(header)
            file.flush()
            os.fsync(file.fileno())
            file.close()
            self._temporary.replace(self._target)
        except OSError as error:
            raise self._refused(error) from None
        self._file = None
        self.files.append(self._target)

    def _write(self, file: BinaryIO, data: bytes) -> None:
        try:
            file.write(data)
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> DataError:
        message, advice = explain_os_error(tr("the tokens"), self._target, error)
        return DataError(message, advice=advice)


class TokenShards:
    """The ids of one or more token files as one sequence. Nothing is read before it is used.

    The files are read, not mapped into memory: a mapped file that is cut short ends the process without a message.
    Raises `DataError` for a file that is not a token file, of another version, truncated, of a type that does not
    match its vocabulary, or made with another tokenizer than `fingerprint`; and for one that changes later.
    """

    def __init__(self, files: Sequence[Path], *, fingerprint: str | None = None) -> None:
        self.files = list(files)
        self._shards = [_Shard(path, fingerprint) for path in self.files]
        self._ends = np.cumsum([len(shard) for shard in self._shards], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The type on disk."""
        return self._shards[0].dtype if self._shards else _TYPES[2]

    def read(self, start: int, stop: int) -> Ids:
        """Ids start … stop − 1, shape [stop − start]."""
        self._check(start, stop)
        if len(self._shards) == 1 and (ids := self._shards[0].copied()) is not None:
            return ids[start:stop]
        return self._rows(np.array([start]), stop - start)[0]

    def windows(self, starts: npt.NDArray[np.integer], length: int) -> Ids:
        """Rows of `length` ids that begin at `starts` [B], shape [B, length]."""
        if not len(starts):
            return np.empty((0, length), self.dtype)
        self._check(int(starts.min()), int(starts.max()) + length)
        starts = np.asarray(starts, dtype=np.int64)
        if len(self._shards) == 1 and (ids := self._shards[0].copied()) is not None:
            return ids[starts[:, None] + np.arange(length)]
        return self._rows(starts, length)

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self):
            raise DataError(
                tr("tokens {start} to {stop} were requested, but there are {n_self}", start, stop, len(self))
            )

    def _rows(self, starts: npt.NDArray[np.int64], length: int) -> Ids:
        rows = np.empty((len(starts), length), self.dtype)
        shards = np.searchsorted(self._ends, starts, side="right").tolist()
        with ExitStack() as stack:
            files: dict[int, BinaryIO] = {}  # each shard is opened once
            for row, begin, number in zip(rows, starts.tolist(), shards, strict=True):
                at, shard = begin, number
                while at < begin + length:
                    end = int(self._ends[shard])
                    now = min(begin + length, end)
                    if shard not in files:
                        files[shard] = stack.enter_context(self._shards[shard].opened())
                    first = end - len(self._shards[shard])
                    row[at - begin : now - begin] = self._shards[shard].read(files[shard], at - first, now - at)
                    at, shard = now, shard + 1
        return rows


class _Shard:
    """One token file, checked against its header."""

    def __init__(self, path: Path, fingerprint: str | None) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                head = file.read(_HEADER.size)
                self._state = _state(file)
        except OSError as error:
            raise _unreadable(path, error) from None
        self._copy: Ids | None = None
        self._count, self.dtype = _checked_header(path, head, self._state[0], fingerprint)

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def opened(self) -> Generator[BinaryIO]:
        """The file, if it is still the one that was checked."""
        try:
            with self._path.open("rb") as file:
                if _state(file) != self._state:
                    raise self._changed()
                yield file
        except OSError as error:
            raise _unreadable(self._path, error) from None

    def read(self, file: BinaryIO, start: int, count: int) -> Ids:
        """`count` ids from `start` on."""
        file.seek(_HEADER.size + start * self.dtype.itemsize)
        data = file.read(count * self.dtype.itemsize)
        if len(data) < count * self.dtype.itemsize:
            raise self._changed()
        return np.frombuffer(data, self.dtype)

    def copied(self) -> Ids | None:
        """All ids, kept in memory from the first call on; None for a large file, of which only parts are read."""
        if self._copy is None and len(self) * self.dtype.itemsize <= _COPIED:
            with self.opened() as file:
                self._copy = self.read(file, 0, len(self))
        return self._copy

    def _changed(self) -> DataError:
        return DataError(tr("the token file {path} was changed while it was read", self._path), advice=PREPARE_AGAIN)


def _state(file: BinaryIO) -> tuple[int, int, int]:
    """Size, time of change and number of a file."""
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns, found.st_ino


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(tr("the token file {path} cannot be read: {reason}", path, reason_of(error)))


def _checked_header(
    path: Path, head: bytes, size: int, fingerprint: str | None
) -> tuple[int, np.dtype[np.unsignedinteger[Any]]]:
    """Number of ids, and their type on disk."""
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise DataError(tr("{path} is not a token file", path), advice=PREPARE_AGAIN)
    _, version, item, count, vocab_size, digest = _HEADER.unpack(head)
    if version != _VERSION:
        raise DataError(
            tr("{path} is a token file of version {version}; this program reads {supported}", path, version, _VERSION),
            advice=PREPARE_AGAIN,
        )
    if item not in _TYPES or item != stored_type(vocab_size).itemsize:
        raise DataError(
            tr("{path} says {item} bytes an id for a vocabulary of {vocab_size:,}", path, item, vocab_size),
            advice=PREPARE_AGAIN,
        )
    if size != _HEADER.size + count * item:
        message = tr(
            "{path} should hold {count:,} ids in {size:,} bytes and has {found_size:,}",
            path,
            count,
            _HEADER.size + count * item,
            size,
        )
        raise DataError(message, advice=PREPARE_AGAIN)
    if fingerprint is not None and digest.hex() != fingerprint:
        message = tr(
            "{path} was made with the tokenizer {digest}…, not with {fingerprint}…",
            path,
            digest.hex()[:12],
            fingerprint[:12],
        )
        raise DataError(message, advice=PREPARE_AGAIN)
    return count, _TYPES[item]


def digests_of(files: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of token files, by name."""
    return {path.name: sha256_of(path) for path in files}


def check_digests(folder: Path, expected: Mapping[str, str]) -> str:
    """Compare token files with their digests; returns one digest of all ("" if there are none: an older folder).

    Raises `DataError` that names the first file that does not match.
    """
    if not expected:
        return ""
    for name, digest in expected.items():
        path = folder / name
        try:
            found = sha256_of(path)
        except OSError as error:
            raise _unreadable(path, error) from None
        if found != digest:
            raise DataError(
                tr(
                    "{path} is damaged: its SHA-256 is {found}…, the manifest beside it says {digest}…",
                    path,
                    found[:12],
                    digest[:12],
                ),
                advice=PREPARE_AGAIN,
            )
    return hashlib.sha256(" ".join(f"{name} {expected[name]}" for name in sorted(expected)).encode()).hexdigest()
