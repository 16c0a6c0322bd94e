"""Blocks: sub-layers, each with Add & Norm ("Attention Is All You Need", section 3.1).

A block of the encoder, or of a decoder-only model, has self-attention and a feed-forward network; a block of the
paper's decoder has cross-attention between them. The paper normalises after the addition, LayerNorm(x + Sublayer(x));
most later models before the sub-layer, x + Sublayer(Norm(x)), which trains without warm-up (Xiong et al. 2020).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.nn.attend import Attend
from mingyue.nn.attention import CrossAttention, MultiHeadAttention
from mingyue.nn.cache import CacheStep, MemoryKV
from mingyue.nn.positions import Rotation
from mingyue.nn.taps import Taps, tap, within


class Block(nn.Module):
    """Self-attention and feed-forward; `PreNormBlock` and `PostNormBlock` define where the norm is."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        attention_norm: nn.Module,
        feedforward: nn.Module,
        feedforward_norm: nn.Module,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = attention_norm
        self.feedforward = feedforward
        self.feedforward_norm = feedforward_norm
        self.dropout = dropout

    def _add(self, x_BTM: Tensor, transformed_BTM: Tensor) -> Tensor:
        """x + Dropout(Sublayer(x)): the residual connection (section 5.4)."""
        if self.dropout and self.training:
            transformed_BTM = F.dropout(transformed_BTM, self.dropout)
        return x_BTM + transformed_BTM


class PreNormBlock(Block):
    """x + Sublayer(Norm(x))."""

    def forward(
        self,
        x_BTM: Tensor,
        attend: Attend,
        rotation: Rotation,
        *,
        cache: CacheStep | None = None,
        layer: int = 0,
        taps: Taps | None = None,
    ) -> Tensor:
        """x_BTM → x_BTM."""
        inner = within(taps, "attention")
        attended_BTM = self.attention(
            self.attention_norm(x_BTM), attend, rotation, cache=cache, layer=layer, taps=inner
        )  # fmt: skip
        x_BTM = tap(taps, "middle", self._add(x_BTM, attended_BTM))
        inner = within(taps, "feedforward")
        x_BTM = self._add(x_BTM, self.feedforward(self.feedforward_norm(x_BTM), taps=inner))
        return tap(taps, "output", x_BTM)


class PostNormBlock(Block):
    """Norm(x + Sublayer(x)): the paper's."""

    def forward(
        self,
        x_BTM: Tensor,
        attend: Attend,
        rotation: Rotation,
        *,
        cache: CacheStep | None = None,
        layer: int = 0,
        taps: Taps | None = None,
    ) -> Tensor:
        """x_BTM → x_BTM."""
        inner = within(taps, "attention")
        attended_BTM = self.attention(x_BTM, attend, rotation, cache=cache, layer=layer, taps=inner)
        x_BTM = tap(taps, "middle", self.attention_norm(self._add(x_BTM, attended_BTM)))
        inner = within(taps, "feedforward")
        x_BTM = self.feedforward_norm(self._add(x_BTM, self.feedforward(x_BTM, taps=inner)))
        return tap(taps, "output", x_BTM)


class DecoderBlock(Block):
    """A block with cross-attention; `PreNormDecoderBlock` and `PostNormDecoderBlock` define where the norm is."""

    def __init__(
        self,
        *,
        attention: MultiHeadAttention,
        attention_norm: nn.Module,
        cross_attention: CrossAttention,
        cross_attention_norm: nn.Module,
        feedforward: nn.Module,
        feedforward_norm: nn.Module,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(attention, attention_norm, feedforward, feedforward_norm, dropout=dropout)
        self.cross_attention = cross_attention
        self.cross_attention_norm = cross_attention_norm


class PreNormDecoderBlock(DecoderBlock):
    """x + Sublayer(Norm(x))."""

    def forward(
        self,
        x_BTM: Tensor,
        attend: Attend,
        rotation: Rotation,
        memory: MemoryKV,
        *,
        cache: CacheStep | None = None,
        layer: int = 0,
        taps: Taps | None = None,
    ) -> Tensor:
        """x_BTM → x_BTM; `memory` has the keys and values of the source text."""
        inner = within(taps, "attention")
        attended_BTM = self.attention(
            self.attention_norm(x_BTM), attend, rotation, cache=cache, layer=layer, taps=inner
        )  # fmt: skip
        x_BTM = tap(taps, "middle", self._add(x_BTM, attended_BTM))
        inner = within(taps, "cross_attention")
        attended_BTM = self.cross_attention(
            self.cross_attention_norm(x_BTM), memory.keys[layer], memory.values[layer], memory.attend, taps=inner
        )
        x_BTM = tap(taps, "crossed", self._add(x_BTM, attended_BTM))
        inner = within(taps, "feedforward")
        x_BTM = self._add(x_BTM, self.feedforward(self.feedforward_norm(x_BTM), taps=inner))
        return tap(taps, "output", x_BTM)


class PostNormDecoderBlock(DecoderBlock):
    """Norm(x + Sublayer(x)): the paper's."""

    def forward(
        self,
        x_BTM: Tensor,
        attend: Attend,
        rotation: Rotation,
        memory: MemoryKV,
        *,
        cache: CacheStep | None = None,
        layer: int = 0,
        taps: Taps | None = None,
    ) -> Tensor:
        """x_BTM → x_BTM; `memory` has the keys and values of the source text."""
        inner = within(taps, "attention")
        attended_BTM = self.attention(x_BTM, attend, rotation, cache=cache, layer=layer, taps=inner)
        x_BTM = tap(taps, "middle", self.attention_norm(self._add(x_BTM, attended_BTM)))
        inner = within(taps, "cross_attention")
        attended_BTM = self.cross_attention(
            x_BTM, memory.keys[layer], memory.values[layer], memory.attend, taps=inner
        )  # fmt: skip
        x_BTM = tap(taps, "crossed", self.cross_attention_norm(self._add(x_BTM, attended_BTM)))
        inner = within(taps, "feedforward")
        x_BTM = self.feedforward_norm(self._add(x_BTM, self.feedforward(x_BTM, taps=inner)))
        return tap(taps, "output", x_BTM)
