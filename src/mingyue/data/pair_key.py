"""Whether prepared pairs that are already on the disk are those of the asked files and settings."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from mingyue.config import DataSettings, PairSettings, TokenizerSettings
from mingyue.data.pair_corpus import PAIRS_FORMAT
from mingyue.data.report import ReadReport
from mingyue.data.sources import expand_sources

_NAMES = ("source", "target", "pairs", "valid_source", "valid_target", "valid_pairs")


def pairs_key(pairs: PairSettings, data: DataSettings, tokenizer: TokenizerSettings, max_tokens: int) -> str | None:
    """A hash of everything that the tokens depend on; None if a source is a pipe, whose content nothing tells."""
    identity: list[object] = [PAIRS_FORMAT, max_tokens]
    for name in _NAMES:
        files = [file for given in getattr(pairs, name) for file in expand_sources([given], ReadReport())]
        if not all(file.repeatable for file in files):
            return None
        identity.append([[str(file.path and file.path.resolve()), file.size, file.changed] for file in files])
    identity += [pairs.model_dump(exclude={*_NAMES, "bleu_lines", "select"}), tokenizer.model_dump()]
    identity.append(data.model_dump(include={"encoding", "skip_bad", "held_out"}))
    path = Path(tokenizer.tokenizer or "bpe")
    path = path / "tokenizer.json" if path.is_dir() else path
    if path.is_file():
        identity.append(hashlib.sha256(path.read_bytes()).hexdigest())
    text = json.dumps(identity, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
