"""Which pairs a step trains on: batches of like lengths, as a pure function of (seed, epoch, step).

Length bucketing within a budget of tokens, as the paper batches its sentence pairs (section 5.1: "batched together by
approximate sequence length"). Padding is what a batch costs above its tokens, so pairs are sorted by length first; the
batches are shuffled after that, and pairs of equal lengths change places from epoch to epoch.
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


def cut_by_budget(longest: Int64s, budget: int) -> Int64s:
    """Where a sequence of pairs is cut into batches, shape [batches + 1], from 0 to the number of pairs.

    `longest` [N]: the longer side of each pair, in the order in which they are taken. A batch takes pairs as long as
    its rows × its longest side stay within `budget`, and one pair at least.
    """
    cuts = [0]
    while cuts[-1] < len(longest):
        at = cuts[-1]
        ahead = longest[at : at + max(1, budget // max(1, int(longest[at]))) + 1]
        padded = np.maximum.accumulate(ahead) * np.arange(1, len(ahead) + 1)  # rises with every row
        cuts.append(at + max(1, int(np.searchsorted(padded, budget, side="right"))))
    return np.array(cuts, dtype=np.int64)


@dataclass(frozen=True)
class _Epoch:
    pairs: Int64s
    batches: Int64s


class PairOrder:
    """The endless sequence of batches of pairs: epoch 0, epoch 1, … each with every pair once, in an order of its own.

    `source_lengths`, `target_lengths` [N]: tokens of each pair. `budget`: padded tokens of the longer side of a batch.
    Each epoch sorts the pairs by (source length, target length), equals in an order drawn for the epoch, cuts them by
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
            raise DataError(f"{len(source_lengths):,} source lengths and {len(target_lengths):,} target lengths")
        if not len(source_lengths) or budget < 1:
            raise DataError(f"{len(source_lengths):,} pairs in batches of {budget:,} tokens make no step")
        self.budget, self.seed = budget, seed
        self._source = np.asarray(source_lengths, dtype=np.int64)
        self._target = np.asarray(target_lengths, dtype=np.int64)
        by_length = np.lexsort((self._target, self._source))
        self._cuts = cut_by_budget(np.maximum(self._source, self._target)[by_length], budget)
        self._epochs: OrderedDict[int, _Epoch] = OrderedDict()

    @property
    def steps_per_epoch(self) -> int:
        """Batches in which every pair comes once."""
        return len(self._cuts) - 1

    def rows_of(self, step: int) -> Int64s:
        """Numbers of the pairs of a step, shape [rows]."""
        number, at = divmod(step, self.steps_per_epoch)
        epoch = self._epoch(number)
        batch = int(epoch.batches[at])
        return epoch.pairs[self._cuts[batch] : self._cuts[batch + 1]].copy()

    def _epoch(self, number: int) -> _Epoch:
        """Pairs by length and the order of the batches; the last few epochs are kept, since sorting takes time."""
        if number in self._epochs:
            self._epochs.move_to_end(number)
            return self._epochs[number]
        # The raw stream of PCG64 never changes between versions of numpy; Generator.permutation may (NEP 19).
        pairs = len(self._source)
        raw = np.random.PCG64(derive_seed(self.seed, "pairs", number)).random_raw(pairs + self.steps_per_epoch)
        epoch = _Epoch(
            np.lexsort((raw[:pairs], self._target, self._source)).astype(np.int64, copy=False),
            np.argsort(raw[pairs:], kind="stable").astype(np.int64, copy=False),
        )
        self._epochs[number] = epoch
        if len(self._epochs) > _EPOCHS_KEPT:
            self._epochs.popitem(last=False)
        return epoch
