"""Normalisation of vectors. Both kinds are PyTorch's own; this is where a config's choice becomes a module."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.nn import gradients
from mingyue.nn.gradients import by_hand


class RMSNorm(nn.RMSNorm):
    """PyTorch's RMSNorm, which under mixed precision keeps to the format of its input.

    Otherwise fp32 gains on 16-bit queries and keys would leave the fused kernel, with a warning.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] → the same shape and number format."""
        if by_hand(x) and self.eps is not None:
            return gradients.rms_norm(x, self.weight, self.eps)
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def make_norm(kind: str, width: int, eps: float) -> nn.Module:
    """`layer`: LayerNorm with gain and bias (Ba et al. 2016); `rms`: RMSNorm with gain (Zhang & Sennrich 2019).

    Both map [..., width] to the same shape.
    """
    if kind == "layer":
        return nn.LayerNorm(width, eps=eps)
    if kind == "rms":
        return RMSNorm(width, eps=eps)
    raise ValueError(f"norm {kind!r} is not layer or rms")
