"""Gradients of all ranks, summed once a step, while the backward pass still runs.

In the last micro-batch of a step each weight says when its gradient is done. Gradients that are done are put together
in buckets, which are summed over the ranks while the backward pass goes on, from the output to the input.

This is what `DistributedDataParallel` does, written out because three things differ. Losses here are sums divided by
the tokens of all ranks, so gradients are added, not averaged. A rank may have fewer micro-batches than others, or none
(the last pairs of an epoch), and must not be waited for. And what runs forward is not the model as a module but its
parts (`hidden`, the loss in pieces): a wrapper would stand between names and weights for nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mingyue.training.distributed import Ranks
from mingyue.training.forward import AnyBatch

_BUCKET_BYTES = 8 << 20
"""Large enough that a message's own time does not matter, small enough that the first leave early."""


class GradientSum:
    """Sums the gradients of `weights` over `ranks`. Use `last_pass` around the last backward pass of a step."""

    def __init__(self, weights: Sequence[nn.Parameter], ranks: Ranks) -> None:
        self._ranks = ranks
        self._buckets = list(_buckets(weights))
        self._home: dict[Tensor, _Bucket] = {weight: bucket for bucket in self._buckets for weight in bucket.weights}
        self._listens = False
        self._sent = 0
        if ranks.size > 1:
            for weight in weights:
                weight.register_post_accumulate_grad_hook(self._note)

    @contextmanager
    def last_pass(self) -> Generator[None]:
        """Around the last backward pass of a step, if this rank has any; every gradient is that of all ranks after it.

        A weight without a gradient on any rank has one of zeros then.
        """
        if self._ranks.size == 1:
            yield
            return
        for bucket in self._buckets:
            bucket.missing = len(bucket.weights)
        self._sent, self._listens = 0, True
        try:
            yield
        finally:
            self._listens = False
        for bucket in self._buckets[self._sent :]:
            bucket.send(self._ranks)
        for bucket in self._buckets:
            bucket.wait(self._ranks)

    def taken_together(self, batches: Sequence[AnyBatch]) -> Sequence[AnyBatch]:
        """The passes of this rank: here each rank takes its own, however many they are."""
        return batches

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """√Σ g² over all gradients, as one scalar tensor. Every rank holds all of them."""
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients))))

    def held_here(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """What this rank holds of each gradient: all of it."""
        return list(gradients)

    def _note(self, weight: Tensor) -> None:
        if not self._listens:
            return
        self._home[weight].missing -= 1
        # In the same order on every rank, whatever order gradients are done in: messages are matched by it.
        while self._sent < len(self._buckets) and not self._buckets[self._sent].missing:
            self._buckets[self._sent].send(self._ranks)
            self._sent += 1


@dataclass
class _Bucket:
    weights: list[nn.Parameter] = field(default_factory=list)
    missing: int = 0
    bytes: int = 0
    work: dist.Work | None = None

    def send(self, ranks: Ranks) -> None:
        """Begin to sum. The gradients become views of the bucket, so that nothing is held twice for long."""
        grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in self.weights]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        for weight, part in zip(self.weights, flat.split([grad.numel() for grad in grads]), strict=True):
            weight.grad = part.view_as(weight)
        with ranks.in_touch():
            self.work = dist.all_reduce(flat, async_op=True)

    def wait(self, ranks: Ranks) -> None:
        with ranks.in_touch():
            if self.work is not None:
                self.work.wait()
        self.work = None


def _buckets(weights: Sequence[nn.Parameter]) -> Iterator[_Bucket]:
    """The weights from the last to the first, in groups of about the same size and of one number format."""
    bucket = _Bucket()
    for weight in reversed(weights):
        size = weight.numel() * weight.element_size()
        if bucket.weights and (bucket.bytes + size > _BUCKET_BYTES or bucket.weights[0].dtype != weight.dtype):
            yield bucket
            bucket = _Bucket()
        bucket.weights.append(weight)
        bucket.bytes += size
    if bucket.weights:
        yield bucket
