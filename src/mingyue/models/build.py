"""Creates models of both architectures from their configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import overload

import torch
from torch import Tensor

from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.models.decoder_only import DecoderOnly
from mingyue.models.encoder_decoder import EncoderDecoder
from mingyue.models.initialise import initialise
from mingyue.models.parts import make_positions
from mingyue.nn import Positions

Transformer = DecoderOnly | EncoderDecoder
TransformerConfig = ModelConfig | EncoderDecoderConfig


@overload
def make_model(config: ModelConfig) -> DecoderOnly: ...


@overload
def make_model(config: EncoderDecoderConfig) -> EncoderDecoder: ...


def make_model(config: TransformerConfig) -> Transformer:
    """The modules of a config, not initialised."""
    return DecoderOnly(config) if isinstance(config, ModelConfig) else EncoderDecoder(config)


@overload
def build_model(config: ModelConfig, *, seed: int) -> DecoderOnly: ...


@overload
def build_model(config: EncoderDecoderConfig, *, seed: int) -> EncoderDecoder: ...


def build_model(config: TransformerConfig, *, seed: int) -> Transformer:
    """A new model; its initial weights are a pure function of `config` and `seed`."""
    model = _without_numbers(config)
    model.to_empty(device="cpu")
    _compute_tables(model, "cpu")
    initialise(model, seed=seed)
    return model


@overload
def model_of(config: ModelConfig, weights: Mapping[str, Tensor], *, device: torch.device | str) -> DecoderOnly: ...


@overload
def model_of(
    config: TransformerConfig, weights: Mapping[str, Tensor], *, device: torch.device | str
) -> Transformer: ...


def model_of(config: TransformerConfig, weights: Mapping[str, Tensor], *, device: torch.device | str) -> Transformer:
    """A model in evaluation mode that takes the tensors of `weights`, all of its `state_dict()`, for its own."""
    model = _without_numbers(config)
    model.load_state_dict({name: weight.to(device) for name, weight in weights.items()}, strict=True, assign=True)
    _compute_tables(model, device)
    return model.eval()


def _without_numbers(config: TransformerConfig) -> Transformer:
    """The modules on the meta device: PyTorch would draw their weights from the random numbers of the whole process."""
    with torch.device("meta"):
        return make_model(config)


def _compute_tables(model: Transformer, device: torch.device | str) -> None:
    """Compute the tables that are not weights (rotary angles, sinusoids) on `device`."""
    for module in model.modules():
        if isinstance(module, Positions) and list(module.buffers(recurse=False)):
            with torch.device(device):
                fresh = make_positions(model.config)
            for name, table in fresh.named_buffers(recurse=False):
                module.register_buffer(name, table, persistent=False)


def table_bytes(config: TransformerConfig) -> int:
    """Peak memory of computing the tables of `config` that are not weights: in double, angle, cosine and sine."""
    width = {"rotary": config.d_head, "sinusoidal": config.d_model}.get(config.positions, 0)
    return 3 * 8 * config.context * width
