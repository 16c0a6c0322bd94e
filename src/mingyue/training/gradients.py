"""Gradients of all ranks, summed once a step, while the backward pass still runs.

In the last micro-batch of a step a hook on each weight tells when its gradient is complete. Complete gradients are
collected in buckets, which are summed over the ranks while the backward pass continues, from the output to the input.

This is what `DistributedDataParallel` does. It is not used because three things differ. Losses here are sums divided by
the tokens of all ranks, so gradients are added, not averaged. A rank may have fewer micro-batches than others, or none
(the last pairs of an epoch), and the others must not wait for it. And training calls parts of the model (`hidden`, the
chunked loss), not the module: a wrapper would change the names of the weights for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mingyue.training.distributed import Ranks
from mingyue.training.forward import AnyBatch

_BUCKET_BYTES = 8 << 20
"""Large enough that latency does not matter, small enough that the first buckets are sent early."""


class GradientSum:
    """Sums the gradients of `weights` over `ranks`, once a step.

    Call `start_last_pass` before the last forward and backward pass of a step, if this rank has any, and `finish` after
    it.
    """

    def __init__(self, weights: Sequence[nn.Parameter], ranks: Ranks) -> None:
        self._ranks = ranks
        self._buckets = list(_buckets(weights))
        self._bucket_of: dict[Tensor, _Bucket] = {
            weight: bucket for bucket in self._buckets for weight in bucket.weights
        }
        self._in_last_pass = False
        self._sent = 0
        if ranks.size > 1:
            for weight in weights:
                weight.register_post_accumulate_grad_hook(self._on_gradient)

    def start_last_pass(self) -> None:
        """From now on, send each bucket as soon as all gradients in it are complete."""
        for bucket in self._buckets:
            bucket.missing = len(bucket.weights)
        self._in_last_pass = True

    def finish(self) -> None:
        """Send the buckets that are left, and wait: every gradient is then the sum over all ranks.

        A weight without a gradient on any rank has a gradient of zeros.
        """
        if self._ranks.size == 1:
            return
        self._in_last_pass = False
        for bucket in self._buckets[self._sent :]:
            bucket.send(self._ranks)
        for bucket in self._buckets:
            bucket.wait(self._ranks)
        self._sent = 0

    def equalise(self, batches: Sequence[AnyBatch]) -> Sequence[AnyBatch]:
        """The micro-batches that this rank computes: its own, however many the other ranks have."""
        return batches

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """√Σ g² over all gradients, as one scalar tensor. Every rank holds all of them."""
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients))))

    def local(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """This rank's part of each gradient: all of it."""
        return list(gradients)

    def share_rows(self, gradient: Tensor, rows_R: Tensor) -> None:
        """Replace these rows of a gradient by their mean, in place."""
        gradient[rows_R] = gradient[rows_R].mean(dim=0)

    def _on_gradient(self, weight: Tensor) -> None:
        if not self._in_last_pass:
            return
        self._bucket_of[weight].missing -= 1
        # In the same order on every rank, whatever order gradients are completed in: messages are matched by it.
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
        """Start the sum. The gradients become views of the bucket, so that none is held twice."""
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
    """The weights from the last to the first, in groups of about the same size and of one dtype."""
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
