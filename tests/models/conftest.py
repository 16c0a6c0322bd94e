"""Small models whose weights are large enough that every part matters to the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.models import DecoderOnly, EncoderDecoder, Transformer, build_model

SMALL = {
    "vocab_size": 23,
    "context": 24,
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "d_head": 6,
    "d_ff": 20,
}


Model = TypeVar("Model", bound=Transformer)


def enliven(model: Model, seed: int = 0) -> Model:
    """Every weight random, gains around 1, biases not 0: attention is far from uniform, logits are some units wide."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):  # whatever order the modules register them in
            noise = torch.randn(weight.shape, generator=generator)
            gain = name.endswith("norm.weight")
            scale = 0.3 if gain or weight.ndim == 1 else 1.5 / weight.shape[1] ** 0.5
            weight.copy_(noise * scale + (1.0 if gain else 0.0))
    return model.eval()


@pytest.fixture
def lively() -> Callable[..., DecoderOnly]:
    """`lively(**changes)`: a small model in eval mode; `changes` are fields of ModelConfig."""

    def make(seed: int = 0, **changes) -> DecoderOnly:
        return enliven(build_model(ModelConfig(**{**SMALL, **changes}), seed=seed), seed)

    return make


@pytest.fixture
def translator() -> Callable[..., EncoderDecoder]:
    """`translator(**changes)`: the same with an encoder of 3 blocks; `changes` are fields of EncoderDecoderConfig."""

    def make(seed: int = 0, **changes) -> EncoderDecoder:
        config = EncoderDecoderConfig(**{**SMALL, "n_encoder_layers": 3, **changes})
        return enliven(build_model(config, seed=seed), seed)

    return make


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield
