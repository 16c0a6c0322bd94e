"""What claims about blocks share: blocks with a part left out, made of the real parts; curves of training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mingyue.claims.claim import Number
from mingyue.nn import Block, PostNormBlock, PreNormBlock, Taps


class Nothing(nn.Module):
    """A sub-layer that adds nothing: in place of the feed-forward part it leaves a block with attention alone."""

    def forward(self, x_BTM: Tensor, taps: Taps | None = None) -> Tensor:
        """x_BTM → zeros of the same shape."""
        return torch.zeros_like(x_BTM)


class PlainPreNormBlock(PreNormBlock):
    """Sublayer(Norm(x)): no path around the sub-layer."""

    def _add(self, x_BTM: Tensor, transformed_BTM: Tensor) -> Tensor:
        return transformed_BTM


class PlainPostNormBlock(PostNormBlock):
    """Norm(Sublayer(x)): no path around the sub-layer."""

    def _add(self, x_BTM: Tensor, transformed_BTM: Tensor) -> Tensor:
        return transformed_BTM


def without_residual(block: Block) -> Block:
    """The same parts, with the same weights, without the residual path."""
    kind = PlainPreNormBlock if isinstance(block, PreNormBlock) else PlainPostNormBlock
    return kind(block.attention, block.attention_norm, block.feedforward, block.feedforward_norm)


def stretch_of(steps: int) -> int:
    """How many steps `smoothed` averages: a fortieth of all."""
    return max(1, steps // 40)


def smoothed(runs: Sequence[Sequence[float]], column: str, **columns: str) -> list[dict[str, Any]]:
    """Rows of a figure by `step`: the values of `runs` (one a seed, each of all steps), averaged over stretches."""
    steps = len(runs[0])
    stretch = stretch_of(steps)
    return [
        Number.mean([sum(run[begin : begin + stretch]) / stretch for run in runs])
        .clipped(0.0, math.inf)
        .row(column, **columns, step=begin + stretch / 2)
        for begin in range(0, steps - stretch + 1, stretch)
    ]
