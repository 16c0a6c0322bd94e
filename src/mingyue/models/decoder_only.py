"""The Mini-GPT: token embeddings, positions, a stack of causal blocks, a norm, an output layer.

It maps ids to the logits of the next token at every position, P(x_{t+1} | x_1 … x_t), all positions in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.config import ModelConfig
from mingyue.models.parts import TiedOutput, make_block, make_final_norm, make_positions, place
from mingyue.nn import Attend, Block, Cache, CacheStep, Taps, needs_matrix, tap


class DecoderOnly(nn.Module):
    """A decoder-only Transformer as `config` describes it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.embedding_scale = math.sqrt(config.d_model) if config.embedding_scale else 1.0
        self.positions = make_positions(config)
        self.blocks = nn.ModuleList(make_block(config) for _ in range(config.n_layers))
        self.final_norm = make_final_norm(config)
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
        positions_BT, attend = place(ids_BT, self.config.context, positions_BT=positions_BT, attend=attend, cache=cache)
        n_tokens = ids_BT.shape[1]
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

    def every_block(self) -> list[Block]:
        """All blocks, in the order of a forward pass."""
        return [*cast(Iterable[Block], self.blocks)]

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
