"""Activation checkpointing: a block forgets what it computed, and computes it again when its gradient is due.

Memory for time: of each block only its input is kept, and a step takes about a third more arithmetic (Chen et al. 2016,
"Training Deep Nets with Sublinear Memory Cost"). The second pass has the first one's random numbers, so the gradients
are the same, bit for bit. The blocks are told from outside; neither their code nor their names change.
"""

from __future__ import annotations

from functools import partial

from torch.utils.checkpoint import checkpoint

from mingyue.models import Transformer


def recompute_blocks(model: Transformer) -> None:
    """From here on every block of `model` is computed again in the backward pass."""
    for block in model.every_block():
        # An attribute of the object in front of the method of its class: `forward` is what calling a module calls.
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
