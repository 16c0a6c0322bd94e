"""Creates models of both architectures from their configs."""

from __future__ import annotations

from typing import overload

from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.models.decoder_only import DecoderOnly
from mingyue.models.encoder_decoder import EncoderDecoder
from mingyue.models.initialise import initialise

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
    model = make_model(config)
    initialise(model, seed=seed)
    return model
