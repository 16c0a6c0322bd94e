"""Batches of token ids as tensors: windows of the training text, of the held-out text, rows of unequal length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from mingyue.data.corpus import TokenCorpus, TokenView
from mingyue.data.order import SampleOrder
from mingyue.data.unseen import Substitution
from mingyue.errors import DataError

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
        raise DataError(f"micro-batch {micro} was asked for, and a step has {micro_batches}")
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
    input). `limit`: about so many targets, in whole windows spread evenly over the text.
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
        raise DataError(f"row {short[0]} has no target: two tokens are needed" if short else "a batch needs rows")
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
