"""Initial weights, each with its source. A pure function of the config and a seed."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mingyue.config import EncoderDecoderConfig, PartsConfig
from mingyue.models.decoder_only import DecoderOnly
from mingyue.models.encoder_decoder import EncoderDecoder

Put = Callable[[Tensor, Tensor], object]
"""Copies its second argument, a whole weight, into its first, a parameter."""

_RESIDUAL_OUTPUTS = ("attention.output.weight", "feedforward.output.weight")
_TABLES = ("embedding.weight", "positions.table")


def initialise(model: DecoderOnly | EncoderDecoder, *, seed: int, put: Put = Tensor.copy_) -> None:
    """Fill every weight in place, in alphabetical order of names; gains become 1 and biases 0.

    gpt2 (Radford et al. 2019, section 2.3): all matrices N(0, 0.02²); those that add to the residual stream are divided
    by the square root of their number. zero-output (the idea of Fixup, Zhang et al. 2019, and of µP practice): matrices
    N(0, 1/fan_in); those that add to the residual stream and an untied output layer are 0, so that every block starts
    as the identity and the first prediction is uniform. xavier (Glorot & Bengio 2010): matrices
    U(±√(6 / (fan_in + fan_out))), Q, K and V separately; embeddings N(0, 1/d_model), so that after the paper's factor
    √d_model they have variance 1.

    `put` copies a whole weight into a parameter, which may be a shard of it.
    """
    config = model.config
    generator = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.named_parameters()):
        with torch.no_grad():
            if weight.ndim < 2:
                weight.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            elif config.initialisation == "gpt2":
                residual = name.endswith(_RESIDUAL_OUTPUTS)
                _normal(weight, 0.02 / math.sqrt(_residual_writers(name, config)) if residual else 0.02, generator, put)
            elif config.initialisation == "xavier":
                if name.endswith(_TABLES) or name == "output.weight":
                    _normal(weight, config.d_model**-0.5, generator, put)
                else:
                    _xavier(weight, _fan_out(name, weight, config), generator, put)
            elif name.endswith(_RESIDUAL_OUTPUTS) or name == "output.weight":
                nn.init.zeros_(weight)
            elif name.endswith(_TABLES):
                _normal(weight, 0.02, generator, put)
            else:
                _normal(weight, 1 / math.sqrt(weight.shape[1]), generator, put)


def _residual_writers(name: str, config: PartsConfig) -> int:
    """Number of sub-layers that add to the same residual stream as this weight."""
    if isinstance(config, EncoderDecoderConfig):
        return 2 * config.n_encoder_layers if name.startswith("encoder.") else 3 * config.n_layers
    return 2 * config.n_layers


def _fan_out(name: str, weight: Tensor, config: PartsConfig) -> int:
    """Rows of one matrix, where a weight holds several."""
    if name.endswith("attention.qkv.weight"):
        return config.n_heads * config.d_head
    if name.endswith("attention.key_value.weight"):
        return config.n_kv_heads * config.d_head
    if name.endswith("feedforward.inner.weight"):
        return config.d_ff
    return weight.shape[0]


def _xavier(weight: Tensor, fan_out: int, generator: torch.Generator, put: Put) -> None:
    bound = math.sqrt(6 / (weight.shape[1] + fan_out))
    put(weight, torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))


def _normal(weight: Tensor, std: float, generator: torch.Generator, put: Put) -> None:
    # Drawn on the CPU for every device, so that a seed gives the same weights everywhere.
    put(weight, torch.empty(weight.shape).normal_(std=std, generator=generator))
