"""The most likely tokens of a distribution, and the probability and rank of the actual token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_LOGITS = 1 << 24
"""Logits computed at once: 64 MB. Longer texts are taken in chunks of rows."""


@dataclass(frozen=True)
class Ranked:
    """The most likely tokens of N distributions, with the actual token, which may be unknown."""

    top_ids_NK: Tensor
    top_logprobs_NK: Tensor
    truth_logprob_N: Tensor
    """NaN where the actual token is unknown."""
    truth_rank_N: Tensor
    """1 = the most likely; 0 where the actual token is unknown."""


def ranked(logprobs_NV: Tensor, truth_N: Tensor, top: int) -> Ranked:
    """Rank N distributions, given as log P; `truth_N` holds the ids of the actual tokens, or −1 where unknown."""
    known_N = truth_N >= 0
    truth_logprob_N1 = logprobs_NV.gather(1, truth_N.clamp(min=0)[:, None])
    rank_N = 1 + (logprobs_NV > truth_logprob_N1).sum(dim=1)
    best = logprobs_NV.topk(min(top, logprobs_NV.shape[1]), dim=1)
    return Ranked(
        top_ids_NK=best.indices,
        top_logprobs_NK=best.values,
        truth_logprob_N=truth_logprob_N1[:, 0].masked_fill(~known_N, float("nan")),
        truth_rank_N=torch.where(known_N, rank_N, 0),
    )


def concatenated(parts: list[Ranked]) -> Ranked:
    """Chunks of rows one after another."""
    return Ranked(
        torch.cat([part.top_ids_NK for part in parts]),
        torch.cat([part.top_logprobs_NK for part in parts]),
        torch.cat([part.truth_logprob_N for part in parts]),
        torch.cat([part.truth_rank_N for part in parts]),
    )


def row_slices(n_rows: int, vocab_size: int) -> Iterator[slice]:
    """Chunks of rows such that the logits of each stay within `MOST_LOGITS`."""
    size = max(1, MOST_LOGITS // vocab_size)
    return (slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size))
