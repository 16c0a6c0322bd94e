"""The Mini-GPT: token embeddings, positions, a stack of causal blocks, a norm, an output layer.

It maps ids to the logits of the next token at every position, P(x_{t+1} | x_1 … x_t), all positions in one pass.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.config import ModelConfig
from mingyue.models.initialise import initialise
from mingyue.nn import (
    Attend,
    Block,
    Cache,
    CacheStep,
    LearnedPositions,
    MultiHeadAttention,
    Positions,
    PostNormBlock,
    PreNormBlock,
    RotaryPositions,
    SinusoidalPositions,
    Taps,
    make_feedforward,
    make_norm,
    needs_matrix,
    tap,
)


class TiedOutput(nn.Module):
    """The output layer as the transposed embedding table (Press & Wolf 2017; "Attention…", section 3.4)."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.__dict__["embedding"] = embedding  # a reference, not a second owner: the weight has one name

    def forward(self, x_BTM: Tensor) -> Tensor:
        """x_BTM → logits_BTV."""
        return F.linear(x_BTM, self.__dict__["embedding"].weight)


class DecoderOnly(nn.Module):
    """A decoder-only Transformer as `config` describes it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.embedding_scale = math.sqrt(config.d_model) if config.embedding_scale else 1.0
        self.positions = _make_positions(config)
        self.blocks = nn.ModuleList(_make_block(config) for _ in range(config.n_layers))
        self.final_norm = _norm(config, config.d_model) if config.final_norm else nn.Identity()
        self.output: nn.Module = (
            TiedOutput(self.embedding)
            if config.tied_output
            else nn.Linear(config.d_model, config.vocab_size, bias=False)
        )

    def forward(
        self,
        ids_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        attend: Attend | None = None,
        cache: CacheStep | None = None,
        taps: Taps | None = None,
    ) -> Tensor:
        """ids_BT (integers) → logits_BTV. Arguments as in `hidden`."""
        x_BTM = self.hidden(ids_BT, positions_BT=positions_BT, attend=attend, cache=cache, taps=taps)
        return tap(taps, "logits", self.output(x_BTM))

    def hidden(
        self,
        ids_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        attend: Attend | None = None,
        cache: CacheStep | None = None,
        taps: Taps | None = None,
    ) -> Tensor:
        """ids_BT → x_BTM, what the output layer reads.

        `attend` narrows who may look at whom; the model adds that no one sees what stands after it, and its own window.
        `positions_BT` ([B, T] or [1, T]) default to 0 … T−1, or to what the rows of the `cache` hold; with a cache,
        the new tokens are added to it. Raises `ValueError` when a position is negative or not below the context.
        """
        n_rows, n_tokens = ids_BT.shape
        if cache is not None:
            if attend is not None or positions_BT is not None:
                raise ValueError("a cache decides who attends to whom and where tokens stand: leave the others out")
            positions_BT = cache.begin(n_rows, n_tokens, ids_BT.device)
            attend = cache.attend
        elif positions_BT is None:
            if n_tokens > self.config.context:
                raise ValueError(f"{n_tokens} tokens do not fit a context of {self.config.context}")
            positions_BT = torch.arange(n_tokens, device=ids_BT.device)[None]
        else:
            lowest, highest = (int(bound) for bound in positions_BT.aminmax())
            if lowest < 0 or highest >= self.config.context:
                raise ValueError(
                    f"position {lowest if lowest < 0 else highest} does not exist: a context of "
                    f"{self.config.context} begins at 0 and ends at {self.config.context - 1}"
                )
        attend = attend or Attend()
        windows = [window for window in (attend.window, self.config.window) if window is not None]
        if windows or not attend.causal:
            attend = replace(attend, causal=True, window=min(windows, default=None))
        n_keys = n_tokens if cache is None else cache.n_keys
        if needs_matrix(attend, n_tokens, n_keys):  # once, not in every layer
            attend = attend.drawn(n_tokens, n_keys, device=ids_BT.device)

        x_BTM = self.embedding(ids_BT)
        if self.embedding_scale != 1.0:
            x_BTM = x_BTM * self.embedding_scale
        x_BTM = self.positions.add(x_BTM, positions_BT)
        if self.training and self.config.dropout:
            x_BTM = F.dropout(x_BTM, self.config.dropout)
        x_BTM = tap(taps, "embeddings", x_BTM)
        rotation = self.positions.rotation(positions_BT)
        for layer, block in enumerate(self.blocks):
            block_taps = None if taps is None else taps.within(f"blocks.{layer}")
            x_BTM = block(x_BTM, attend, rotation, cache=cache, layer=layer, taps=block_taps)
        if cache is not None:
            cache.commit()
        return tap(taps, "final", self.final_norm(x_BTM))

    def new_cache(self, rows: int, *, capacity: int | None = None) -> Cache:
        """An empty cache of `rows` rows for this model; `capacity` tokens each (default and at most: the context)."""
        config = self.config
        return Cache(
            n_layers=config.n_layers,
            rows=rows,
            n_kv_heads=config.n_kv_heads,
            capacity=min(capacity or config.context, config.context),
            d_head=config.d_head,
            device=self.embedding.weight.device,
            dtype=self.embedding.weight.dtype,
        )


def build_model(config: ModelConfig, *, seed: int) -> DecoderOnly:
    """A new model with initial weights that are a pure function of `config` and `seed`."""
    model = DecoderOnly(config)
    initialise(model, seed=seed)
    return model


def _norm(config: ModelConfig, width: int) -> nn.Module:
    return make_norm(config.norm, width, config.norm_eps)


def _make_positions(config: ModelConfig) -> Positions:
    match config.positions:
        case "none":
            return Positions()
        case "learned":
            return LearnedPositions(config.context, config.d_model)
        case "sinusoidal":
            return SinusoidalPositions(config.context, config.d_model, config.sinusoid_layout)
        case "rotary":
            return RotaryPositions(config.context, config.d_head, config.rotary_base, config.rotary_scaling)


def _make_block(config: ModelConfig) -> Block:
    attention = MultiHeadAttention(
        config.d_model,
        config.n_heads,
        config.n_kv_heads,
        config.d_head,
        bias_qkv=config.bias_qkv,
        bias_output=config.bias_output,
        dropout=config.attention_dropout,
        query_norm=make_norm("rms", config.d_head, config.norm_eps) if config.qk_norm else None,
        key_norm=make_norm("rms", config.d_head, config.norm_eps) if config.qk_norm else None,
    )
    feedforward = make_feedforward(config.feedforward, config.d_model, config.d_ff, bias=config.bias_feedforward)
    kind = PreNormBlock if config.norm_placement == "pre" else PostNormBlock
    return kind(
        attention,
        _norm(config, config.d_model),
        feedforward,
        _norm(config, config.d_model),
        dropout=config.dropout,
    )
