"""A source of which everything is known: a symbol follows from the one two places before it, most of the time.

The symbol just before tells nothing, so a model has to know which token stands two back: it needs positions and nothing
far away. A reader that had understood this would lose nothing in texts of any length.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mingyue.runtime import derive_seed

VOCAB_SIZE = 16
_FOLLOWS = 0.8
"""Share of the symbols that follow from the rule; the others are drawn, all alike."""


def two_back(rows: int, length: int, seed: int, purpose: str = "text", number: int = 0) -> Tensor:
    """ids_BT: x[t] = 5 · x[t − 2] + 3 modulo 16 with probability 0.8, else any symbol. A pure function."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "two back", purpose, number))
    ids_BT = torch.randint(VOCAB_SIZE, (rows, length), generator=generator)
    follows_BT = torch.rand(rows, length, generator=generator) < _FOLLOWS
    for place in range(2, length):
        ruled_B = _rule(ids_BT[:, place - 2])
        ids_BT[:, place] = torch.where(follows_BT[:, place], ruled_B, ids_BT[:, place])
    return ids_BT


def true_losses(ids_BT: Tensor) -> Tensor:
    """−log P of ids_BT[:, 1:] by the source itself, given what stands before: [B, T − 1], in nats."""
    by_chance = (1 - _FOLLOWS) / VOCAB_SIZE
    ruled_BT = ids_BT[:, 2:] == _rule(ids_BT[:, :-2])
    losses_BT = torch.full(ids_BT[:, 1:].shape, math.log(VOCAB_SIZE))
    losses_BT[:, 1:] = torch.where(ruled_BT, -math.log(_FOLLOWS + by_chance), -math.log(by_chance))
    return losses_BT


def entropy() -> float:
    """Nats a symbol, once two are known."""
    by_chance = (1 - _FOLLOWS) / VOCAB_SIZE
    ruled = _FOLLOWS + by_chance
    return -ruled * math.log(ruled) - (VOCAB_SIZE - 1) * by_chance * math.log(by_chance)


def _rule(ids: Tensor) -> Tensor:
    return (5 * ids + 3) % VOCAB_SIZE
