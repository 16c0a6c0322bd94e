"""A prepared text: token ids to train on and to hold out, and the numbers that go with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mingyue.data.tokens import Ids, TokenShards
from mingyue.errors import DataError

_CHUNK = 1 << 22  # ids counted together


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
    """What `prepare_corpus` made. Characters and bytes count the separators between documents too."""

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
    digest: str = ""
    """SHA-256 over the token files; empty where it is not known."""
    unseen: tuple[int, ...] = ()
    """Ids, rising, that the training part does not use; the special ones are not among them."""
    begin_id: int | None = None
    """What is read in place of an empty prompt where texts do not begin with BOS (`data.unseen.begin_id`)."""

    @property
    def held_out_targets(self) -> int:
        """Predictions that a held-out evaluation makes, those of BOS (without loss) among them."""
        return max(0, len(self.held_out) - 1)


@dataclass(frozen=True)
class Fit:
    """A context that the text can fill, and sentences about what that changed."""

    context: int
    notes: tuple[str, ...] = ()


def fit_context(corpus: TokenCorpus, context: int, *, rows: int | None = None) -> Fit:
    """The asked context, or a shorter one if the training part has fewer targets, said in numbers.

    `rows`: windows of a step, to tell when one step is more than the whole text. Raises `DataError` with the numbers
    if there is nothing to predict.
    """
    targets = len(corpus.train) - 1
    if targets < 1:
        raise DataError(
            f"the training part has {len(corpus.train)} tokens: there is nothing to predict", advice="Give more text."
        )
    notes = []
    if targets < context:
        notes.append(
            f"context {targets} instead of {context}: the training part has {len(corpus.train):,} tokens, "
            f"that is {targets:,} targets"
        )
        context = targets
    held = corpus.held_out_targets
    if held < 1:
        notes.append("no text is held out: there will be no held-out loss")
    elif held < context:
        notes.append(f"held-out targets {held:,} < context {context:,}: they are scored as one window of {held:,}")
    if rows is not None and rows * context > targets:
        passes = rows * context / targets
        notes.append(
            f"one step takes {rows * context:,} tokens and the training part has {targets:,} targets: "
            f"each step passes over it {passes:.1f} times"
        )
    return Fit(context, tuple(notes))
