"""Baselines: the held-out loss of a uniform guess, of a unigram and of a bigram model of the same text.

Smoothing is absolute discounting with interpolation (Ney, Essen and Kneser 1994), the discount of each order estimated
as n1 / (n1 + 2·n2) from the numbers of events seen once and twice:

    P(w)     = max(c(w) − d, 0) / n      + d·types / n        · 1/V
    P(w | v) = max(c(v w) − e, 0) / c(v) + e·types(v) / c(v)  · P(w)

with P(w | v) = P(w) for an unseen v. Training targets that are BOS are left out, as in the loss of a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mingyue.data.corpus import TokenCorpus, TokenView

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_CHUNK = 1 << 22
_TOKENS = 1 << 24
_DENSE = 1 << 22


@dataclass(frozen=True)
class Baselines:
    """Held-out losses in nats per token; None if nothing is held out."""

    uniform: float
    unigram: float | None
    bigram: float | None
    train_targets: int
    """Training targets counted."""
    held_out_targets: int
    """Held-out targets scored."""


def baselines(corpus: TokenCorpus, vocab_size: int | None = None, *, max_tokens: int = _TOKENS) -> Baselines:
    """Losses of the three baselines on the held-out part.

    Of a text with more than `max_tokens` tokens, that many are counted, in evenly spread chunks, and as many held-out
    targets scored.
    """
    size = corpus.vocab_size if vocab_size is None else vocab_size
    uniform = math.log(size)
    model = _count(corpus.train, size, max_tokens)
    total, targets = 0.0, 0
    singles = 0.0
    for keys in _pairs(corpus.held_out, size, max_tokens):
        unigram = model.unigram[keys % size]
        singles -= float(np.log(unigram).sum())
        total -= float(np.log(model.bigram(keys, unigram)).sum())
        targets += keys.size
    if not targets or not model.targets:
        return Baselines(uniform, None, None, model.targets, targets)
    return Baselines(uniform, singles / targets, total / targets, model.targets, targets)


@dataclass(frozen=True)
class _Model:
    size: int
    targets: int
    unigram: Floats  # [V]
    keys: Counts  # v·V + w of each pair seen, rising
    counts: Counts
    discount: float
    after: Counts  # [V] c(v)
    types: Counts  # [V]

    def bigram(self, keys: Counts, unigram: Floats) -> Floats:
        """P(w | v) of pairs, given P(w) of their second tokens; both of shape [N]."""
        previous = keys // self.size
        at = np.minimum(np.searchsorted(self.keys, keys), max(len(self.keys) - 1, 0))
        count = np.where(self.keys[at] == keys, self.counts[at], 0) if len(self.keys) else np.zeros_like(keys)
        after = self.after[previous]
        total = np.maximum(after, 1)
        mixed = np.maximum(count - self.discount, 0) / total
        mixed += self.discount * self.types[previous] / total * unigram
        return np.where(after > 0, mixed, unigram)


def _count(tokens: TokenView, size: int, most: int) -> _Model:
    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    dense = np.zeros(size * size, np.int64) if size * size <= _DENSE else None
    for pairs in _pairs(tokens, size, most):
        if dense is not None:
            dense += np.bincount(pairs, minlength=size * size)
            continue
        found, times = np.unique(pairs, return_counts=True)
        keys, counts = _merged(keys, counts, found, times.astype(np.int64))
    if dense is not None:
        keys = np.flatnonzero(dense).astype(np.int64)
        counts = dense[keys]
    single = np.bincount(keys % size, weights=counts, minlength=size)
    targets = int(single.sum())
    d = _discount(single[single > 0])
    seen = np.count_nonzero(single)
    unigram = np.maximum(single - d, 0) / max(targets, 1) + (d * seen / targets if targets else 1.0) / size
    after = np.bincount(keys // size, weights=counts, minlength=size).astype(np.int64)
    types = np.bincount(keys // size, minlength=size).astype(np.int64)
    return _Model(size, targets, unigram, keys, counts, _discount(counts), after, types)


def _merged(keys: Counts, counts: Counts, more: Counts, times: Counts) -> tuple[Counts, Counts]:
    if not len(keys):
        return more, times
    joined, index = np.unique(np.concatenate([keys, more]), return_inverse=True)
    total = np.zeros(len(joined), np.int64)
    np.add.at(total, index[: len(keys)], counts)
    np.add.at(total, index[len(keys) :], times)
    return joined, total


def _discount(counts: npt.NDArray[np.number]) -> float:
    once, twice = int(np.count_nonzero(counts == 1)), int(np.count_nonzero(counts == 2))
    estimate = once / (once + 2 * twice) if once else 0.5
    return min(max(estimate, 0.1), 0.95)


def _pairs(tokens: TokenView, size: int, most: int) -> Iterator[Counts]:
    """previous · V + next for each target with a loss, in chunks; of a long text only evenly spread ones."""
    targets = len(tokens) - 1
    chunk = max(1, min(_CHUNK, most))
    starts = list(range(0, targets, chunk))
    if targets > most:
        wanted = max(1, most // chunk)
        starts = [(targets - chunk) * number // max(wanted - 1, 1) for number in range(wanted)]
    for start in starts:
        ids = tokens.read(start, min(start + chunk, targets) + 1).astype(np.int64)
        keys = ids[:-1] * size + ids[1:]
        yield keys[ids[1:] != tokens.bos_id]
