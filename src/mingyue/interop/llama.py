"""Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024), as `LlamaForCausalLM` stores it."""

from __future__ import annotations

from typing import Any

from mingyue.config import ModelConfig
from mingyue.interop.mapping import (
    Family,
    Setting,
    TensorRule,
    check_width_divides,
    gate_up_rows,
    query_key_value_rows,
    weight_and_bias,
)
from mingyue.interop.rotary import read_rotary, write_rotary

ROTARY_SETTINGS = (
    Setting("vocab_size", "vocab_size"),
    Setting("max_position_embeddings", "context"),
    Setting("hidden_size", "d_model"),
    Setting("num_hidden_layers", "n_layers"),
    Setting("num_attention_heads", "n_heads"),
    Setting("num_key_value_heads", "n_kv_heads", default=lambda theirs: theirs["num_attention_heads"]),
    Setting("intermediate_size", "d_ff"),
    Setting("hidden_act", "feedforward", default=lambda _: "silu", values={"silu": "swiglu"}),
    Setting("rms_norm_eps", "norm_eps", default=lambda _: 1e-6),
    Setting("attention_bias", ("bias_qkv", "bias_output"), default=lambda _: False),
    Setting("attention_dropout", "attention_dropout", default=lambda _: 0.0),
    Setting("tie_word_embeddings", "tied_output", default=lambda _: False),
)
"""Settings that Llama and families of the same shape have in common."""

ROTARY_FIXED = {
    "positions": "rotary",
    "norm": "rms",
    "norm_placement": "pre",
    "final_norm": True,
    "embedding_scale": False,
}

_ATTENTION, _FEEDFORWARD = "model.layers.{i}.self_attn", "model.layers.{i}.mlp"

ROTARY_TENSORS = (
    TensorRule("embedding.weight", "model.embed_tokens.weight"),
    TensorRule("blocks.{i}.attention_norm.weight", "model.layers.{i}.input_layernorm.weight"),
    *weight_and_bias(
        "blocks.{i}.attention.qkv", *(f"{_ATTENTION}.{one}_proj" for one in "qkv"), rows=query_key_value_rows
    ),
    *weight_and_bias("blocks.{i}.attention.output", f"{_ATTENTION}.o_proj"),
    TensorRule("blocks.{i}.feedforward_norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
    *weight_and_bias(
        "blocks.{i}.feedforward.inner", f"{_FEEDFORWARD}.gate_proj", f"{_FEEDFORWARD}.up_proj", rows=gate_up_rows
    ),
    *weight_and_bias("blocks.{i}.feedforward.output", f"{_FEEDFORWARD}.down_proj"),
    TensorRule("final_norm.weight", "model.norm.weight"),
    TensorRule("output.weight", "lm_head.weight"),
)


def _write_more(config: ModelConfig) -> dict[str, Any]:
    check_width_divides("llama", config)
    return write_rotary(config)


LLAMA = Family(
    config_class=ModelConfig,
    model_type="llama",
    architecture="LlamaForCausalLM",
    prefix="model.",
    settings=(
        *ROTARY_SETTINGS,
        Setting("head_dim", "d_head", default=lambda theirs: theirs["hidden_size"] // theirs["num_attention_heads"]),
        Setting("mlp_bias", "bias_feedforward", default=lambda _: False),
    ),
    fixed={**ROTARY_FIXED, "qk_norm": False, "window": None},
    required={"quantization_config": None},
    tensors=ROTARY_TENSORS,
    ignored=("model.layers.*.self_attn.rotary_emb.inv_freq",),
    read_more=read_rotary,
    write_more=_write_more,
)
