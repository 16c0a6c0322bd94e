"""The Transformer of "Attention Is All You Need": an encoder that reads one text, a decoder that writes another.

It maps a source text and the target written so far to the logits of the next target token at every position,
P(y_{t+1} | y_1 … y_t, x), all positions in one pass. The parts are those of the Mini-GPT, and cross-attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.config import EncoderDecoderConfig
from mingyue.models.parts import (
    TiedOutput,
    make_block,
    make_decoder_block,
    make_final_norm,
    make_positions,
    place,
)
from mingyue.nn import EVERYONE, Attend, Block, Cache, CacheStep, DecoderBlock, Memory, Taps, needs_matrix, tap


class Stack(nn.Module):
    """Positions, blocks and a final norm: what encoder and decoder both are. Embeddings come in, x_BTM goes out."""

    def __init__(self, config: EncoderDecoderConfig, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.positions = make_positions(config)
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = make_final_norm(config)
        self.dropout = config.dropout

    def begin(self, embedded_BTM: Tensor, positions_BT: Tensor, taps: Taps | None) -> Tensor:
        """Add positions; dropout on the sum (section 5.4)."""
        x_BTM = self.positions.add(embedded_BTM, positions_BT)
        if self.training and self.dropout:
            x_BTM = F.dropout(x_BTM, self.dropout)
        return tap(taps, "embeddings", x_BTM)


class EncoderDecoder(nn.Module):
    """An encoder-decoder Transformer as `config` describes it."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.source_embedding = (
            None if config.source_vocab_size is None else nn.Embedding(config.source_vocab_size, config.d_model)
        )
        self.embedding_scale = math.sqrt(config.d_model) if config.embedding_scale else 1.0
        self.encoder = Stack(config, [make_block(config) for _ in range(config.n_encoder_layers)])
        self.decoder = Stack(config, [make_decoder_block(config) for _ in range(config.n_layers)])
        self.output: nn.Module = (
            TiedOutput(self.embedding, bias=config.output_bias)
            if config.tied_output
            else nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        )

    def forward(
        self, source_BS: Tensor, ids_BT: Tensor, *, source_lengths_B: Tensor | None = None, taps: Taps | None = None
    ) -> Tensor:
        """source_BS, ids_BT (integers) → logits_BTV: teacher forcing, every position of the target at once.

        `source_lengths_B`: what stands after so many source tokens is padding, seen by no one.
        """
        memory_BSM = self.encode(source_BS, source_lengths_B=source_lengths_B, taps=taps)
        memory = self.remember(memory_BSM, source_lengths_B=source_lengths_B)
        return tap(taps, "logits", self.output(self.hidden(ids_BT, memory, taps=taps)))

    def encode(self, source_BS: Tensor, *, source_lengths_B: Tensor | None = None, taps: Taps | None = None) -> Tensor:
        """source_BS → memory_BSM, the encoder's output (section 3.1). Every token sees every token of its text.

        Raises `ValueError` for a source longer than the context, and for a row without a token.
        """
        n_tokens = source_BS.shape[1]
        if n_tokens > self.config.context:
            raise ValueError(f"{n_tokens} source tokens do not fit a context of {self.config.context}")
        attend = _hide_padding(source_lengths_B, n_tokens, source_BS.device)
        positions_1S = torch.arange(n_tokens, device=source_BS.device)[None]
        inner = None if taps is None else taps.within("encoder")
        table = self.embedding if self.source_embedding is None else self.source_embedding
        x_BSM = self.encoder.begin(self._embed(table, source_BS), positions_1S, inner)
        rotation = self.encoder.positions.rotation(positions_1S)
        for layer, block in enumerate(self.encoder.blocks):
            block_taps = None if inner is None else inner.within(f"blocks.{layer}")
            x_BSM = block(x_BSM, attend, rotation, taps=block_taps)
        return tap(inner, "final", self.encoder.final_norm(x_BSM))

    def remember(self, memory_BSM: Tensor, *, source_lengths_B: Tensor | None = None) -> Memory:
        """memory_BSM → keys and values of every decoder layer: once a text, however many tokens are written."""
        blocks = cast(Iterable[DecoderBlock], self.decoder.blocks)
        pairs = [block.cross_attention.remember(memory_BSM) for block in blocks]
        attend = _hide_padding(source_lengths_B, memory_BSM.shape[1], memory_BSM.device)
        return Memory([key for key, _ in pairs], [value for _, value in pairs], attend)

    def hidden(
        self,
        ids_BT: Tensor,
        memory: Memory,
        *,
        positions_BT: Tensor | None = None,
        cache: CacheStep | None = None,
        taps: Taps | None = None,
    ) -> Tensor:
        """ids_BT → x_BTM, what the output layer reads; no token sees what stands after it.

        ids may have K rows for each row of the memory: rows b·K … b·K + K − 1 are K targets of source text b.
        Positions and cache as in `DecoderOnly.hidden`. Raises `ValueError` for a position outside the context,
        and for ids whose rows no K fits.
        """
        if len(ids_BT) % memory.rows:
            raise ValueError(f"{len(ids_BT)} targets cannot be shared out among {memory.rows} source texts")
        positions_BT, attend = place(ids_BT, self.config.context, positions_BT=positions_BT, attend=None, cache=cache)
        n_tokens = ids_BT.shape[1]
        n_keys = n_tokens if cache is None else cache.n_keys
        attend = attend if attend.causal else replace(attend, causal=True)
        if needs_matrix(attend, n_tokens, n_keys):  # once, not in every layer
            attend = attend.drawn(n_tokens, n_keys, device=ids_BT.device)
        inner = None if taps is None else taps.within("decoder")
        x_BTM = self.decoder.begin(self._embed(self.embedding, ids_BT), positions_BT, inner)
        rotation = self.decoder.positions.rotation(positions_BT)
        for layer, block in enumerate(self.decoder.blocks):
            block_taps = None if inner is None else inner.within(f"blocks.{layer}")
            x_BTM = block(x_BTM, attend, rotation, memory, cache=cache, layer=layer, taps=block_taps)
        if cache is not None:
            cache.commit()
        return tap(inner, "final", self.decoder.final_norm(x_BTM))

    def every_block(self) -> list[Block]:
        """All blocks, in the order of a forward pass."""
        return [*cast(Iterable[Block], self.encoder.blocks), *cast(Iterable[Block], self.decoder.blocks)]

    def new_cache(self, rows: int, *, capacity: int | None = None) -> Cache:
        """An empty cache for the decoder's self-attention, `capacity` tokens a row (default, and most: the context)."""
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

    def _embed(self, table: nn.Embedding, ids_BT: Tensor) -> Tensor:
        x_BTM = table(ids_BT)
        return x_BTM * self.embedding_scale if self.embedding_scale != 1.0 else x_BTM


def _hide_padding(source_lengths_B: Tensor | None, n_tokens: int, device: torch.device) -> Attend:
    if source_lengths_B is None:
        return EVERYONE
    if int(source_lengths_B.min()) < 1:
        raise ValueError("a source row has no token: even an empty text has its end mark")
    allowed_BS = torch.arange(n_tokens, device=device) < source_lengths_B.to(device)[:, None]
    return Attend(allowed=allowed_BS[:, None, None], never_empty=True)
