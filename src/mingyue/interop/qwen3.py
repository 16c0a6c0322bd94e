"""Qwen3 (Yang et al. 2025), as `Qwen3ForCausalLM` stores it: Llama with QK-norm and a separate head width."""

from __future__ import annotations

from typing import Any

from mingyue.config import ModelConfig
from mingyue.errors import InteropError
from mingyue.interop.llama import ROTARY_FIXED, ROTARY_SETTINGS, ROTARY_TENSORS
from mingyue.interop.mapping import Family, Json, Setting, TensorRule
from mingyue.interop.rotary import read_rotary, write_rotary
from mingyue.words import tr

_FULL, _SLIDING = "full_attention", "sliding_attention"


def _read_more(theirs: Json) -> dict[str, Any]:
    n_layers = theirs["num_hidden_layers"]
    window = theirs.get("sliding_window") if theirs.get("use_sliding_window") else None
    first = theirs.get("max_window_layers", 28)  # first layer with the window
    kinds = theirs.get("layer_types") or [_SLIDING if window and i >= first else _FULL for i in range(n_layers)]
    if len(set(kinds)) > 1:
        raise InteropError(
            tr("config.json: layer_types mixes full and sliding attention; all layers must have the same kind")
        )
    return {**read_rotary(theirs), "window": window if kinds[0] == _SLIDING else None}


def _write_more(config: ModelConfig) -> dict[str, Any]:
    kind = _FULL if config.window is None else _SLIDING
    return {
        **write_rotary(config),
        "use_sliding_window": config.window is not None,
        "sliding_window": config.window,
        "max_window_layers": 0 if config.window else config.n_layers,
        "layer_types": [kind] * config.n_layers,
    }


QWEN3 = Family(
    config_class=ModelConfig,
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    prefix="model.",
    settings=(*ROTARY_SETTINGS, Setting("head_dim", "d_head", default=lambda _: 128)),
    fixed={**ROTARY_FIXED, "qk_norm": True, "bias_feedforward": False},
    required={"quantization_config": None},
    tensors=(
        *ROTARY_TENSORS,
        TensorRule("blocks.{i}.attention.query_norm.weight", "model.layers.{i}.self_attn.q_norm.weight"),
        TensorRule("blocks.{i}.attention.key_norm.weight", "model.layers.{i}.self_attn.k_norm.weight"),
    ),
    read_more=_read_more,
    write_more=_write_more,
)
