"""How large an encoder-decoder model is: parameters by part, arithmetic a target token, bytes of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mingyue.config import EncoderDecoderConfig
from mingyue.models import counts
from mingyue.models.counts import FP32_BYTES, Counted, TrainingBytes


@dataclass(frozen=True)
class PairSizes(Counted):
    """The sizes of one encoder-decoder model. The fields count parameters; make it with `sizes(config)`.

    Wherever lengths are asked for, they are those of one pair (a padded one: of its batch), and default to the context.
    """

    config: EncoderDecoderConfig
    embedding: int
    """The table of token vectors: of the target, and with one vocabulary of the source and a tied output layer too."""
    source_embedding: int
    """The table of a source side with its own vocabulary; else 0."""
    positions: int
    """Learned tables of positions, one a stack; 0 for the other kinds."""
    encoder_attention: int
    """Self-attention of the encoder's blocks, with biases and QK-norm gains."""
    encoder_feedforward: int
    """Feed-forward parts of the encoder's blocks."""
    decoder_attention: int
    """Masked self-attention of the decoder's blocks."""
    cross_attention: int
    """Attention of the decoder's blocks to the encoder's output."""
    decoder_feedforward: int
    """Feed-forward parts of the decoder's blocks."""
    norms: int
    """Norms of all blocks (two in the encoder's, three in the decoder's), and the final ones."""
    output: int
    """An output layer of its own (0 when tied), and a bias on the logits."""

    def parts(self) -> dict[str, int]:
        """Parameters by part, in the order of a forward pass; they add up to `parameters`."""
        return {
            "embedding": self.embedding,
            "source embedding": self.source_embedding,
            "positions": self.positions,
            "encoder attention": self.encoder_attention,
            "encoder feedforward": self.encoder_feedforward,
            "decoder attention": self.decoder_attention,
            "cross-attention": self.cross_attention,
            "decoder feedforward": self.decoder_feedforward,
            "norms": self.norms,
            "output": self.output,
        }

    def forward_flops(
        self, source_tokens: int | None = None, target_tokens: int | None = None, *, dense: bool = False
    ) -> float:
        """Floating-point operations of a forward pass over one pair, divided by its target tokens.

        Counted as in `Sizes.forward_flops`: the encoder and the keys and values of cross-attention for each source
        token, the rest of the decoder and the output layer for each target token; a source token sees all S, a target
        token all S and (T + 1) / 2 of its own text on average (`dense`: all T).
        """
        source_tokens, target_tokens = self._lengths(source_tokens, target_tokens)
        attention = self._attention_flops(source_tokens, target_tokens, dense)
        return (self._product_flops(source_tokens, target_tokens) + attention) / target_tokens

    def training_flops(
        self, source_tokens: int | None = None, target_tokens: int | None = None, *, dense: bool = False
    ) -> float:
        """The same for forward and backward: 3 for a matrix product, 7 for 2 in attention (see `Sizes`)."""
        source_tokens, target_tokens = self._lengths(source_tokens, target_tokens)
        attention = self._attention_flops(source_tokens, target_tokens, dense)
        return (3 * self._product_flops(source_tokens, target_tokens) + 3.5 * attention) / target_tokens

    def activation_bytes(
        self,
        rows: int,
        source_tokens: int | None = None,
        target_tokens: int | None = None,
        *,
        bytes_per_number: int = FP32_BYTES,
        logits: bool = True,
        recompute: bool = False,
    ) -> int:
        """Bytes that a forward pass of `rows` pairs keeps for its backward pass: an estimate for one micro-batch.

        `logits` and `recompute` as in `Sizes.activation_bytes`.
        """
        config = self.config
        source_tokens, target_tokens = self._lengths(source_tokens, target_tokens)
        turned, layers = config.positions == "rotary", config.n_layers
        sublayer, feedforward = counts.kept_by_sublayer(config), counts.kept_by_feedforward(config)
        own_keys = counts.kept_by_keys(config, turned=turned)
        encoder_block = (
            2 * sublayer + counts.kept_by_queries(config, source_tokens, turned=turned) + own_keys + feedforward
        )
        decoder_block = (
            3 * sublayer
            + counts.kept_by_queries(config, target_tokens, turned=turned)
            + own_keys
            + counts.kept_by_queries(config, source_tokens, turned=False)
            + feedforward
        )
        ends = counts.kept_by_ends(config)
        a_source = layers * counts.kept_by_keys(config, turned=False) + ends
        a_target = ends + (2 * config.vocab_size if logits else 0)
        if recompute:
            a_source += config.n_encoder_layers * config.d_model
            a_target += layers * config.d_model
            one_block = max(source_tokens * encoder_block, target_tokens * decoder_block)
        else:
            a_source += config.n_encoder_layers * encoder_block
            a_target += layers * decoder_block
            one_block = 0
        return rows * (source_tokens * a_source + target_tokens * a_target + one_block) * bytes_per_number

    def training_bytes(
        self,
        optimiser: Literal["muon", "adamw"],
        rows: int,
        source_tokens: int | None = None,
        target_tokens: int | None = None,
        *,
        activation_bytes_per_number: int = FP32_BYTES,
        logits: bool = True,
        recompute: bool = False,
    ) -> TrainingBytes:
        """Memory of training with micro-batches of `rows` pairs, an estimate; weights stay in fp32.

        Muon keeps room for gathering its gradients, besides what it remembers.
        """
        activations = self.activation_bytes(
            rows,
            source_tokens,
            target_tokens,
            bytes_per_number=activation_bytes_per_number,
            logits=logits,
            recompute=recompute,
        )
        return self._training_bytes(optimiser, activations)

    def cache_bytes(
        self,
        rows: int = 1,
        source_tokens: int | None = None,
        target_tokens: int | None = None,
        *,
        hypotheses: int = 1,
        bytes_per_number: int = FP32_BYTES,
    ) -> int:
        """Bytes of keys and values while writing: the memory of `rows` source texts, and the decoder's own cache.

        `hypotheses` of one source text (beams) share its memory, and have a row of the cache each.
        """
        source_tokens, target_tokens = self._lengths(source_tokens, target_tokens)
        a_token = 2 * self.config.n_layers * counts.key_width(self.config) * bytes_per_number
        return rows * (source_tokens + hypotheses * target_tokens) * a_token

    def _lengths(self, source_tokens: int | None, target_tokens: int | None) -> tuple[int, int]:
        context = self.config.context
        return min(source_tokens or context, context), min(target_tokens or context, context)

    def _product_flops(self, source_tokens: int, target_tokens: int) -> int:
        config, layers = self.config, self.config.n_layers
        attention, feedforward = counts.attention_matrices(config), counts.feedforward_matrices(config)
        a_source = config.n_encoder_layers * (attention + feedforward) + layers * counts.key_matrices(config)
        a_target = layers * (attention + counts.query_matrices(config) + feedforward)
        a_target += config.vocab_size * config.d_model
        return 2 * (source_tokens * a_source + target_tokens * a_target)

    def _attention_flops(self, source_tokens: int, target_tokens: int, dense: bool) -> int:
        config = self.config
        own = target_tokens * (2 * target_tokens if dense else target_tokens + 1) // 2
        cells = config.n_encoder_layers * source_tokens**2 + config.n_layers * (own + source_tokens * target_tokens)
        return 4 * counts.query_width(config) * cells


def count_pair_model(config: EncoderDecoderConfig) -> PairSizes:
    """Count a model without making it."""
    encoder, decoder, width = config.n_encoder_layers, config.n_layers, config.d_model
    attention, feedforward = counts.attention_parameters(config), counts.feedforward_parameters(config)
    attention_matrices, feedforward_matrices = counts.attention_matrices(config), counts.feedforward_matrices(config)
    table = config.vocab_size * width
    return PairSizes(
        config=config,
        embedding=table,
        source_embedding=(config.source_vocab_size or 0) * width,
        positions=2 * counts.position_parameters(config),
        encoder_attention=encoder * attention,
        encoder_feedforward=encoder * feedforward,
        decoder_attention=decoder * attention,
        cross_attention=decoder * attention,
        decoder_feedforward=decoder * feedforward,
        norms=(2 * encoder + 3 * decoder + 2 * config.final_norm) * counts.norm_parameters(config),
        output=(0 if config.tied_output else table) + config.output_bias * config.vocab_size,
        block_matrices=(encoder + 2 * decoder) * attention_matrices + (encoder + decoder) * feedforward_matrices,
    )
