"""Muon: momentum whose update is orthogonalised (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).

For a matrix W with gradient G:

    momentum ← μ · momentum + (1 − μ) · G
    update   ← (1 − μ) · G + μ · momentum                          (Nesterov)
    W        ← (1 − rate · decay) · W                              (decoupled decay)
    W        ← W − rate · √max(1, rows / columns) · NS(update)

NS is four Newton–Schulz steps (`orthogonalise`), which push every singular value towards 1. The factor
√max(1, rows/columns) is the author's own (it keeps the size of what a layer adds to its output alike over shapes);
`torch.optim.Muon` calls it "original".

`torch.optim.Muon` is the reference (a test compares the two), and is not used for two measured reasons: it works in
bfloat16, 13 times slower than fp32 on CPUs without it, and it takes one matrix at a time. Here matrices of equal shape,
tall ones turned, are one stack and one batched product; matrices that live in one weight (Q, K, V; the two halves of
SwiGLU) are told apart by `rows`.

On several ranks momenta are kept by all, since they cost little; Newton–Schulz, which costs much, is divided: each rank
orthogonalises its share of the matrices and hands the results round.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mingyue.training.distributed import Ranks

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""a, b, c of the step X ← a X + (b XXᵀ + c (XXᵀ)²) X (Jordan et al. 2024)."""
NEWTON_SCHULZ_STEPS = 4
_EPS = 1e-7
_WIDE = 2  # times as many columns as rows, from which on iterating Gram matrices is less work


@dataclass(frozen=True)
class Matrix:
    """A weight that Muon moves: its name, the parameter, and how many rows each matrix inside it has."""

    name: str
    weight: nn.Parameter
    rows: tuple[int, ...]


class Muon:
    """Muon over many matrices. Set `rate` before each `step`; gradients are read from the parameters.

    The parameters must not be moved to another device or replaced after construction.
    """

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
        self._weights = [matrix.weight for matrix in self.matrices]
        self._stacks = _make_stacks(self.matrices)
        self._ranks = ranks or Ranks()
        self._shares = _deal([stack.costs for stack in self._stacks], self._ranks.size)

    @torch.no_grad()
    def step(self) -> None:
        """Move every weight once. A weight without a gradient counts as one whose gradient is 0."""
        if self.weight_decay:
            torch._foreach_mul_([weight.detach() for weight in self._weights], 1 - self.rate * self.weight_decay)
        if self._ranks.size > 1:
            self._step_together()
            return
        for stack in self._stacks:
            stack.move(orthogonalise(stack.direction(self.momentum)), self.rate)

    def _step_together(self) -> None:
        directions = [stack.direction(self.momentum) for stack in self._stacks]
        own = [
            orthogonalise(direction[mine]).reshape(-1)
            for direction, mine in zip(directions, self._shares[self._ranks.rank], strict=True)
            if mine
        ]
        counts = [[len(places) * d[0].numel() for places, d in zip(s, directions, strict=True)] for s in self._shares]
        flat = torch.cat(own) if own else directions[0].new_empty(0)
        found = self._ranks.exchange(flat, [sum(count) for count in counts])
        for values, count, share in zip(found, counts, self._shares, strict=True):
            for direction, part, places in zip(directions, values.split(count), share, strict=True):
                if places:
                    direction[places] = part.view(-1, *direction.shape[1:])
        for stack, direction in zip(self._stacks, directions, strict=True):
            stack.move(direction, self.rate)

    def named_state(self) -> dict[str, Tensor]:
        """{"<weight's name>.momentum": a tensor of the weight's shape}."""
        state = {f"{matrix.name}.momentum": torch.empty_like(matrix.weight) for matrix in self.matrices}
        for stack in self._stacks:
            for piece, momentum in zip(stack.pieces, stack.momentum.unbind(), strict=True):
                piece.of(state[f"{piece.name}.momentum"]).copy_(momentum)
        return state

    def load_named_state(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `named_state` gave, exactly; names and shapes must be those."""
        for stack in self._stacks:
            for piece, momentum in zip(stack.pieces, stack.momentum.unbind(), strict=True):
                momentum.copy_(piece.of(state[f"{piece.name}.momentum"]))


def orthogonalise(matrices_NRC: Tensor, steps: int = NEWTON_SCHULZ_STEPS) -> Tensor:
    """Newton–Schulz on a stack of matrices with no more rows than columns; returns a new stack.

    Singular values end between about 0.7 and 1.2, which serves as well as exactly 1. fp32 on a CPU, bf16 on a GPU.

    The steps want a largest singular value of at most 1, and do less the further below it is. A matrix is therefore
    divided by ‖(XXᵀ)²‖^¼, which bounds it from above as the usual ‖X‖ does and lies much closer to it (Schatten's
    8-norm instead of the 2-norm: for equal singular values R^⅛ instead of R^½ times too large): four steps then come
    as far as five. The first step needs (XXᵀ)² in any case. Of wide matrices only the R × R polynomials are iterated,
    and the product of all of them is applied once at the end.
    """
    x_NRC = matrices_NRC / _norm(matrices_NRC)
    if x_NRC.device.type == "cuda":
        x_NRC = x_NRC.bfloat16()
    gram_NRR = x_NRC @ x_NRC.mT
    bound_N11 = _norm(gram_NRR @ gram_NRR).sqrt().sqrt()
    x_NRC, gram_NRR = x_NRC / bound_N11, gram_NRR / bound_N11.square()
    wide = x_NRC.device.type == "cpu" and x_NRC.shape[-1] >= _WIDE * x_NRC.shape[-2]
    found = _by_grams(x_NRC, gram_NRR, steps) if wide else newton_schulz(x_NRC, steps, gram_NRR=gram_NRR)
    return found.to(matrices_NRC.dtype)


def newton_schulz(x_NRC: Tensor, steps: int, *, gram_NRR: Tensor | None = None) -> Tensor:
    """`steps` times X ← a X + (b XXᵀ + c (XXᵀ)²) X, for matrices whose singular values are at most 1.

    `gram_NRR`: XXᵀ, where it is known.
    """
    a, b, c = COEFFICIENTS
    for step in range(steps):
        if step or gram_NRR is None:
            gram_NRR = x_NRC @ x_NRC.mT
        polynomial_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=b, alpha=c)
        x_NRC = torch.baddbmm(x_NRC, polynomial_NRR, x_NRC, beta=a)
    return x_NRC


def _by_grams(x_NRC: Tensor, gram_NRR: Tensor, steps: int) -> Tensor:
    """The same for wide matrices: with P = a I + b G + c G², XXᵀ = G becomes P G P, and X the product of all P."""
    a, b, c = COEFFICIENTS
    product_NRR: Tensor | None = None
    for step in range(steps):
        polynomial_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=b, alpha=c)
        polynomial_NRR.diagonal(dim1=-2, dim2=-1).add_(a)
        product_NRR = polynomial_NRR if product_NRR is None else polynomial_NRR @ product_NRR
        if step + 1 < steps:
            gram_NRR = polynomial_NRR @ gram_NRR @ polynomial_NRR
    return x_NRC if product_NRR is None else product_NRR @ x_NRC


def _norm(matrices_NRC: Tensor) -> Tensor:
    """[N, 1, 1]: the Frobenius norm, kept away from 0."""
    return torch.linalg.matrix_norm(matrices_NRC, keepdim=True).clamp(min=_EPS)


@dataclass(frozen=True)
class _Piece:
    """One matrix inside a weight: rows `start` to `end`, turned so that it has no more rows than columns."""

    name: str
    weight: nn.Parameter
    start: int
    end: int

    @property
    def turned(self) -> bool:
        return self.end - self.start > self.weight.shape[1]

    @property
    def scale(self) -> float:
        return math.sqrt(max(1.0, (self.end - self.start) / self.weight.shape[1]))

    def of(self, tensor: Tensor) -> Tensor:
        """This piece of a tensor shaped as the weight."""
        rows = tensor[self.start : self.end]
        return rows.mT if self.turned else rows


class _Stack:
    """Matrices of one shape, their momentum and the room for their gradients as [N, rows, columns]."""

    def __init__(self, pieces: list[_Piece]) -> None:
        self.pieces = pieces
        first = pieces[0].of(pieces[0].weight.detach())
        shape = (len(pieces), *first.shape)
        self.momentum = torch.zeros(shape, dtype=first.dtype, device=first.device)
        self._gradients = torch.zeros_like(self.momentum)
        self._gradient_rows = list(self._gradients.unbind())
        self._weights = [piece.of(piece.weight.detach()) for piece in pieces]
        scales = torch.tensor([piece.scale for piece in pieces], dtype=first.dtype, device=first.device)
        self._scales = scales.view(-1, 1, 1)

    @property
    def costs(self) -> list[int]:
        """Multiplications of a Newton–Schulz step for each matrix."""
        _, height, width = self.momentum.shape
        return [height * height * (2 * width + height)] * len(self.pieces)

    def direction(self, momentum: float) -> Tensor:
        """Take in the gradients; returns what is to be orthogonalised, [N, rows, columns], in room that is reused."""
        gradients = [
            piece.of(torch.zeros_like(piece.weight) if piece.weight.grad is None else piece.weight.grad)
            for piece in self.pieces
        ]
        torch._foreach_copy_(self._gradient_rows, gradients)
        self.momentum.lerp_(self._gradients, 1 - momentum)
        return self._gradients.lerp_(self.momentum, momentum)

    def move(self, update: Tensor, rate: float) -> None:
        """Move the weights against an orthogonalised direction, which is scaled in place."""
        update.mul_(self._scales)
        torch._foreach_add_(self._weights, list(update.unbind()), alpha=-rate)


def _make_stacks(matrices: list[Matrix]) -> list[_Stack]:
    by_shape: dict[tuple[int, int], list[_Piece]] = defaultdict(list)
    for matrix in matrices:
        if matrix.weight.ndim != 2 or sum(matrix.rows) != matrix.weight.shape[0]:
            raise ValueError(f"{matrix.name} {list(matrix.weight.shape)} is not made of matrices of {matrix.rows} rows")
        start = 0
        for n_rows in matrix.rows:
            piece = _Piece(matrix.name, matrix.weight, start, start + n_rows)
            height, width = sorted((n_rows, matrix.weight.shape[1]))
            by_shape[height, width].append(piece)
            start += n_rows
    return [_Stack(pieces) for pieces in by_shape.values()]


def _deal(costs: list[list[int]], ranks: int) -> list[list[list[int]]]:
    """For each rank, for each stack, the places of the matrices that it orthogonalises: heavy ones first, each to the
    rank that has least to do."""
    shares: list[list[list[int]]] = [[[] for _ in costs] for _ in range(ranks)]
    loads = [0] * ranks
    matrices = [(cost, stack, place) for stack, own in enumerate(costs) for place, cost in enumerate(own)]
    for cost, stack, place in sorted(matrices, key=lambda matrix: -matrix[0]):
        rank = loads.index(min(loads))
        shares[rank][stack].append(place)
        loads[rank] += cost
    return shares
