"""Batches of pairs as tensors, for teacher forcing: the decoder reads the target shifted right (paper, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from mingyue.data.batches import IGNORE
from mingyue.data.pair_corpus import Int64s, PairRows
from mingyue.data.pair_order import cut_by_budget
from mingyue.errors import DataError


@dataclass(frozen=True)
class PairBatch:
    """Source rows, and what the decoder reads and should answer. Padding is on the right only."""

    source_BS: torch.Tensor
    """Ids `x… EOS`, int64, then padding."""
    source_lengths_B: torch.Tensor | None
    """Ids of each source row without padding, int64; None if no row is padded."""
    inputs_BT: torch.Tensor
    """Ids `BOS y…`, int64, then padding."""
    targets_BT: torch.Tensor
    """Ids `y… EOS`, int64, then IGNORE."""
    tokens: int
    """Targets that have a loss."""

    @property
    def rows(self) -> int:
        """Pairs."""
        return len(self.source_BS)

    def to(self, device: torch.device | str) -> PairBatch:
        """The same batch on another device."""
        lengths = None if self.source_lengths_B is None else self.source_lengths_B.to(device)
        return PairBatch(
            self.source_BS.to(device), lengths, self.inputs_BT.to(device), self.targets_BT.to(device), self.tokens
        )


def pair_batch(
    rows: PairRows, index: npt.NDArray[np.integer] | Sequence[int], *, pad_id: int, bos_id: int
) -> PairBatch:
    """The pairs numbered `index` [B] as tensors, in that order. Raises `DataError` for none."""
    chosen = np.asarray(index, dtype=np.int64)
    if not len(chosen):
        raise DataError("a batch needs pairs")
    source = rows.sources.padded(chosen, pad_id)
    targets = rows.targets.padded(chosen, IGNORE)
    inputs = np.empty_like(targets)
    inputs[:, 0] = bos_id
    inputs[:, 1:] = targets[:, :-1]
    inputs[targets == IGNORE] = pad_id  # the EOS that shorter rows were shifted to, and what follows it
    lengths = rows.source_lengths[chosen]
    return PairBatch(
        torch.from_numpy(source),
        None if int(lengths.min()) == source.shape[1] else torch.from_numpy(lengths),
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        int(rows.target_lengths[chosen].sum()),
    )


def heldout_pair_batches(
    rows: PairRows, *, budget: int, pad_id: int, bos_id: int, limit: int | None = None
) -> Iterator[PairBatch]:
    """Every pair once, sorted by length and cut as in training (`cut_by_budget`), the longest batch last.

    `limit`: about so many targets, in whole pairs spread evenly over `rows`, the same ones every time. What a pair
    contributes to a summed loss depends on no other pair, so neither order nor budget changes the value.
    """
    chosen: Int64s = np.arange(len(rows), dtype=np.int64)
    targets = int(rows.target_lengths.sum())
    if limit is not None and limit < targets:
        wanted = min(len(rows), max(1, round(len(rows) * limit / targets)))
        chosen = np.arange(wanted, dtype=np.int64) * len(rows) // wanted
    source, target = rows.source_lengths[chosen], rows.target_lengths[chosen]
    order = np.lexsort((target, source))
    cuts = cut_by_budget(np.maximum(source, target)[order], budget)
    for start, stop in pairwise(cuts.tolist()):
        yield pair_batch(rows, chosen[order[start:stop]], pad_id=pad_id, bos_id=bos_id)
