"""Hand-written backward passes for operations that autograd on a CPU composes of many kernels.

A small training step on a CPU is bound by passes over memory: RMSNorm takes fourteen of them forward and backward with
autograd, nine here; rotary angles copy what they rotate, here nothing is copied. Each operation is defined, as an
equation, in the module that uses it; tests compare values and gradients of both forms in fp64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVarTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

_Rest = TypeVarTuple("_Rest")


def use_custom_backward(x: Tensor) -> bool:
    """Whether an operation on `x` uses its form of this module: in training on a CPU in fp32, without torch.compile."""
    return (
        torch.is_grad_enabled()  # first, because it is the cheapest: generation checks it a hundred times per token
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and not torch.compiler.is_compiling()
    )


def with_custom_backward(
    function: type[Function],
) -> Callable[[Callable[[Tensor, *_Rest], Tensor]], Callable[[Tensor, *_Rest], Tensor]]:
    """Decorator: the decorated operation is computed by `function` where `use_custom_backward` is true."""

    def decorate(operation: Callable[[Tensor, *_Rest], Tensor]) -> Callable[[Tensor, *_Rest], Tensor]:
        @wraps(operation)
        def choose(x: Tensor, *rest: *_Rest) -> Tensor:
            return function.apply(x, *rest) if use_custom_backward(x) else operation(x, *rest)  # type: ignore[return-value]

        return choose

    return decorate


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """[..., width] → [..., 1]: 1 / √(mean x² + ε)."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()


class RMSNormFunction(Function):
    """x / √(mean x² + ε) ⊙ gain over the last axis: (x [..., width], gain [width], ε) → [..., width]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:  # noqa: ANN401, D102  # pyrefly: ignore[bad-override]
        inverse = inverse_rms(x, eps)
        ctx.save_for_backward(x, gain, inverse)
        return (x * inverse).mul_(gain)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401, D102  # pyrefly: ignore[bad-override]
        x, gain, inverse = ctx.saved_tensors
        width = x.shape[-1]
        product = (grad * x).reshape(-1, width)
        inverse_N = inverse.reshape(-1)
        gain_grad = product.T.mv(inverse_N)
        along = (product.mv(gain) * inverse_N.square()).mul_(1 / width).view_as(inverse)
        return torch.mul(grad, gain, out=product.view_as(x)).addcmul_(x, along, value=-1).mul_(inverse), gain_grad, None


class SquaredReLUFunction(Function):
    """max(0, x)²."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ANN401, D102  # pyrefly: ignore[bad-override]
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive  # square() calls the power function, which is slower

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401, D102  # pyrefly: ignore[bad-override]
        (positive,) = ctx.saved_tensors
        return torch.mul(grad, positive).mul_(2)


class SwiGLUFunction(Function):
    """silu(gate) ⊙ up for [gate | up] along the last axis: [..., 2F] → [..., F]."""

    @staticmethod
    def forward(ctx: Any, gate_and_up: Tensor) -> Tensor:  # noqa: ANN401, D102  # pyrefly: ignore[bad-override]
        gate, up = gate_and_up.chunk(2, dim=-1)
        ctx.save_for_backward(gate_and_up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401, D102  # pyrefly: ignore[bad-override]
        (gate_and_up,) = ctx.saved_tensors
        gate, up = gate_and_up.chunk(2, dim=-1)
        result = torch.empty_like(gate_and_up)
        gate_grad, up_grad = result.chunk(2, dim=-1)
        torch.mul(F.silu(gate), grad, out=up_grad)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=gate_grad)
        return result


def rotate_heads(
    heads_BTND: Tensor, gain_RD: Tensor | None, eps: float, angles: tuple[Tensor, Tensor] | None, n_rotated: int
) -> tuple[Tensor, Tensor]:
    """QK-norm (if there is a gain) and rotation of the first `n_rotated` = R of N heads; the others are unchanged.

    heads_BTND → ([B, T, R, D], [B, T, N − R, D]). `angles`: (cosine, sine), each [B or 1, T, 1, D/2].
    """
    if gain_RD is None and angles is None:
        return heads_BTND[:, :, :n_rotated], heads_BTND[:, :, n_rotated:]
    cosine, sine = angles if angles is not None else (None, None)
    return _RotatedHeads.apply(heads_BTND, gain_RD, eps, cosine, sine, n_rotated)  # type: ignore[return-value]


class _RotatedHeads(Function):
    @staticmethod
    def forward(  # noqa: PLR0917  # pyrefly: ignore[bad-override]
        ctx: Any,  # noqa: ANN401
        heads: Tensor,
        gain: Tensor | None,
        eps: float,
        cosine: Tensor | None,
        sine: Tensor | None,
        n_rotated: int,
    ) -> tuple[Tensor, Tensor]:
        rotated, inverse = heads[:, :, :n_rotated], None
        if gain is not None:
            inverse = inverse_rms(rotated, eps)
            rotated = (rotated * inverse).mul_(gain)
        if cosine is not None and sine is not None:
            rotated = _rotate(rotated, cosine, sine)
        ctx.save_for_backward(heads, gain, inverse, cosine, sine)
        ctx.n_rotated = n_rotated
        return rotated, heads[:, :, n_rotated:]

    @staticmethod
    @once_differentiable
    def backward(  # pyrefly: ignore[bad-override]
        ctx: Any,  # noqa: ANN401
        grad: Tensor,
        rest_grad: Tensor,
    ) -> tuple[Tensor, Tensor | None, None, None, None, None]:
        heads, gain, inverse, cosine, sine = ctx.saved_tensors
        x = heads[:, :, : ctx.n_rotated]
        heads_grad = torch.empty_like(heads)
        heads_grad[:, :, ctx.n_rotated :].copy_(rest_grad)
        x_grad, gain_grad = heads_grad[:, :, : ctx.n_rotated], None
        if cosine is not None:  # the inverse rotation
            grad = _rotate(grad, cosine, -sine, out=None if inverse is not None else x_grad)
        if inverse is not None:
            product = grad * x
            gain_grad = (product * inverse).sum((0, 1))
            along = product.mul_(gain).sum(-1, keepdim=True).mul_(inverse.square()).mul_(1 / x.shape[-1])
            torch.mul(grad, gain, out=x_grad).addcmul_(x, along, value=-1).mul_(inverse)
        return heads_grad, gain_grad, None, None, None, None


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor, *, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    torch.mul(first, cosine, out=out[..., :half]).addcmul_(second, sine, value=-1)
    torch.mul(second, cosine, out=out[..., half:]).addcmul_(first, sine)
    return out
