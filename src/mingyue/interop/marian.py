"""Marian (Junczys-Dowmunt et al. 2018), as `MarianMTModel` stores it: the Transformer of the paper with all biases.

Weights and config only: the tokenizers of a Marian folder are SentencePiece files, which are not read. Its decoder
starts a text with the padding id, ours with BOS; the id is an argument when a model is written.
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
    check_width_divides,
    key_value_rows,
    query_key_value_rows,
    weight_and_bias,
)
from mingyue.nn import sinusoid_table
from mingyue.words import tr

_ACTIVATIONS = {
    "swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh", "relu2": "relu2",
}  # fmt: skip
_SINUSOIDS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
_SOURCE, _TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
_LOGITS_BIAS = "final_logits_bias"


def _one_vocabulary(config: EncoderDecoderConfig) -> bool:
    return config.source_vocab_size is None


def _block(stack: str) -> tuple[TensorRule, ...]:
    ours, theirs = f"{stack}.blocks.{{i}}", f"model.{stack}.layers.{{i}}"
    return (
        *weight_and_bias(
            f"{ours}.attention.qkv", *(f"{theirs}.self_attn.{one}_proj" for one in "qkv"), rows=query_key_value_rows
        ),
        *weight_and_bias(f"{ours}.attention.output", f"{theirs}.self_attn.out_proj"),
        *weight_and_bias(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm"),
        *weight_and_bias(f"{ours}.feedforward.inner", f"{theirs}.fc1"),
        *weight_and_bias(f"{ours}.feedforward.output", f"{theirs}.fc2"),
        *weight_and_bias(f"{ours}.feedforward_norm", f"{theirs}.final_layer_norm"),
    )


def _cross_attention() -> tuple[TensorRule, ...]:
    ours, theirs = "decoder.blocks.{i}.cross_attention", "model.decoder.layers.{i}.encoder_attn"
    return (
        *weight_and_bias(f"{ours}.query", f"{theirs}.q_proj"),
        *weight_and_bias(f"{ours}.key_value", f"{theirs}.k_proj", f"{theirs}.v_proj", rows=key_value_rows),
        *weight_and_bias(f"{ours}.output", f"{theirs}.out_proj"),
        *weight_and_bias(f"{ours}_norm", f"{theirs}_layer_norm"),
    )


def _read_more(theirs: Json) -> dict[str, Any]:
    for one, other in (("encoder_attention_heads", "decoder_attention_heads"), ("encoder_ffn_dim", "decoder_ffn_dim")):
        if one in theirs and theirs.get(other, theirs[one]) != theirs[one]:
            raise InteropError(
                tr(
                    "config.json: {one} is {theirs}, {other} {other_theirs}; stacks must have the same shape",
                    one,
                    theirs[one],
                    other,
                    theirs[other],
                )
            )
    if theirs.get("share_encoder_decoder_embeddings", True):
        if theirs.get("tie_word_embeddings", True) is False:
            raise InteropError(
                tr(
                    "config.json: share_encoder_decoder_embeddings is true and tie_word_embeddings "
                    "false; one table for all three uses is supported, or one for each side"
                )
            )
        return {"vocab_size": theirs.get("vocab_size"), "source_vocab_size": None}
    source = theirs.get("vocab_size")
    return {"vocab_size": theirs.get("decoder_vocab_size") or source, "source_vocab_size": source}


def _write_more(config: EncoderDecoderConfig) -> dict[str, Any]:
    check_width_divides("marian", config)
    shared = _one_vocabulary(config)
    if shared and not config.tied_output:
        raise InteropError(tr("marian cannot express one vocabulary (source_vocab_size None) with tied_output False"))
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
        TensorRule("output.bias", _LOGITS_BIAS, leading_axis=True),
    ),
    ignored=_SINUSOIDS,
    unprefixed=(OUTPUT, _LOGITS_BIAS),
    tied_names=(OUTPUT, _SOURCE, _TARGET),
    read_more=_read_more,
    write_more=_write_more,
)


def marian_config(theirs: Json) -> EncoderDecoderConfig:
    """The config.json of a `MarianMTModel` → ours.

    Raises `InteropError` naming the key that is missing or not supported: another model, stacks with different heads
    or inner widths, an untied output layer together with one table for both sides.
    """
    if theirs.get("model_type") != MARIAN.model_type:
        raise InteropError(
            tr(
                "config.json: model_type is {model_type!r}, not {wanted!r}",
                theirs.get("model_type"),
                MARIAN.model_type,
            )
        )
    return MARIAN.read_config(theirs)


def from_marian(theirs: Json, tensors: Mapping[str, Tensor]) -> tuple[EncoderDecoderConfig, dict[str, Tensor]]:
    """The config.json and tensors of a `MarianMTModel` → (config, state of an `EncoderDecoder(config)`, fp32).

    Raises `InteropError` naming the first key or tensor that is missing, unexpected or not supported.
    """
    config = marian_config(theirs)
    for name in _SINUSOIDS:  # older files hold the fixed table; a trained one would be another model
        if name in tensors:
            expected = sinusoid_table(config.context, config.d_model, config.sinusoid_layout)
            stored = tensors[name].float().cpu()
            if stored.shape != expected.shape or not torch.allclose(stored, expected, atol=0.01):
                raise InteropError(tr("tensor {name} {shape} is not the table of sinusoids", name, list(stored.shape)))
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
