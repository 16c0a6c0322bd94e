"""The parts of both architectures, as the config chooses them."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.config import PartsConfig
from mingyue.nn import (
    Block,
    CrossAttention,
    DecoderBlock,
    LearnedPositions,
    MultiHeadAttention,
    Positions,
    PostNormBlock,
    PostNormDecoderBlock,
    PreNormBlock,
    PreNormDecoderBlock,
    RotaryPositions,
    SinusoidalPositions,
    make_feedforward,
    make_norm,
)

_Kind = TypeVar("_Kind", MultiHeadAttention, CrossAttention)


class TiedOutput(nn.Module):
    """The output layer as the transposed embedding table (Press & Wolf 2017; "Attention…", section 3.4)."""

    def __init__(self, embedding: nn.Embedding, *, bias: bool = False) -> None:
        super().__init__()
        self.__dict__["embedding"] = embedding  # not a submodule: the weight keeps one name
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings)) if bias else None

    def forward(self, x_BTM: Tensor) -> Tensor:
        """x_BTM → logits_BTV."""
        return F.linear(x_BTM, self.__dict__["embedding"].weight, self.bias)


def make_output(config: PartsConfig, embedding: nn.Embedding, *, bias: bool = False) -> nn.Module:
    """The output layer, x_BTM → logits_BTV: tied to the embedding table, or with its own weight."""
    if config.tied_output:
        return TiedOutput(embedding, bias=bias)
    return nn.Linear(config.d_model, config.vocab_size, bias=bias)


def make_final_norm(config: PartsConfig) -> nn.Module:
    """The norm after the last block, if there is one."""
    return _norm(config) if config.final_norm else nn.Identity()


def make_positions(config: PartsConfig) -> Positions:
    """The position kind of the config."""
    match config.positions:
        case "none":
            return Positions()
        case "learned":
            return LearnedPositions(config.context, config.d_model)
        case "sinusoidal":
            return SinusoidalPositions(config.context, config.d_model, config.sinusoid_layout)
        case "rotary":
            return RotaryPositions(config.context, config.d_head, config.rotary_base, config.rotary_scaling)


def make_block(config: PartsConfig) -> Block:
    """A block of self-attention and feed-forward, of an encoder or a decoder-only model."""
    kind = PreNormBlock if config.norm_placement == "pre" else PostNormBlock
    return kind(
        _attention(MultiHeadAttention, config),
        _norm(config),
        _feedforward(config),
        _norm(config),
        dropout=config.dropout,
    )


def make_decoder_block(config: PartsConfig) -> DecoderBlock:
    """A block with cross-attention."""
    kind = PreNormDecoderBlock if config.norm_placement == "pre" else PostNormDecoderBlock
    return kind(
        attention=_attention(MultiHeadAttention, config),
        attention_norm=_norm(config),
        cross_attention=_attention(CrossAttention, config),
        cross_attention_norm=_norm(config),
        feedforward=_feedforward(config),
        feedforward_norm=_norm(config),
        dropout=config.dropout,
    )


def _norm(config: PartsConfig) -> nn.Module:
    return make_norm(config.norm, config.d_model, config.norm_eps)


def _head_norm(config: PartsConfig) -> nn.Module | None:
    return make_norm("rms", config.d_head, config.norm_eps) if config.qk_norm else None


def _attention(kind: type[_Kind], config: PartsConfig) -> _Kind:
    """Self- or cross-attention: both take the same choices."""
    return kind(
        config.d_model,
        config.n_heads,
        config.n_kv_heads,
        config.d_head,
        bias_qkv=config.bias_qkv,
        bias_output=config.bias_output,
        dropout=config.attention_dropout,
        query_norm=_head_norm(config),
        key_norm=_head_norm(config),
    )


def _feedforward(config: PartsConfig) -> nn.Module:
    return make_feedforward(config.feedforward, config.d_model, config.d_ff, bias=config.bias_feedforward)
