"""How large a model is: parameters by part, arithmetic a token, bytes in training and in use.

Everything follows from a config by formula, without making a weight; tests compare with the real module, with
`torch.utils.flop_counter.FlopCounterMode`, and with what autograd really keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, overload

from mingyue.config import EncoderDecoderConfig, ModelConfig
from mingyue.models import counts
from mingyue.models.counts import FP32_BYTES, Counted, TrainingBytes
from mingyue.models.pair_sizes import PairSizes, count_pair_model
from mingyue.nn import chunk_of


@dataclass(frozen=True)
class Sizes(Counted):
    """The sizes of one decoder-only model. The fields count parameters by part; make it with `sizes(config)`."""

    config: ModelConfig
    embedding: int
    """The table of token vectors; a tied output layer is this one again."""
    positions: int
    """A learned table of positions; 0 for the other kinds."""
    attention: int
    """Projections of all blocks to queries, keys, values and back, with biases and QK-norm gains."""
    feedforward: int
    """Feed-forward parts of all blocks."""
    norms: int
    """Gains and biases of the norms of all blocks, and the final one."""
    output: int
    """An output layer of its own; 0 when tied."""

    def parts(self) -> dict[str, int]:
        """Parameters by part, in the order of a forward pass; they add up to `parameters`."""
        names = ("embedding", "positions", "attention", "feedforward", "norms", "output")
        return {name: getattr(self, name) for name in names}

    def forward_flops(self, context: int | None = None, *, dense: bool = False) -> float:
        """Floating-point operations of a forward pass, a token, in a text of `context` tokens (default: the config's).

        A multiply-add is 2. Counted are the matrix products (output layer included, embedding look-up not) and the two
        products of attention, q·kᵀ and weights·v, over the keys that a query sees: (T + 1) / 2 on average under a
        causal mask, fewer in a window. The fused causal kernel leaves out the rest but for the edges of its blocks.
        `dense` counts every key computed by a kernel that leaves out nothing: T for each query, whole chunks in a
        window. FlopCounterMode and most published figures (6N + 12·L·d·T) count so, causal or not.
        """
        return self._product_flops() + self._attention_flops(context, dense)

    def training_flops(self, context: int | None = None, *, dense: bool = False) -> float:
        """The same for forward and backward.

        The backward pass of a matrix product is two products, 3 in all. Attention's is five, 7 for 2: the fused
        kernel forgets its scores and computes them again (Dao et al. 2022).
        """
        return 3 * self._product_flops() + 3.5 * self._attention_flops(context, dense)

    def activation_bytes(
        self,
        rows: int,
        context: int | None = None,
        *,
        bytes_per_number: int = FP32_BYTES,
        logits: bool = True,
        recompute: bool = False,
    ) -> int:
        """Bytes that a forward pass of `rows` texts keeps for its backward pass: an estimate for one micro-batch.

        `logits`: with the log-probabilities over the vocabulary and their gradient (not, where the loss is taken in
        pieces). `recompute`: blocks keep their input alone, and one at a time all that it computes.
        """
        config = self.config
        context = config.context if context is None else context
        a_block = self._block_numbers(context)
        blocks = config.n_layers * config.d_model + a_block if recompute else config.n_layers * a_block
        numbers = blocks + counts.kept_by_ends(config)
        if logits:
            numbers += 2 * config.vocab_size
        return rows * context * numbers * bytes_per_number

    def training_bytes(
        self,
        optimiser: Literal["muon", "adamw"],
        rows: int,
        context: int | None = None,
        *,
        activation_bytes_per_number: int = FP32_BYTES,
        logits: bool = True,
        recompute: bool = False,
    ) -> TrainingBytes:
        """Memory of training with micro-batches of `rows` texts of `context` tokens; weights stay in fp32.

        Muon keeps room for gathering its gradients, besides what it remembers.
        """
        activations = self.activation_bytes(
            rows, context, bytes_per_number=activation_bytes_per_number, logits=logits, recompute=recompute
        )  # fmt: skip
        return self._training_bytes(optimiser, activations)

    def cache_bytes(self, rows: int = 1, capacity: int | None = None, *, bytes_per_number: int = FP32_BYTES) -> int:
        """Bytes of the keys and values of `rows` texts of `capacity` tokens (default: the context) while writing."""
        config = self.config
        capacity = config.context if capacity is None else min(capacity, config.context)
        return 2 * config.n_layers * rows * counts.key_width(config) * capacity * bytes_per_number

    def _product_flops(self) -> int:
        return 2 * (self.block_matrices + self.config.vocab_size * self.config.d_model)

    def _attention_flops(self, context: int | None, dense: bool) -> float:
        config = self.config
        context = config.context if context is None else context
        cells = computed_cells(context, config.window) if dense else _seen_cells(context, config.window)
        return 4 * config.n_layers * counts.query_width(config) * cells / context

    def _block_numbers(self, context: int) -> int:
        """Numbers a token that a block keeps."""
        config = self.config
        turned = config.positions == "rotary"
        n_keys = context if config.window is None else min(context, 2 * config.window)  # with dropout, by blocks
        attention = counts.kept_by_queries(config, n_keys, turned=turned) + counts.kept_by_keys(config, turned=turned)
        return 2 * counts.kept_by_sublayer(config) + attention + counts.kept_by_feedforward(config)


@overload
def sizes(config: ModelConfig) -> Sizes: ...


@overload
def sizes(config: EncoderDecoderConfig) -> PairSizes: ...


def sizes(config: ModelConfig | EncoderDecoderConfig) -> Sizes | PairSizes:
    """Count a model without making it."""
    if isinstance(config, EncoderDecoderConfig):
        return count_pair_model(config)
    layers, table = config.n_layers, config.vocab_size * config.d_model
    return Sizes(
        config=config,
        embedding=table,
        positions=counts.position_parameters(config),
        attention=layers * counts.attention_parameters(config),
        feedforward=layers * counts.feedforward_parameters(config),
        norms=(2 * layers + config.final_norm) * counts.norm_parameters(config),
        output=0 if config.tied_output else table,
        block_matrices=layers * (counts.attention_matrices(config) + counts.feedforward_matrices(config)),
    )


def _seen_cells(context: int, window: int | None) -> int:
    """Pairs of a query and a key that it sees, in a causal text: 1 + 2 + … up to the window, then the window."""
    widest = context if window is None else min(window, context)
    return widest * (widest + 1) // 2 + (context - widest) * widest


def computed_cells(context: int, window: int | None) -> int:
    """Pairs that kernels work on when they leave out nothing: all, or those of each chunk with the keys before it."""
    if window is None or context <= window:
        return context**2
    starts = range(0, context, chunk_of(window))
    ends = [*starts[1:], context]
    return sum((end - start) * (end - max(0, start - window)) for start, end in zip(starts, ends, strict=True))
