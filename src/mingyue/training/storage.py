"""Folders that stay whole on disk when the program crashes or the disk is full; for files see `mingyue.files`."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from mingyue.errors import CheckpointError
from mingyue.files import explain_os_error, sync_folder
from mingyue.words import tr

TEMPORARY = "tmp-"
SET_ASIDE = "damaged-"
"""Prefix of the names of unfinished and of half-removed folders, which a resume removes."""


def sync_file(path: Path) -> None:
    """Flush a file to the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def remove_folder(path: Path) -> None:
    """Delete a folder; a kill in the middle leaves no part of it under its own name."""
    doomed = path.with_name(f"{TEMPORARY}removed-{path.name}-{os.getpid()}")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def free_name(path: Path) -> Path:
    """The first of name.1, name.2, … that does not exist."""
    number = 1
    while path.with_name(f"{path.name}.{number}").exists():
        number += 1
    return path.with_name(f"{path.name}.{number}")


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder, so that it is not read again; returns the new path."""
    aside = free_name(path.with_name(f"{SET_ASIDE}{path.name}"))
    with disk_errors(tr("the new name of what is damaged"), aside):
        path.rename(aside)
        sync_folder(path.parent)
    return aside


def swept(name: str) -> re.Pattern[str]:
    """Pattern of the name of a folder whose `remove_folder` was killed."""
    return re.compile(rf"{TEMPORARY}removed-{re.escape(name)}-\d+")


@contextmanager
def disk_errors(what: str, path: Path) -> Generator[None]:
    """Turn the system's error of a failed write of `what` into a `CheckpointError` that names the disk and the path."""
    try:
        yield
    except OSError as error:
        raise _explain(what, path, error) from error
    except SafetensorError as error:
        # safetensors writes from Rust: the system's error number is only in the text of its own error.
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        number = int(found[1])
        raise _explain(what, path, OSError(number, os.strerror(number))) from error


def _explain(what: str, path: Path, error: OSError) -> CheckpointError:
    if error.errno in (errno.EDQUOT, errno.EFBIG):  # an exceeded quota is a full disk to the user
        error = OSError(errno.ENOSPC, error.strerror)
    message, advice = explain_os_error(what, path, error)
    if error.errno == errno.ENOSPC:
        message += tr(" ({free} free)", _free(path))
        advice = tr("Free some space, then run `mingyue resume`: earlier checkpoints are whole.")
    return CheckpointError(message, advice=advice)


def _free(path: Path) -> str:
    for folder in path.parents:
        if folder.is_dir():
            return f"{shutil.disk_usage(folder).free / 1e6:,.1f} MB"
    return tr("nothing known")
