"""Attention: softmax(Q Kᵀ / √d_k) V ("Attention Is All You Need", section 3.2), and the ways to compute it.

- `explicit_attention` writes it out and returns the weights: for looking;
- `fused_attention` is PyTorch's fused kernel: for speed;
- `blocked_window_attention` is the fused kernel over blocks: a sliding window in linear time and memory
  (on CPUs `windowed.chunked_window_attention` does it without copies).

Shapes: query_BHTD, key_BGSD, value_BGSD; G divides H, and H/G query heads share a key-value head (Ainslie et al. 2023).
A query that may look at nothing gets 0, with finite gradients, on every path.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.nn.attend import Attend
from mingyue.nn.cache import CacheStep
from mingyue.nn.gradients import by_hand, turn_heads
from mingyue.nn.norm import RMSNorm
from mingyue.nn.positions import Rotation
from mingyue.nn.taps import Taps, tap
from mingyue.nn.windowed import chunked_window_attention


def explicit_attention(
    query_BHTD: Tensor,
    key_BGSD: Tensor,
    value_BGSD: Tensor,
    attend: Attend,
    *,
    dropout: float = 0.0,
    taps: Taps | None = None,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention, written out. Returns (heads_BHTD, weights_BHTS).

    Weights of hidden cells are exactly 0, in any number format: no large constant is added to anything.
    """
    n_groups = query_BHTD.shape[1] // key_BGSD.shape[1]
    key_BHSD = key_BGSD.repeat_interleave(n_groups, dim=1)
    value_BHSD = value_BGSD.repeat_interleave(n_groups, dim=1)
    scores_BHTS = query_BHTD @ key_BHSD.transpose(-2, -1) / math.sqrt(query_BHTD.shape[-1])
    scores_BHTS = tap(taps, "scores", scores_BHTS)
    allowed_BHTS = attend.matrix(*scores_BHTS.shape[-2:], device=scores_BHTS.device)
    # An empty row keeps its scores through the softmax and is zeroed after it: never a row of −inf, never NaN.
    hidden_BHTS = ~allowed_BHTS & allowed_BHTS.any(dim=-1, keepdim=True)
    weights_BHTS = scores_BHTS.masked_fill(hidden_BHTS, float("-inf")).softmax(dim=-1)
    weights_BHTS = tap(taps, "weights", weights_BHTS.masked_fill(~allowed_BHTS, 0.0))
    return F.dropout(weights_BHTS, dropout) @ value_BHSD, weights_BHTS


def needs_matrix(attend: Attend, n_queries: int, n_keys: int) -> bool:
    """Whether `fused_attention` has to draw who sees whom: no kernel can be told otherwise."""
    known = attend.is_structural and attend.causal and n_queries == n_keys  # perhaps in a window
    return not known and not attend.hides_nothing(n_queries, n_keys)


def fused_attention(
    query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, attend: Attend, *, dropout: float = 0.0
) -> Tensor:
    """The same by `torch.nn.functional.scaled_dot_product_attention`. Returns heads_BHTD.

    A boolean mask is made only where it `needs_matrix`: rows of unequal length, documents.
    """
    n_queries, n_keys = query_BHTD.shape[2], key_BGSD.shape[2]
    grouped = query_BHTD.shape[1] != key_BGSD.shape[1]
    if attend.hides_nothing(n_queries, n_keys):
        return F.scaled_dot_product_attention(query_BHTD, key_BGSD, value_BGSD, dropout_p=dropout, enable_gqa=grouped)
    if not needs_matrix(attend, n_queries, n_keys):  # causal, T = S, perhaps in a window
        if attend.window is None or attend.window >= n_keys:
            return F.scaled_dot_product_attention(
                query_BHTD, key_BGSD, value_BGSD, dropout_p=dropout, is_causal=True, enable_gqa=grouped
            )
        if query_BHTD.device.type == "cpu" and not dropout and not torch.compiler.is_compiling():
            return chunked_window_attention(query_BHTD, key_BGSD, value_BGSD, attend.window)
        return blocked_window_attention(query_BHTD, key_BGSD, value_BGSD, attend.window, dropout=dropout)
    allowed = attend.matrix(n_queries, n_keys, device=query_BHTD.device)
    if not attend.may_have_empty_rows(n_queries, n_keys):
        bias = attend.bias(allowed, query_BHTD.dtype)
        return F.scaled_dot_product_attention(
            query_BHTD, key_BGSD, value_BGSD, attn_mask=bias, dropout_p=dropout, enable_gqa=grouped
        )
    sees_something = allowed.any(dim=-1, keepdim=True)
    heads_BHTD = F.scaled_dot_product_attention(
        query_BHTD, key_BGSD, value_BGSD, attn_mask=allowed | ~sees_something, dropout_p=dropout, enable_gqa=grouped
    )
    return heads_BHTD.masked_fill(~sees_something, 0.0)


def blocked_window_attention(
    query_BHTD: Tensor, key_BGTD: Tensor, value_BGTD: Tensor, window: int, *, dropout: float = 0.0
) -> Tensor:
    """Causal self-attention in a sliding window, in blocks of `window` tokens. Returns heads_BHTD.

    The queries of a block see their own block and the one before, through one mask of window × 2·window that serves
    every block: time and memory grow with T · window (Beltagy et al. 2020, "Longformer", has the idea).
    """
    n_rows, n_heads, n_tokens = query_BHTD.shape[:3]
    grouped = n_heads != key_BGTD.shape[1]
    n_blocks = -(-n_tokens // window)
    padding = n_blocks * window - n_tokens

    def in_blocks(x_BHTD: Tensor) -> Tensor:  # [B, H, T, D] → [B, N, H, window, D] for N blocks
        filled_BHTD = F.pad(x_BHTD, (0, 0, 0, padding)) if padding else x_BHTD  # a copy even where nothing is added
        return filled_BHTD.unflatten(2, (n_blocks, window)).transpose(1, 2)

    def with_previous(x_BNGWD: Tensor) -> Tensor:  # blocks 1…N−1, each behind the block before it
        return torch.cat([x_BNGWD[:, :-1], x_BNGWD[:, 1:]], dim=3).flatten(0, 1)

    query_BNHWD, key_BNGWD, value_BNGWD = in_blocks(query_BHTD), in_blocks(key_BGTD), in_blocks(value_BGTD)
    first_BHWD = F.scaled_dot_product_attention(
        query_BNHWD[:, 0], key_BNGWD[:, 0], value_BNGWD[:, 0], dropout_p=dropout, is_causal=True, enable_gqa=grouped
    )
    distance = torch.arange(window, device=query_BHTD.device)[:, None] + window
    distance = distance - torch.arange(2 * window, device=query_BHTD.device)
    rest_HWD = F.scaled_dot_product_attention(
        query_BNHWD[:, 1:].flatten(0, 1),
        with_previous(key_BNGWD),
        with_previous(value_BNGWD),
        attn_mask=(distance >= 0) & (distance < window),
        dropout_p=dropout,
        enable_gqa=grouped,
    )
    rest_BNHWD = rest_HWD.unflatten(0, (n_rows, n_blocks - 1))
    heads_BNHWD = torch.cat([first_BHWD[:, None], rest_BNHWD], dim=1)
    return heads_BNHWD.transpose(1, 2).flatten(2, 3)[:, :, :n_tokens]


class Attention(nn.Module):
    """What every multi-head attention has (section 3.2.2), wherever its keys come from.

    `output.weight` is [M, H·D]: it joins the heads. `query_norm` and `key_norm` are norms of a head's vectors, or none.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int,
        d_head: int,
        *,
        bias_output: bool = False,
        dropout: float = 0.0,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.d_head = n_heads, n_kv_heads, d_head
        self.output = nn.Linear(n_heads * d_head, d_model, bias=bias_output)
        self.query_norm = query_norm
        self.key_norm = key_norm
        self.dropout = dropout

    def _attend(
        self, query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, attend: Attend, taps: Taps | None
    ) -> Tensor:
        """Attention of all heads, joined: x_BTM."""
        if taps is not None:
            query_BHTD, key_BGSD = taps("query", query_BHTD), taps("key", key_BGSD)
            value_BGSD = taps("value", value_BGSD)
        dropout = self.dropout if self.training else 0.0
        if taps is not None and (taps.wants("scores") or taps.wants("weights")):
            heads_BHTD, _ = explicit_attention(query_BHTD, key_BGSD, value_BGSD, attend, dropout=dropout, taps=taps)
        else:
            heads_BHTD = fused_attention(query_BHTD, key_BGSD, value_BGSD, attend, dropout=dropout)
        heads_BHTD = tap(taps, "heads", heads_BHTD)
        joined_BTM = heads_BHTD.transpose(1, 2).flatten(2)  # (B, H, T, D) → (B, T, H·D): the copy that joining needs
        return tap(taps, "output", self.output(joined_BTM))


class MultiHeadAttention(Attention):
    """Self-attention with one projection for queries, keys and values.

    `qkv.weight` is [(H + 2G)·D, M], rows [Q; K; V]; the heads are views of its result.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int,
        d_head: int,
        *,
        bias_qkv: bool = False,
        bias_output: bool = False,
        dropout: float = 0.0,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
    ) -> None:
        super().__init__(
            d_model,
            n_heads,
            n_kv_heads,
            d_head,
            bias_output=bias_output,
            dropout=dropout,
            query_norm=query_norm,
            key_norm=key_norm,
        )
        self.qkv = nn.Linear(d_model, (n_heads + 2 * n_kv_heads) * d_head, bias=bias_qkv)

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
        """x_BTM → x_BTM. With a cache, the new keys and values go to its `layer` and the queries see all of them."""
        sizes = (self.n_heads, self.n_kv_heads, self.n_kv_heads)
        heads_BTD = self.qkv(x_BTM).view(*x_BTM.shape[:2], sum(sizes), self.d_head)  # (B, T, M) → (B, T, H + 2G, D)
        if by_hand(heads_BTD) and _alike(self.query_norm, self.key_norm):
            query_BHTD, key_BGSD, value_BGSD = self._turned(heads_BTD, rotation)
        else:
            query_BTHD, key_BTGD, value_BTGD = heads_BTD.split_with_sizes(sizes, dim=2)
            if self.query_norm is not None:
                query_BTHD = self.query_norm(query_BTHD)
            if self.key_norm is not None:
                key_BTGD = self.key_norm(key_BTGD)
            query_BHTD = rotation.turn(query_BTHD.transpose(1, 2))
            key_BGSD = rotation.turn(key_BTGD.transpose(1, 2))
            value_BGSD = value_BTGD.transpose(1, 2)
        if cache is not None:
            key_BGSD, value_BGSD = cache.extend(layer, key_BGSD, value_BGSD)
            if taps is not None:  # what was recorded must not change with the cache, nor an edit change the cache
                key_BGSD, value_BGSD = key_BGSD.clone(), value_BGSD.clone()
        return self._attend(query_BHTD, key_BGSD, value_BGSD, attend, taps)

    def _turned(self, heads_BTD: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """The same in one function with a gradient of its own: (query_BHTD, key_BGSD, value_BGSD)."""
        gain, eps = None, 0.0
        if isinstance(self.query_norm, RMSNorm) and isinstance(self.key_norm, RMSNorm):
            gains = (self.query_norm.weight.expand(self.n_heads, -1), self.key_norm.weight.expand(self.n_kv_heads, -1))
            gain, eps = torch.cat(gains), self.query_norm.eps or 0.0
        turned_BTD, value_BTGD = turn_heads(heads_BTD, gain, eps, rotation.angles, self.n_heads + self.n_kv_heads)
        query_BTHD, key_BTGD = turned_BTD.split_with_sizes((self.n_heads, self.n_kv_heads), dim=2)
        return query_BTHD.transpose(1, 2), key_BTGD.transpose(1, 2), value_BTGD.transpose(1, 2)


def _alike(query_norm: nn.Module | None, key_norm: nn.Module | None) -> bool:
    """Whether both are RMSNorm with one ε, or there is none."""
    if query_norm is None or key_norm is None:
        return query_norm is key_norm
    return isinstance(query_norm, RMSNorm) and isinstance(key_norm, RMSNorm) and query_norm.eps == key_norm.eps


class CrossAttention(Attention):
    """Attention from one text to another (section 3.2.3): Q from the decoder, K and V from the encoder's output.

    `query.weight` is [H·D, M]; `key_value.weight` is [2G·D, M], rows [K; V]. No position turns these queries and
    keys: a place in one text says nothing about a place in the other.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int,
        d_head: int,
        *,
        bias_qkv: bool = False,
        bias_output: bool = False,
        dropout: float = 0.0,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
    ) -> None:
        super().__init__(
            d_model,
            n_heads,
            n_kv_heads,
            d_head,
            bias_output=bias_output,
            dropout=dropout,
            query_norm=query_norm,
            key_norm=key_norm,
        )
        self.query = nn.Linear(d_model, n_heads * d_head, bias=bias_qkv)
        self.key_value = nn.Linear(d_model, 2 * n_kv_heads * d_head, bias=bias_qkv)

    def remember(self, memory_BSM: Tensor) -> tuple[Tensor, Tensor]:
        """memory_BSM → (key_BGSD, value_BGSD): the same for every token that will be written, so made once a text."""
        heads_BSD = self.key_value(memory_BSM).view(*memory_BSM.shape[:2], 2 * self.n_kv_heads, self.d_head)
        key_BSGD, value_BSGD = heads_BSD.split(self.n_kv_heads, dim=2)
        if self.key_norm is not None:
            key_BSGD = self.key_norm(key_BSGD)
        return key_BSGD.transpose(1, 2), value_BSGD.transpose(1, 2)

    def forward(
        self, x_BTM: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, attend: Attend, *, taps: Taps | None = None
    ) -> Tensor:
        """x_BTM → x_BTM, for keys and values of `remember`.

        x may have K rows for each row of the memory (hypotheses of one text, side by side). Its queries do not meet
        one another, so the K rows are read as one row of K·T queries, and the memory is not copied.
        """
        query_BTHD = self.query(x_BTM).view(key_BGSD.shape[0], -1, self.n_heads, self.d_head)
        if self.query_norm is not None:
            query_BTHD = self.query_norm(query_BTHD)
        return self._attend(query_BTHD.transpose(1, 2), key_BGSD, value_BGSD, attend, taps).view(x_BTM.shape)
