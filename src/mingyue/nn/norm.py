"""Normalisation of vectors: PyTorch's LayerNorm, and RMSNorm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.nn.custom_backward import RMSNormFunction, with_custom_backward


@with_custom_backward(RMSNormFunction)
def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / √(mean x² + ε) ⊙ gain over the last axis (Zhang & Sennrich 2019): [..., width] → the same shape and dtype.

    The dtype is that of `x` under mixed precision too: fp32 gains on 16-bit queries and keys would lose the fused
    attention kernel.
    """
    return F.rms_norm(x, gain.shape, gain.to(x.dtype), eps)


class RMSNorm(nn.Module):
    """`rms_norm` with its gain, `weight` [width]."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] → the same shape and dtype."""
        return rms_norm(x, self.weight, self.eps)


def make_norm(kind: str, width: int, eps: float) -> nn.Module:
    """`layer`: LayerNorm with gain and bias (Ba et al. 2016); `rms`: RMSNorm with gain (Zhang & Sennrich 2019).

    Both map [..., width] to the same shape.
    """
    if kind == "layer":
        return nn.LayerNorm(width, eps=eps)
    if kind == "rms":
        return RMSNorm(width, eps=eps)
    raise ValueError(f"norm {kind!r} is not layer or rms")
