"""A source with known probabilities: a symbol mostly follows from the one two positions before it.

The symbol just before says nothing, so a model has to know which token is two back: it needs positions and nothing far
away. A model that has learned this loses nothing in texts of any length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mingyue.claims.claim import Number, Table
from mingyue.claims.embeddings.texts import token_losses
from mingyue.claims.training import fit, next_token_loss
from mingyue.models import DecoderOnly
from mingyue.runtime import derive_seed

VOCAB_SIZE = 16
_FOLLOWS = 0.8
"""Share of the symbols that follow from the rule; the others are drawn uniformly."""


def two_back(rows: int, length: int, seed: int, purpose: str = "text", number: int = 0) -> Tensor:
    """ids_BT: x[t] = 5 · x[t − 2] + 3 modulo 16 with probability 0.8, else any symbol. A pure function."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "two back", purpose, number))
    ids_BT = torch.randint(VOCAB_SIZE, (rows, length), generator=generator)
    follows_BT = torch.rand(rows, length, generator=generator) < _FOLLOWS
    for position in range(2, length):
        ruled_B = _rule(ids_BT[:, position - 2])
        ids_BT[:, position] = torch.where(follows_BT[:, position], ruled_B, ids_BT[:, position])
    return ids_BT


def true_losses(ids_BT: Tensor) -> Tensor:
    """−log P of ids_BT[:, 1:] by the source itself, given the symbols before: [B, T − 1], in nats."""
    by_chance = (1 - _FOLLOWS) / VOCAB_SIZE
    ruled_BT = ids_BT[:, 2:] == _rule(ids_BT[:, :-2])
    losses_BT = torch.full(ids_BT[:, 1:].shape, math.log(VOCAB_SIZE))
    losses_BT[:, 1:] = torch.where(ruled_BT, -math.log(_FOLLOWS + by_chance), -math.log(by_chance))
    return losses_BT


def entropy() -> float:
    """Entropy in nats per symbol, from the third on."""
    by_chance = (1 - _FOLLOWS) / VOCAB_SIZE
    ruled = _FOLLOWS + by_chance
    return -ruled * math.log(ruled) - (VOCAB_SIZE - 1) * by_chance * math.log(by_chance)


def train(model: DecoderOnly, length: int, *, rows: int, steps: int, seed: int) -> None:
    """Trains on `rows` texts of `length` tokens a step."""

    def batch(step: int) -> Tensor:
        return two_back(rows, length + 1, seed, "training", step)

    fit(model, batch, next_token_loss, steps=steps, learning_rate=5e-3, seed=seed)


def excess(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
    """Mean loss by position, less that of the source itself: [T − 1], in nats."""
    return (token_losses(model, ids_BT) - true_losses(ids_BT)).mean(dim=0)


def curve(losses: Sequence[Tensor], width: int, **columns: str) -> Table:
    """Rows of a figure from losses by position (one tensor for each seed): their means over `width` positions."""
    return [
        Number.mean([float(loss_T[start : start + width].mean()) for loss_T in losses]).row(
            **columns, position=start + width / 2
        )
        for start in range(0, len(losses[0]), width)
    ]


def _rule(ids: Tensor) -> Tensor:
    return (5 * ids + 3) % VOCAB_SIZE
