"""Muon: momentum whose update is orthogonalised (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).

For a matrix W with gradient G:

    momentum ← μ · momentum + (1 − μ) · G
    update   ← (1 − μ) · G + μ · momentum                          (Nesterov)
    W        ← (1 − rate · decay) · W                              (decoupled decay)
    W        ← W − rate · √max(1, rows / columns) · NS(update)

NS is four Newton–Schulz steps (`orthogonalise`), which push every singular value towards 1. The factor
√max(1, rows/columns) is the author's (it keeps the change of a layer's output similar for all shapes);
`torch.optim.Muon` calls it "original".

`torch.optim.Muon` is the reference (a test compares the two), but is not used for two measured reasons: it computes in
bfloat16, 13 times slower than fp32 on CPUs without it, and it processes one matrix at a time. Here matrices of equal
shape, tall ones transposed, are one stack and one batched product; `rows` separates matrices that share one weight (Q,
K, V; the two halves of SwiGLU).

On several ranks each keeps all momenta, which are cheap; Newton–Schulz, which is expensive, is divided: each rank
orthogonalises its share of the matrices, and the ranks exchange the results.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mingyue.training.distributed import Ranks

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""a, b, c of the step X ← a X + (b XXᵀ + c (XXᵀ)²) X (Jordan et al. 2024)."""
NEWTON_SCHULZ_STEPS = 4
_EPS = 1e-7
_WIDE = 2  # columns / rows from which iterating Gram matrices is less work


@dataclass(frozen=True)
class Matrix:
    """A weight that Muon updates: its name, the parameter, and the number of rows of each matrix inside it."""

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
        self._ranks = ranks or Ranks()
        self._prepare()

    def _prepare(self) -> None:
        """Allocate the momenta and divide the matrices among the ranks."""
        self._weights = [matrix.weight for matrix in self.matrices]
        self._stacks = _make_stacks(self.matrices)
        cells = [(stack, index) for stack, held in enumerate(self._stacks) for index in range(len(held.pieces))]
        owners = assign_owners([self._stacks[stack].cost for stack, _ in cells], self._ranks.size)
        # For each rank, for each stack, the indices of the matrices that it orthogonalises.
        self._shares: list[list[list[int]]] = [[[] for _ in self._stacks] for _ in range(self._ranks.size)]
        for (stack, index), owner in zip(cells, owners, strict=True):
            self._shares[owner][stack].append(index)

    @torch.no_grad()
    def step(self) -> None:
        """Update every weight once. A weight without a gradient is treated as one whose gradient is 0."""
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
        counts = [[len(owned) * d[0].numel() for owned, d in zip(s, directions, strict=True)] for s in self._shares]
        flat = torch.cat(own) if own else directions[0].new_empty(0)
        found = self._ranks.exchange(flat, [sum(count) for count in counts])
        for values, count, share in zip(found, counts, self._shares, strict=True):
            for direction, part, owned in zip(directions, values.split(count), share, strict=True):
                if owned:
                    direction[owned] = part.view(-1, *direction.shape[1:])
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
        """Restore the result of `named_state`, exactly; names and shapes must be the same."""
        for stack in self._stacks:
            for piece, momentum in zip(stack.pieces, stack.momentum.unbind(), strict=True):
                momentum.copy_(piece.of(state[f"{piece.name}.momentum"]))


def orthogonalise(matrices_NRC: Tensor, steps: int = NEWTON_SCHULZ_STEPS) -> Tensor:
    """Newton–Schulz on a stack of matrices with no more rows than columns; returns a new stack.

    Singular values end between about 0.7 and 1.2, which works as well as exactly 1. fp32 on a CPU, bf16 on a GPU.

    The steps need a largest singular value of at most 1, and converge more slowly the smaller it is. A matrix is
    therefore divided by ‖(XXᵀ)²‖^¼, an upper bound like the usual ‖X‖ but much tighter (the Schatten 8-norm instead of
    the 2-norm: for equal singular values R^⅛ instead of R^½ times too large); four steps then suffice instead of five.
    The first step needs (XXᵀ)² in any case. For wide matrices only the R × R polynomials are iterated, and their
    product is applied once at the end.
    """
    x_NRC = matrices_NRC / _norm(matrices_NRC)
    if x_NRC.device.type == "cuda":
        x_NRC = x_NRC.bfloat16()
    gram_NRR = x_NRC @ x_NRC.mT
    bound_N11 = _norm(gram_NRR @ gram_NRR).sqrt().sqrt()
    x_NRC, gram_NRR = x_NRC / bound_N11, gram_NRR / bound_N11.square()
    by_grams = x_NRC.device.type == "cpu" and x_NRC.shape[-1] >= _WIDE * x_NRC.shape[-2]
    found = _by_grams(x_NRC, gram_NRR, steps) if by_grams else newton_schulz(x_NRC, steps, gram_NRR=gram_NRR)
    return found.to(matrices_NRC.dtype)


def newton_schulz(x_NRC: Tensor, steps: int, *, gram_NRR: Tensor | None = None) -> Tensor:
    """`steps` times X ← a X + (b XXᵀ + c (XXᵀ)²) X, for matrices whose singular values are at most 1.

    `gram_NRR`: XXᵀ, if already computed.
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
    """[N, 1, 1]: the Frobenius norm, at least ε."""
    return torch.linalg.matrix_norm(matrices_NRC, keepdim=True).clamp(min=_EPS)


@dataclass(frozen=True)
class _Piece:
    """One matrix inside a weight: rows `start` to `end`, transposed if it has more rows than columns."""

    name: str
    weight: nn.Parameter
    start: int
    end: int

    @property
    def scale(self) -> float:
        return update_scale(self.end - self.start, self.weight.shape[1])

    def of(self, tensor: Tensor) -> Tensor:
        """This piece of a tensor of the weight's shape."""
        return wide(tensor[self.start : self.end])


class _Stack:
    """Matrices of one shape, their momentum and a buffer for their gradients as [N, rows, columns]."""

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
    def cost(self) -> int:
        """Multiplications of a Newton–Schulz step for one matrix."""
        _, height, width = self.momentum.shape
        return height * height * (2 * width + height)

    def direction(self, momentum: float) -> Tensor:
        """Update the momentum; returns the direction to be orthogonalised, [N, rows, columns], in a reused buffer."""
        gradients = [
            piece.of(torch.zeros_like(piece.weight) if piece.weight.grad is None else piece.weight.grad)
            for piece in self.pieces
        ]
        torch._foreach_copy_(self._gradient_rows, gradients)
        self.momentum.lerp_(self._gradients, 1 - momentum)
        return self._gradients.lerp_(self.momentum, momentum)

    def move(self, update: Tensor, rate: float) -> None:
        """Update the weights by an orthogonalised direction, which is scaled in place."""
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


def assign_owners(costs: Sequence[int], ranks: int) -> list[int]:
    """The rank that orthogonalises each matrix: the most expensive first, each to the rank with the least work so far.

    The same on every rank.
    """
    owners, loads = [0] * len(costs), [0] * ranks
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        owners[index] = loads.index(min(loads))
        loads[owners[index]] += costs[index]
    return owners


def update_scale(rows: int, columns: int) -> float:
    """√max(1, rows / columns), by which an orthogonalised update is multiplied."""
    return math.sqrt(max(1.0, rows / columns))


def wide(matrix: Tensor) -> Tensor:
    """The matrix, transposed if it has more rows than columns."""
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
