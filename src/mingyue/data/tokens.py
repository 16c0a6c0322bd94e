"""Token ids on disk: memory-mapped files with a header, in several shards if there are many ids.

A file is 64 bytes of header and then the ids, all little-endian: magic, version, bytes of an id (2 or 4), number of
ids, size of the vocabulary, SHA-256 of the tokenizer. Ids take 2 bytes up to a vocabulary of 65,536 and 4 above.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from mingyue.errors import DataError
from mingyue.files import explain_os_error, sha256_of

Ids = npt.NDArray[np.unsignedinteger[Any]]
SHARD_TOKENS = 1 << 28
PREPARE_AGAIN = "Prepare the data again."
_MAGIC = b"MINGYUE\x00"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQ32s")
_BUFFERED = 1 << 20
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
            raise DataError(f"token id {low if low < 0 else high} is outside the vocabulary of {self._vocab_size:,}")
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
        message, advice = explain_os_error("the tokens", self._target, error)
        return DataError(message, advice=advice)


class TokenShards:
    """The ids of one or more token files as one sequence, mapped into memory: nothing is read before it is used.

    Raises `DataError` for a file that is not a token file, of another version, truncated, of a type that does not
    match its vocabulary, or made with another tokenizer than `fingerprint`.
    """

    def __init__(self, files: Sequence[Path], *, fingerprint: str | None = None) -> None:
        self.files = list(files)
        self._maps = [_mapped(path, fingerprint) for path in self.files]
        self._ends = np.cumsum([len(ids) for ids in self._maps], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The type on disk."""
        return self._maps[0].dtype if self._maps else _TYPES[2]

    def read(self, start: int, stop: int) -> Ids:
        """Ids start … stop − 1, shape [stop − start]."""
        if not 0 <= start <= stop <= len(self):
            raise DataError(f"tokens {start} to {stop} were requested, but there are {len(self)}")
        parts: list[Ids] = []
        shard = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            end = int(self._ends[shard])
            first = end - len(self._maps[shard])
            parts.append(np.asarray(self._maps[shard][start - first : min(stop, end) - first]))
            start, shard = min(stop, end), shard + 1
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.dtype), *parts])

    def windows(self, starts: npt.NDArray[np.integer], length: int) -> Ids:
        """Rows of `length` ids that begin at `starts` [B], shape [B, length]."""
        if len(self._maps) == 1 and len(starts) and int(starts.min()) >= 0 and int(starts.max()) + length <= len(self):
            return np.asarray(self._maps[0][np.asarray(starts, dtype=np.int64)[:, None] + np.arange(length)])
        rows = [self.read(int(start), int(start) + length) for start in starts]
        return np.stack(rows) if rows else np.empty((0, length), self.dtype)


def _mapped(path: Path, fingerprint: str | None) -> Ids:
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise DataError(f"the token file {path} cannot be read: {error.strerror or error}") from None
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise DataError(f"{path} is not a token file", advice=PREPARE_AGAIN)
    _, version, item, count, vocab_size, digest = _HEADER.unpack(head)
    if version != _VERSION:
        raise DataError(
            f"{path} is a token file of version {version}; this program reads {_VERSION}", advice=PREPARE_AGAIN
        )
    if item not in _TYPES or item != stored_type(vocab_size).itemsize:
        raise DataError(f"{path} says {item} bytes an id for a vocabulary of {vocab_size:,}", advice=PREPARE_AGAIN)
    if size != _HEADER.size + count * item:
        message = f"{path} should hold {count:,} ids in {_HEADER.size + count * item:,} bytes and has {size:,}"
        raise DataError(message, advice=PREPARE_AGAIN)
    if fingerprint is not None and digest.hex() != fingerprint:
        message = f"{path} was made with the tokenizer {digest.hex()[:12]}…, not with {fingerprint[:12]}…"
        raise DataError(message, advice=PREPARE_AGAIN)
    if count == 0:
        return np.empty(0, _TYPES[item])
    return np.memmap(path, dtype=_TYPES[item], mode="r", offset=_HEADER.size, shape=(count,))


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
            raise DataError(f"the token file {path} cannot be read: {error.strerror or error}") from None
        if found != digest:
            raise DataError(
                f"{path} is damaged: its SHA-256 is {found[:12]}…, the manifest beside it says {digest[:12]}…",
                advice=PREPARE_AGAIN,
            )
    return hashlib.sha256(" ".join(f"{name} {expected[name]}" for name in sorted(expected)).encode()).hexdigest()
