"""Names of files as users give them: with `~`, with bytes that are not UTF-8, or such as no file can have."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mingyue.errors import SettingsError
from mingyue.files import describe_os_error, reason_of, shortened
from mingyue.words import tr

_MODEL_FILES = frozenset(
    ("run.toml", "run.lock", "plan.json", "metrics.jsonl", "checkpoints", "data", "watch", "model", "config.json",
     "training.json", "tokenizer.json", "source_tokenizer.json", "model.safetensors")
)  # fmt: skip


def path_of(name: str | os.PathLike[str]) -> Path:
    """The path that a user's `name` stands for, with `~` as the home folder.

    Raises `SettingsError` for an empty name, and for one that the system does not look up, with its reason (too long,
    no permission for a folder above it). The path need not exist.
    """
    try:
        given = os.fspath(name)
    except TypeError:
        raise SettingsError(
            tr("{shortened} is not the name of a file or folder", shortened(repr(name))),
            advice=tr("Give a str, or a pathlib.Path."),
        ) from None
    if not given:
        raise SettingsError(
            tr("the name of a file or folder is empty"), advice=tr("Name one; `.` is the current folder.")
        )
    shown = shortened(given)
    path = Path(os.path.expanduser(_encodable(given)))  # noqa: PTH111 - Path.expanduser refuses a file named ~tilde.txt
    try:
        path.lstat()
    except ValueError as error:
        raise SettingsError(tr("{shown!r} cannot be the name of a file: {error}", shown, error)) from None
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EINVAL):
            message = tr("{shown}: {reason}", shown, reason_of(error))
            raise SettingsError(message, advice=describe_os_error(error)[1]) from error
    first = path.parts[0] if path.parts else ""  # of `.`
    if first.startswith("~") and len(path.parts) > 1 and not Path(first).exists():
        raise SettingsError(
            tr("{shown}: there is no user {first}", shown, first[1:]),
            advice=tr("For a folder of that name, write ./{first}.", first),
        )
    return path


def cache_folder() -> Path:
    """The user's folder for what can be fetched or computed again, on this platform."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "mingyue"


def _encodable(name: str) -> str:
    """The name in the characters of this system: in an ASCII locale Python stands for others by lone surrogates."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return os.fsdecode(name.encode("utf-8", "surrogatepass"))
    return name


def check_output(output: str | os.PathLike[str] | None, *inputs: str | None, option: str = "--output") -> None:
    """Refuse an output that cannot be written or is also an input, before any work; `option` is its name.

    An input may be a file, `-` (standard input), or the folder of a model or run, whose own files are inputs. Raises
    `SettingsError` if `output` is a folder, is in a folder that does not exist, or is one of the inputs.
    """
    if output is None:
        return
    path = path_of(output)
    if path.is_dir():
        raise SettingsError(tr("{option} {output} is a folder", option, output), advice=tr("Name a file."))
    if not path.parent.is_dir():
        raise SettingsError(
            tr("{option} {output}: there is no folder {folder}", option, output, path.parent),
            advice=tr("Make it first."),
        )
    for name in inputs if path.is_file() else ():
        if name is not None and _is_input(path, name):
            raise SettingsError(
                tr("{option} {output} is also an input: it would be lost", option, output),
                advice=tr("Choose another file."),
            )


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
