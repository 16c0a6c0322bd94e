"""Prepared text and prepared pairs: token ids to train on and to hold out, and the numbers that belong to them.

A text is one long sequence of ids, read in windows. Pairs are rows: the ids of a text and EOS, which no text contains,
so that rows are found again in one flat token file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mingyue.data.tokens import PREPARE_AGAIN, Ids, TokenShards
from mingyue.errors import DataError
from mingyue.words import tr

Int64s = npt.NDArray[np.int64]
_CHUNK = 1 << 24


@dataclass(frozen=True)
class TokenView:
    """One part of a corpus (training or held-out): ids in order, and the id that begins a document."""

    shards: TokenShards
    bos_id: int

    def __len__(self) -> int:
        return len(self.shards)

    def read(self, start: int = 0, stop: int | None = None) -> Ids:
        """Ids start … stop − 1, shape [stop − start]; everything by default."""
        return self.shards.read(start, len(self) if stop is None else stop)

    def counts(self, vocab_size: int) -> npt.NDArray[np.int64]:
        """How often each id occurs, [V]: one pass over all ids."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for start in range(0, len(self), _CHUNK):
            counts += np.bincount(self.read(start, min(start + _CHUNK, len(self))), minlength=vocab_size)
        return counts

    def windows(self, starts: npt.NDArray[np.integer], length: int) -> Ids:
        """Rows of `length` ids from `starts` [B], shape [B, length]."""
        return self.shards.windows(starts, length)


@dataclass(frozen=True)
class TokenCorpus:
    """The result of `prepare_corpus`. Characters and bytes include the separators between documents."""

    train: TokenView
    held_out: TokenView
    vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    fingerprint: str
    """SHA-256 of the tokenizer."""
    documents: int
    starts_with_bos: bool
    """The training data had more than one document, so a prompt begins with BOS."""
    train_characters: int
    held_out_characters: int
    held_out_bytes: int
    """UTF-8 bytes of the held-out text, for bits per byte."""
    held_out_documents: int = 0
    """Documents that are held out as a whole."""
    repeated_documents: int = 0
    """Those of them that are also in the training part, word for word."""
    repeated_characters: int = 0
    """Characters of these."""
    digest: str = ""
    """SHA-256 over the token files; empty if unknown."""
    unseen: tuple[int, ...] = ()
    """Ids, rising, that the training part does not use, special tokens excluded."""
    begin_id: int | None = None
    """The token that stands for an empty prompt where texts do not begin with BOS (`data.unseen.begin_id`)."""

    @property
    def held_out_targets(self) -> int:
        """Predictions of a held-out evaluation, including those of BOS (without loss)."""
        return max(0, len(self.held_out) - 1)


@dataclass(frozen=True)
class Fit:
    """A context that the text can fill, and notes about what that changed."""

    context: int
    notes: tuple[str, ...] = ()


def fit_context(corpus: TokenCorpus, context: int, *, rows: int | None = None) -> Fit:
    """The requested context, or a shorter one if the training part has fewer targets; the notes give the numbers.

    `rows`: windows of a step, to note when one step takes more than the whole text. Raises `DataError` with the
    numbers if there is nothing to predict.
    """
    targets = len(corpus.train) - 1
    if targets < 1:
        raise DataError(
            tr("the training part has {n_train} tokens: there is nothing to predict", len(corpus.train)),
            advice=tr("Give more text."),
        )
    notes = []
    if targets < context:
        notes.append(
            tr(
                "context {targets} instead of {context}: the training part has {n_train:,} tokens, "
                "that is {targets:,} targets",
                targets,
                context,
                len(corpus.train),
            )
        )
        context = targets
    held = corpus.held_out_targets
    if held < 1:
        notes.append(tr("no text is held out: there will be no held-out loss"))
    elif held < context:
        notes.append(
            tr(
                "held-out targets {held:,} < context {context:,}: they are scored as one window of {held:,}",
                held,
                context,
            )
        )
    if rows is not None and rows * context > targets:
        passes = rows * context / targets
        notes.append(
            tr(
                "one step takes {rows:,} tokens and the training part has {targets:,} targets: each "
                "step passes over it {passes:.1f} times",
                rows * context,
                targets,
                passes,
            )
        )
    return Fit(context, tuple(notes))


class TokenRows:
    """Rows of ids stored one after the other. `lengths` int64 [N]: ids of each row."""

    def __init__(self, ids: npt.NDArray[np.integer[Any]], lengths: Int64s) -> None:
        self._ids, self.lengths = ids, lengths
        self._starts = np.cumsum(lengths) - lengths

    @classmethod
    def ending_with(cls, eos_id: int, ids: npt.NDArray[np.integer[Any]], where: str) -> Self:
        """Rows that each end with EOS and contain it nowhere else. Raises `DataError` if the last one does not end."""
        found = [np.flatnonzero(ids[at : at + _CHUNK] == eos_id) + at for at in range(0, len(ids), _CHUNK)]
        ends = np.concatenate([np.empty(0, np.int64), *found]) + 1
        if len(ids) and (not len(ends) or ends[-1] != len(ids)):
            raise DataError(tr("the last row of {where} does not end", where), advice=PREPARE_AGAIN)
        return cls(ids, np.diff(ends, prepend=0))

    @classmethod
    def of(cls, rows: Sequence[npt.NDArray[np.integer[Any]] | Sequence[int]]) -> Self:
        """Rows from a sequence of rows."""
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
        indices = np.arange(int(lengths.sum())) + np.repeat(self._starts[rows] - first_of_row, lengths)
        padded = np.full(inside.shape, fill, dtype=np.int64)
        padded[inside] = self._ids[indices]
        return padded


@dataclass(frozen=True)
class PairRows:
    """Pairs as ids: a source row is `x… EOS`, a target row `y… EOS` (without BOS)."""

    sources: TokenRows
    targets: TokenRows

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.targets):
            raise DataError(
                tr("{n_sources:,} source rows and {n_targets:,} target rows", len(self.sources), len(self.targets)),
                advice=PREPARE_AGAIN,
            )

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
        """Tokens of each target row with its EOS, int64 [N]: the number of its predictions."""
        return self.targets.lengths

    def source(self, number: int) -> Int64s:
        """Ids of a source row, EOS last, int64."""
        return self.sources.row(number)

    def target(self, number: int) -> Int64s:
        """Ids of a target row, EOS last, without BOS, int64."""
        return self.targets.row(number)


@dataclass(frozen=True)
class PairCorpus:
    """The result of `prepare_pairs`. The ids of PAD, BOS and EOS are the same on both sides."""

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
    valid_repeated: int = 0
    """Validation pairs that are also training pairs, word for word."""
    shared_vocabulary: bool = True
    """Whether both sides have one tokenizer."""
    digest: str = ""
    """SHA-256 over the token files; empty if unknown."""
    source_unseen: tuple[int, ...] = ()
    """Ids, rising, that no source of the training pairs uses (with a shared vocabulary: neither side), special tokens
    excluded."""
    target_unseen: tuple[int, ...] = ()
    """The same for targets."""

    @cached_property
    def valid_targets(self) -> int:
        """Predictions of an evaluation on the validation pairs: their target tokens with EOS."""
        return int(self.valid.target_lengths.sum())
