"""An open safetensors file, without PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from mingyue.errors import BundleError, FormatError
from mingyue.files import reason_of
from mingyue.parsing import as_object, parse_json
from mingyue.paths import utf8_name
from mingyue.words import tr

_LENGTH_BYTES = 8  # of the header, at the start of the file
DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16", "I8", "U8", "BOOL")
"""The number formats of the file format that PyTorch has."""


class UnreadableModelError(BundleError):
    """The system does not let us read a file of a model folder, which may be intact."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a file, from its header."""

    shape: tuple[int, ...]
    dtype: str
    """One of `DTYPES`."""
    start: int
    """First byte of the tensor in the file."""
    n_bytes: int


class WeightsFile:
    """An open safetensors file. A context manager.

    Its tensors are copied, not mapped: the file may be cut or replaced while they are in use, and a map of a file that
    becomes shorter ends the process (SIGBUS). Raises `OSError` if the file cannot be opened or read, and
    `SafetensorError` if it is damaged: for one, if its header does not match its size.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] = path.open("rb")
        try:
            self.stored = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of the tensor of that name."""
        found = self.stored[name]
        raw = np.empty(found.n_bytes, dtype=np.uint8)
        self._file.seek(found.start)
        got = self._file.readinto(raw) if found.n_bytes else 0  # type: ignore[attr-defined]
        if got != found.n_bytes:
            raise SafetensorError(f"it became shorter while it was read: tensor {name} ends after {got:,} bytes")
        return raw

    def _read_header(self) -> dict[str, Stored]:
        with utf8_name(self._path) as name, safe_open(name, framework="np"):
            pass  # the library checks that the header describes exactly the bytes of the file
        length = int.from_bytes(self._file.read(_LENGTH_BYTES), "little")
        size = os.fstat(self._file.fileno()).st_size
        try:
            entries = as_object(parse_json(self._file.read(length)))
            entries.pop("__metadata__", None)
            stored = {name: _stored(entry, _LENGTH_BYTES + length) for name, entry in entries.items()}
        except (FormatError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise SafetensorError(f"its header cannot be read: {error}") from error
        if any(one.start + one.n_bytes > size for one in stored.values()):
            raise SafetensorError("it became shorter while it was read")
        return stored


def _stored(entry: Mapping[str, object], offset: int) -> Stored:
    name, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]  # type: ignore[misc]
    if name not in DTYPES:
        raise ValueError(f"number format {name} is not known")
    return Stored(tuple(shape), name, offset + first, last - first)  # type: ignore[arg-type]


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]] | None:
    """All tensors of a safetensors file, if they are of fp32 and finite; None for others. Raises as `WeightsFile`."""
    with WeightsFile(path) as file:
        if any(one.dtype != "F32" for one in file.stored.values()):
            return None
        arrays = {name: file.read(name).view(np.float32).reshape(one.shape) for name, one in file.stored.items()}
    return arrays if all(np.isfinite(array).all() for array in arrays.values()) else None


def cannot_read(path: Path, error: OSError) -> UnreadableModelError:
    """The error for a file of a model folder."""
    advice = tr("Ask its owner for permission to read it.") if isinstance(error, PermissionError) else None
    return UnreadableModelError(tr("{path} cannot be read: {reason}", path, reason_of(error)), advice=advice)
