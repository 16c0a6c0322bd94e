"""Gradients written by hand, for parts that PyTorch on CPUs puts together from many kernels.

A small step on a CPU is bound by passes over memory: RMSNorm takes fourteen of them forward and backward, here nine;
rotary angles copy what they turn, here nothing is copied. The maths is that of the modules which use these functions;
tests compare values and gradients with the composed form in fp64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def by_hand(x: Tensor) -> bool:
    """Whether the functions of this module serve for `x`: in training on a CPU, and not inside a compiled block."""
    return (
        x.device.type == "cpu"
        and x.dtype is torch.float32
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """[..., width] → [..., 1]: 1 / √(mean x² + ε)."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """RMSNorm with gain over the last axis: [..., width] → the same shape."""
    return _RMSNorm.apply(x, gain, eps)  # type: ignore[return-value]


class _RMSNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:  # noqa: ANN401  # pyrefly: ignore[bad-override]
        inverse = inverse_rms(x, eps)
        ctx.save_for_backward(x, gain, inverse)
        return (x * inverse).mul_(gain)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401  # pyrefly: ignore[bad-override]
        x, gain, inverse = ctx.saved_tensors
        width = x.shape[-1]
        product = (grad * x).reshape(-1, width)
        inverse_N = inverse.reshape(-1)
        gain_grad = product.T.mv(inverse_N)
        along = (product.mv(gain) * inverse_N.square()).mul_(1 / width).view_as(inverse)
        return torch.mul(grad, gain, out=product.view_as(x)).addcmul_(x, along, value=-1).mul_(inverse), gain_grad, None


def turn_heads(
    heads: Tensor, gain: Tensor | None, eps: float, angles: tuple[Tensor, Tensor] | None, n_turned: int
) -> tuple[Tensor, Tensor]:
    """The first `n_turned` = R of N heads normalised (where there is a gain [R, D]) and turned; the others as they are.

    heads [B, T, N, D] → ([B, T, R, D], [B, T, N − R, D]). `angles`: (cosine, sine), each [B or 1, T, 1, D/2].
    """
    if gain is None and angles is None:
        return heads[:, :, :n_turned], heads[:, :, n_turned:]
    cosine, sine = angles if angles is not None else (None, None)
    return _TurnedHeads.apply(heads, gain, eps, cosine, sine, n_turned)  # type: ignore[return-value]


class _TurnedHeads(Function):
    @staticmethod
    def forward(  # noqa: PLR0917  # pyrefly: ignore[bad-override]
        ctx: Any,  # noqa: ANN401
        heads: Tensor,
        gain: Tensor | None,
        eps: float,
        cosine: Tensor | None,
        sine: Tensor | None,
        n_turned: int,
    ) -> tuple[Tensor, Tensor]:
        turned, inverse = heads[:, :, :n_turned], None
        if gain is not None:
            inverse = inverse_rms(turned, eps)
            turned = (turned * inverse).mul_(gain)
        if cosine is not None and sine is not None:
            turned = _turn(turned, cosine, sine)
        ctx.save_for_backward(heads, gain, inverse, cosine, sine)
        ctx.n_turned = n_turned
        return turned, heads[:, :, n_turned:]

    @staticmethod
    @once_differentiable
    def backward(  # pyrefly: ignore[bad-override]
        ctx: Any,  # noqa: ANN401
        grad: Tensor,
        rest_grad: Tensor,
    ) -> tuple[Tensor, Tensor | None, None, None, None, None]:
        heads, gain, inverse, cosine, sine = ctx.saved_tensors
        x = heads[:, :, : ctx.n_turned]
        heads_grad = torch.empty_like(heads)
        heads_grad[:, :, ctx.n_turned :].copy_(rest_grad)
        room, gain_grad = heads_grad[:, :, : ctx.n_turned], None
        if cosine is not None:  # back by the same angle
            grad = _turn(grad, cosine, -sine, out=None if inverse is not None else room)
        if inverse is not None:
            product = grad * x
            gain_grad = (product * inverse).sum((0, 1))
            along = product.mul_(gain).sum(-1, keepdim=True).mul_(inverse.square()).mul_(1 / x.shape[-1])
            torch.mul(grad, gain, out=room).addcmul_(x, along, value=-1).mul_(inverse)
        return heads_grad, gain_grad, None, None, None, None


def _turn(x: Tensor, cosine: Tensor, sine: Tensor, *, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    torch.mul(first, cosine, out=out[..., :half]).addcmul_(second, sine, value=-1)
    torch.mul(second, cosine, out=out[..., half:]).addcmul_(first, sine)
    return out


def squared_relu(x: Tensor) -> Tensor:
    """max(0, x)²."""
    return _SquaredReLU.apply(x)  # type: ignore[return-value]


class _SquaredReLU(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ANN401  # pyrefly: ignore[bad-override]
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive  # square() calls the power function, which is slower

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401  # pyrefly: ignore[bad-override]
        (positive,) = ctx.saved_tensors
        return torch.mul(grad, positive).mul_(2)


def swiglu(both: Tensor) -> Tensor:
    """silu(gate) ⊙ up for [gate | up] along the last axis: [..., 2F] → [..., F]."""
    return _SwiGLU.apply(both)  # type: ignore[return-value]


class _SwiGLU(Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:  # noqa: ANN401  # pyrefly: ignore[bad-override]
        gate, up = both.chunk(2, dim=-1)
        ctx.save_for_backward(both)
        return torch.nn.functional.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401  # pyrefly: ignore[bad-override]
        (both,) = ctx.saved_tensors
        gate, up = both.chunk(2, dim=-1)
        both_grad = torch.empty_like(both)
        gate_grad, up_grad = both_grad.chunk(2, dim=-1)
        torch.mul(torch.nn.functional.silu(gate), grad, out=up_grad)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=gate_grad)
        return both_grad
