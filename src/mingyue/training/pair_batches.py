"""Where the batches of a run on pairs come from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch

from mingyue.data import PairBatch, PairCorpus, PairOrder, Substitution, heldout_pair_batches, pair_batch
from mingyue.data.order import cut_by_budget
from mingyue.training.plan import RunSizes


class PairBatches:
    """Batches of a `PairCorpus`: a step is one batch of `PairOrder` within `batch_tokens`.

    Micro-batches of at most `micro_tokens` cut it where it is larger: rows in the order of their lengths. They are made
    smaller where that gives each of `ranks` as many of them, of about the same work. `substitution` lets sources have
    ids that the training pairs do not use.
    """

    def __init__(
        self,
        corpus: PairCorpus,
        *,
        batch_tokens: int,
        micro_tokens: int,
        seed: int,
        ranks: int = 1,
        substitution: Substitution | None = None,
    ) -> None:
        self.corpus = corpus
        self.substitution = substitution
        self.ranks = ranks
        self.batch_tokens = batch_tokens
        self.micro_tokens = min(batch_tokens, micro_tokens)
        train = corpus.train
        self.order = PairOrder(train.source_lengths, train.target_lengths, budget=batch_tokens, seed=seed)
        self._longest = np.maximum(train.source_lengths, train.target_lengths)

    @property
    def sizes(self) -> RunSizes:
        """Lengths that a plan is made of; a sample is a whole batch here."""
        steps = self.order.steps_per_epoch
        tokens = int(self.corpus.train.target_lengths.sum())
        return RunSizes(steps, 1, max(1, round(tokens / steps)), self.corpus.valid_targets)

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of the validation targets for each of their tokens; not a number without any."""
        targets = self.corpus.valid_targets
        return self.corpus.valid_target_bytes / targets if targets else math.nan

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a resumed run."""
        return {
            "tokenizer": self.corpus.fingerprint,
            "train_pairs": len(self.corpus.train),
            "heldout_pairs": len(self.corpus.valid),
            "batch_tokens": self.batch_tokens,
            "digest": self.corpus.digest,
        }

    @property
    def unseen(self) -> Sequence[int]:
        """Ids that no source text uses, where a `Substitution` puts some of them into the inputs."""
        return self.corpus.source_unseen if self.substitution is not None and self.substitution.spellings else ()

    def step(self, step: int, *, rank: int = 0, ranks: int = 1) -> list[PairBatch]:
        """The micro-batches of a step, counted from 0; only the pairs of this rank are read."""
        rows = self.order.rows_of(step)
        cuts = [0, len(rows)]
        if self.micro_tokens < self.batch_tokens:
            cuts = cut_by_budget(self._longest[rows], self.micro_tokens).tolist()
        if (len(cuts) - 1) % self.ranks:
            cuts = _cut_alike(self._longest[rows], self.ranks, self.micro_tokens) or cuts
        return [self._batch(step, rows, start, end) for start, end in islice(pairwise(cuts), rank, None, ranks)]

    def held_out(self, tokens: int | None, *, rank: int = 0, ranks: int = 1) -> Iterator[PairBatch]:
        """Validation pairs: all, or pairs at fixed, evenly spread positions with about `tokens` targets."""
        corpus = self.corpus
        batches = heldout_pair_batches(
            corpus.valid, budget=self.micro_tokens, pad_id=corpus.pad_id, bos_id=corpus.bos_id, limit=tokens
        )
        return islice(batches, rank, None, ranks)

    def _batch(self, step: int, rows: np.ndarray[Any, np.dtype[np.int64]], start: int, end: int) -> PairBatch:
        batch = pair_batch(self.corpus.train, rows[start:end], pad_id=self.corpus.pad_id, bos_id=self.corpus.bos_id)
        if self.substitution is None:
            return batch
        lengths = self.corpus.train.source_lengths[rows[start:end]]
        numbers = np.arange(start, end)
        source = self.substitution(batch.source_BS.numpy(), lengths, step=step, rows=numbers, of=len(rows))
        return replace(batch, source_BS=torch.from_numpy(source))


def _cut_alike(longest: np.ndarray[Any, np.dtype[np.int64]], ranks: int, budget: int) -> list[int] | None:
    """Cuts of a step's pairs, as those of `cut_by_budget`, into a multiple of `ranks` parts of about the same tokens.

    The fewest parts that stay within the budget; where there are fewer pairs than ranks, a part for each pair.
    """
    n_pairs, upto = len(longest), np.concatenate([[0], np.cumsum(longest)])
    for parts in range(ranks, n_pairs + 1, ranks):
        cuts = np.searchsorted(upto, upto[-1] * np.arange(parts + 1) / parts)
        places = np.arange(parts + 1)  # at least one pair in each part: cuts rise, and leave enough for those behind
        cuts = np.minimum(np.maximum.accumulate(cuts - places), n_pairs - parts) + places
        heaviest = max((end - start) * int(longest[start:end].max()) for start, end in pairwise(cuts.tolist()))
        if heaviest <= budget:
            return [int(cut) for cut in cuts]
    return list(range(n_pairs + 1)) if n_pairs < ranks else None
