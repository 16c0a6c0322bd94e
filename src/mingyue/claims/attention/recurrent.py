"""Recurrent nets to compare with: PyTorch's own, between a table of words and an output layer."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from mingyue.runtime import derive_seed

Kind = Literal["tanh", "lstm"]
_GATES = {"tanh": 1, "lstm": 4}


class Recurrent(nn.Module):
    """ids_BT → logits_BTV, one word after another: a table, `nn.RNN` (tanh) or `nn.LSTM`, an output layer of its own.

    All weights have PyTorch's default initialisation.
    """

    def __init__(self, kind: Kind, vocab_size: int, d_model: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        part = nn.RNN if kind == "tanh" else nn.LSTM
        self.recurrent = part(d_model, hidden, batch_first=True)
        self.output = nn.Linear(hidden, vocab_size)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """The logits of the next word at each position."""
        return self.read(self.embedding(ids_BT))

    def read(self, x_BTM: Tensor) -> Tensor:
        """The same from embeddings."""
        return self.output(self.recurrent(x_BTM)[0])


def recurrent(kind: Kind, vocab_size: int, d_model: int, parameters: int, seed: int) -> Recurrent:
    """A net whose number of parameters is the nearest to `parameters`."""

    def count(hidden: int) -> int:
        cell = _GATES[kind] * (hidden * hidden + hidden * d_model + 2 * hidden)
        return vocab_size * d_model + cell + (hidden + 1) * vocab_size

    hidden = min(range(1, 2048), key=lambda width: abs(count(width) - parameters))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "recurrent"))
        return Recurrent(kind, vocab_size, d_model, hidden)


def parameters_of(module: nn.Module) -> int:
    """The number of trained parameters."""
    return sum(weight.numel() for weight in module.parameters())
