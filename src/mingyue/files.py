"""Atomic writing (a temporary name, a flush to the disk, a rename), checksums, messages for errors."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from mingyue.words import stored, tr

TEMPORARY = re.compile(r"\.mingyue-[0-9a-f]{16}\.tmp")
"""Names of files that were being written when the program was killed."""
_LONGEST = 200
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class OutputFile:
    """A file that is written under a temporary name beside `path` and takes its place when complete.

    So at any moment `path` has either its old content or the new, never a part. Links are followed, and a replaced file
    keeps its mode. What is no regular file (a device, a pipe) or is an output of this process is written directly.
    """

    def __init__(self, path: Path) -> None:
        self._target = Path(os.path.realpath(path))
        self._temporary: Path | None = None
        replaced = _status(path)
        if replaced is not None and (stream := _standard_output(replaced)) is not None:
            self.file: BinaryIO = os.fdopen(os.dup(stream), "wb")
        elif replaced is not None and not stat.S_ISREG(replaced.st_mode):
            self.file = path.open("wb")
        else:
            self.file = self._beside(replaced)

    def _beside(self, replaced: os.stat_result | None) -> BinaryIO:
        if replaced is not None and not os.access(self._target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self._target))
        # A random name, and refused if it exists: it is never the file of somebody else.
        self._temporary = self._target.with_name(f".mingyue-{secrets.token_hex(8)}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        handle = os.open(self._temporary, flags, 0o666)
        with suppress(OSError):  # a file system without owners or modes
            if replaced is not None and os.name != "nt":
                os.fchown(handle, replaced.st_uid, replaced.st_gid)
                os.fchmod(handle, stat.S_IMODE(replaced.st_mode))
        return os.fdopen(handle, "wb")

    def complete(self) -> None:
        """Close the file, flush it to the disk and put it in place. After an error the old file is there."""
        try:
            self.file.flush()
            if self._temporary is not None:
                os.fsync(self.file.fileno())
            self.file.close()
            if self._temporary is not None:
                self._temporary.replace(self._target)
                sync_folder(self._target.parent)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Close the file and remove what was written under the temporary name."""
        self._close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)

    def keep_part(self) -> Path | None:
        """Close the unfinished file and give it the first free name of `path`.part, `path`.part.1, …; returns that.

        None if it is empty (it is then removed), or was written directly.
        """
        self._close()
        if self._temporary is None or not self._temporary.stat().st_size:
            self.discard()
            return None
        number = 0
        while True:
            part = self._target.with_name(f"{self._target.name}.part{f'.{number}' if number else ''}")
            try:
                part.open("xb").close()
            except FileExistsError:
                number += 1
                continue
            except OSError:  # the name is too long, for example
                return self._temporary
            return self._temporary.replace(part)

    def _close(self) -> None:
        with suppress(OSError):  # what is not yet written may not fit on the disk
            self.file.close()


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _standard_output(status: os.stat_result) -> int | None:
    """The descriptor of the standard stream that is this file, such as /dev/stdout: its position is shared."""
    for number, stream in ((1, sys.__stdout__), (2, sys.__stderr__)):
        if stream is not None:  # else the number may be that of another file
            with suppress(OSError):
                if os.path.samestat(status, os.fstat(number)):
                    return number
    return None


@contextmanager
def replacing(path: Path) -> Generator[BinaryIO]:
    """A file whose content takes the place of `path` when the block ends without an error; see `OutputFile`."""
    output = OutputFile(path)
    try:
        yield output.file
    except BaseException:
        output.discard()
        raise
    output.complete()


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Write a file so that at any moment it has either the old content or the new; see `OutputFile`."""
    with replacing(path) as file:
        file.write(content)


def write_text_atomically(path: Path, content: str) -> None:
    """Write text as UTF-8, with its line ends unchanged; atomically, as `write_bytes_atomically`.

    A lone surrogate (a byte of a file name that is not UTF-8) is escaped as in JSON.
    """
    write_bytes_atomically(path, content.encode("utf-8", "backslashreplace"))


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


_REASONS = {
    errno.ENOENT: tr("No such file or directory"),
    errno.ENOTDIR: tr("Not a directory"),
    errno.EISDIR: tr("Is a directory"),
    errno.EEXIST: tr("File exists"),
    errno.ENAMETOOLONG: tr("File name too long"),
    errno.ELOOP: tr("Too many levels of symbolic links"),
}
"""What the system says, for errors that people meet."""


def explain_os_error(what: str, path: Path, error: OSError) -> tuple[str, str]:
    """(message, advice) for an `OSError` while `what` was written to `path`."""
    if error.errno in _FULL:
        return (
            tr("the disk is full: {what} could not be written to {path}", what, path),
            tr("Earlier files are unchanged. Free some space, or choose another folder with --out."),
        )
    if error.errno == errno.EEXIST and path.is_symlink() and not path.exists():
        message = tr(
            "{what} could not be written to {path}: it is a link to {readlink}, which does not exist",
            what,
            path,
            path.readlink(),
        )
        return message, tr("Make that folder, or remove the link.")
    if error.errno == errno.EEXIST:
        return tr("{what} could not be written to {path}: it is not a folder", what, path), tr(
            "Choose another folder with --out."
        )
    if error.errno in _REFUSED:
        advice = tr("Change its permissions, or choose another folder.")
        return (
            tr("{what} could not be written to {path}: {reason}", what, path, reason_of(error)),
            advice,
        )
    return (
        tr("{what} could not be written to {path}: {reason}", what, path, reason_of(error)),
        tr("Earlier files are unchanged."),
    )


def shortened(name: str) -> str:
    """A name as messages show it: of a very long one, the beginning and the length."""
    return name if len(name) <= _LONGEST else tr("{name}… ({n_name:,} characters)", name[:_LONGEST], len(name))


def describe_os_error(error: OSError) -> tuple[str, str]:
    """(message, advice) for an `OSError` that nothing closer to its cause has explained."""
    place = f"{shortened(os.fsdecode(error.filename))}: " if isinstance(error.filename, str | bytes) else ""
    if error.errno == errno.EBADF and not place:
        return tr("standard input is closed"), tr("Give the text in a file or as an argument.")
    message = tr("{place}{reason}", place, reason_of(error))
    if error.errno in _FULL:
        return message, tr("Free some space; temporary files are in the folder that TMPDIR names.")
    if error.errno in _REFUSED:
        return message, tr("Check the permissions of the file and of the folders above it.")
    return message, tr("Check the name, and that the file can be read or written.")


def reason_of(error: OSError) -> str:
    """Why the system refused, in words."""
    if error.errno in _FULL:
        return tr("the disk is full")
    if error.errno == errno.EBADF:
        return tr("it is closed")
    if error.errno in _REFUSED:
        return tr("permission denied")
    return _REASONS.get(error.errno or 0) or stored(error.strerror or str(error))
