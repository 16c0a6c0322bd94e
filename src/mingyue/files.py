"""Files are written whole: under another name first, flushed to the disk, then renamed."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Write a file so that at any moment the old content or the new one is there, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text_atomically(path: Path, content: str) -> None:
    """The same for text, as UTF-8 with the line ends that it has."""
    write_bytes_atomically(path, content.encode("utf-8"))


def explain_os_error(what: str, path: Path, error: OSError) -> tuple[str, str]:
    """(message, advice) for a person whose disk refused to write `what` to `path`."""
    if error.errno == errno.ENOSPC:
        return (
            f"the disk is full: {what} could not be written to {path}",
            "What was saved before is untouched. Free some space, or choose another place with --out.",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (f"{what} could not be written to {path}: not permitted", "Choose another place with --out.")
    return (f"{what} could not be written to {path}: {error.strerror or error}", "What was saved before is untouched.")
