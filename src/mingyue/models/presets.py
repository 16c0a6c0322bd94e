"""Presets and `depth`: from the user's settings to a complete `ModelConfig`."""

from __future__ import annotations

from typing import Any

from mingyue.config import EncoderDecoderConfig, ModelConfig, ModelSettings, SizeSettings
from mingyue.errors import SettingsError
from mingyue.words import tr

# Each preset is the published architecture of its family; sizes come from `depth`.
_PRESETS: dict[str, dict[str, Any]] = {
    # Qwen3 (Yang et al. 2025): rotary in halves, RMSNorm, QK-norm, SwiGLU, no biases.
    "modern": {"positions": "rotary", "feedforward": "swiglu", "norm": "rms", "qk_norm": True},
    # Reaches a loss soonest on a CPU: LayerNorm has one fused kernel there, squared ReLU has two matrices for SwiGLU's
    # three, and an untied output layer learns faster than a tied one.
    "speed": {"positions": "rotary", "feedforward": "relu2", "norm": "layer", "qk_norm": True, "tied_output": False},
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
# "Attention Is All You Need", sections 3 and 5.4, and table 3. What the paper does not specify is as in its own code,
# tensor2tensor: norms with an epsilon of 1e-6, attention without biases, Xavier initialisation.
_PAPER: dict[str, Any] = {
    "positions": "sinusoidal",
    "feedforward": "relu",
    "norm": "layer",
    "norm_placement": "post",
    "final_norm": False,
    "bias_feedforward": True,
    "embedding_scale": True,
    "initialisation": "xavier",
}
_PAIR_PRESETS: dict[str, dict[str, Any]] = {
    "paper-base": {**_PAPER, "d_model": 512, "n_layers": 6, "n_heads": 8, "dropout": 0.1},
    "paper-big": {**_PAPER, "d_model": 1024, "n_layers": 6, "n_heads": 16, "dropout": 0.3},
    # The paper's model at the size of a small corpus, but with norms before the sub-layers (it takes a high rate from
    # the first step), and the dropout that 30,000 pairs need.
    "translate-small": {
        **_PAPER,
        "d_model": 192,
        "n_layers": 3,
        "n_heads": 6,
        "norm_placement": "pre",
        "final_norm": True,
        "dropout": 0.3,
    },
}
_GATED = ("swiglu",)
_OWN_BASE, _LEAST_BASE = ("modern", "speed"), 100
"""With a base as large as the context even the slowest pair rotates by a radian or two over a text: at contexts of 64
to 128 that learns faster than 10,000, at which most pairs hardly rotate at all."""


def resolve_config(settings: ModelSettings, *, vocab_size: int, depth: int, context: int) -> ModelConfig:
    """The complete config: preset first, then `depth`, then every setting given explicitly.

    `depth` gives that many layers, a width of 64 · depth and heads of 64 (32 up to a width of 256, 16 up to
    128): nanochat's ratio of width to depth. Raises `SettingsError` when sizes contradict each other.
    """
    preset = settings.preset or "modern"
    if preset not in _PRESETS:
        raise SettingsError(
            tr("preset {preset} is an encoder-decoder model, which is trained on pairs", preset),
            advice=tr("Give pairs (--source and --target), or one of {presets}.", ", ".join(_PRESETS)),
        )
    if settings.n_encoder_layers is not None:
        raise SettingsError(tr("a decoder-only model has no encoder: leave --n-encoder-layers out"))
    values: dict[str, Any] = _PRESETS[preset] | _given(settings)
    if preset in _OWN_BASE:
        values.setdefault("rotary_base", float(max(_LEAST_BASE, context)))
    d_model = settings.d_model or 64 * depth
    d_head = settings.d_head or _head_of(d_model, settings.n_heads)
    n_heads = settings.n_heads or max(1, d_model // d_head)
    n_kv_heads = settings.n_kv_heads or (_grouped(n_heads) if preset == "llama" else n_heads)
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
    return ModelConfig.read(values, source=tr("the model settings"))


def resolve_pair_config(
    settings: ModelSettings, *, vocab_size: int, source_vocab_size: int | None, context: int
) -> EncoderDecoderConfig:
    """The complete config of an encoder-decoder model: preset first, then every setting given explicitly.

    `source_vocab_size`: of a source side with its own tokenizer; None = one vocabulary. Raises `SettingsError` when
    sizes contradict each other, and for a preset or a setting of the other architecture.
    """
    preset = settings.preset or "translate-small"
    if preset not in _PAIR_PRESETS:
        raise SettingsError(
            tr("preset {preset} is a decoder-only model, which is trained on text, not on pairs", preset),
            advice=tr("Give one of {pair_presets}.", ", ".join(_PAIR_PRESETS)),
        )
    if settings.window is not None:
        raise SettingsError(tr("a sliding window is for decoder-only models: leave --window out"))
    values: dict[str, Any] = _PAIR_PRESETS[preset] | _given(settings)
    d_model = settings.d_model or (64 * settings.depth if settings.depth else values["d_model"])
    kept = d_model == values["d_model"]
    n_heads = settings.n_heads or (values["n_heads"] if kept else None)
    d_head = settings.d_head or _head_of(d_model, n_heads)
    n_heads = n_heads or max(1, d_model // d_head)
    n_layers = settings.n_layers or settings.depth or values["n_layers"]
    gated = values["feedforward"] in _GATED
    values |= {
        "vocab_size": vocab_size,
        "source_vocab_size": source_vocab_size,
        "context": context,
        "d_model": d_model,
        "n_layers": n_layers,
        "n_encoder_layers": settings.n_encoder_layers or n_layers,
        "n_heads": n_heads,
        "n_kv_heads": settings.n_kv_heads or n_heads,
        "d_head": d_head,
        "d_ff": settings.d_ff or (_round_up(8 * d_model // 3, 32) if gated else 4 * d_model),
    }
    return EncoderDecoderConfig.read(values, source=tr("the model settings"))


def preset_parts(settings: ModelSettings, *, of_pairs: bool) -> dict[str, Any]:
    """The parts of the preset (none, if it is one of the other kind of run), and over them those that were given."""
    presets, default = (_PAIR_PRESETS, "translate-small") if of_pairs else (_PRESETS, "modern")
    return presets.get(settings.preset or default, {}) | _given(settings)


def default_head(d_model: int) -> int:
    """Default width of a head for a model width: narrow models get narrower heads, so that they have several."""
    return 64 if d_model > 256 else 32 if d_model > 128 else 16


def _given(settings: ModelSettings) -> dict[str, Any]:
    """The kinds of parts that were given: every model setting that is not a size."""
    parts = [name for name in type(settings).model_fields if name not in SizeSettings.model_fields]
    return {name: value for name in parts if (value := getattr(settings, name)) is not None}


def _head_of(d_model: int, n_heads: int | None) -> int:
    if n_heads is None:
        return default_head(d_model)
    if d_model % n_heads:
        raise SettingsError(
            tr("the model settings: d_model {d_model} is not a multiple of n_heads {n_heads}", d_model, n_heads),
            advice=tr("Change one of them, or give d_head, the width of a head."),
        )
    return d_model // n_heads


def _grouped(n_heads: int) -> int:
    """A quarter as many key-value heads where that divides, else half, else all."""
    return next(n_heads // group for group in (4, 2, 1) if n_heads % group == 0)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
