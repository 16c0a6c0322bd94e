"""Tiny random models of both sides, lively enough that a wrong weight shows in the logits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mingyue.config import ModelConfig
from mingyue.models import DecoderOnly, build_model

SMALL = {
    "vocab_size": 31, "context": 20, "d_model": 24, "n_layers": 2, "n_heads": 4, "n_kv_heads": 4, "d_head": 6,
    "d_ff": 40,
}  # fmt: skip
SHAPES = {
    "gpt2": {
        "positions": "learned", "norm": "layer", "norm_eps": 1e-5, "feedforward": "gelu-tanh", "bias_qkv": True,
        "bias_output": True, "bias_feedforward": True,
    },
    "llama": {"n_kv_heads": 2, "tied_output": False, "rotary_base": 5000.0},
    "qwen3": {"qk_norm": True, "n_kv_heads": 2, "d_head": 10},
}  # fmt: skip


@torch.no_grad()
def stir(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Random weights of a size that matters everywhere: gains around 1, biases not 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.named_parameters()):
        noise = torch.randn(weight.shape, generator=generator)
        gain = weight.ndim == 1 and name.endswith("weight")
        weight.copy_(1 + 0.3 * noise if gain else 0.3 * noise)
    return model.eval()


@pytest.fixture
def ours() -> Callable[..., DecoderOnly]:
    """`ours(family, **changes)`: a model that the family can express, unless the changes prevent it."""

    def make(family: str, **changes) -> DecoderOnly:
        config = ModelConfig(**{**SMALL, **SHAPES[family], **changes})
        return stir(build_model(config, seed=1))

    return make


@pytest.fixture
def stirred() -> Callable[[torch.nn.Module], torch.nn.Module]:
    return stir


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield
