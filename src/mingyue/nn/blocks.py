"""A block: self-attention, then the feed-forward part, each with Add & Norm ("Attention Is All You Need", section 3.1).

The paper normalises after the addition, LayerNorm(x + Sublayer(x)); most later models before the sub-layer,
x + Sublayer(Norm(x)), which trains without warm-up (Xiong et al. 2020).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.nn.attend import Attend
from mingyue.nn.attention import MultiHeadAttention
from mingyue.nn.cache import CacheStep
from mingyue.nn.positions import Rotation
from mingyue.nn.taps import Taps, tap


class Block(nn.Module):
    """The four parts of a block; the two kinds below order them."""

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
        if self.dropout and self.training:
            transformed_BTM = F.dropout(transformed_BTM, self.dropout)
        return x_BTM + transformed_BTM


class PreNormBlock(Block):
    """x + Dropout(Sublayer(Norm(x))), twice."""

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
        attention_taps = None if taps is None else taps.within("attention")
        feedforward_taps = None if taps is None else taps.within("feedforward")
        attended_BTM = self.attention(
            self.attention_norm(x_BTM), attend, rotation, cache=cache, layer=layer, taps=attention_taps
        )
        x_BTM = tap(taps, "middle", self._add(x_BTM, attended_BTM))
        transformed_BTM = self.feedforward(self.feedforward_norm(x_BTM), feedforward_taps)
        return tap(taps, "output", self._add(x_BTM, transformed_BTM))


class PostNormBlock(Block):
    """Norm(x + Dropout(Sublayer(x))), twice: the paper's."""

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
        attention_taps = None if taps is None else taps.within("attention")
        feedforward_taps = None if taps is None else taps.within("feedforward")
        attended_BTM = self.attention(x_BTM, attend, rotation, cache=cache, layer=layer, taps=attention_taps)
        x_BTM = tap(taps, "middle", self.attention_norm(self._add(x_BTM, attended_BTM)))
        transformed_BTM = self.feedforward(x_BTM, feedforward_taps)
        return tap(taps, "output", self.feedforward_norm(self._add(x_BTM, transformed_BTM)))
