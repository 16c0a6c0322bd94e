"""Blocks: sub-layers, each with Add & Norm ("Attention Is All You Need", section 3.1).

`Block` has self-attention and the feed-forward part: a block of the encoder, and of a decoder-only model.
`DecoderBlock` has cross-attention between them. The paper normalises after the addition, LayerNorm(x + Sublayer(x));
most later models before the sub-layer, x + Sublayer(Norm(x)), which trains without warm-up (Xiong et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.nn.attend import Attend
from mingyue.nn.attention import CrossAttention, MultiHeadAttention
from mingyue.nn.cache import CacheStep
from mingyue.nn.memory import Memory
from mingyue.nn.positions import Rotation
from mingyue.nn.taps import Taps, tap


class Block(nn.Module):
    """Self-attention and feed-forward. `PreNormBlock` and `PostNormBlock` say where the norm goes."""

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

    def _sublayer(self, x_BTM: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """A sub-layer with its addition and its norm."""
        raise NotImplementedError

    def _add(self, x_BTM: Tensor, transformed_BTM: Tensor) -> Tensor:
        if self.dropout and self.training:
            transformed_BTM = F.dropout(transformed_BTM, self.dropout)
        return x_BTM + transformed_BTM

    def _attend_to_self(
        self,
        x_BTM: Tensor,
        attend: Attend,
        rotation: Rotation,
        *,
        cache: CacheStep | None,
        layer: int,
        taps: Taps | None,
    ) -> Tensor:
        inner = None if taps is None else taps.within("attention")
        x_BTM = self._sublayer(
            x_BTM,
            self.attention_norm,
            lambda y_BTM: self.attention(y_BTM, attend, rotation, cache=cache, layer=layer, taps=inner),
        )
        return tap(taps, "middle", x_BTM)

    def _feed_forward(self, x_BTM: Tensor, taps: Taps | None) -> Tensor:
        inner = None if taps is None else taps.within("feedforward")
        x_BTM = self._sublayer(x_BTM, self.feedforward_norm, lambda y_BTM: self.feedforward(y_BTM, inner))
        return tap(taps, "output", x_BTM)

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
        x_BTM = self._attend_to_self(x_BTM, attend, rotation, cache=cache, layer=layer, taps=taps)
        return self._feed_forward(x_BTM, taps)


class DecoderBlock(Block):
    """Masked self-attention, cross-attention to the encoder's output, feed-forward: a block of the paper's decoder."""

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

    def forward(  # pyrefly: ignore[bad-override]  (a block that needs a memory is no block without one)
        self,
        x_BTM: Tensor,
        attend: Attend,
        rotation: Rotation,
        memory: Memory,
        *,
        cache: CacheStep | None = None,
        layer: int = 0,
        taps: Taps | None = None,
    ) -> Tensor:
        """x_BTM → x_BTM. The queries of cross-attention are what this block's masked self-attention made."""
        x_BTM = self._attend_to_self(x_BTM, attend, rotation, cache=cache, layer=layer, taps=taps)
        inner = None if taps is None else taps.within("cross_attention")
        key_BGSD, value_BGSD = memory.keys[layer], memory.values[layer]
        x_BTM = self._sublayer(
            x_BTM,
            self.cross_attention_norm,
            lambda y_BTM: self.cross_attention(y_BTM, key_BGSD, value_BGSD, memory.attend, taps=inner),
        )
        return self._feed_forward(tap(taps, "crossed", x_BTM), taps)


class PreNormBlock(Block):
    """x + Dropout(Sublayer(Norm(x)))."""

    def _sublayer(self, x_BTM: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self._add(x_BTM, sublayer(norm(x_BTM)))


class PostNormBlock(Block):
    """Norm(x + Dropout(Sublayer(x))): the paper's."""

    def _sublayer(self, x_BTM: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return norm(self._add(x_BTM, sublayer(x_BTM)))


class PreNormDecoderBlock(PreNormBlock, DecoderBlock):
    """The decoder's block with its norms before the sub-layers."""


class PostNormDecoderBlock(PostNormBlock, DecoderBlock):
    """The decoder's block as in the paper."""
