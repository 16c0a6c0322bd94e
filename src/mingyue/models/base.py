"""What both architectures share: embeddings, an output layer, positions and masks of a decoder, a cache."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.config import PartsConfig
from mingyue.nn import CAUSAL, Attend, Block, Cache, CacheStep, Positions, needs_matrix

_Config = TypeVar("_Config", bound=PartsConfig)


class TransformerBase(nn.Module, Generic[_Config]):
    """Base class of `DecoderOnly` and `EncoderDecoder`."""

    output: nn.Module
    """The output layer: x_BTM → logits_BTV."""

    def __init__(self, config: _Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.embedding_scale = math.sqrt(config.d_model) if config.embedding_scale else 1.0

    @property
    def input_table(self) -> Tensor:
        """The embedding table of the text that is read: of an encoder-decoder model, that of the source text."""
        return self.embedding.weight

    def every_block(self) -> list[Block]:
        """All blocks, in the order of a forward pass."""
        raise NotImplementedError

    def new_cache(self, rows: int, *, capacity: int | None = None) -> Cache:
        """An empty cache for causal self-attention, `capacity` tokens per row (default and maximum: the context)."""
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

    def _embed(self, ids_BT: Tensor, positions_BT: Tensor, table: nn.Embedding, positions: Positions) -> Tensor:
        """Dropout(√M · E[ids] + PE(positions)): x_BTM (sections 3.4, 3.5 and 5.4; each as in the config)."""
        x_BTM = table(ids_BT)
        if self.embedding_scale != 1.0:
            x_BTM = x_BTM * self.embedding_scale
        x_BTM = positions.add(x_BTM, positions_BT)
        if self.training and self.config.dropout:
            x_BTM = F.dropout(x_BTM, self.config.dropout)
        return x_BTM


def decoder_plan(
    ids_BT: Tensor,
    context: int,
    *,
    window: int | None = None,
    positions_BT: Tensor | None = None,
    attend: Attend | None = None,
    cache: CacheStep | None = None,
) -> tuple[Tensor, Attend]:
    """Positions of a decoder's tokens ([B, T] or [1, T]), and what they attend to, in one description for all layers.

    Positions are as given, or the next ones of the rows of the `cache`, or 0 … T−1. Causality and the `window` are
    added to `attend`. Raises `ValueError` when a position is negative or not below the context, and for a cache
    together with positions or `attend`.
    """
    n_rows, n_tokens = ids_BT.shape
    if cache is not None:
        if attend is not None or positions_BT is not None:
            raise ValueError("a cache determines positions and attention: leave positions_BT and attend out")
        positions_BT = cache.begin(n_rows, n_tokens, ids_BT.device)
        attend, n_keys = cache.attend, cache.n_keys
    else:
        positions_BT, n_keys = _checked_positions(ids_BT, context, positions_BT), n_tokens
        attend = attend or CAUSAL
    windows = [width for width in (attend.window, window) if width is not None]
    if windows or not attend.causal:
        attend = replace(attend, causal=True, window=min(windows, default=None))
    if needs_matrix(attend, n_tokens, n_keys):  # built once, not in every layer
        attend = attend.with_matrix(n_tokens, n_keys, device=ids_BT.device)
    return positions_BT, attend


def _checked_positions(ids_BT: Tensor, context: int, positions_BT: Tensor | None) -> Tensor:
    if positions_BT is None:
        n_tokens = ids_BT.shape[1]
        if n_tokens > context:
            raise ValueError(f"{n_tokens} tokens do not fit a context of {context}")
        return torch.arange(n_tokens, device=ids_BT.device)[None]
    lowest, highest = (int(bound) for bound in positions_BT.aminmax())
    if lowest < 0 or highest >= context:
        raise ValueError(
            f"position {lowest if lowest < 0 else highest} does not exist: a context of {context} has positions "
            f"0 to {context - 1}"
        )
    return positions_BT
