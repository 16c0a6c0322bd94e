"""The Transformer of "Attention Is All You Need": an encoder reads one text, a decoder generates another.

It maps a source text and the target so far to the logits of the next target token at every position,
P(y_{t+1} | y_1 … y_t, x), all positions in one pass. The parts are those of the Mini-GPT, and cross-attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from mingyue.config import EncoderDecoderConfig
from mingyue.models.base import TransformerBase, decoder_plan
from mingyue.models.parts import make_block, make_decoder_block, make_final_norm, make_output, make_positions
from mingyue.nn import EVERYONE, Attend, Block, CacheStep, DecoderBlock, MemoryKV, Taps, tap, within


class Stack(nn.Module):
    """The modules of an encoder or a decoder: positions, blocks, a final norm."""

    def __init__(self, config: EncoderDecoderConfig, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.positions = make_positions(config)
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = make_final_norm(config)


class EncoderDecoder(TransformerBase[EncoderDecoderConfig]):
    """An encoder-decoder Transformer as `config` describes it."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__(config)
        self.source_embedding = (
            None if config.source_vocab_size is None else nn.Embedding(config.source_vocab_size, config.d_model)
        )
        self.encoder = Stack(config, [make_block(config) for _ in range(config.n_encoder_layers)])
        self.decoder = Stack(config, [make_decoder_block(config) for _ in range(config.n_layers)])
        self.output = make_output(config, self.embedding, bias=config.output_bias)

    def forward(
        self, source_BS: Tensor, ids_BT: Tensor, *, source_lengths_B: Tensor | None = None, taps: Taps | None = None
    ) -> Tensor:
        """source_BS, ids_BT (integers) → logits_BTV: teacher forcing, every position of the target at once.

        `source_lengths_B`: number of real tokens of each source row; the rest is padding and masked.
        """
        memory_BSM = self.encode(source_BS, source_lengths_B=source_lengths_B, taps=taps)
        memory = self.project_kv(memory_BSM, source_lengths_B=source_lengths_B)
        return tap(taps, "logits", self.output(self.hidden(ids_BT, memory, taps=taps)))

    def encode(self, source_BS: Tensor, *, source_lengths_B: Tensor | None = None, taps: Taps | None = None) -> Tensor:
        """source_BS → memory_BSM, the encoder's output (section 3.1). Every token attends to every token of its text.

        Raises `ValueError` for a source longer than the context, and for a row without a token.
        """
        n_tokens = source_BS.shape[1]
        if n_tokens > self.config.context:
            raise ValueError(f"{n_tokens} source tokens do not fit a context of {self.config.context}")
        attend = _mask_padding(source_lengths_B, n_tokens, source_BS.device)
        positions_1S = torch.arange(n_tokens, device=source_BS.device)[None]
        inner = within(taps, "encoder")
        table = self.embedding if self.source_embedding is None else self.source_embedding
        x_BSM = tap(inner, "embeddings", self._embed(source_BS, positions_1S, table, self.encoder.positions))
        rotation = self.encoder.positions.rotation(positions_1S)
        for layer, block in enumerate(self.encoder.blocks):
            x_BSM = block(x_BSM, attend, rotation, taps=within(inner, f"blocks.{layer}"))
        return tap(inner, "final", self.encoder.final_norm(x_BSM))

    def project_kv(self, memory_BSM: Tensor, *, source_lengths_B: Tensor | None = None) -> MemoryKV:
        """memory_BSM → keys and values of every decoder layer: once per source text, for all target tokens."""
        blocks = cast(Iterable[DecoderBlock], self.decoder.blocks)
        pairs = [block.cross_attention.project_kv(memory_BSM) for block in blocks]
        attend = _mask_padding(source_lengths_B, memory_BSM.shape[1], memory_BSM.device)
        return MemoryKV([key for key, _ in pairs], [value for _, value in pairs], attend)

    def hidden(
        self,
        ids_BT: Tensor,
        memory: MemoryKV,
        *,
        positions_BT: Tensor | None = None,
        cache: CacheStep | None = None,
        taps: Taps | None = None,
    ) -> Tensor:
        """ids_BT → x_BTM, the input of the output layer; causal.

        ids may have K rows for each row of the memory: rows b·K … b·K + K − 1 are K targets of source text b.
        Positions and cache as in `DecoderOnly.hidden`. Raises `ValueError` for a position outside the context, and
        if the number of ids rows is not a multiple of the source texts.
        """
        if len(ids_BT) % memory.rows:
            raise ValueError(f"{len(ids_BT)} targets are not a multiple of {memory.rows} source texts")
        positions_BT, attend = decoder_plan(ids_BT, self.config.context, positions_BT=positions_BT, cache=cache)
        inner = within(taps, "decoder")
        x_BTM = tap(inner, "embeddings", self._embed(ids_BT, positions_BT, self.embedding, self.decoder.positions))
        rotation = self.decoder.positions.rotation(positions_BT)
        for layer, block in enumerate(self.decoder.blocks):
            block_taps = within(inner, f"blocks.{layer}")
            x_BTM = block(x_BTM, attend, rotation, memory, cache=cache, layer=layer, taps=block_taps)
        if cache is not None:
            cache.commit()
        return tap(inner, "final", self.decoder.final_norm(x_BTM))

    @property
    def input_table(self) -> Tensor:
        """The embedding table of the source text."""
        return (self.embedding if self.source_embedding is None else self.source_embedding).weight

    def every_block(self) -> list[Block]:
        """All blocks, in the order of a forward pass."""
        return [*cast(Iterable[Block], self.encoder.blocks), *cast(Iterable[Block], self.decoder.blocks)]


def _mask_padding(source_lengths_B: Tensor | None, n_tokens: int, device: torch.device) -> Attend:
    if source_lengths_B is None:
        return EVERYONE
    if int(source_lengths_B.min()) < 1:
        raise ValueError("a source row has no token: even an empty text has its EOS token")
    allowed_BS = torch.arange(n_tokens, device=device) < source_lengths_B.to(device)[:, None]
    return Attend(allowed=allowed_BS[:, None, None], never_empty=True)
