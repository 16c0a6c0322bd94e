"""A folder of prepared data: token files and, written last, a manifest that says what they hold.

What a crash leaves behind has no manifest, so it never looks complete. The manifest has a key, a hash of sources and
settings: a folder with the same key is used again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mingyue.config import TokenizerSettings
from mingyue.data.hub import hub_files
from mingyue.data.report import ReadReport
from mingyue.data.sources import Source
from mingyue.data.tokens import PREPARE_AGAIN, SHARD_TOKENS, TokenWriter, digests_of
from mingyue.errors import DataError, FormatError, TokenizerError
from mingyue.files import explain_os_error, seal_holds, sealed, write_text_atomically
from mingyue.parsing import read_json_object
from mingyue.paths import path_of
from mingyue.text import Tokenizer
from mingyue.words import tr

TOKENIZER = "tokenizer.json"
FORMAT = 1
"""Version of what `prepare_corpus` and `prepare_pairs` leave in a folder."""

PreparedT = TypeVar("PreparedT", bound=tuple[Any, ...])


@dataclass(frozen=True)
class PreparedFolder:
    """Where prepared data is, and how its files are named."""

    path: Path
    manifest: str
    """Name of the manifest."""
    content: str
    """What it holds, for messages: "text" or "pairs"."""
    parts: tuple[str, ...]
    """Names of the token files, without number and extension."""

    def prepare(
        self, key: str | None, make: Callable[[], Mapping[str, Any]], load: Callable[[Path], PreparedT]
    ) -> PreparedT:
        """Load the data in the folder if it has this `key`; else prepare it first. Returns what `load` returns.

        `make` writes tokenizers and token files, and returns the rest of the manifest ("files": names by part). `load`
        returns a tuple whose last item is a `ReadReport`. Raises `DataError` when a file cannot be written.
        """
        if key is not None and (self._read() or {}).get("key") == key:
            with suppress(DataError):  # damaged: prepare it again
                found = load(self.path)
                report: ReadReport = found[-1]
                report.note(
                    tr(
                        "the tokens in {path} are of the same {content} and settings: used again",
                        self.path,
                        self.content,
                    )
                )
                return found
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._clear()
            made = make()
            files = (self.path / name for names in made["files"].values() for name in names)
            manifest = {"format": FORMAT, "key": key, **made, "digests": digests_of(files)}
            write_text_atomically(self.path / self.manifest, json.dumps(sealed(manifest), indent=1) + "\n")
        except OSError as error:
            message, advice = explain_os_error(tr("the prepared {content}", self.content), self.path, error)
            raise DataError(message, advice=advice) from None
        return load(self.path)

    @contextmanager
    def opened(self) -> Generator[dict[str, Any]]:
        """The manifest; inside the block, a value that is missing or of a wrong type is a `DataError`.

        Raises `DataError` for a manifest that is missing, damaged or of another version, and for a damaged tokenizer.
        """
        manifest = self._read()
        path = self.path / self.manifest
        if manifest is None:
            raise DataError(
                tr(
                    "{path} holds no prepared {content}: its {manifest} is missing or cannot be read",
                    self.path,
                    self.content,
                    self.manifest,
                ),
                advice=PREPARE_AGAIN,
            )
        if manifest.get("format") != FORMAT:
            raise DataError(
                tr(
                    "{path} has format version {format}; this program reads {supported}",
                    path,
                    manifest.get("format"),
                    FORMAT,
                ),
                advice=PREPARE_AGAIN,
            )
        if not seal_holds(manifest):
            raise DataError(
                tr("{path} is damaged: its checksum does not match its content", path), advice=PREPARE_AGAIN
            )
        try:
            yield manifest
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(tr("{path} is damaged: {error!r}", path, error), advice=PREPARE_AGAIN) from None
        except TokenizerError as error:
            raise DataError(error.message, advice=PREPARE_AGAIN) from None

    def files(self, manifest: Mapping[str, Any]) -> dict[str, list[Path]]:
        """Paths of the token files of each part."""
        return {part: [self.path / name for name in manifest["files"][part]] for part in self.parts}

    def writer(self, part: str, tokenizer: Tokenizer, shard_tokens: int = SHARD_TOKENS) -> TokenWriter:
        """A writer of the token files of a part."""
        return TokenWriter(
            self.path,
            part,
            vocab_size=tokenizer.vocab_size,
            fingerprint=tokenizer.fingerprint,
            shard_tokens=shard_tokens,
        )

    def _clear(self) -> None:
        """Remove older data; the manifest first, so that a crash on the way leaves nothing that looks complete."""
        (self.path / self.manifest).unlink(missing_ok=True)
        for part in self.parts:
            for path in [*self.path.glob(f"{part}-*.tokens"), *self.path.glob(f".{part}-*.tmp")]:
                path.unlink()

    def _read(self) -> dict[str, Any] | None:
        try:
            return read_json_object(self.path / self.manifest)
        except (OSError, FormatError):
            return None


def identity_of(sources: Iterable[Source]) -> list[object] | None:
    """What changes with the content of the sources (path, size, time of change); None if one is a pipe."""
    identity: list[object] = []
    for source in sources:
        if not source.repeatable:
            return None
        if source.kind == "hub":
            identity.append([source.name, [[file.path, file.size, file.mark] for file in hub_files(source.name)[1]]])
        else:
            identity.append([str(source.path and source.path.resolve()), source.size, source.changed])
    return identity


def key_of(identity: list[object], tokenizer: TokenizerSettings) -> str:
    """A hash of everything that the tokens depend on: `identity`, and the content of a given tokenizer.json."""
    path = path_of(tokenizer.tokenizer or "char")
    path = path / TOKENIZER if path.is_dir() else path
    if path.is_file():
        identity = [*identity, hashlib.sha256(path.read_bytes()).hexdigest()]
    return hashlib.sha256(json.dumps(identity, sort_keys=True, ensure_ascii=True).encode("ascii")).hexdigest()
