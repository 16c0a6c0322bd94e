"""Marian (Junczys-Dowmunt et al. 2018), as `MarianMTModel` stores it: the Transformer of the paper with all biases.

Weights and config alone: a Marian folder's tokenizers are SentencePiece files, which are not read here. Its decoder
begins a text with the padding id, ours with BOS; which id begins is said when a model is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mingyue.config import EncoderDecoderConfig
from mingyue.errors import InteropError
from mingyue.interop.mapping import (
    OUTPUT,
    Family,
    Json,
    Setting,
    TensorRule,
    key_value_rows,
    query_key_value_rows,
)
from mingyue.nn import sinusoid_table

_ACTIVATIONS = {
    "swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh", "relu2": "relu2",
}  # fmt: skip
_SINUSOIDS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
_SOURCE, _TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
_LOGITS_BIAS = "final_logits_bias"


def _one_vocabulary(config: EncoderDecoderConfig) -> bool:
    return config.source_vocab_size is None


def _sublayer(ours: str, theirs: str) -> tuple[TensorRule, ...]:
    """Weight and bias of one linear layer or norm in every block; `theirs` is stack, and name in the layer."""
    stack, name = theirs.split(".", 1)
    return tuple(
        TensorRule(f"{stack}.blocks.{{i}}.{ours}.{kind}", f"model.{stack}.layers.{{i}}.{name}.{kind}")
        for kind in ("weight", "bias")
    )


def _self_attention(stack: str) -> tuple[TensorRule, ...]:
    qkv = tuple(
        TensorRule(
            f"{stack}.blocks.{{i}}.attention.qkv.{kind}",
            tuple(f"model.{stack}.layers.{{i}}.self_attn.{one}_proj.{kind}" for one in "qkv"),
            rows=query_key_value_rows,
        )
        for kind in ("weight", "bias")
    )
    return (*qkv, *_sublayer("attention.output", f"{stack}.self_attn.out_proj"))


def _block(stack: str) -> tuple[TensorRule, ...]:
    return (
        *_self_attention(stack),
        *_sublayer("attention_norm", f"{stack}.self_attn_layer_norm"),
        *_sublayer("feedforward.inner", f"{stack}.fc1"),
        *_sublayer("feedforward.output", f"{stack}.fc2"),
        *_sublayer("feedforward_norm", f"{stack}.final_layer_norm"),
    )


def _cross_attention() -> tuple[TensorRule, ...]:
    key_value = tuple(
        TensorRule(
            f"decoder.blocks.{{i}}.cross_attention.key_value.{kind}",
            tuple(f"model.decoder.layers.{{i}}.encoder_attn.{one}_proj.{kind}" for one in "kv"),
            rows=key_value_rows,
        )
        for kind in ("weight", "bias")
    )
    return (
        *_sublayer("cross_attention.query", "decoder.encoder_attn.q_proj"),
        *key_value,
        *_sublayer("cross_attention.output", "decoder.encoder_attn.out_proj"),
        *_sublayer("cross_attention_norm", "decoder.encoder_attn_layer_norm"),
    )


def _read_more(theirs: Json) -> dict[str, Any]:
    for one, other in (("encoder_attention_heads", "decoder_attention_heads"), ("encoder_ffn_dim", "decoder_ffn_dim")):
        if one in theirs and theirs.get(other, theirs[one]) != theirs[one]:
            raise InteropError(
                f"config.json: {one} is {theirs[one]}, {other} {theirs[other]}; stacks of one shape are understood"
            )
    if theirs.get("share_encoder_decoder_embeddings", True):
        if theirs.get("tie_word_embeddings", True) is False:
            raise InteropError(
                "config.json: share_encoder_decoder_embeddings is true and tie_word_embeddings false; "
                "one table for all three places is understood, or one for each text"
            )
        return {"vocab_size": theirs.get("vocab_size"), "source_vocab_size": None}
    source = theirs.get("vocab_size")
    return {"vocab_size": theirs.get("decoder_vocab_size") or source, "source_vocab_size": source}


def _write_more(config: EncoderDecoderConfig) -> dict[str, Any]:
    if config.d_model % config.n_heads:
        raise InteropError(
            f"marian cannot express d_model {config.d_model} with n_heads {config.n_heads}: it must divide"
        )
    shared = _one_vocabulary(config)
    if shared and not config.tied_output:
        raise InteropError("marian cannot express one vocabulary (source_vocab_size None) with tied_output False")
    return {
        "vocab_size": config.vocab_size if shared else config.source_vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": shared,
    }


MARIAN = Family(
    config_class=EncoderDecoderConfig,
    model_type="marian",
    architecture="MarianMTModel",
    prefix="model.",
    settings=(
        Setting("max_position_embeddings", "context", default=lambda _: 1024),
        Setting("d_model", "d_model"),
        Setting("encoder_layers", "n_encoder_layers"),
        Setting("decoder_layers", "n_layers"),
        Setting("encoder_attention_heads", "n_heads", also=("decoder_attention_heads",)),
        Setting("encoder_ffn_dim", "d_ff", also=("decoder_ffn_dim",)),
        Setting("activation_function", "feedforward", default=lambda _: "gelu", values=_ACTIVATIONS),
        Setting("scale_embedding", "embedding_scale", default=lambda _: False),
        Setting("tie_word_embeddings", "tied_output", default=lambda _: True),
        Setting("dropout", "dropout", default=lambda _: 0.1),
        Setting("attention_dropout", "attention_dropout", default=lambda _: 0.0),
    ),
    fixed={
        "positions": "sinusoidal",
        "sinusoid_layout": "halves",
        "n_kv_heads": lambda ours: ours["n_heads"],
        "d_head": lambda ours: ours["d_model"] // ours["n_heads"],
        "norm": "layer",
        "norm_eps": 1e-5,
        "norm_placement": "post",
        "final_norm": False,
        "qk_norm": False,
        "bias_qkv": True,
        "bias_output": True,
        "bias_feedforward": True,
        "output_bias": True,
    },
    required={
        "is_encoder_decoder": True,
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "quantization_config": None,
    },
    tensors=(
        TensorRule("embedding.weight", "model.shared.weight", when=_one_vocabulary),
        TensorRule("embedding.weight", _TARGET, when=lambda config: not _one_vocabulary(config)),
        TensorRule("source_embedding.weight", _SOURCE),
        *_block("encoder"),
        *_block("decoder"),
        *_cross_attention(),
        TensorRule("output.weight", OUTPUT),
        TensorRule("output.bias", _LOGITS_BIAS, wrapped=True),
    ),
    ignored=_SINUSOIDS,
    outside=(OUTPUT, _LOGITS_BIAS),
    copies=(OUTPUT, _SOURCE, _TARGET),
    read_more=_read_more,
    write_more=_write_more,
)


def marian_config(theirs: Json) -> EncoderDecoderConfig:
    """The config.json of a `MarianMTModel` → ours.

    Raises `InteropError` naming the key that is missing or not understood: another model, stacks with different heads
    or inner widths, an output layer of its own beside one table for both texts.
    """
    if theirs.get("model_type") != MARIAN.model_type:
        raise InteropError(f"config.json: model_type is {theirs.get('model_type')!r}, not {MARIAN.model_type!r}")
    return MARIAN.read_config(theirs)


def from_marian(theirs: Json, tensors: Mapping[str, Tensor]) -> tuple[EncoderDecoderConfig, dict[str, Tensor]]:
    """The config.json and tensors of a `MarianMTModel` → (config, state of an `EncoderDecoder(config)`, fp32).

    Raises `InteropError` naming the first key or tensor that is missing, not expected or not understood.
    """
    config = marian_config(theirs)
    for name in _SINUSOIDS:  # older files hold the fixed table; one that was trained would be another model
        if name in tensors:
            expected = sinusoid_table(config.context, config.d_model, config.sinusoid_layout)
            stored = tensors[name].float().cpu()
            if stored.shape != expected.shape or not torch.allclose(stored, expected, atol=0.01):
                raise InteropError(f"tensor {name} {list(stored.shape)} is not the table of sinusoids")
    return config, MARIAN.read_tensors(config, tensors)


def to_marian(
    config: EncoderDecoderConfig, state: Mapping[str, Tensor], *, pad_id: int, start_id: int, eos_id: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(config, state of an `EncoderDecoder(config)`) → the config.json and tensors of a `MarianMTModel`: the inverse.

    `start_id` is the first token of every target (BOS in a model that was trained here), `eos_id` the last one of
    source and target. Raises `InteropError` naming the setting that Marian cannot express (norms with another epsilon
    than 1e-5, no biases …), or the first tensor that does not fit.
    """
    theirs = MARIAN.write_config(config)
    tensors = MARIAN.write_tensors(config, state)
    theirs |= {
        "torch_dtype": str(state["embedding.weight"].dtype).removeprefix("torch."),
        "pad_token_id": pad_id,
        "bos_token_id": None,
        "eos_token_id": eos_id,
        "decoder_start_token_id": start_id,
        "forced_eos_token_id": None,
    }
    return theirs, tensors
