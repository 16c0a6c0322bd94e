"""Known corpora: what they are, where they come from, and how to get them.

Fetched files live in `data_folder()`. MINGYUE_DATA_MIRROR, a folder or an address, serves the same files under the
same names: shakespeare.txt, multi30k/train.de.gz and so on, chinese-poetry-2.0.1.tgz (or a finished tang.txt).
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from mingyue.config import nearest
from mingyue.data.fetch import data_folder, fetch_file, mirrored, sha256_check
from mingyue.data.report import Progress, ReadReport
from mingyue.data.tang import make_tang
from mingyue.errors import DataError
from mingyue.files import reason_of, write_text_atomically
from mingyue.words import tr


@dataclass(frozen=True)
class Corpus:
    """Description of a known corpus."""

    name: str
    description: str
    size: str
    licence: str
    separator: str
    """The value of --separator that suits it."""


@dataclass(frozen=True)
class CorpusStatus:
    """A corpus, and whether it is on this machine."""

    corpus: Corpus
    here: bool
    path: Path | None


CORPORA: dict[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            "python-docs",
            tr("help topics of the Python language reference, as this Python carries them (no network needed)"),
            tr("about 0.5 MB"),
            tr("Python Software Foundation License"),
            "file",
        ),
        Corpus(
            "tang",
            tr("57,603 poems of the Tang in Chinese: title, author, lines; from the npm package chinese-poetry"),
            tr("13 MB (85 MB to fetch)"),
            tr("collection: MIT; the poems are in the public domain"),
            "blank-line",
        ),
        Corpus(
            "shakespeare",
            tr("40,000 lines of plays by Shakespeare in English (the file of char-rnn)"),
            "1.1 MB",
            tr("plays: public domain"),
            "file",
        ),
        Corpus(
            "multi30k",
            tr("30,000 captions of pictures in English and German, line by line (train, val, test_2016_flickr)"),
            tr("4.2 MB (1.3 MB to fetch)"),
            tr("captions: for research, see the Multi30k and Flickr30k terms"),
            "line",
        ),
    )
}
_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
_MULTI30K_SHA256 = {  # of the unpacked text: 29,000, 1,014 and 1,000 lines
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
}


def list_corpora() -> list[CorpusStatus]:
    """Every known corpus, and where it is on this machine (python-docs is always available: it is generated)."""
    return [
        CorpusStatus(corpus, path is not None or name == "python-docs", path)
        for name, corpus in CORPORA.items()
        for path in [find_corpus(name)]
    ]


def get_corpus(
    name: str, *, simplified: bool = False, folder: Path | None = None, progress: Progress | None = None
) -> Path:
    """Download or generate a corpus; returns its file (multi30k: its folder). A file that exists is not fetched again.

    `simplified` (tang): in simplified characters, through the opencc package. `folder`: instead of `data_folder()`.
    Raises `DataError` for an unknown name, a failed download, or a file with a wrong checksum.
    """
    _known(name)
    if simplified and name != "tang":
        raise DataError(tr("{name} has no simplified form", name), advice=tr("--simplified is for tang."))
    root = data_folder() if folder is None else folder
    if name == "python-docs":
        return _python_docs(root)
    found = _find(name, root, simplified=simplified)
    if found is not None:
        return found
    if name == "tang":
        return make_tang(root, simplified=simplified, progress=progress)
    if name == "shakespeare":
        origin = mirrored("shakespeare.txt") or _SHAKESPEARE
        return fetch_file(origin, root / "shakespeare.txt", sha256_check(_SHAKESPEARE_SHA256), progress)
    for file, digest in _MULTI30K_SHA256.items():
        target = root / "multi30k" / f"{file}.gz"
        if not target.exists():
            origin = mirrored(f"multi30k/{file}.gz") or f"{_MULTI30K}/{file}.gz"
            fetch_file(origin, target, sha256_check(digest, unpack=True), progress)
    return root / "multi30k"


def find_corpus(name: str) -> Path | None:
    """The file (multi30k: the folder) of a corpus that is on this machine, else None."""
    _known(name)
    root = data_folder()
    if name == "python-docs":
        path = _python_docs_path(root)
        return path if path.exists() else None
    return _find(name, root, simplified=False) or _find(name, root, simplified=True)


def resolve_corpus(name: str, report: ReadReport) -> Path | None:
    """The file that a corpus name stands for when it is read as text; None if `name` is not one.

    python-docs is generated if needed. tang-simplified names the simplified form. Raises `DataError` for a corpus that
    has not been fetched.
    """
    if name == "tang-simplified":
        found = _find("tang", data_folder(), simplified=True)
        if found is None:
            raise DataError(
                tr("tang-simplified is not downloaded yet"), advice=tr("Run `mingyue data get tang --simplified`.")
            )
        return found
    if name not in CORPORA:
        return None
    if name == "python-docs":
        return _python_docs(data_folder())
    found = find_corpus(name)
    if found is None:
        raise DataError(
            tr("the corpus {name} is not downloaded yet", name),
            advice=tr("Run `mingyue data get {name}`.", name),
        )
    if name == "multi30k":
        raise DataError(
            tr("multi30k is a parallel corpus, in the folder {found}", found),
            advice=tr("Name one of its files to read it as text, for example {found}.", found / "train.en.gz"),
        )
    if name == "tang":
        both = _find(name, data_folder(), simplified=True) is not None
        other = tr("; tang-simplified names the simplified form") if both and found.name == "tang.txt" else ""
        report.note(tr("tang: {name} is read{other}", found.name, other))
    return found


def _known(name: str) -> None:
    if name not in CORPORA:
        guess = nearest(name, CORPORA)
        hint = tr("Did you mean {guess}?", guess) if guess else tr("Known: {corpora}.", ", ".join(CORPORA))
        raise DataError(tr("there is no known corpus {name!r}", name), advice=hint)


def _find(name: str, root: Path, *, simplified: bool) -> Path | None:
    if name == "multi30k":
        whole = all((root / name / f"{file}.gz").exists() for file in _MULTI30K_SHA256)
        return root / name if whole else None
    path = root / (f"{name}-simplified.txt" if simplified else f"{name}.txt")
    return path if path.exists() else None


def _python_docs_path(root: Path) -> Path:
    return root / f"python-docs-{platform.python_version()}.txt"


def _python_docs(root: Path) -> Path:
    """The help topics in alphabetical order, two blank lines between them."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError(
            tr("this Python has no help topics (pydoc_data)"), advice=tr("Name a text file of your own instead.")
        ) from None
    text = "\n\n\n".join(topics[name].strip("\n") for name in sorted(topics)) + "\n"
    path = _python_docs_path(root)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        _save(path, text)
    return path


def _save(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, text)
    except OSError as error:
        raise DataError(
            tr("the corpus cannot be written to {path}: {reason}", path, reason_of(error)),
            advice=tr("Set MINGYUE_DATA to a writable folder."),
        ) from None
