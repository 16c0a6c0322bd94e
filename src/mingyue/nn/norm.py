"""Normalisation of vectors. Both kinds are PyTorch's own; this is where a config's choice becomes a module."""

from __future__ import annotations

from torch import nn


def make_norm(kind: str, width: int, eps: float) -> nn.Module:
    """`layer`: LayerNorm with gain and bias (Ba et al. 2016); `rms`: RMSNorm with gain (Zhang & Sennrich 2019).

    Both map [..., width] to the same shape.
    """
    if kind == "layer":
        return nn.LayerNorm(width, eps=eps)
    if kind == "rms":
        return nn.RMSNorm(width, eps=eps)
    raise ValueError(f"norm {kind!r} is not layer or rms")
