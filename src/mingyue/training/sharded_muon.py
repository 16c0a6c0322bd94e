"""Muon for weights that are sharded over ranks.

Newton–Schulz needs a whole matrix, so each weight has an owner, a rank that gathers the shards of its update,
orthogonalises, and sends each rank its shard back: two exchanges per step, in which each rank sends and receives about
as many numbers as it holds. Weights are assigned to owners by cost. Everything else works on shards, where the weights
are. The equations are those of `muon`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from mingyue.training.muon import Matrix, Muon, assign_owners, orthogonalise, update_scale, wide
from mingyue.training.sharding import local_rows, row_range


class ShardedMuon(Muon):
    """`Muon` for weights that are DTensors sharded by rows. Every rank creates one and takes every step."""

    def _prepare(self) -> None:
        owners = assign_owners([_cost(matrix) for matrix in self.matrices], self._ranks.size)
        self._owned = [
            [matrix for matrix, owner in zip(self.matrices, owners, strict=True) if owner == rank]
            for rank in range(self._ranks.size)
        ]
        self._in_order = [matrix for owned in self._owned for matrix in owned]
        self._shards = [_local(matrix.weight.detach()) for matrix in self._in_order]
        self._momenta = [torch.zeros_like(shard) for shard in self._shards]

    @torch.no_grad()
    def step(self) -> None:
        """Update every weight once. A weight without a gradient is treated as one whose gradient is 0."""
        if self.weight_decay:
            torch._foreach_mul_(self._shards, 1 - self.rate * self.weight_decay)
        updates: list[Tensor] = []
        for matrix, momentum in zip(self._in_order, self._momenta, strict=True):
            grad = matrix.weight.grad
            gradient = torch.zeros_like(momentum) if grad is None else _local(grad)
            momentum.lerp_(gradient, 1 - self.momentum)
            updates.append(gradient.lerp(momentum, self.momentum))
        torch._foreach_add_(self._shards, self._orthogonalised(updates), alpha=-self.rate)

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
        """Restore the result of `named_state`, sharded or whole; names and shapes must be the same."""
        for matrix, momentum in zip(self._in_order, self._momenta, strict=True):
            value = state[f"{matrix.name}.momentum"]
            assert isinstance(matrix.weight, DTensor)
            momentum.copy_(value.to_local() if isinstance(value, DTensor) else local_rows(value, matrix.weight))

    def _orthogonalised(self, updates: Sequence[Tensor]) -> list[Tensor]:
        """This rank's shards of the orthogonalised updates, from its shards of the updates; in the order of owners."""
        sent = [self._size(owned, self._ranks.rank) for owned in self._owned]
        mine = self._owned[self._ranks.rank]
        received = [self._size(mine, rank) for rank in range(self._ranks.size)]
        flat = torch.cat([update.reshape(-1) for update in updates])
        shares = flat.new_empty(sum(received))
        with self._ranks.in_touch():
            dist.all_to_all_single(shares, flat, received, sent)
        wholes = self._assemble(shares.split(received), mine)
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
        """Numbers that a rank holds of these weights."""
        total = 0
        for matrix in matrices:
            start, end = row_range(matrix.weight.shape[0], rank, self._ranks.size)
            total += (end - start) * matrix.weight.shape[1]
        return total

    def _assemble(self, shares: Sequence[Tensor], matrices: Sequence[Matrix]) -> list[Tensor]:
        """Whole updates from the shards that each rank sent, concatenated."""
        starts = [0] * self._ranks.size
        wholes: list[Tensor] = []
        for matrix in matrices:
            rows, columns = matrix.weight.shape
            parts: list[Tensor] = []
            for rank in range(self._ranks.size):
                start, end = row_range(rows, rank, self._ranks.size)
                size = (end - start) * columns
                parts.append(shares[rank][starts[rank] : starts[rank] + size].view(-1, columns))
                starts[rank] += size
            wholes.append(torch.cat(parts))
        return wholes


def orthogonalise_all(wholes: Sequence[Tensor], rows: Sequence[tuple[int, ...]]) -> None:
    """Orthogonalise and scale, in place, the matrices of `rows` rows inside each update; equal shapes as one stack."""
    by_shape: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
    scales: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for whole, pieces in zip(wholes, rows, strict=True):
        for piece in whole.split(pieces):
            by_shape[tuple(wide(piece).shape)].append(wide(piece))
            scales[tuple(wide(piece).shape)].append(update_scale(*piece.shape))
    for shape, pieces in by_shape.items():
        stack = orthogonalise(torch.stack(pieces))
        stack.mul_(torch.tensor(scales[shape], dtype=stack.dtype, device=stack.device).view(-1, 1, 1))
        torch._foreach_copy_(pieces, list(stack.unbind()))


def _cost(matrix: Matrix) -> int:
    columns = matrix.weight.shape[1]
    return sum(rows * columns * min(rows, columns) for rows in matrix.rows)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
