"""Causal self-attention in a sliding window, in time and memory that grow with T · window, on CPUs without a copy.

The text is taken in chunks of queries. A chunk sees the `window` keys before it and its own, through one mask that
serves every chunk (Beltagy et al. 2020, "Longformer", has the idea). Queries, keys, values and the result are read and
written where they lie: nothing is gathered into blocks, and the backward pass keeps what plain fused attention keeps.
Autograd over slices would not do: each slice would bring a gradient as long as the whole text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # what F.scaled_dot_product_attention calls
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_LEAST_CHUNK, _MOST_CHUNK = 64, 256  # queries: fewer fill no kernel, more look at many keys outside the window


def chunk_of(window: int) -> int:
    """Queries that are taken together: each of them is computed against `chunk + window` keys and sees `window`."""
    return min(max(_LEAST_CHUNK, window // 4), _MOST_CHUNK)


def chunked_window_attention(query_BHTD: Tensor, key_BGTD: Tensor, value_BGTD: Tensor, window: int) -> Tensor:
    """Attention of each query to the `window` keys up to its own. Returns heads_BHTD. CPU tensors, no dropout."""
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
        # Laid out as the heads will be joined: [B, T, H, D].
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
    """(queries, the keys that they may see, what is added to their scores) of each chunk, in the order of the text."""
    n_tokens, chunk = query_BHTD.shape[2], chunk_of(window)
    distance_CS = torch.arange(chunk)[:, None] + window - torch.arange(chunk + window)
    hidden_CS = (distance_CS < 0) | (distance_CS >= window)
    bias_CS = torch.zeros(hidden_CS.shape, dtype=query_BHTD.dtype).masked_fill_(hidden_CS, float("-inf"))
    for start in range(0, n_tokens, chunk):
        end, first = min(start + chunk, n_tokens), max(0, start - window)
        before = start - window  # the position of the mask's first column
        yield slice(start, end), slice(first, end), bias_CS[: end - start, first - before : end - before]


def _sum_dtype(query_BHTD: Tensor) -> torch.dtype:
    """The kernel adds up in fp32 at least."""
    return torch.promote_types(query_BHTD.dtype, torch.float32)
