"""Where a run's batches come from: a prepared text, cut into steps and micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np

from mingyue.data import Batch, SampleOrder, Substitution, TokenCorpus, TokenView, batch_at, heldout_batches
from mingyue.training.forward import AnyBatch
from mingyue.training.plan import RunSizes

_READ = 1 << 22  # tokens looked at together
_HELDOUT_TOKENS = 4096  # of a held-out batch: fewer are slower


class BatchSource(Protocol):
    """What training asks of its data. Every answer is a pure function of the question."""

    @property
    def sizes(self) -> RunSizes:
        """Lengths that a plan is made of."""

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of the held-out text per target."""

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a resumed run: a JSON object."""

    @property
    def unseen(self) -> Sequence[int]:
        """Ids that no input of the training data uses, but for those that a `Substitution` puts there."""

    def step(self, step: int, *, rank: int = 0, ranks: int = 1) -> Sequence[AnyBatch]:
        """The micro-batches of a step (from 0) for `rank`: every `ranks`-th one."""

    def held_out(self, tokens: int | None, *, rank: int = 0, ranks: int = 1) -> Iterator[AnyBatch]:
        """Held-out text, divided likewise: all of it, or about `tokens` targets at fixed, evenly spread positions."""


class CorpusBatches:
    """Batches of a `TokenCorpus`.

    A step has `rows` windows, a micro-batch at most `micro_rows`. `micro_rows` is lowered to a divisor of `rows`, so
    that all micro-batches have the same size, and if possible so that all `ranks` have the same number of them.
    `documents`: attention is limited to documents. `substitution` replaces some inputs in training by ids that the
    text does not use; held-out text is not changed.
    """

    def __init__(
        self,
        corpus: TokenCorpus,
        *,
        context: int,
        rows: int,
        micro_rows: int,
        seed: int,
        documents: bool = False,
        ranks: int = 1,
        substitution: Substitution | None = None,
    ) -> None:
        self.corpus = corpus
        self.substitution = substitution
        self.context = context
        self.rows = rows
        self.micro_rows = _micro_rows(rows, min(rows, micro_rows), ranks)
        # The same batches for any number of ranks. Nothing is kept for a backward pass: more fit than in training.
        self._heldout_rows = max(min(rows, micro_rows), _HELDOUT_TOKENS // context)
        self.documents = documents
        self.order = SampleOrder(len(corpus.train), context, seed)
        self.heldout_targets = _targets(corpus.held_out)

    @property
    def sizes(self) -> RunSizes:
        """Lengths that a plan is made of."""
        return RunSizes(self.order.windows, self.rows, self.rows * self.context, self.heldout_targets)

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of the held-out text per target; NaN without held-out text."""
        return self.corpus.held_out_bytes / self.heldout_targets if self.heldout_targets else math.nan

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a resumed run."""
        return {
            "tokenizer": self.corpus.fingerprint,
            "train_tokens": len(self.corpus.train),
            "heldout_tokens": len(self.corpus.held_out),
            "context": self.context,
            "rows": self.rows,
            "digest": self.corpus.digest,
        }

    @property
    def unseen(self) -> Sequence[int]:
        """Ids that the training text does not use, where a `Substitution` puts some of them into the inputs."""
        return self.corpus.unseen if self.substitution is not None and self.substitution.spellings else ()

    def step(self, step: int, *, rank: int = 0, ranks: int = 1) -> list[Batch]:
        """The micro-batches of a step, counted from 0; only the windows of this rank are read."""
        n_micro = self.rows // self.micro_rows
        return [
            batch_at(
                self.corpus,
                self.order,
                step,
                micro,
                rows=self.micro_rows,
                micro_batches=n_micro,
                documents=self.documents,
                substitution=self.substitution,
            )
            for micro in range(rank, n_micro, ranks)
        ]

    def held_out(self, tokens: int | None, *, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
        """Held-out windows of the context's length, without carried context, in larger batches than in training."""
        batches = heldout_batches(
            self.corpus.held_out, self.context, self._heldout_rows, documents=self.documents, limit=tokens
        )
        return islice(batches, rank, None, ranks)


def _micro_rows(rows: int, most: int, ranks: int) -> int:
    """Windows of a micro-batch: the largest divisor of `rows` that gives every rank the same number of micro-batches.

    If there is none, the largest that gives every rank at least one; with fewer windows than ranks, 1.
    """
    divisors = [size for size in range(most, 0, -1) if rows % size == 0]
    alike = (size for size in divisors if rows // size % ranks == 0)
    busy = (size for size in divisors if rows // size >= ranks)
    return next(alike, next(busy, 1))


def _targets(view: TokenView) -> int:
    """Targets with a loss: all tokens except the first one and the BOS tokens."""
    counted = 0
    for start in range(1, len(view), _READ):
        counted += int(np.count_nonzero(view.read(start, min(start + _READ, len(view))) != view.bos_id))
    return counted
