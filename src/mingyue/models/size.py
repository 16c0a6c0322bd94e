"""How large a model is: parameters by part, arithmetic per token, bytes in training and in generation.

Everything follows from a config by formula, without creating a weight; tests compare with the real module, with
`torch.utils.flop_counter.FlopCounterMode`, and with what autograd really keeps.

A decoder-only model is counted as an encoder-decoder model without an encoder, without cross-attention and without
source tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.models import counts
from mingyue.nn import chunk_of
from mingyue.words import tr

FP32_BYTES = 4
_TABLES = ("embedding", tr("source embedding"), "positions", "output")

Optimiser = Literal["muon", "adamw"]


@dataclass(frozen=True)
class TrainingBytes:
    """Memory of training by what holds it, in bytes."""

    weights: int
    gradients: int
    optimiser: int
    """State of the optimiser, and Muon's buffer of gradients."""
    activations: int

    @property
    def total(self) -> int:
        """The sum: the peak, at the end of a forward pass."""
        return self.weights + self.gradients + self.optimiser + self.activations


@dataclass(frozen=True)
class Sizes:
    """The sizes of one model; `sizes(config)` creates it.

    Methods take `lengths`: of a decoder-only model the tokens of a text; of an encoder-decoder model the source tokens
    and the target tokens of a pair (of a padded one: of its batch), at most the context. Each defaults to the context.
    """

    config: ModelConfig | EncoderDecoderConfig

    def parts(self) -> dict[str, int]:
        """Parameters by part, in the order of a forward pass; they add up to `parameters`.

        A tied output layer is the embedding table again and counts as 0.
        """
        config = self.config
        table = config.vocab_size * config.d_model
        attention, feedforward = counts.attention_parameters(config), counts.feedforward_parameters(config)
        norms = 2 * (self._encoder_layers + config.n_layers) + self._cross_layers
        output = 0 if config.tied_output else table
        if isinstance(config, ModelConfig):
            return {
                "embedding": table,
                "positions": counts.position_parameters(config),
                "attention": config.n_layers * attention,
                "feedforward": config.n_layers * feedforward,
                "norms": (norms + config.final_norm) * counts.norm_parameters(config),
                "output": output,
            }
        return {
            "embedding": table,
            tr("source embedding"): (config.source_vocab_size or 0) * config.d_model,
            "positions": 2 * counts.position_parameters(config),
            tr("encoder attention"): config.n_encoder_layers * attention,
            tr("encoder feedforward"): config.n_encoder_layers * feedforward,
            tr("decoder attention"): config.n_layers * attention,
            "cross-attention": config.n_layers * attention,
            tr("decoder feedforward"): config.n_layers * feedforward,
            "norms": (norms + 2 * config.final_norm) * counts.norm_parameters(config),
            "output": output + config.output_bias * config.vocab_size,
        }

    @property
    def parameters(self) -> int:
        """All parameters; a tied table counts once."""
        return sum(self.parts().values())

    @property
    def parameters_without_embeddings(self) -> int:
        """Without the tables of tokens, positions and output (the N of Kaplan et al. 2020)."""
        return sum(count for name, count in self.parts().items() if name not in _TABLES)

    @property
    def block_matrices(self) -> int:
        """Weights of the matrices inside blocks: those that Muon updates."""
        attention, feedforward = counts.attention_matrices(self.config), counts.feedforward_matrices(self.config)
        layers = self._encoder_layers + self.config.n_layers
        return (layers + self._cross_layers) * attention + layers * feedforward

    def forward_flops(self, *lengths: int | None, dense: bool = False) -> float:
        """Floating-point operations of a forward pass, per token; of a pair, per target token.

        A multiply-add is 2. Counted are the matrix products (output layer included, embedding look-up not) and the two
        products of attention, q·kᵀ and weights·v, over the keys that a query sees: in self-attention (T + 1) / 2 on
        average under a causal mask, fewer in a window; all S of a source text. The fused causal kernel skips the rest
        except at the edges of its blocks. `dense` counts every key that a kernel without skipping computes: T for each
        query, whole chunks in a window. FlopCounterMode and most published figures (6N + 12·L·d·T) count so, causal or
        not.
        """
        source, target = self._source_and_target(lengths)
        return (self._product_flops(source, target) + self._attention_flops(source, target, dense)) / target

    def training_flops(self, *lengths: int | None, dense: bool = False) -> float:
        """The same for forward and backward.

        The backward pass of a matrix product is two products, 3 in all. Attention's is five, 7 for 2: the fused
        kernel does not store its scores and computes them again (Dao et al. 2022).
        """
        source, target = self._source_and_target(lengths)
        attention = self._attention_flops(source, target, dense)
        return (3 * self._product_flops(source, target) + 3.5 * attention) / target

    def weight_bytes(self, bytes_per_number: int = FP32_BYTES) -> int:
        """Bytes of the weights; gradients have as many."""
        return self.parameters * bytes_per_number

    def optimiser_bytes(self, optimiser: Optimiser) -> int:
        """Bytes of the optimiser's state, fp32: AdamW two moments per weight, Muon one momentum per matrix weight."""
        numbers = 2 * self.parameters
        return FP32_BYTES * (numbers - self.block_matrices if optimiser == "muon" else numbers)

    def activation_bytes(
        self,
        rows: int,
        *lengths: int | None,
        bytes_per_number: int = FP32_BYTES,
        logits: bool = True,
        recompute: bool = False,
    ) -> int:
        """Bytes that a forward pass of `rows` texts or pairs keeps for its backward pass: an estimate per micro-batch.

        `logits`: include the log-probabilities over the vocabulary and their gradient (a chunked loss has neither).
        `recompute`: each block keeps only its input, and one at a time all that it computes.
        """
        config = self.config
        source, target = self._source_and_target(lengths)
        encoder_block, decoder_block = self._kept_by_blocks(source, target)
        ends = counts.kept_by_ends(config)
        per_source = self._cross_layers * counts.kept_by_keys(config, rotated=False) + ends
        per_target = ends + (2 * config.vocab_size if logits else 0)
        if recompute:
            per_source += self._encoder_layers * config.d_model
            per_target += config.n_layers * config.d_model
            one_block = max(source * encoder_block, target * decoder_block)
        else:
            per_source += self._encoder_layers * encoder_block
            per_target += config.n_layers * decoder_block
            one_block = 0
        return rows * (source * per_source + target * per_target + one_block) * bytes_per_number

    def training_bytes(
        self,
        optimiser: Optimiser,
        rows: int,
        *lengths: int | None,
        activation_bytes_per_number: int = FP32_BYTES,
        logits: bool = True,
        recompute: bool = False,
    ) -> TrainingBytes:
        """Memory of training with micro-batches of `rows` texts or pairs; weights are in fp32.

        Muon has a buffer for its gradients, besides its state.
        """
        activations = self.activation_bytes(
            rows, *lengths, bytes_per_number=activation_bytes_per_number, logits=logits, recompute=recompute
        )
        buffer = FP32_BYTES * self.block_matrices if optimiser == "muon" else 0
        weights = self.weight_bytes()
        return TrainingBytes(weights, weights, self.optimiser_bytes(optimiser) + buffer, activations)

    def cache_bytes(
        self, rows: int = 1, *lengths: int | None, hypotheses: int = 1, bytes_per_number: int = FP32_BYTES
    ) -> int:
        """Bytes of the keys and values of `rows` texts or pairs in generation.

        `hypotheses` of one source text (beams) share its keys and values, and have a row of the cache each.
        """
        source, target = self._source_and_target(lengths)
        per_token = 2 * self.config.n_layers * counts.key_width(self.config) * bytes_per_number
        return rows * (source + hypotheses * min(target, self.config.context)) * per_token

    @property
    def _encoder_layers(self) -> int:
        return self.config.n_encoder_layers if isinstance(self.config, EncoderDecoderConfig) else 0

    @property
    def _cross_layers(self) -> int:
        return self.config.n_layers if isinstance(self.config, EncoderDecoderConfig) else 0

    @property
    def _window(self) -> int | None:
        return self.config.window if isinstance(self.config, ModelConfig) else None

    def _source_and_target(self, lengths: tuple[int | None, ...]) -> tuple[int, int]:
        context = self.config.context
        if isinstance(self.config, ModelConfig):
            (target,) = lengths or (None,)
            return 0, context if target is None else target
        source, target = (*lengths, None, None)[:2]
        return min(source or context, context), min(target or context, context)

    def _product_flops(self, source: int, target: int) -> int:
        config = self.config
        block = counts.attention_matrices(config) + counts.feedforward_matrices(config)
        per_source = self._encoder_layers * block + self._cross_layers * counts.key_matrices(config)
        per_target = config.n_layers * block + self._cross_layers * counts.query_matrices(config)
        per_target += config.vocab_size * config.d_model
        return 2 * (source * per_source + target * per_target)

    def _attention_flops(self, source: int, target: int, dense: bool) -> int:
        own = computed_cells(target, self._window) if dense else _seen_cells(target, self._window)
        cells = self._encoder_layers * source**2 + self.config.n_layers * own + self._cross_layers * source * target
        return 4 * counts.query_width(self.config) * cells

    def _kept_by_blocks(self, source: int, target: int) -> tuple[int, int]:
        """Numbers per token that a block of the encoder keeps, and one of the decoder."""
        config, crosses = self.config, self._cross_layers > 0
        rotated = config.positions == "rotary"
        own_keys = target if self._window is None else min(target, 2 * self._window)  # with dropout, by blocks
        sublayer = counts.kept_by_sublayer(config)
        shared = 2 * sublayer + counts.kept_by_keys(config, rotated=rotated) + counts.kept_by_feedforward(config)
        cross = sublayer + counts.kept_by_queries(config, source, rotated=False)
        return (
            shared + counts.kept_by_queries(config, source, rotated=rotated),
            shared + counts.kept_by_queries(config, own_keys, rotated=rotated) + crosses * cross,
        )


def sizes(config: ModelConfig | EncoderDecoderConfig) -> Sizes:
    """The sizes of a model, computed without creating it."""
    return Sizes(config)


def _seen_cells(context: int, window: int | None) -> int:
    """Pairs of a query and a key that it sees in a causal text: 1 + 2 + … up to the window, then the window."""
    widest = context if window is None else min(window, context)
    return widest * (widest + 1) // 2 + (context - widest) * widest


def computed_cells(context: int, window: int | None) -> int:
    """Pairs that kernels compute when they skip nothing: all, or those of each chunk with the keys before it."""
    if window is None or context <= window:
        return context**2
    starts = range(0, context, chunk_of(window))
    ends = [*starts[1:], context]
    return sum((end - start) * (end - max(0, start - window)) for start, end in zip(starts, ends, strict=True))
