"""The mean of the weights of the last checkpoints ("Attention Is All You Need", section 6.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from mingyue.training.checkpoints import Checkpoints


def average_weights(checkpoints: Checkpoints, last: int) -> tuple[dict[str, Tensor], list[int]]:
    """(mean of each weight over the `last` checkpoints, their steps).

    Sums are in double, one checkpoint in memory at a time. Raises `CheckpointError` for a damaged one.
    """
    steps = checkpoints.steps()[-last:]
    sums: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for step in steps:
        for name, weight in checkpoints.load(step).model.items():
            kinds[name] = weight.dtype
            sums[name] = sums[name].add_(weight) if name in sums else weight.double()
    return {name: (total / len(steps)).to(kinds[name]) for name, total in sums.items()}, steps
