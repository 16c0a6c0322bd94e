"""Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V ("Attention Is All You Need", section 3.2), in two implementations.

`explicit_attention` computes it step by step and returns the weights, for inspection; `fused_attention` calls PyTorch's
fused kernel, for speed (a sliding window: `mingyue.nn.windowed`).

Shapes: query_BHTD, key_BGSD, value_BGSD; G divides H, and H/G query heads share a key-value head (Ainslie et al. 2023).
A query that may attend to nothing gets 0, with finite gradients, on every path.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.nn.attend import Attend
from mingyue.nn.cache import CacheStep
from mingyue.nn.custom_backward import rotate_heads, use_custom_backward
from mingyue.nn.norm import RMSNorm
from mingyue.nn.positions import Rotation
from mingyue.nn.taps import Taps, tap
from mingyue.nn.windowed import blocked_window_attention, chunked_window_attention


def explicit_attention(
    query_BHTD: Tensor,
    key_BGSD: Tensor,
    value_BGSD: Tensor,
    attend: Attend,
    *,
    dropout: float = 0.0,
    taps: Taps | None = None,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention, step by step. Returns (heads_BHTD, weights_BHTS).

    Weights of masked keys are exactly 0 in any dtype: no large constant is added to scores.
    """
    n_groups = query_BHTD.shape[1] // key_BGSD.shape[1]
    key_BHSD = key_BGSD.repeat_interleave(n_groups, dim=1)
    value_BHSD = value_BGSD.repeat_interleave(n_groups, dim=1)
    scores_BHTS = query_BHTD @ key_BHSD.transpose(-2, -1) / math.sqrt(query_BHTD.shape[-1])
    scores_BHTS = tap(taps, "scores", scores_BHTS)
    allowed_BHTS = attend.matrix(*scores_BHTS.shape[-2:], device=scores_BHTS.device)
    # A row without any key keeps its scores through the softmax and is zeroed after it: a row of −inf would give NaN.
    hidden_BHTS = ~allowed_BHTS & allowed_BHTS.any(dim=-1, keepdim=True)
    weights_BHTS = scores_BHTS.masked_fill(hidden_BHTS, float("-inf")).softmax(dim=-1)
    weights_BHTS = tap(taps, "weights", weights_BHTS.masked_fill(~allowed_BHTS, 0.0))
    return F.dropout(weights_BHTS, dropout) @ value_BHSD, weights_BHTS


def needs_matrix(attend: Attend, n_queries: int, n_keys: int) -> bool:
    """Whether `fused_attention` needs a T × S mask: the kernel has no flag for this `attend`."""
    has_flag = attend.is_structural and attend.causal and n_queries == n_keys  # with or without a window
    return not has_flag and not attend.hides_nothing(n_queries, n_keys)


def fused_attention(
    query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, attend: Attend, *, dropout: float = 0.0
) -> Tensor:
    """Scaled dot-product attention by `torch.nn.functional.scaled_dot_product_attention`. Returns heads_BHTD.

    A mask is built only if `needs_matrix`: for rows of unequal length, and for documents.
    """
    n_queries, n_keys = query_BHTD.shape[2], key_BGSD.shape[2]
    grouped = query_BHTD.shape[1] != key_BGSD.shape[1]
    if attend.hides_nothing(n_queries, n_keys):
        return F.scaled_dot_product_attention(query_BHTD, key_BGSD, value_BGSD, dropout_p=dropout, enable_gqa=grouped)
    if not needs_matrix(attend, n_queries, n_keys):  # causal, T = S, with or without a window
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
    has_key = allowed.any(dim=-1, keepdim=True)
    heads_BHTD = F.scaled_dot_product_attention(
        query_BHTD, key_BGSD, value_BGSD, attn_mask=allowed | ~has_key, dropout_p=dropout, enable_gqa=grouped
    )
    return heads_BHTD.masked_fill(~has_key, 0.0)


def recorded_attention(
    query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, attend: Attend, *, dropout: float, taps: Taps
) -> Tensor:
    """Attention that passes its values to `taps`; on the explicit path only if scores or weights are requested."""
    query_BHTD, key_BGSD, value_BGSD = taps("query", query_BHTD), taps("key", key_BGSD), taps("value", value_BGSD)
    if taps.wants("scores") or taps.wants("weights"):
        heads_BHTD, _ = explicit_attention(query_BHTD, key_BGSD, value_BGSD, attend, dropout=dropout, taps=taps)
    else:
        heads_BHTD = fused_attention(query_BHTD, key_BGSD, value_BGSD, attend, dropout=dropout)
    return taps("heads", heads_BHTD)


class Attention(nn.Module):
    """Multi-head attention (section 3.2.2): MultiHead(Q, K, V) = Concat(head_1 … head_H) W_O.

    `MultiHeadAttention` and `CrossAttention` differ in where queries, keys and values come from. `output.weight` is
    W_Oᵀ, [M, H·D]. `query_norm` and `key_norm` are QK-norms, over the D components of each head, or None.
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
        super().__init__()
        self.n_heads, self.n_kv_heads, self.d_head = n_heads, n_kv_heads, d_head
        self.output = nn.Linear(n_heads * d_head, d_model, bias=bias_output)
        self.query_norm = query_norm
        self.key_norm = key_norm
        self.dropout = dropout
        self._make_projections(d_model, bias=bias_qkv)

    def _make_projections(self, d_model: int, *, bias: bool) -> None:
        """Create the projections to queries, keys and values."""
        raise NotImplementedError

    def join_heads(self, heads_BHTD: Tensor, taps: Taps | None) -> Tensor:
        """Concat(head_1 … head_H) W_O: heads_BHTD → x_BTM."""
        joined_BTM = heads_BHTD.transpose(1, 2).flatten(2)  # (B, H, T, D) → (B, T, H·D), a copy
        return tap(taps, "output", self.output(joined_BTM))


class MultiHeadAttention(Attention):
    """Self-attention: head_i = Attention(x W_Qi, x W_Ki, x W_Vi)."""

    qkv: nn.Linear
    """One projection for all heads; `qkv.weight` is [(H + 2G)·D, M], rows [Q; K; V]."""

    def _make_projections(self, d_model: int, *, bias: bool) -> None:
        self.qkv = nn.Linear(d_model, (self.n_heads + 2 * self.n_kv_heads) * self.d_head, bias=bias)

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
        """x_BTM → x_BTM. With a cache, keys and values are appended to its `layer`; queries see all it holds."""
        query_BHTD, key_BGSD, value_BGSD = self.project_qkv(x_BTM, rotation)
        if cache is not None:
            key_BGSD, value_BGSD = cache.extend(layer, key_BGSD, value_BGSD)
            if taps is not None:  # recorded values must not change with the cache, and edits must not reach it
                key_BGSD, value_BGSD = key_BGSD.clone(), value_BGSD.clone()
        attention = fused_attention if taps is None else partial(recorded_attention, taps=taps)
        dropout = self.dropout if self.training else 0.0
        return self.join_heads(attention(query_BHTD, key_BGSD, value_BGSD, attend, dropout=dropout), taps)

    def project_qkv(self, x_BTM: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """x_BTM → (query_BHTD, key_BGTD, value_BGTD), queries and keys after QK-norm and rotation."""
        sizes = (self.n_heads, self.n_kv_heads, self.n_kv_heads)
        heads_BTND = self.qkv(x_BTM).view(*x_BTM.shape[:2], sum(sizes), self.d_head)  # N = H + 2G
        if use_custom_backward(heads_BTND) and self._norms_are_alike():
            return self._rotate_heads(heads_BTND, rotation)
        query_BTHD, key_BTGD, value_BTGD = heads_BTND.split_with_sizes(sizes, dim=2)
        if self.query_norm is not None:
            query_BTHD = self.query_norm(query_BTHD)
        if self.key_norm is not None:
            key_BTGD = self.key_norm(key_BTGD)
        query_BHTD = rotation.rotate(query_BTHD.transpose(1, 2))
        key_BGTD = rotation.rotate(key_BTGD.transpose(1, 2))
        return query_BHTD, key_BGTD, value_BTGD.transpose(1, 2)

    def _rotate_heads(self, heads_BTND: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """QK-norm and rotation in one function with a hand-written backward pass."""
        gain_RD, eps = None, 0.0
        if isinstance(self.query_norm, RMSNorm) and isinstance(self.key_norm, RMSNorm):
            gains = (self.query_norm.weight.expand(self.n_heads, -1), self.key_norm.weight.expand(self.n_kv_heads, -1))
            gain_RD, eps = torch.cat(gains), self.query_norm.eps
        n_rotated = self.n_heads + self.n_kv_heads
        rotated_BTRD, value_BTGD = rotate_heads(heads_BTND, gain_RD, eps, rotation.angles, n_rotated)
        query_BTHD, key_BTGD = rotated_BTRD.split_with_sizes((self.n_heads, self.n_kv_heads), dim=2)
        return query_BTHD.transpose(1, 2), key_BTGD.transpose(1, 2), value_BTGD.transpose(1, 2)

    def _norms_are_alike(self) -> bool:
        """Whether queries and keys both have an RMSNorm with the same ε, or neither has a norm."""
        query_norm, key_norm = self.query_norm, self.key_norm
        if query_norm is None or key_norm is None:
            return query_norm is key_norm
        return isinstance(query_norm, RMSNorm) and isinstance(key_norm, RMSNorm) and query_norm.eps == key_norm.eps


class CrossAttention(Attention):
    """Encoder-decoder attention (section 3.2.3): head_i = Attention(x W_Qi, memory W_Ki, memory W_Vi).

    Queries come from the decoder, keys and values from the encoder's output, `memory_BSM`. Neither is rotated: the
    distance between positions of different texts is not defined.
    """

    query: nn.Linear
    """`query.weight` is [H·D, M]."""
    key_value: nn.Linear
    """`key_value.weight` is [2G·D, M], rows [K; V]."""

    def _make_projections(self, d_model: int, *, bias: bool) -> None:
        self.query = nn.Linear(d_model, self.n_heads * self.d_head, bias=bias)
        self.key_value = nn.Linear(d_model, 2 * self.n_kv_heads * self.d_head, bias=bias)

    def project_kv(self, memory_BSM: Tensor) -> tuple[Tensor, Tensor]:
        """memory_BSM → (key_BGSD, value_BGSD): computed once per source text, since no target token changes them."""
        heads_BSND = self.key_value(memory_BSM).view(*memory_BSM.shape[:2], 2 * self.n_kv_heads, self.d_head)
        key_BSGD, value_BSGD = heads_BSND.split(self.n_kv_heads, dim=2)
        if self.key_norm is not None:
            key_BSGD = self.key_norm(key_BSGD)
        return key_BSGD.transpose(1, 2), value_BSGD.transpose(1, 2)

    def forward(
        self, x_BTM: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, attend: Attend, *, taps: Taps | None = None
    ) -> Tensor:
        """x_BTM → x_BTM, for keys and values of `project_kv`.

        x may have K rows for each row of the memory (hypotheses of one source text, side by side). Queries do not
        interact, so the K rows are read as one row of K·T queries and the memory is not copied.
        """
        query_BTHD = self.query(x_BTM).view(key_BGSD.shape[0], -1, self.n_heads, self.d_head)
        if self.query_norm is not None:
            query_BTHD = self.query_norm(query_BTHD)
        attention = fused_attention if taps is None else partial(recorded_attention, taps=taps)
        dropout = self.dropout if self.training else 0.0
        heads_BHTD = attention(query_BTHD.transpose(1, 2), key_BGSD, value_BGSD, attend, dropout=dropout)
        return self.join_heads(heads_BHTD, taps).view(x_BTM.shape)
