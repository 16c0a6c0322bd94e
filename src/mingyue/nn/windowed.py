"""Causal self-attention in a sliding window, in time and memory that grow with T · window.

The queries are processed in chunks. A chunk sees its own keys and the `window` keys before it, through one mask that
serves every chunk (the idea of Beltagy et al. 2020, "Longformer").

`blocked_window_attention` copies queries, keys and values into blocks and works everywhere. `chunked_window_attention`
is for CPUs: it reads and writes slices in place and saves for the backward pass only what fused attention saves. Its
backward pass is hand-written, since autograd would make a gradient of the whole length for every slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # what F.scaled_dot_product_attention calls
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_LEAST_CHUNK, _MOST_CHUNK = 64, 256  # queries: fewer use the kernel poorly, more compute many keys outside the window


def chunk_of(window: int) -> int:
    """Queries of a chunk; each is computed against `chunk + window` keys, of which it sees `window`."""
    return min(max(_LEAST_CHUNK, window // 4), _MOST_CHUNK)


def blocked_window_attention(
    query_BHTD: Tensor, key_BGTD: Tensor, value_BGTD: Tensor, window: int, *, dropout: float = 0.0
) -> Tensor:
    """Attention of each query to the `window` keys up to its own, in blocks of `window` tokens. Returns heads_BHTD.

    The queries of a block see their own block and the previous one, through one mask of window × 2·window.
    """
    n_rows, n_heads, n_tokens = query_BHTD.shape[:3]
    grouped = n_heads != key_BGTD.shape[1]
    n_blocks = -(-n_tokens // window)
    padding = n_blocks * window - n_tokens

    def in_blocks(x_BHTD: Tensor) -> Tensor:  # [B, H, T, D] → [B, N, H, window, D] for N blocks
        filled_BHTD = F.pad(x_BHTD, (0, 0, 0, padding)) if padding else x_BHTD  # a copy, even without padding
        return filled_BHTD.unflatten(2, (n_blocks, window)).transpose(1, 2)

    def with_previous(x_BNGWD: Tensor) -> Tensor:  # blocks 1…N−1, each after its predecessor
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


def chunked_window_attention(query_BHTD: Tensor, key_BGTD: Tensor, value_BGTD: Tensor, window: int) -> Tensor:
    """The same on slices, for CPU tensors without dropout. Returns heads_BHTD."""
    return _WindowAttention.apply(query_BHTD, key_BGTD, value_BGTD, window)  # type: ignore[return-value]


class _WindowAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # pyrefly: ignore[bad-override]  (the arguments are the function's own)
        ctx: Any,  # noqa: ANN401
        query_BHTD: Tensor,
        key_BGTD: Tensor,
        value_BGTD: Tensor,
        window: int,
    ) -> Tensor:
        n_rows, n_heads, n_tokens, d_head = query_BHTD.shape
        # In memory [B, T, H, D], as the heads will be joined.
        heads_BHTD = query_BHTD.new_empty(n_rows, n_tokens, n_heads, d_head).transpose(1, 2)
        sums_BTH = query_BHTD.new_empty(n_rows, n_tokens, n_heads, dtype=_sum_dtype(query_BHTD))
        for own, seen, bias_CS in _chunks(query_BHTD, window):
            chunk_BHCD, sums_BHC = _forward(
                query_BHTD[:, :, own], key_BGTD[:, :, seen], value_BGTD[:, :, seen], attn_mask=bias_CS
            )
            heads_BHTD[:, :, own] = chunk_BHCD
            sums_BTH[:, own] = sums_BHC.transpose(1, 2)
        ctx.save_for_backward(query_BHTD, key_BGTD, value_BGTD, heads_BHTD, sums_BTH)
        ctx.window = window
        return heads_BHTD

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_BHTD: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # noqa: ANN401  # pyrefly: ignore[bad-override]
        query_BHTD, key_BGTD, value_BGTD, heads_BHTD, sums_BTH = ctx.saved_tensors
        query_grad_BHTD = torch.empty_like(query_BHTD)
        key_grad_BGTD, value_grad_BGTD = torch.zeros_like(key_BGTD), torch.zeros_like(value_BGTD)
        for own, seen, bias_CS in _chunks(query_BHTD, ctx.window):
            query_grad_BHCD, key_grad_BGSD, value_grad_BGSD = _backward(
                grad_BHTD[:, :, own],
                query_BHTD[:, :, own],
                key_BGTD[:, :, seen],
                value_BGTD[:, :, seen],
                heads_BHTD[:, :, own],
                sums_BTH[:, own].transpose(1, 2),
                0.0,
                False,
                attn_mask=bias_CS,
            )
            query_grad_BHTD[:, :, own] = query_grad_BHCD
            key_grad_BGTD[:, :, seen] += key_grad_BGSD
            value_grad_BGTD[:, :, seen] += value_grad_BGSD
        return query_grad_BHTD, key_grad_BGTD, value_grad_BGTD, None


def _chunks(query_BHTD: Tensor, window: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """(slice of queries, slice of keys, bias added to the scores) of each chunk, in the order of the text."""
    n_tokens, chunk = query_BHTD.shape[2], chunk_of(window)
    distance_CS = torch.arange(chunk)[:, None] + window - torch.arange(chunk + window)
    hidden_CS = (distance_CS < 0) | (distance_CS >= window)
    bias_CS = torch.zeros(hidden_CS.shape, dtype=query_BHTD.dtype).masked_fill_(hidden_CS, float("-inf"))
    for start in range(0, n_tokens, chunk):
        end, first = min(start + chunk, n_tokens), max(0, start - window)
        before = start - window  # the position of the mask's first column
        yield slice(start, end), slice(first, end), bias_CS[: end - start, first - before : end - before]


def _sum_dtype(query_BHTD: Tensor) -> torch.dtype:
    """The dtype in which the kernel returns its log-sum-exp: fp32 at least."""
    return torch.promote_types(query_BHTD.dtype, torch.float32)
