"""Creates models of both architectures from their configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch.overrides import TorchFunctionMode

from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.models.decoder_only import DecoderOnly
from mingyue.models.encoder_decoder import EncoderDecoder
from mingyue.models.initialisation import initialise

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
    model = empty_model(config)
    initialise(model, seed=seed)
    return model


@overload
def empty_model(config: ModelConfig, device: torch.device | str = "cpu") -> DecoderOnly: ...


@overload
def empty_model(config: EncoderDecoderConfig, device: torch.device | str = "cpu") -> EncoderDecoder: ...


@overload
def empty_model(config: TransformerConfig, device: torch.device | str = "cpu") -> Transformer: ...


def empty_model(config: TransformerConfig, device: torch.device | str = "cpu") -> Transformer:
    """A model on `device` whose weights have no values yet.

    PyTorch's own initial weights would be drawn from the random numbers of the whole process, and take time.
    """
    with torch.device(device), _NoInitialisation():
        return make_model(config)


class _NoInitialisation(TorchFunctionMode):
    """Inside it, in this thread, the functions of `torch.nn.init` leave their tensor as it is."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401  (as PyTorch declares it)
        given = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)


def table_bytes(config: TransformerConfig) -> int:
    """Peak memory of computing the tables of `config` that are not weights: in double, angle, cosine and sine."""
    width = {"rotary": config.d_head, "sinusoidal": config.d_model}.get(config.positions, 0)
    return 3 * 8 * config.context * width
