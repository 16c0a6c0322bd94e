"""Activation checkpointing: a block frees its activations, and computes them again in the backward pass.

This trades time for memory: only the input of each block is kept, and a step takes about a third more arithmetic (Chen
et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). The second pass has the random numbers of the first, so
the gradients are the same, bit for bit. The code and the names of the blocks do not change.
"""

from __future__ import annotations

from functools import partial

from torch.utils.checkpoint import checkpoint

from mingyue.models import Transformer


def recompute_blocks(model: Transformer) -> None:
    """Set every block of `model` to be computed again in the backward pass."""
    for block in model.every_block():
        # An attribute of the module hides the method of its class: calling the module calls this one.
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
