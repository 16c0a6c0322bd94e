"""The position-wise feed-forward network: the same two layers at every position.

"Attention Is All You Need", section 3.3: FFN(x) = max(0, x W₁ + b₁) W₂ + b₂. The activation is configurable.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.nn.custom_backward import SquaredReLUFunction, SwiGLUFunction, with_custom_backward
from mingyue.nn.taps import Taps, tap


@with_custom_backward(SquaredReLUFunction)
def squared_relu(x: Tensor) -> Tensor:
    """max(0, x)² (So et al. 2021, "Primer")."""
    positive = F.relu(x)
    return positive * positive  # the gradient of a product costs a third of that of a power


@with_custom_backward(SwiGLUFunction)
def gated(gate_and_up: Tensor) -> Tensor:
    """silu(gate) ⊙ up for [gate | up] along the last axis: [..., 2F] → [..., F]."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    return F.silu(gate) * up


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu2": squared_relu,
}


class FeedForward(nn.Module):
    """activation(x W₁ + b₁) W₂ + b₂: `inner.weight` is W₁ᵀ, [F, M]; `output.weight` is W₂ᵀ, [M, F]."""

    def __init__(self, d_model: int, d_ff: int, activation: str, *, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff, bias=bias)
        self.output = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x_BTM: Tensor, taps: Taps | None = None) -> Tensor:
        """x_BTM → x_BTM."""
        inner_BTF = tap(taps, "inner", self.activation(self.inner(x_BTM)))
        return tap(taps, "output", self.output(inner_BTF))


class SwiGLU(nn.Module):
    """(silu(x W_gate) ⊙ x W_up) W_out (Shazeer 2020). `inner.weight` [2F, M] holds W_gate and W_up, in this order."""

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
