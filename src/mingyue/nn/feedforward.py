"""The position-wise feed-forward part: the same two-layer network at every position.

"Attention Is All You Need", section 3.3: FFN(x) = max(0, x W₁ + b₁) W₂ + b₂. The activation is a choice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.nn import gradients
from mingyue.nn.gradients import by_hand
from mingyue.nn.taps import Taps, tap


def squared_relu(x: Tensor) -> Tensor:
    """max(0, x)² (So et al. 2021, "Primer")."""
    if by_hand(x):
        return gradients.squared_relu(x)
    positive = F.relu(x)
    return positive * positive  # the gradient of a product costs a third of that of a power


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu2": squared_relu,
}


class FeedForward(nn.Module):
    """inner → activation → output. `inner.weight` is [F, M], `output.weight` is [M, F]."""

    def __init__(self, d_model: int, d_ff: int, activation: str, *, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff, bias=bias)
        self.output = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x_BTM: Tensor, taps: Taps | None = None) -> Tensor:
        """x_BTM → x_BTM."""
        inner_BTF = tap(taps, "inner", self.activation(self.inner(x_BTM)))
        return tap(taps, "output", self.output(inner_BTF))


def gated(both: Tensor) -> Tensor:
    """silu(gate) ⊙ up for [gate | up] along the last axis: [..., 2F] → [..., F]."""
    if by_hand(both):
        return gradients.swiglu(both)
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate) * up


class SwiGLU(nn.Module):
    """silu(gate(x)) ⊙ up(x) → output (Shazeer 2020). Gate and up are one weight, `inner.weight` [2F, M], gate first."""

    def __init__(self, d_model: int, d_ff: int, *, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, 2 * d_ff, bias=bias)
        self.output = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x_BTM: Tensor, taps: Taps | None = None) -> Tensor:
        """x_BTM → x_BTM."""
        inner_BTF = tap(taps, "inner", gated(self.inner(x_BTM)))
        return tap(taps, "output", self.output(inner_BTF))


def make_feedforward(kind: str, d_model: int, d_ff: int, *, bias: bool) -> nn.Module:
    """`relu` (the paper), `gelu`, `gelu-tanh`, `silu` (Ramachandran et al. 2017, "swish"), `relu2`, or `swiglu`."""
    if kind == "swiglu":
        return SwiGLU(d_model, d_ff, bias=bias)
    if kind in ACTIVATIONS:
        return FeedForward(d_model, d_ff, kind, bias=bias)
    raise ValueError(f"feedforward {kind!r} is not one of {', '.join([*ACTIVATIONS, 'swiglu'])}")
