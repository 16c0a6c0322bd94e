"""Whether tokens that are already on the disk are those of the asked text and settings."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from mingyue.config import DataSettings, TokenizerSettings
from mingyue.data.hub import hub_files
from mingyue.data.report import ReadReport
from mingyue.data.sources import Source, expand_sources

CORPUS_FORMAT = 1
"""Version of what `prepare_corpus` leaves in a folder."""


def corpus_key(settings: DataSettings, tokenizer_settings: TokenizerSettings) -> str | None:
    """A hash of everything that the tokens depend on; None if a source is a pipe, whose content nothing tells."""
    sources = expand_sources(settings.sources, ReadReport(), with_field=settings.field is not None)
    if not all(source.repeatable for source in sources):
        return None
    how = settings.model_dump(exclude={"sources", "attend_across_documents"})
    identity: list[object] = [
        CORPUS_FORMAT,
        [_identity(source) for source in sources],
        how,
        tokenizer_settings.model_dump(),
    ]
    path = Path(tokenizer_settings.tokenizer or "char")
    path = path / "tokenizer.json" if path.is_dir() else path
    if path.is_file():
        identity.append(hashlib.sha256(path.read_bytes()).hexdigest())
    text = json.dumps(identity, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _identity(source: Source) -> list[object]:
    if source.kind == "hub":
        return [source.name, [[file.path, file.size, file.mark] for file in hub_files(source.name)[1]]]
    return [str(source.path and source.path.resolve()), source.size, source.changed]
