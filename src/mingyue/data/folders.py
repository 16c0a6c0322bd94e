"""The files inside folders and globs. Whatever is not read is counted, with the reason and the first path."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from mingyue.data.report import ReadReport
from mingyue.errors import DataError
from mingyue.files import reason_of
from mingyue.paths import path_of
from mingyue.words import tr

HIDDEN = tr("hidden file or folder")
RUN, MODEL, PREPARED = tr("run folder"), tr("model folder"), tr("folder of prepared data")
BROKEN = tr("broken link")
SPECIAL = tr("named pipe, socket or device")
LOOP = tr("folder that is read under another name")
EMPTY = tr("folder without files to read")


Identity = tuple[int, int]
"""Device and number of a folder: the same under all its names."""


def files_of_folder(folder: Path, report: ReadReport, seen: set[Identity] | None = None) -> list[Path]:
    """The files in a folder and its sub-folders, linked ones included, sorted by path.

    Left out: hidden files, and the run and model folders of this program, whose logs and settings are not the user's
    text. `seen`: folders that were entered before; this one and its sub-folders are added. Raises `DataError` for a
    folder that cannot be read.
    """
    found: list[Path] = []
    seen = set() if seen is None else seen
    if not _enter(folder, seen, report):
        return []
    for root, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        here = Path(root)
        own = own_folder([*folders, *files])
        if own is not None:
            report.drop(own, root)
            folders.clear()
            continue
        folders[:] = [name for name in sorted(folders) if _visible(here / name, report)]
        folders[:] = [name for name in folders if _enter(here / name, seen, report)]
        for name in sorted(files):
            if _visible(here / name, report) and is_file(here / name, report):
                found.append(here / name)
    found.sort(key=lambda path: path.relative_to(folder).parts)
    return found


def files_of_glob(pattern: str, report: ReadReport) -> Iterator[Path]:
    """The files that match a pattern, and those of the folders that match, sorted by path.

    Raises `DataError` if nothing matches.
    """
    expanded = str(path_of(pattern))
    paths = [Path(name) for name in glob.glob(expanded, recursive=True)]  # noqa: PTH207
    paths.sort(key=lambda path: path.parts)
    if not paths:
        raise DataError(
            tr("nothing matches {pattern}", pattern),
            advice=tr("Check the pattern; ** also matches inside folders."),
        )
    fixed = _fixed_part(expanded)
    seen = {_identity(fixed)}  # a link inside it that leads back to it is a loop
    own: dict[Path, str | None] = {}
    parents = {parent for path in paths for parent in path.parents} if "**" in pattern else set[Path]()
    for path in paths:
        if any(_is_own(folder, own, report) for folder in _between(fixed, path)):
            continue
        if not path.is_dir():
            if is_file(path, report):
                yield path
        elif path not in parents:  # else the pattern itself says which of its files are meant
            files = files_of_folder(path, report, seen)
            if not files and _identity(path) != _identity(fixed):
                report.drop(EMPTY, str(path))
            yield from files


def is_file(path: Path, report: ReadReport) -> bool:
    """Whether this is a regular file, or a link to one; if not, it is counted."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        report.drop(BROKEN, str(path))
        return False
    except OSError as error:  # among others a link to itself
        if path.is_symlink():
            report.drop(BROKEN, str(path))
            return False
        raise DataError(tr("{path} cannot be read: {reason}", path, reason_of(error))) from None
    if not stat.S_ISREG(mode):
        report.drop(SPECIAL, str(path))
        return False
    return True


def own_folder(names: Collection[str]) -> str | None:
    """What a folder of this program with these entries is, else None."""
    if "run.toml" in names and any(name in names for name in ("run.lock", "plan.json", "metrics.jsonl", "checkpoints")):
        return RUN
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        return MODEL
    if any(name in names for name in ("corpus.json", "pairs.json")) and any(n.endswith(".tokens") for n in names):
        return PREPARED
    return None


def entries_of(folder: Path) -> list[str]:
    """Names in a folder; none if it cannot be read."""
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []


def _visible(path: Path, report: ReadReport) -> bool:
    if path.name.startswith("."):
        report.drop(HIDDEN, str(path))
        return False
    return True


def _enter(folder: Path, seen: set[Identity], report: ReadReport) -> bool:
    """Whether a folder was not entered before: links can make loops."""
    identity = _identity(folder)
    if identity in seen:
        report.drop(LOOP, str(folder))
        return False
    seen.add(identity)
    return True


def _identity(folder: Path) -> Identity:
    try:
        state = folder.stat()
    except OSError as error:
        raise DataError(tr("the folder {folder} cannot be read: {reason}", folder, reason_of(error))) from None
    return state.st_dev, state.st_ino


def _refuse(error: OSError) -> None:
    raise DataError(tr("the folder {filename} cannot be read: {reason}", error.filename, reason_of(error)))


def _fixed_part(pattern: str) -> Path:
    """The folder that a pattern names before its first wildcard."""
    fixed = Path()
    for part in Path(pattern).parts:
        if glob.has_magic(part):
            break
        fixed /= part
    return fixed


def _between(fixed: Path, path: Path) -> list[Path]:
    """The path and its folders below `fixed`, the outermost first."""
    return [one for one in [*reversed(path.parents), path] if one != fixed and one.is_relative_to(fixed)]


def _is_own(folder: Path, known: dict[Path, str | None], report: ReadReport) -> bool:
    """Whether this is a folder of this program; counted when it is first seen."""
    if folder not in known:
        reason = known[folder] = own_folder(entries_of(folder))
        if reason is not None:
            report.drop(reason, str(folder))
    return known[folder] is not None
