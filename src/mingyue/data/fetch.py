"""Files from elsewhere: checked, resumable, renamed only when whole."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import shutil
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path

from mingyue.data.report import Progress
from mingyue.errors import DataError
from mingyue.files import explain_os_error

_CHUNK = 1 << 18
_TRIES = 3
_TIMEOUT = 30.0
_PAUSE = 0.5


class MissingFileError(DataError):
    """The place to fetch from has no such file."""


def data_folder() -> Path:
    """Where fetched corpora live: MINGYUE_DATA, or the cache folder that the platform gives each user."""
    told = os.environ.get("MINGYUE_DATA")
    if told:
        return Path(told).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "mingyue" / "data"


def mirror() -> str | None:
    """MINGYUE_DATA_MIRROR: a folder or an address that holds the same files under the same names."""
    return os.environ.get("MINGYUE_DATA_MIRROR") or None


def mirrored(relative: str) -> str | None:
    """Where the mirror keeps a file: a path or an address; None without a mirror."""
    place = mirror()
    if place is None:
        return None
    if _is_address(place):
        return f"{place.rstrip('/')}/{urllib.parse.quote(relative)}"
    return str(Path(place).expanduser() / relative)


def fetch_file(place: str, target: Path, check: Callable[[Path], str | None], progress: Progress | None = None) -> Path:
    """Bring the file at `place` (address or path) to `target`.

    `check` gives None for a good file, or what is wrong with it. A transfer that breaks goes on from where it was, now
    or at the next call; a file that fails its check is fetched once more from its start, then refused with `DataError`.
    """
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        begun = part.exists()
        _bring(place, part, progress)
        wrong = check(part)
        if wrong and begun:  # the old part may have been of something else
            part.unlink()
            _bring(place, part, progress)
            wrong = check(part)
        if wrong:
            part.unlink()
            raise DataError(
                f"{place} is not the file that it should be: {wrong}",
                advice="Try again, or name another place (a folder or an address) in MINGYUE_DATA_MIRROR.",
            )
        part.replace(target)
    except OSError as error:
        message, advice = explain_os_error("the corpus", target, error)
        raise DataError(message, advice=advice.replace("--out", "MINGYUE_DATA")) from None
    return target


def sha256_check(expected: str, *, unpack: bool = False) -> Callable[[Path], str | None]:
    """A check by SHA-256, of the content inside for a .gz (packing again changes the packed bytes only)."""

    def check(path: Path) -> str | None:
        try:
            found = file_digest(path, "sha256", unpack=unpack)
        except (OSError, EOFError, zlib.error) as error:
            return f"it is damaged ({error})"
        return None if found == expected else f"SHA-256 {found} instead of {expected}"

    return check


def file_digest(path: Path, algorithm: str, *, unpack: bool = False) -> str:
    """Hexadecimal digest of a file's bytes."""
    digest = hashlib.new(algorithm)
    with gzip.open(path) if unpack else path.open("rb") as file:
        while data := file.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()


def _is_address(place: str) -> bool:
    return place.startswith(("http://", "https://", "file://"))


def _bring(place: str, part: Path, progress: Progress | None) -> None:
    if not _is_address(place):
        source = Path(place)
        if not source.is_file():
            raise MissingFileError(
                f"there is no file {place}",
                advice="Put it there, or unset MINGYUE_DATA_MIRROR to fetch from where it comes from.",
            )
        shutil.copyfile(source, part)
        return
    for attempt in range(_TRIES):
        try:
            _download(place, part, progress)
            return
        except urllib.error.HTTPError as error:
            if error.code == 416 and part.exists():  # nothing after what is here: the check decides
                return
            if error.code in (404, 410):
                raise MissingFileError(f"{place}: the server has no such file ({error.code})", advice=_ADVICE) from None
            if error.code < 500 or attempt == _TRIES - 1:
                raise DataError(f"{place}: the server answers {error.code} {error.reason}", advice=_ADVICE) from None
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            if attempt == _TRIES - 1:
                reason = getattr(error, "reason", None) or error
                raise DataError(f"{place} cannot be fetched: {reason}", advice=_ADVICE) from None
        time.sleep(_PAUSE * 2**attempt)


_ADVICE = (
    "What arrived is kept: the next call goes on from there. Without a network, put the file into a folder and name "
    "the folder in MINGYUE_DATA_MIRROR."
)


def _download(place: str, part: Path, progress: Progress | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(place, headers={"User-Agent": "mingyue"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        going_on = have > 0 and answer.status == 206 and _starts_at(answer.headers.get("Content-Range"), have)
        length = answer.headers.get("Content-Length")
        done = have if going_on else 0
        total = done + int(length) if length else 0
        with part.open("ab" if going_on else "wb") as file:
            while data := answer.read(_CHUNK):
                file.write(data)
                done += len(data)
                if progress is not None:
                    progress("fetching", done, total)
            file.flush()
            os.fsync(file.fileno())
    if total and done < total:
        raise http.client.IncompleteRead(b"", total - done)


def _starts_at(content_range: str | None, start: int) -> bool:
    return content_range is not None and content_range.replace("bytes", "").strip().startswith(f"{start}-")
