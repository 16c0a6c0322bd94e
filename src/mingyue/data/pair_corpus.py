"""Prepared pairs: token ids of both sides, row by row, and how they lie in a folder.

pairs.json (the manifest, written last), tokenizer.json (of the targets, or of both sides), source_tokenizer.json (where
each side has its own), and one token file a side and part. A row is the ids of a text and EOS, which no text can
contain: that is how rows are found again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from mingyue.data.pair_report import PairReport
from mingyue.data.tokens import TokenShards, check_digests
from mingyue.data.unseen import unseen_ids
from mingyue.errors import DataError, TokenizerError
from mingyue.files import seal_holds

if TYPE_CHECKING:
    from mingyue.text import Tokenizer

Int64s = npt.NDArray[np.int64]
PAIRS_FORMAT = 1
"""Version of what `prepare_pairs` leaves in a folder."""
MANIFEST = "pairs.json"
TOKENIZER = "tokenizer.json"
SOURCE_TOKENIZER = "source_tokenizer.json"
FILES = tuple(f"{part}_{side}" for part in ("train", "valid") for side in ("source", "target"))
_AGAIN = "Prepare the pairs again."
_CHUNK = 1 << 24


class TokenRows:
    """Rows of ids that lie one after the other. `lengths` int64 [N]: ids of each row."""

    def __init__(self, ids: npt.NDArray[np.integer[Any]], lengths: Int64s) -> None:
        self._ids, self.lengths = ids, lengths
        self._starts = np.cumsum(lengths) - lengths

    @classmethod
    def ending_with(cls, eos_id: int, ids: npt.NDArray[np.integer[Any]], where: str) -> Self:
        """Rows that each end with EOS, and hold it nowhere else. Raises `DataError` if the last one does not end."""
        found = [np.flatnonzero(ids[at : at + _CHUNK] == eos_id) + at for at in range(0, len(ids), _CHUNK)]
        ends = np.concatenate([np.empty(0, np.int64), *found]) + 1
        if len(ids) and (not len(ends) or ends[-1] != len(ids)):
            raise DataError(f"the last row of {where} does not end", advice=_AGAIN)
        return cls(ids, np.diff(ends, prepend=0))

    @classmethod
    def of(cls, rows: Sequence[npt.NDArray[np.integer[Any]] | Sequence[int]]) -> Self:
        """Rows given one by one."""
        arrays = [np.asarray(row, dtype=np.int64) for row in rows]
        lengths = np.array([len(row) for row in arrays], dtype=np.int64)
        return cls(np.concatenate([np.empty(0, np.int64), *arrays]), lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, number: int) -> Int64s:
        """The ids of a row, int64."""
        start = int(self._starts[number])
        return self._ids[start : start + int(self.lengths[number])].astype(np.int64)

    def counts(self, vocab_size: int) -> Int64s:
        """How often each id occurs, int64 [V]."""
        return np.bincount(self._ids, minlength=vocab_size)

    def padded(self, rows: Int64s, fill: int) -> Int64s:
        """The ids of `rows` [B], int64 [B, longest of them], with `fill` after the shorter ones."""
        lengths = self.lengths[rows]
        inside = np.arange(lengths.max()) < lengths[:, None]
        first_of_row = np.cumsum(lengths) - lengths
        places = np.arange(int(lengths.sum())) + np.repeat(self._starts[rows] - first_of_row, lengths)
        padded = np.full(inside.shape, fill, dtype=np.int64)
        padded[inside] = self._ids[places]
        return padded


@dataclass(frozen=True)
class PairRows:
    """Pairs as ids: a source row is `x… EOS`, a target row `y… EOS` (without BOS)."""

    sources: TokenRows
    targets: TokenRows

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.targets):
            raise DataError(f"{len(self.sources):,} source rows and {len(self.targets):,} target rows", advice=_AGAIN)

    @classmethod
    def of(cls, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Self:
        """Pairs in memory; each row already ends with EOS."""
        return cls(TokenRows.of(sources), TokenRows.of(targets))

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def source_lengths(self) -> Int64s:
        """Tokens of each source row with its EOS, int64 [N]."""
        return self.sources.lengths

    @property
    def target_lengths(self) -> Int64s:
        """Tokens of each target row with its EOS, int64 [N]: the predictions that it asks for."""
        return self.targets.lengths

    def source(self, number: int) -> Int64s:
        """Ids of a source row, EOS last, int64."""
        return self.sources.row(number)

    def target(self, number: int) -> Int64s:
        """Ids of a target row, EOS last, without BOS, int64."""
        return self.targets.row(number)


@dataclass(frozen=True)
class PairCorpus:
    """What `prepare_pairs` made. The ids of padding, BOS and EOS are the same on both sides."""

    train: PairRows
    valid: PairRows
    source_vocab_size: int
    target_vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    valid_target_bytes: int
    """UTF-8 bytes of the target texts of the validation pairs, for bits per byte."""
    fingerprint: str
    """SHA-256 of the tokenizer, or of both."""
    shared_vocabulary: bool = True
    """Whether both sides have one tokenizer."""
    digest: str = ""
    """SHA-256 over the token files; empty where it is not known."""
    source_unseen: tuple[int, ...] = ()
    """Ids, rising, that no source of the training pairs uses (with a shared vocabulary: neither side); the special ones
    are not among them."""
    target_unseen: tuple[int, ...] = ()
    """The same for targets."""

    @cached_property
    def valid_targets(self) -> int:
        """Predictions that an evaluation on the validation pairs makes: their target tokens with EOS."""
        return int(self.valid.target_lengths.sum())


def load_pairs(folder: Path) -> tuple[Tokenizer, Tokenizer, PairCorpus, PairReport]:
    """What `prepare_pairs` left in a folder; its sources are not needed. Raises `DataError` for a damaged folder."""
    from mingyue.text import Tokenizer

    manifest = read_manifest(folder)
    if manifest is None:
        raise DataError(f"{folder} holds no prepared pairs: its {MANIFEST} is missing or cannot be read", advice=_AGAIN)
    if manifest.get("format") != PAIRS_FORMAT:
        raise DataError(
            f"{folder / MANIFEST} is of format {manifest.get('format')}; this program reads {PAIRS_FORMAT}",
            advice=_AGAIN,
        )
    if not seal_holds(manifest):
        raise DataError(f"{folder / MANIFEST} is damaged: its checksum does not fit its content", advice=_AGAIN)
    try:
        names = {part: [folder / name for name in manifest["files"][part]] for part in FILES}
        shared, valid_target_bytes = bool(manifest["shared"]), int(manifest["valid_target_bytes"])
        report = PairReport.from_dict(manifest["report"])
        target = Tokenizer.load(folder / TOKENIZER)
        source = target if shared else Tokenizer.load(folder / SOURCE_TOKENIZER)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder / MANIFEST} is damaged: {error!r}", advice=_AGAIN) from None
    except TokenizerError as error:
        raise DataError(error.message, advice=_AGAIN) from None
    rows = {name: _rows(files, source if name.endswith("source") else target) for name, files in names.items()}
    source_counts = rows["train_source"].counts(source.vocab_size)
    target_counts = rows["train_target"].counts(target.vocab_size)
    if shared:
        source_counts = target_counts = source_counts + target_counts
    corpus = PairCorpus(
        source_unseen=unseen_ids(source_counts, source.special_ids),
        target_unseen=unseen_ids(target_counts, target.special_ids),
        train=PairRows(rows["train_source"], rows["train_target"]),
        valid=PairRows(rows["valid_source"], rows["valid_target"]),
        source_vocab_size=source.vocab_size,
        target_vocab_size=target.vocab_size,
        pad_id=target.pad_id,
        bos_id=target.bos_id,
        eos_id=target.eos_id,
        valid_target_bytes=valid_target_bytes,
        fingerprint=fingerprint_of(source, target),
        shared_vocabulary=shared,
        digest=check_digests(folder, manifest.get("digests", {})),
    )
    counts = (report.train_pairs, report.valid_pairs)
    if counts != (len(corpus.train), len(corpus.valid)):
        raise DataError(
            f"{folder / MANIFEST} tells of {counts[0]:,} and {counts[1]:,} pairs, and the files hold "
            f"{len(corpus.train):,} and {len(corpus.valid):,}",
            advice=_AGAIN,
        )
    return source, target, corpus, report


def fingerprint_of(source: Tokenizer, target: Tokenizer) -> str:
    """SHA-256 (hex) of a shared tokenizer, or of two."""
    if source is target:
        return target.fingerprint
    return sha256(f"{source.fingerprint} {target.fingerprint}".encode("ascii")).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder; None where there is none that can be read."""
    try:
        value = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _rows(files: list[Path], tokenizer: Tokenizer) -> TokenRows:
    shards = TokenShards(files, fingerprint=tokenizer.fingerprint)
    return TokenRows.ending_with(tokenizer.eos_id, shards.read(0, len(shards)), ", ".join(map(str, files)))
