"""How large a model is: parameters by part, arithmetic a token, bytes in training and in use.

Everything follows from a config by formula, without making a weight; tests compare with the real module, with
`torch.utils.flop_counter.FlopCounterMode`, and with what autograd really keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mingyue.config import ModelConfig

FP32_BYTES = 4


@dataclass(frozen=True)
class TrainingBytes:
    """Memory of training by what holds it, in bytes."""

    weights: int
    gradients: int
    optimiser: int
    activations: int

    @property
    def total(self) -> int:
        """All of it at once: the peak, at the end of a forward pass."""
        return self.weights + self.gradients + self.optimiser + self.activations


@dataclass(frozen=True)
class Sizes:
    """The sizes of one model. The fields count parameters by part; make it with `sizes(config)`."""

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
    block_matrices: int
    """Of these, the weights of matrices inside blocks: what Muon moves."""

    @property
    def parameters(self) -> int:
        """All of them; a tied table counts once."""
        return self.embedding + self.positions + self.attention + self.feedforward + self.norms + self.output

    @property
    def parameters_without_embeddings(self) -> int:
        """Without the tables of tokens, positions and output (the N of Kaplan et al. 2020)."""
        return self.attention + self.feedforward + self.norms

    def parts(self) -> dict[str, int]:
        """Parameters by part, in the order of a forward pass; they add up to `parameters`."""
        names = ("embedding", "positions", "attention", "feedforward", "norms", "output")
        return {name: getattr(self, name) for name in names}

    def forward_flops(self, context: int | None = None, *, dense: bool = False) -> float:
        """Floating-point operations of a forward pass, a token, in a text of `context` tokens (default: the config's).

        A multiply-add is 2. Counted are the matrix products (output layer included, embedding look-up not) and the two
        products of attention, q·kᵀ and weights·v, over the keys that a query sees: (T + 1) / 2 on average under a
        causal mask, fewer in a window. The fused causal kernel leaves out the rest but for the edges of its blocks.
        `dense` counts every key computed by a kernel that leaves out nothing: T for each query, whole blocks in a
        window. FlopCounterMode and most published figures (6N + 12·L·d·T) count so, causal or not.
        """
        return self._product_flops() + self._attention_flops(context, dense)

    def training_flops(self, context: int | None = None, *, dense: bool = False) -> float:
        """The same for forward and backward.

        The backward pass of a matrix product is two products, 3 in all. Attention's is five, 7 for 2: the fused
        kernel forgets its scores and computes them again (Dao et al. 2022).
        """
        return 3 * self._product_flops() + 3.5 * self._attention_flops(context, dense)

    def weight_bytes(self, bytes_per_number: int = FP32_BYTES) -> int:
        """Bytes of the weights; gradients have as many."""
        return self.parameters * bytes_per_number

    def optimiser_bytes(self, optimiser: Literal["muon", "adamw"]) -> int:
        """Bytes of what an optimiser remembers, fp32: AdamW two moments a weight, Muon one momentum a matrix weight."""
        numbers = 2 * self.parameters
        return FP32_BYTES * (numbers - self.block_matrices if optimiser == "muon" else numbers)

    def activation_bytes(
        self, rows: int, context: int | None = None, *, bytes_per_number: int = FP32_BYTES, logits: bool = True
    ) -> int:
        """Bytes that a forward pass of `rows` texts keeps for its backward pass: an estimate for one micro-batch.

        `logits`: with the log-probabilities over the vocabulary and their gradient (not, where the loss is taken in
        pieces).
        """
        config = self.config
        context = config.context if context is None else context
        last = config.final_norm * self._norm_numbers() + config.d_model
        numbers = config.n_layers * self._block_numbers(context) + last + config.d_model * (config.dropout > 0)
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
    ) -> TrainingBytes:
        """Memory of training with micro-batches of `rows` texts of `context` tokens; weights stay in fp32.

        Muon keeps room for gathering its gradients, besides what it remembers.
        """
        gathered = FP32_BYTES * self.block_matrices if optimiser == "muon" else 0
        activations = self.activation_bytes(
            rows, context, bytes_per_number=activation_bytes_per_number, logits=logits
        )  # fmt: skip
        return TrainingBytes(
            self.weight_bytes(), self.weight_bytes(), self.optimiser_bytes(optimiser) + gathered, activations
        )

    def cache_bytes(self, rows: int = 1, capacity: int | None = None, *, bytes_per_number: int = FP32_BYTES) -> int:
        """Bytes of the keys and values of `rows` texts of `capacity` tokens (default: the context) while writing."""
        config = self.config
        capacity = config.context if capacity is None else min(capacity, config.context)
        return 2 * config.n_layers * rows * config.n_kv_heads * config.d_head * capacity * bytes_per_number

    def _product_flops(self) -> int:
        return 2 * (self.block_matrices + self.config.vocab_size * self.config.d_model)

    def _attention_flops(self, context: int | None, dense: bool) -> float:
        config = self.config
        context = config.context if context is None else context
        cells = _computed_cells(context, config.window) if dense else _seen_cells(context, config.window)
        return 4 * config.n_layers * config.n_heads * config.d_head * cells / context

    def _norm_numbers(self) -> int:
        """What a norm keeps a token: its input; RMSNorm, made of several kernels, also the normalised vector."""
        return self.config.d_model * (2 if self.config.norm == "rms" else 1)

    def _block_numbers(self, context: int) -> int:
        """Numbers a token that a block keeps, each stored once however many steps read it."""
        config = self.config
        queries, keys = config.n_heads * config.d_head, config.n_kv_heads * config.d_head
        turned = queries + keys
        blocked = config.window is not None and context > 2 * config.window
        attention = queries + 2 * keys  # the result of the projection, of which the heads are views
        if config.qk_norm:
            attention += turned
        if config.positions == "rotary" or config.qk_norm:
            attention += turned
        if blocked:  # each block of keys and values stands behind its neighbour too
            attention += 4 * keys
        attention += queries * (2 if blocked else 1) + config.n_heads  # what comes out, and a sum a row
        if config.attention_dropout:  # no fused kernel on CPUs: weights before and after, and what was dropped
            attention += 3 * config.n_heads * context
        feedforward = {"relu": 1, "swiglu": 4}.get(config.feedforward, 2) * config.d_ff
        dropped = 2 * config.d_model if config.dropout else 0
        return 2 * (self._norm_numbers() + config.d_model) + attention + feedforward + dropped


def sizes(config: ModelConfig) -> Sizes:
    """Count a model without making it."""
    width, layers = config.d_model, config.n_layers
    queries, keys = config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    inner = config.d_ff * (2 if config.feedforward == "swiglu" else 1)
    attention_matrices = width * (queries + 2 * keys) + queries * width
    feedforward_matrices = width * inner + config.d_ff * width
    attention_vectors = (
        config.bias_qkv * (queries + 2 * keys) + config.bias_output * width + config.qk_norm * 2 * config.d_head
    )
    norm = width * (2 if config.norm == "layer" else 1)
    return Sizes(
        config=config,
        embedding=config.vocab_size * width,
        positions=config.context * width if config.positions == "learned" else 0,
        attention=layers * (attention_matrices + attention_vectors),
        feedforward=layers * (feedforward_matrices + config.bias_feedforward * (inner + width)),
        norms=(2 * layers + config.final_norm) * norm,
        output=0 if config.tied_output else config.vocab_size * width,
        block_matrices=layers * (attention_matrices + feedforward_matrices),
    )


def _seen_cells(context: int, window: int | None) -> int:
    """Pairs of a query and a key that it sees, in a causal text: 1 + 2 + … up to the window, then the window."""
    widest = context if window is None else min(window, context)
    return widest * (widest + 1) // 2 + (context - widest) * widest


def _computed_cells(context: int, window: int | None) -> int:
    """Pairs that kernels work on when they leave out nothing: all, or blocks of window × 2·window."""
    if window is None or context <= 2 * window:
        return context**2
    blocks = -(-context // window)
    return window**2 * (2 * blocks - 1)
