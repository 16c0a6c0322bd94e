"""Muon for weights that lie divided over ranks.

Newton–Schulz needs a whole matrix, so each weight has one rank, its owner, that puts the shares of its update together,
orthogonalises, and hands every rank its share back: two exchanges a step, in which each rank sends and receives about
as many numbers as it holds. The work is dealt out by cost. Momentum and the rest are sums of shares, and stay where the
weights are. The formulas are those of `muon`, and so is `orthogonalise`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from mingyue.training.distributed import Ranks
from mingyue.training.muon import Matrix, orthogonalise
from mingyue.training.sharding import local_rows, row_range


class ShardedMuon:
    """As `Muon`, over weights that are DTensors divided by rows. Every rank makes one, and takes each step with it."""

    def __init__(
        self,
        matrices: Iterable[Matrix],
        *,
        rate: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        ranks: Ranks | None = None,
    ) -> None:
        self.matrices = list(matrices)
        self.rate = rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self._ranks = ranks or Ranks()
        owners = _deal(self.matrices, self._ranks.size)
        self._owned = [
            [matrix for matrix, owner in zip(self.matrices, owners, strict=True) if owner == rank]
            for rank in range(self._ranks.size)
        ]
        self._in_order = [matrix for owned in self._owned for matrix in owned]
        self._weights = [_local(matrix.weight.detach()) for matrix in self._in_order]
        self._momenta = [torch.zeros_like(weight) for weight in self._weights]

    @torch.no_grad()
    def step(self) -> None:
        """Move every weight once. A weight without a gradient counts as one whose gradient is 0."""
        if self.weight_decay:
            torch._foreach_mul_(self._weights, 1 - self.rate * self.weight_decay)
        updates: list[Tensor] = []
        for matrix, momentum in zip(self._in_order, self._momenta, strict=True):
            grad = matrix.weight.grad
            gradient = torch.zeros_like(momentum) if grad is None else _local(grad)
            momentum.lerp_(gradient, 1 - self.momentum)
            updates.append(gradient.lerp(momentum, self.momentum))
        torch._foreach_add_(self._weights, self._orthogonalised(updates), alpha=-self.rate)

    def named_state(self) -> dict[str, Tensor]:
        """{"<weight's name>.momentum": a DTensor of the weight's shape}."""
        return {
            f"{matrix.name}.momentum": DTensor.from_local(
                momentum,
                matrix.weight.device_mesh,
                matrix.weight.placements,
                run_check=False,
                shape=matrix.weight.shape,
                stride=matrix.weight.stride(),
            )
            for matrix, momentum in zip(self._in_order, self._momenta, strict=True)
            if isinstance(matrix.weight, DTensor)
        }

    def load_named_state(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `named_state` gave, exactly, divided or whole; names and shapes must be those."""
        for matrix, momentum in zip(self._in_order, self._momenta, strict=True):
            value = state[f"{matrix.name}.momentum"]
            assert isinstance(matrix.weight, DTensor)
            momentum.copy_(value.to_local() if isinstance(value, DTensor) else local_rows(value, matrix.weight))

    def _orthogonalised(self, updates: Sequence[Tensor]) -> list[Tensor]:
        """This rank's shares of the orthogonalised updates, given its shares of the updates, in the order of owners."""
        sent = [self._size(owned, self._ranks.rank) for owned in self._owned]
        mine = self._owned[self._ranks.rank]
        received = [self._size(mine, rank) for rank in range(self._ranks.size)]
        flat = torch.cat([update.reshape(-1) for update in updates])
        shares = flat.new_empty(sum(received))
        with self._ranks.in_touch():
            dist.all_to_all_single(shares, flat, received, sent)
        wholes = self._put_together(shares.split(received), mine)
        orthogonalise_all(wholes, [matrix.rows for matrix in mine])
        back: list[Tensor] = []
        for rank in range(self._ranks.size):
            cuts = [row_range(len(whole), rank, self._ranks.size) for whole in wholes]
            back.extend(whole[start:end].reshape(-1) for whole, (start, end) in zip(wholes, cuts, strict=True))
        with self._ranks.in_touch():
            dist.all_to_all_single(flat, torch.cat([*back, flat[:0]]), sent, received)
        parts = flat.split([update.numel() for update in updates])
        return [part.view_as(update) for part, update in zip(parts, updates, strict=True)]

    def _size(self, matrices: Sequence[Matrix], rank: int) -> int:
        """How many numbers of these weights a rank holds."""
        total = 0
        for matrix in matrices:
            start, end = row_range(matrix.weight.shape[0], rank, self._ranks.size)
            total += (end - start) * matrix.weight.shape[1]
        return total

    def _put_together(self, shares: Sequence[Tensor], matrices: Sequence[Matrix]) -> list[Tensor]:
        """Whole weights from what each rank sent of them, one weight after the other."""
        places = [0] * self._ranks.size
        wholes: list[Tensor] = []
        for matrix in matrices:
            rows, columns = matrix.weight.shape
            parts: list[Tensor] = []
            for rank in range(self._ranks.size):
                start, end = row_range(rows, rank, self._ranks.size)
                size = (end - start) * columns
                parts.append(shares[rank][places[rank] : places[rank] + size].view(-1, columns))
                places[rank] += size
            wholes.append(torch.cat(parts))
        return wholes


def orthogonalise_all(wholes: Sequence[Tensor], rows: Sequence[tuple[int, ...]]) -> None:
    """Orthogonalise and scale in place the matrices of so many `rows` inside each weight; equal shapes in one stack."""
    by_shape: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
    scales: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for whole, pieces in zip(wholes, rows, strict=True):
        for piece in whole.split(pieces):
            turned = piece.mT if piece.shape[0] > piece.shape[1] else piece
            by_shape[tuple(turned.shape)].append(turned)
            scales[tuple(turned.shape)].append(math.sqrt(max(1.0, piece.shape[0] / piece.shape[1])))
    for shape, pieces in by_shape.items():
        stack = orthogonalise(torch.stack(pieces))
        stack.mul_(torch.tensor(scales[shape], dtype=stack.dtype, device=stack.device).view(-1, 1, 1))
        torch._foreach_copy_(pieces, list(stack.unbind()))


def _deal(matrices: Sequence[Matrix], ranks: int) -> list[int]:
    """The owner of each matrix: the dearest first, each to the rank that has least to do. The same on every rank."""

    def cost(matrix: Matrix) -> int:
        columns = matrix.weight.shape[1]
        return sum(rows * columns * min(rows, columns) for rows in matrix.rows)

    owners = [0] * len(matrices)
    loads = [0] * ranks
    for index in sorted(range(len(matrices)), key=lambda index: (-cost(matrices[index]), index)):
        owners[index] = loads.index(min(loads))
        loads[owners[index]] += cost(matrices[index])
    return owners


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
