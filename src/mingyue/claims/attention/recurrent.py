"""Recurrent nets to compare with: PyTorch's own, with a table of words before them and the same table after them."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.runtime import derive_seed

Kind = Literal["tanh", "lstm"]
_GATES = {"tanh": 1, "lstm": 4}


class Recurrent(nn.Module):
    """ids_BT → logits_BTV, one word after another: embedding, `nn.RNN` (tanh) or `nn.LSTM`, projection, tied output."""

    def __init__(self, kind: Kind, vocab_size: int, d_model: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        part = nn.RNN if kind == "tanh" else nn.LSTM
        self.recurrent = part(d_model, hidden, batch_first=True)
        self.projection = nn.Linear(hidden, d_model)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """The logits of the next word at each place."""
        return self.read(self.embedding(ids_BT))

    def read(self, x_BTM: Tensor) -> Tensor:
        """The same from embeddings."""
        hidden_BTH, _ = self.recurrent(x_BTM)
        return F.linear(self.projection(hidden_BTH), self.embedding.weight)


def recurrent(kind: Kind, vocab_size: int, d_model: int, parameters: int, seed: int) -> Recurrent:
    """A net whose number of parameters is the nearest to `parameters`, with PyTorch's initial weights.

    Embeddings begin at 1/√M, as large as a tied output layer takes them.
    """

    def count(hidden: int) -> int:
        cell = _GATES[kind] * (hidden * hidden + hidden * d_model + 2 * hidden)
        return vocab_size * d_model + cell + hidden * d_model + d_model

    hidden = min(range(1, 2048), key=lambda width: abs(count(width) - parameters))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "recurrent"))
        net = Recurrent(kind, vocab_size, d_model, hidden)
        nn.init.normal_(net.embedding.weight, std=d_model**-0.5)
    return net


def parameters_of(module: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(weight.numel() for weight in module.parameters())
