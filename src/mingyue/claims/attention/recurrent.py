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


def forget_slowly(net: Recurrent, longest: int | None, seed: int) -> None:
    """Sets the initial biases of an LSTM's gates so that its cells keep what they hold.

    Without `longest` the bias of the forget gates is 1 (Gers et al. 2000, Jozefowicz et al. 2015): a cell keeps it for
    about four steps. With `longest` each cell has its own time, spread up to that many steps, and takes in as slowly
    as it forgets (chrono initialisation, Tallec & Ollivier 2018).
    """
    width = net.recurrent.hidden_size
    into, state = (net.recurrent.get_parameter(f"bias_{side}_l0") for side in ("ih", "hh"))
    draw = torch.Generator().manual_seed(derive_seed(seed, "gates"))
    with torch.no_grad():  # PyTorch's order of the gates: input, forget, cell, output
        state[width : 2 * width] = 0.0
        if longest is None:
            into[width : 2 * width] = 1.0
            return
        slow_H = (1 + (longest - 2) * torch.rand(width, generator=draw)).log()
        state[:width] = 0.0
        into[:width], into[width : 2 * width] = -slow_H, slow_H


def parameters_of(module: nn.Module) -> int:
    """The number of trained parameters."""
    return sum(weight.numel() for weight in module.parameters())
