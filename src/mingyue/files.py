"""Names of files, atomic writing (a temporary name, a flush to the disk, a rename), checksums, messages for errors."""

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

from mingyue.errors import SettingsError

TEMPORARY = re.compile(r"\.mingyue-[0-9a-f]{16}\.tmp")
"""Names of files that were being written when the program was killed."""
_MODEL_FILES = frozenset(
    ("run.toml", "run.lock", "plan.json", "metrics.jsonl", "checkpoints", "data", "watch", "model", "config.json",
     "training.json", "tokenizer.json", "source_tokenizer.json", "model.safetensors")
)  # fmt: skip
_LONGEST = 200
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def path_of(name: str | os.PathLike[str]) -> Path:
    """The path that a user's `name` stands for, with `~` as the home folder.

    Raises `SettingsError` for an empty name, and for one that the system does not look up, with its reason (too long,
    no permission for a folder above it). The path need not exist.
    """
    given = os.fspath(name)
    if not given:
        raise SettingsError("the name of a file or folder is empty", advice="Name one; `.` is the current folder.")
    shown = _shortened(given)
    path = Path(os.path.expanduser(_encodable(given)))  # noqa: PTH111 - Path.expanduser refuses a file named ~tilde.txt
    try:
        path.lstat()
    except ValueError as error:
        raise SettingsError(f"{shown!r} cannot be the name of a file: {error}") from None
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EINVAL):
            raise SettingsError(f"{shown}: {reason_of(error)}", advice=describe_os_error(error)[1]) from error
    first = path.parts[0]
    if first.startswith("~") and len(path.parts) > 1 and not Path(first).exists():
        raise SettingsError(
            f"{shown}: there is no user {first[1:]}", advice=f"For a folder of that name, write ./{first}."
        )
    return path


def _encodable(name: str) -> str:
    """The name in the characters of this system: in an ASCII locale Python stands for others by lone surrogates."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return os.fsdecode(name.encode("utf-8", "surrogatepass"))
    return name


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}… ({len(name):,} characters)"


def check_output(output: str | os.PathLike[str] | None, *inputs: str | None, option: str = "--output") -> None:
    """Refuse an output that cannot be written or is also an input, before any work; `option` is its name.

    An input may be a file, `-` (standard input), or the folder of a model or run, whose own files are inputs. Raises
    `SettingsError` if `output` is a folder, is in a folder that does not exist, or is one of the inputs.
    """
    if output is None:
        return
    path = path_of(output)
    if path.is_dir():
        raise SettingsError(f"{option} {output} is a folder", advice="Name a file.")
    if not path.parent.is_dir():
        raise SettingsError(f"{option} {output}: there is no folder {path.parent}", advice="Make it first.")
    for name in inputs if path.is_file() else ():
        if name is not None and _is_input(path, name):
            raise SettingsError(f"{option} {output} is also an input: it would be lost", advice="Choose another file.")


def _is_input(path: Path, name: str) -> bool:
    """Whether the file `path` is the input `name`, or one of the files that make up the model folder `name`."""
    if name == "-":
        with suppress(OSError):
            return os.path.samestat(path.stat(), os.fstat(0))
        return False
    source = path_of(name)
    if source.is_dir():
        folder = source.resolve()
        return path.resolve().is_relative_to(folder) and path.resolve().relative_to(folder).parts[0] in _MODEL_FILES
    return source.exists() and path.samefile(source)


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


def escape_names(toml: str) -> str:
    r"""TOML whose strings hold file names that are not UTF-8, as UTF-8: their bytes are written as `\\udce9`."""
    return re.sub("[\udc80-\udcff]", lambda found: f"\\\\u{ord(found[0]):04x}", toml)


def restore_names(value: Any) -> Any:  # noqa: ANN401  (what TOML holds)
    """The inverse of `escape_names` for the content of TOML: every text in it."""
    if isinstance(value, dict):
        return {key: restore_names(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [restore_names(inside) for inside in value]
    if isinstance(value, str):
        return re.sub(r"\\u(dc[89a-f][0-9a-f])", lambda found: chr(int(found[1], 16)), value)
    return value


@contextmanager
def utf8_name(path: Path, *, new: bool = False) -> Generator[str]:
    """The name of a file for libraries that accept UTF-8 only; where it is not, by way of an open folder.

    A file that is not `new` must exist. Raises `OSError` with the system's reason if it cannot be read, which those
    libraries do not report.
    """
    if not new:
        path.open("rb").close()
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        handle = os.open(path.parent, os.O_RDONLY)
    else:
        yield str(path)
        return
    try:
        yield f"/dev/fd/{handle}/{path.name}"
    finally:
        os.close(handle)


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


def explain_os_error(what: str, path: Path, error: OSError) -> tuple[str, str]:
    """(message, advice) for an `OSError` while `what` was written to `path`."""
    if error.errno in _FULL:
        return (
            f"the disk is full: {what} could not be written to {path}",
            "Earlier files are unchanged. Free some space, or choose another folder with --out.",
        )
    if error.errno in _REFUSED:
        return (f"{what} could not be written to {path}: {reason_of(error)}", "Choose another folder with --out.")
    return (f"{what} could not be written to {path}: {reason_of(error)}", "Earlier files are unchanged.")


def describe_os_error(error: OSError) -> tuple[str, str]:
    """(message, advice) for an `OSError` that nothing closer to its cause has explained."""
    place = f"{_shortened(os.fsdecode(error.filename))}: " if isinstance(error.filename, str | bytes) else ""
    if error.errno == errno.EBADF and not place:
        return "standard input is closed", "Give the text in a file or as an argument."
    if error.errno in _FULL:
        return f"{place}{reason_of(error)}", "Free some space; temporary files are in the folder that TMPDIR names."
    if error.errno in _REFUSED:
        return f"{place}{reason_of(error)}", "Check the permissions of the file and of the folders above it."
    return f"{place}{reason_of(error)}", "Check the name, and that the file can be read or written."


def reason_of(error: OSError) -> str:
    """Why the system refused, in words."""
    if error.errno in _FULL:
        return "the disk is full"
    if error.errno == errno.EBADF:
        return "it is closed"
    return "permission denied" if error.errno in _REFUSED else error.strerror or str(error)
