"""Which windows, or which pairs, a step trains on: a pure function of (seed, epoch, step), so there is nothing to save.

`SampleOrder` cuts a text of N tokens into windows of C inputs and C targets (one token later), which together use the
first and the last token; the offset of the cuts and the order of the windows change from epoch to epoch.

`PairOrder` makes batches of pairs of similar length within a budget of tokens, as the paper does (section 5.1: "batched
together by approximate sequence length"). Padding is the waste of a batch, so pairs are first sorted by length; then
the batches are shuffled, and pairs of equal lengths are reordered from epoch to epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mingyue.errors import DataError
from mingyue.runtime import derive_seed
from mingyue.words import tr

Int64s = npt.NDArray[np.int64]
_EPOCHS_KEPT = 3  # making one is slow: it sorts as many numbers as there are windows or pairs


def _raw(seed: int, purpose: str, epoch: int, count: int) -> npt.NDArray[np.uint64]:
    """`count` random numbers of an epoch.

    The raw stream of PCG64 never changes between versions of numpy; Generator.permutation may (NEP 19).
    """
    return np.random.PCG64(derive_seed(seed, purpose, epoch)).random_raw(count)


@dataclass(frozen=True)
class _WindowEpoch:
    shift: int
    order: Int64s


class SampleOrder:
    """The endless sequence of windows: epoch 0, epoch 1, … each in an order of its own.

    `tokens` N, `context` C: W = ⌈(N−1)/C⌉ + 1 windows an epoch (1 if N−1 ≤ C), window i starting at
    clip(i·C − shift, 0, N−1−C) with 0 ≤ shift < C drawn for the epoch. Raises `DataError` if N−1 < C: the caller
    shrinks the context first (`fit_context`).
    """

    def __init__(self, tokens: int, context: int, seed: int) -> None:
        if context < 1 or tokens - 1 < context:
            raise DataError(
                tr("{tokens} tokens do not fill a window of {context} inputs and {context} targets", tokens, context)
            )
        self.tokens, self.context, self.seed = tokens, context, seed
        self.last_start = tokens - 1 - context
        self.windows = -(-(tokens - 1) // context) + 1 if tokens - 1 > context else 1
        self._epoch = lru_cache(_EPOCHS_KEPT)(self._make_epoch)

    def starts(self, step: int, rows: int) -> Int64s:
        """Start of each of the `rows` windows of a step, shape [rows]. They may span two epochs or more."""
        return self.starts_of(step * rows, rows)

    def starts_of(self, first: int, count: int) -> Int64s:
        """Starts of samples first … first + count − 1 of the endless sequence, shape [count]."""
        found = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            number, at = divmod(first + done, self.windows)
            now = min(count - done, self.windows - at)
            epoch = self._epoch(number)
            starts = epoch.order[at : at + now] * self.context - epoch.shift
            found[done : done + now] = np.clip(starts, 0, self.last_start)
            done += now
        return found

    def epoch_of(self, sample: int) -> float:
        """Passes over the text that are finished after `sample` samples."""
        return sample / self.windows

    def _make_epoch(self, number: int) -> _WindowEpoch:
        raw = _raw(self.seed, "order", number, self.windows + 1)
        return _WindowEpoch(int(raw[0]) % self.context, np.argsort(raw[1:], kind="stable").astype(np.int64, copy=False))


def cut_by_budget(longest: Int64s, budget: int) -> Int64s:
    """Where a sequence of pairs is cut into batches, shape [batches + 1], from 0 to the number of pairs.

    `longest` [N]: tokens of the longer side of each pair, in order. A batch takes pairs as long as its rows × its
    longest side stay within `budget`, and at least one pair.
    """
    cuts = [0]
    while cuts[-1] < len(longest):
        at = cuts[-1]
        ahead = longest[at : at + max(1, budget // max(1, int(longest[at]))) + 1]
        padded = np.maximum.accumulate(ahead) * np.arange(1, len(ahead) + 1)  # rises with every row
        cuts.append(at + max(1, int(np.searchsorted(padded, budget, side="right"))))
    return np.array(cuts, dtype=np.int64)


@dataclass(frozen=True)
class _PairEpoch:
    pairs: Int64s
    batches: Int64s


class PairOrder:
    """The endless sequence of batches of pairs: epoch 0, epoch 1, … each with every pair once, in an order of its own.

    `source_lengths`, `target_lengths` [N]: tokens of each pair. `budget`: padded tokens of the longer side of a batch.
    Each epoch sorts the pairs by (source length, target length), ties in an order drawn for the epoch, cuts them by
    `cut_by_budget`, and shuffles the batches. Lengths alone decide the cuts, so every epoch has
    `steps_per_epoch` steps. Raises `DataError` without pairs, or with a budget below 1.
    """

    def __init__(
        self,
        source_lengths: npt.NDArray[np.integer],
        target_lengths: npt.NDArray[np.integer],
        *,
        budget: int,
        seed: int,
    ) -> None:
        if len(source_lengths) != len(target_lengths):
            raise DataError(
                tr(
                    "{n_source_lengths:,} source lengths and {n_target_lengths:,} target lengths",
                    len(source_lengths),
                    len(target_lengths),
                )
            )
        if not len(source_lengths) or budget < 1:
            raise DataError(
                tr(
                    "{n_source_lengths:,} pairs in batches of {budget:,} tokens make no step",
                    len(source_lengths),
                    budget,
                )
            )
        self.budget, self.seed = budget, seed
        self._source = np.asarray(source_lengths, dtype=np.int64)
        self._target = np.asarray(target_lengths, dtype=np.int64)
        by_length = np.lexsort((self._target, self._source))
        self._cuts = cut_by_budget(np.maximum(self._source, self._target)[by_length], budget)
        self._epoch = lru_cache(_EPOCHS_KEPT)(self._make_epoch)

    @property
    def steps_per_epoch(self) -> int:
        """Batches that together hold every pair once."""
        return len(self._cuts) - 1

    def rows_of(self, step: int) -> Int64s:
        """Indices of the pairs of a step, shape [rows]."""
        number, at = divmod(step, self.steps_per_epoch)
        epoch = self._epoch(number)
        batch = int(epoch.batches[at])
        return epoch.pairs[self._cuts[batch] : self._cuts[batch + 1]].copy()

    def _make_epoch(self, number: int) -> _PairEpoch:
        pairs = len(self._source)
        raw = _raw(self.seed, "pairs", number, pairs + self.steps_per_epoch)
        return _PairEpoch(
            np.lexsort((raw[:pairs], self._target, self._source)).astype(np.int64, copy=False),
            np.argsort(raw[pairs:], kind="stable").astype(np.int64, copy=False),
        )
