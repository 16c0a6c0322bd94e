"""Presets and the one dial: from a person's settings to a complete `ModelConfig`."""

from __future__ import annotations

from typing import Any

from mingyue.config import ModelConfig, ModelSettings
from mingyue.errors import SettingsError

# Each preset is the published shape of its family; sizes come from the dial.
_PRESETS: dict[str, dict[str, Any]] = {
    # Qwen3 (Yang et al. 2025): rotary in halves, RMSNorm, QK-norm, SwiGLU, no biases.
    "modern": {"positions": "rotary", "rotary_base": 10000.0, "feedforward": "swiglu", "norm": "rms", "qk_norm": True},
    # Reaches a loss soonest on a small text: squared ReLU, blocks that start as the identity, and LayerNorm, which
    # has one fused kernel on CPUs where RMSNorm is made of several.
    "speed": {
        "positions": "rotary",
        "feedforward": "relu2",
        "norm": "layer",
        "qk_norm": True,
        "tied_output": False,
        "initialisation": "zero-output",
    },
    # GPT-2 (Radford et al. 2019): learned positions, LayerNorm, GELU (tanh form), biases, tied.
    "gpt2": {
        "positions": "learned",
        "feedforward": "gelu-tanh",
        "norm": "layer",
        "norm_eps": 1e-5,
        "bias_qkv": True,
        "bias_output": True,
        "bias_feedforward": True,
    },
    # Llama 2 and 3 (Touvron et al. 2023): rotary, RMSNorm, SwiGLU, grouped queries, no biases, untied.
    "llama": {"positions": "rotary", "feedforward": "swiglu", "norm": "rms", "norm_eps": 1e-5, "tied_output": False},
}
_GATED = ("swiglu",)
_PASSED_THROUGH = (
    "positions",
    "feedforward",
    "norm",
    "norm_placement",
    "qk_norm",
    "tied_output",
    "rotary_base",
    "window",
    "dropout",
    "attention_dropout",
)


def resolve_config(settings: ModelSettings, *, vocab_size: int, depth: int, context: int) -> ModelConfig:
    """The complete config: preset first, then the dial `depth`, then every setting given by itself.

    The dial gives `depth` layers, a width of 64 · depth and heads of 64 (32 up to a width of 256): the ratio of width
    to layers of nanochat's dial. Raises `SettingsError` when sizes contradict each other.
    """
    values: dict[str, Any] = dict(_PRESETS[settings.preset or "modern"])
    values |= {name: value for name in _PASSED_THROUGH if (value := getattr(settings, name)) is not None}
    d_model = settings.d_model or 64 * depth
    d_head = settings.d_head or _head_of(d_model, settings.n_heads)
    n_heads = settings.n_heads or max(1, d_model // d_head)
    n_kv_heads = settings.n_kv_heads or (_grouped(n_heads) if settings.preset == "llama" else n_heads)
    gated = values["feedforward"] in _GATED
    values |= {
        "vocab_size": vocab_size,
        "context": context,
        "d_model": d_model,
        "n_layers": settings.n_layers or depth,
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "d_head": d_head,
        # A gated part has three matrices where the paper's has two: 8/3 · d_model keeps the parameters equal.
        "d_ff": settings.d_ff or (_round_up(8 * d_model // 3, 32) if gated else 4 * d_model),
    }
    return ModelConfig.read(values, source="the model settings")


def default_head(d_model: int) -> int:
    """Width of a head for a model width, when none is given."""
    return 64 if d_model > 256 else 32


def _head_of(d_model: int, n_heads: int | None) -> int:
    if n_heads is None:
        return default_head(d_model)
    if d_model % n_heads:
        raise SettingsError(
            f"the model settings: d_model {d_model} is not a multiple of n_heads {n_heads}",
            advice="Change one of them, or give d_head, the width of a head.",
        )
    return d_model // n_heads


def _grouped(n_heads: int) -> int:
    """A quarter as many key-value heads where that divides, else half, else all."""
    return next(n_heads // group for group in (4, 2, 1) if n_heads % group == 0)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
