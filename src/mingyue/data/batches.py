"""Batches of token ids as tensors: windows of the training text, of the held-out text, padded rows, pairs.

Pairs are for teacher forcing: the decoder reads the target shifted right (paper, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from mingyue.data.corpus import Int64s, PairRows, TokenCorpus, TokenView
from mingyue.data.order import SampleOrder, cut_by_budget
from mingyue.data.unseen import Substitution
from mingyue.errors import DataError
from mingyue.words import tr

IGNORE = -100
"""Target without loss: padding, and the step from one document into the next."""


@dataclass(frozen=True)
class Batch:
    """Rows of tokens and what should follow them."""

    inputs_BT: torch.Tensor
    """Ids, int64."""
    targets_BT: torch.Tensor
    """The id after each input, int64; IGNORE where there is no loss."""
    documents_BT: torch.Tensor | None
    """Number of the document of each input inside its row (from 0, rising at each BOS), for attention limited to one
    document; None if documents may attend to earlier ones."""
    tokens: int
    """Targets that have a loss."""

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        documents = None if self.documents_BT is None else self.documents_BT.to(device)
        return Batch(self.inputs_BT.to(device), self.targets_BT.to(device), documents, self.tokens)


def batch_at(
    corpus: TokenCorpus,
    order: SampleOrder,
    step: int,
    micro: int = 0,
    *,
    rows: int,
    micro_batches: int = 1,
    documents: bool = False,
    substitution: Substitution | None = None,
) -> Batch:
    """Micro-batch `micro` of a step that has `micro_batches` of them with `rows` rows each (over all ranks).

    A step of k micro-batches on one rank holds the same windows as the same step on k ranks. `documents`: with
    documents_BT. `substitution` replaces some of the inputs.
    """
    if not 0 <= micro < micro_batches:
        raise DataError(tr("micro-batch {micro} was asked for, and a step has {micro_batches}", micro, micro_batches))
    starts = order.starts_of((step * micro_batches + micro) * rows, rows)
    windows = corpus.train.windows(starts, order.context + 1)
    batch = _batch(windows, corpus.train.bos_id, documents)
    if substitution is None:
        return batch
    numbers = np.arange(micro * rows, (micro + 1) * rows)
    inputs = substitution(batch.inputs_BT.numpy(), step=step, rows=numbers, of=micro_batches * rows)
    return replace(batch, inputs_BT=torch.from_numpy(inputs))


def heldout_batches(
    tokens: TokenView, context: int, rows: int, *, documents: bool = False, limit: int | None = None
) -> Iterator[Batch]:
    """Non-overlapping windows of `tokens` in order, `rows` at a time; the shorter last window is a batch of its own.

    No context is carried from window to window; each of the N − 1 targets comes once (the first token is only ever an
    input). `limit`: the approximate number of targets, in whole windows spread evenly over the text.
    """
    targets = len(tokens) - 1
    full, rest = divmod(max(targets, 0), context)
    chosen = np.arange(full, dtype=np.int64)
    if limit is not None and limit < targets and full:
        wanted = min(full, max(1, limit // context))
        chosen, rest = np.arange(wanted, dtype=np.int64) * full // wanted, 0
    for at in range(0, len(chosen), rows):
        yield _batch(tokens.windows(chosen[at : at + rows] * context, context + 1), tokens.bos_id, documents)
    if rest:
        yield _batch(tokens.windows(np.array([full * context]), rest + 1), tokens.bos_id, documents)


def padded_batch(rows: Sequence[npt.NDArray[np.integer]], *, pad_id: int, bos_id: int) -> Batch:
    """Rows of unequal length (two or more ids each), padded on the right; padding has no loss."""
    short = [number for number, row in enumerate(rows) if len(row) < 2]
    if short or not rows:
        raise DataError(
            tr("row {short} has no target: two tokens are needed", short[0]) if short else tr("a batch needs rows")
        )
    length = max(len(row) for row in rows)
    ids = np.full((len(rows), length), pad_id, dtype=np.int64)
    targets = np.full((len(rows), length), IGNORE, dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        targets[number, : len(row)] = np.where(np.asarray(row) == bos_id, IGNORE, row)
    counted = int((targets[:, 1:] != IGNORE).sum())
    inputs = torch.from_numpy(np.ascontiguousarray(ids[:, :-1]))
    return Batch(inputs, torch.from_numpy(np.ascontiguousarray(targets[:, 1:])), None, counted)


def _batch(windows: npt.NDArray[np.unsignedinteger], bos_id: int, documents: bool) -> Batch:
    ids = torch.from_numpy(windows.astype(np.int64))
    inputs_BT = ids[:, :-1].contiguous()
    targets_BT = ids[:, 1:].masked_fill(ids[:, 1:] == bos_id, IGNORE)  # a copy: inputs may share memory with ids
    documents_BT = None
    if documents:
        starts_BT = inputs_BT == bos_id
        starts_BT[:, 0] = False
        documents_BT = starts_BT.cumsum(dim=1)
    return Batch(inputs_BT, targets_BT, documents_BT, int((targets_BT != IGNORE).sum()))


@dataclass(frozen=True)
class PairBatch:
    """Source rows, and the inputs and targets of the decoder. Padding is on the right only."""

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
        raise DataError(tr("a batch needs pairs"))
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

    `limit`: about this many targets, in whole pairs spread evenly over `rows`, always the same ones. The loss of a
    pair does not depend on other pairs, so neither order nor budget changes the sum.
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
