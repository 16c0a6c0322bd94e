"""Which windows of the text a step trains on: a pure function of (seed, epoch, step), so there is nothing to save.

An epoch cuts N tokens into windows of C inputs and C targets (one token later), which together use the first and the
last token; where the cuts fall, and the order of the windows, change from epoch to epoch.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mingyue.errors import DataError
from mingyue.runtime import derive_seed

Int64s = npt.NDArray[np.int64]
_EPOCHS_KEPT = 3


@dataclass(frozen=True)
class _Epoch:
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
            raise DataError(f"{tokens} tokens do not fill a window of {context} inputs and {context} targets")
        self.tokens, self.context, self.seed = tokens, context, seed
        self.last_start = tokens - 1 - context
        self.windows = -(-(tokens - 1) // context) + 1 if tokens - 1 > context else 1
        self._epochs: OrderedDict[int, _Epoch] = OrderedDict()

    def starts(self, step: int, rows: int) -> Int64s:
        """Start of each of the `rows` windows of a step, shape [rows]. They may be of two epochs, or of more."""
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

    def _epoch(self, number: int) -> _Epoch:
        """Shift and order of an epoch; the last few are kept, since a permutation of many windows takes time."""
        if number in self._epochs:
            self._epochs.move_to_end(number)
            return self._epochs[number]
        # The raw stream of PCG64 never changes between versions of numpy; Generator.permutation may (NEP 19).
        raw = np.random.PCG64(derive_seed(self.seed, "order", number)).random_raw(self.windows + 1)
        epoch = _Epoch(int(raw[0]) % self.context, np.argsort(raw[1:], kind="stable").astype(np.int64, copy=False))
        self._epochs[number] = epoch
        if len(self._epochs) > _EPOCHS_KEPT:
            self._epochs.popitem(last=False)
        return epoch
