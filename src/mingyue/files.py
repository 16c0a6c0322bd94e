"""Atomic writing (a temporary name, a flush to the disk, a rename), checksums, and messages for errors of the disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Write a file so that at any moment it has either the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text_atomically(path: Path, content: str) -> None:
    """Write text as UTF-8, with its line ends unchanged; atomically, as `write_bytes_atomically`."""
    write_bytes_atomically(path, content.encode("utf-8"))


def sync_folder(path: Path) -> None:
    """Flush the entries of a folder to the disk; Windows has no such call and needs none."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_folder(fresh: Path, folder: Path) -> None:
    """Rename the folder `fresh` to `folder`, which may exist; at any moment `find_folder` finds one of them whole."""
    aside = _aside(folder)
    if not folder.exists():
        fresh.replace(folder)
        shutil.rmtree(aside, ignore_errors=True)  # of a program that was killed between the renames below
        return
    # A rename cannot replace a folder: move the old one aside, and back if the new one cannot be renamed.
    shutil.rmtree(aside, ignore_errors=True)
    folder.replace(aside)
    try:
        fresh.replace(folder)
    except OSError:
        aside.replace(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def find_folder(folder: Path) -> Path:
    """`folder`, or where its old content is between the two renames of `replace_folder`."""
    return _aside(folder) if not folder.exists() and _aside(folder).is_dir() else folder


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-old.tmp")


def share_as_folder(path: Path) -> None:
    """Give a new file the permissions of its new folder, which the umask has decided; safetensors gives them to no one.

    The umask cannot be read without changing it for the whole process.
    """
    path.chmod(path.parent.stat().st_mode & 0o666)


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_of(value: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical form of a JSON object, without its "checksum"."""
    rest = {key: item for key, item in value.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("utf-8")).hexdigest()


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its checksum, so that a later reader can detect changes."""
    return {**value, "checksum": checksum_of(value)}


def seal_holds(value: Mapping[str, Any]) -> bool:
    """Whether a JSON object matches its checksum; one without a checksum (of an earlier version) is accepted."""
    return value.get("checksum", checksum_of(value)) == checksum_of(value)


def explain_os_error(what: str, path: Path, error: OSError) -> tuple[str, str]:
    """(message, advice) for an `OSError` while `what` was written to `path`."""
    if error.errno == errno.ENOSPC:
        return (
            f"the disk is full: {what} could not be written to {path}",
            "Earlier files are unchanged. Free some space, or choose another folder with --out.",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (f"{what} could not be written to {path}: permission denied", "Choose another folder with --out.")
    return (f"{what} could not be written to {path}: {error.strerror or error}", "Earlier files are unchanged.")
