"""Blocks with a part left out, made of the real parts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mingyue.nn import Block, PostNormBlock, PreNormBlock, Taps


class Nothing(nn.Module):
    """A sub-layer that adds nothing: in the place of a feed-forward part it leaves attention alone in its block."""

    def forward(self, x_BTM: Tensor, taps: Taps | None = None) -> Tensor:
        """x_BTM → zeros of the same shape."""
        return torch.zeros_like(x_BTM)


class PlainPreNormBlock(PreNormBlock):
    """Sublayer(Norm(x)): nothing leads past the sub-layer."""

    def _add(self, x_BTM: Tensor, transformed_BTM: Tensor) -> Tensor:
        return transformed_BTM


class PlainPostNormBlock(PostNormBlock):
    """Norm(Sublayer(x)): nothing leads past the sub-layer."""

    def _add(self, x_BTM: Tensor, transformed_BTM: Tensor) -> Tensor:
        return transformed_BTM


def without_residual(block: Block) -> Block:
    """The same parts, with the same weights, without the residual path."""
    kind = PlainPreNormBlock if isinstance(block, PreNormBlock) else PlainPostNormBlock
    return kind(block.attention, block.attention_norm, block.feedforward, block.feedforward_norm)
