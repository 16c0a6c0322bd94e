"""Initial weights, each with its source. A pure function of the config and a seed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from mingyue.models.decoder_only import DecoderOnly

_RESIDUAL_OUTPUTS = ("attention.output.weight", "feedforward.output.weight")


def initialise(model: DecoderOnly, *, seed: int) -> None:
    """Fill every weight in place, in the order of its name; gains become 1 and biases 0.

    gpt2 (Radford et al. 2019, section 2.3): all matrices N(0, 0.02²); those that write into the residual stream are
    divided by √(2 · n_layers). zero-output (the idea of Fixup, Zhang et al. 2019, and of µP practice): matrices
    N(0, 1/fan_in), those that write into the residual stream and an untied output layer are 0, so that every block
    starts as the identity and the first prediction is uniform.
    """
    config = model.config
    generator = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.named_parameters()):
        with torch.no_grad():
            if weight.ndim < 2:
                weight.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            elif config.initialisation == "gpt2":
                residual = name.endswith(_RESIDUAL_OUTPUTS)
                _normal(weight, 0.02 / math.sqrt(2 * config.n_layers) if residual else 0.02, generator)
            elif name.endswith(_RESIDUAL_OUTPUTS) or name == "output.weight":
                nn.init.zeros_(weight)
            elif name in ("embedding.weight", "positions.table"):
                _normal(weight, 0.02, generator)
            else:
                _normal(weight, 1 / math.sqrt(weight.shape[1]), generator)


def _normal(weight: Tensor, std: float, generator: torch.Generator) -> None:
    # Drawn on the CPU whatever the device, so that a seed means the same weights everywhere.
    weight.copy_(torch.empty(weight.shape).normal_(std=std, generator=generator))
