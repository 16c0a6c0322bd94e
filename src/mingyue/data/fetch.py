"""Downloads: resumable, checked, and renamed only when complete."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import shutil
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
from mingyue.paths import cache_folder, path_of
from mingyue.words import tr

_CHUNK = 1 << 18
_TRIES = 3
_TIMEOUT = 30.0
_PAUSE = 0.5


class MissingFileError(DataError):
    """The server or folder has no such file."""


def data_folder() -> Path:
    """The folder of downloaded corpora: MINGYUE_DATA, or the user's cache folder on this platform."""
    given = os.environ.get("MINGYUE_DATA")
    if given:
        return path_of(given)
    return cache_folder() / "data"


def mirror() -> str | None:
    """MINGYUE_DATA_MIRROR: a folder or URL that holds the same files under the same names."""
    return os.environ.get("MINGYUE_DATA_MIRROR") or None


def mirrored(relative: str) -> str | None:
    """The path or URL of a file in the mirror; None without a mirror."""
    origin = mirror()
    if origin is None:
        return None
    if _is_url(origin):
        return f"{origin.rstrip('/')}/{urllib.parse.quote(relative)}"
    return str(path_of(origin) / relative)


def fetch_file(
    origin: str, target: Path, check: Callable[[Path], str | None], progress: Progress | None = None
) -> Path:
    """Copy or download the file at `origin` (URL or path) to `target`.

    `check` returns None for a good file, or what is wrong with it. An interrupted download continues where it stopped,
    now or at the next call; a file that fails its check is fetched once more from the start, then is a `DataError`.
    """
    part = target.with_name(f".{target.name}.mingyue-part")  # a name of its own, the same at the next call
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        begun = part.exists()
        _fetch(origin, part, progress)
        wrong = check(part)
        if wrong and begun:  # the older part may be of another file
            part.unlink()
            _fetch(origin, part, progress)
            wrong = check(part)
        if wrong:
            part.unlink()
            raise DataError(
                tr("{origin} is not the file expected: {wrong}", origin, wrong),
                advice=tr("Try again, or set MINGYUE_DATA_MIRROR to another folder or URL."),
            )
        part.replace(target)
    except OSError as error:
        message, advice = explain_os_error(tr("the corpus"), target, error)
        raise DataError(message, advice=advice.replace("--out", "MINGYUE_DATA")) from None
    return target


def sha256_check(expected: str, *, unpack: bool = False) -> Callable[[Path], str | None]:
    """A check by SHA-256; `unpack`: of the content of a .gz (compressing again changes only the compressed bytes)."""

    def check(path: Path) -> str | None:
        try:
            found = file_digest(path, "sha256", unpack=unpack)
        except (OSError, EOFError, zlib.error) as error:
            return tr("it is damaged ({error})", error)
        return None if found == expected else tr("SHA-256 {found} instead of {expected}", found, expected)

    return check


def file_digest(path: Path, algorithm: str, *, unpack: bool = False) -> str:
    """Hexadecimal digest of a file's bytes."""
    digest = hashlib.new(algorithm)
    with gzip.open(path) if unpack else path.open("rb") as file:
        while data := file.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()


def _is_url(origin: str) -> bool:
    return origin.startswith(("http://", "https://", "file://"))


def _fetch(origin: str, part: Path, progress: Progress | None) -> None:
    if not _is_url(origin):
        source = Path(origin)
        if not source.is_file():
            raise MissingFileError(
                tr("there is no file {origin}", origin),
                advice=tr("Put it there, or unset MINGYUE_DATA_MIRROR to download it from its origin."),
            )
        shutil.copyfile(source, part)
        return
    for attempt in range(_TRIES):
        try:
            _download(origin, part, progress)
            return
        except urllib.error.HTTPError as error:
            if error.code == 416 and part.exists():  # nothing is left to download: the check decides
                return
            if error.code in (404, 410):
                raise MissingFileError(
                    tr("{origin}: the server has no such file ({code})", origin, error.code), advice=_ADVICE
                ) from None
            if error.code < 500 or attempt == _TRIES - 1:
                raise DataError(
                    tr("{origin}: the server answers {code} {reason}", origin, error.code, error.reason),
                    advice=_ADVICE,
                ) from None
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            if attempt == _TRIES - 1:
                reason = getattr(error, "reason", None) or error
                raise DataError(tr("{origin} cannot be fetched: {reason}", origin, reason), advice=_ADVICE) from None
        time.sleep(_PAUSE * 2**attempt)


_ADVICE = tr(
    "What was downloaded is kept: the next call continues from there. Without a network, "
    "put the file into a folder and set MINGYUE_DATA_MIRROR to that folder."
)


def _download(origin: str, part: Path, progress: Progress | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(origin, headers={"User-Agent": "mingyue"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        resumed = have > 0 and answer.status == 206 and _starts_at(answer.headers.get("Content-Range"), have)
        length = answer.headers.get("Content-Length")
        done = have if resumed else 0
        total = done + int(length) if length else 0
        with part.open("ab" if resumed else "wb") as file:
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
