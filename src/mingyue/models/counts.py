"""Counts of single parts, for the sizes of both architectures: parameters, and numbers kept for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mingyue.config import PartsConfig

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
class Counted:
    """What follows from the parameters of a model, whatever its architecture."""

    block_matrices: int
    """Parameters that are weights of matrices inside blocks: what Muon moves."""

    def parts(self) -> dict[str, int]:
        """Parameters by part, in the order of a forward pass; they add up to `parameters`."""
        raise NotImplementedError

    @property
    def parameters(self) -> int:
        """All of them; a tied table counts once."""
        return sum(self.parts().values())

    @property
    def parameters_without_embeddings(self) -> int:
        """Without the tables of tokens, positions and output (the N of Kaplan et al. 2020)."""
        tables = ("embedding", "source embedding", "positions", "output")
        return sum(count for name, count in self.parts().items() if name not in tables)

    def weight_bytes(self, bytes_per_number: int = FP32_BYTES) -> int:
        """Bytes of the weights; gradients have as many."""
        return self.parameters * bytes_per_number

    def optimiser_bytes(self, optimiser: Literal["muon", "adamw"]) -> int:
        """Bytes of what an optimiser remembers, fp32: AdamW two moments a weight, Muon one momentum a matrix weight."""
        numbers = 2 * self.parameters
        return FP32_BYTES * (numbers - self.block_matrices if optimiser == "muon" else numbers)

    def _training_bytes(self, optimiser: Literal["muon", "adamw"], activations: int) -> TrainingBytes:
        """Weights stay in fp32. Muon keeps room for gathering its gradients, besides what it remembers."""
        gathered = FP32_BYTES * self.block_matrices if optimiser == "muon" else 0
        return TrainingBytes(
            self.weight_bytes(), self.weight_bytes(), self.optimiser_bytes(optimiser) + gathered, activations
        )


def query_width(config: PartsConfig) -> int:
    """Numbers of the queries of one token: H · D."""
    return config.n_heads * config.d_head


def key_width(config: PartsConfig) -> int:
    """Numbers of the keys of one token, and of its values: G · D."""
    return config.n_kv_heads * config.d_head


def query_matrices(config: PartsConfig) -> int:
    """What attention does to a token that asks: its query, and the projection that joins the heads."""
    return 2 * config.d_model * query_width(config)


def key_matrices(config: PartsConfig) -> int:
    """What attention does to a token that is looked at: its key and its value."""
    return 2 * config.d_model * key_width(config)


def attention_matrices(config: PartsConfig) -> int:
    """Weights of one attention, self- or cross-: queries, keys, values and back."""
    return query_matrices(config) + key_matrices(config)


def attention_parameters(config: PartsConfig) -> int:
    """The same with biases and the gains of QK-norm."""
    biases = config.bias_qkv * (query_width(config) + 2 * key_width(config)) + config.bias_output * config.d_model
    return attention_matrices(config) + biases + config.qk_norm * 2 * config.d_head


def feedforward_matrices(config: PartsConfig) -> int:
    """Weights of one feed-forward part; a gated one has three matrices."""
    return config.d_model * config.d_ff * (3 if config.feedforward == "swiglu" else 2)


def feedforward_parameters(config: PartsConfig) -> int:
    """The same with biases."""
    inner = config.d_ff * (2 if config.feedforward == "swiglu" else 1)
    return feedforward_matrices(config) + config.bias_feedforward * (inner + config.d_model)


def norm_parameters(config: PartsConfig) -> int:
    """Of one norm: gains, and biases of a LayerNorm."""
    return config.d_model * (2 if config.norm == "layer" else 1)


def position_parameters(config: PartsConfig) -> int:
    """Of one learned table of positions; 0 for the other kinds."""
    return config.context * config.d_model if config.positions == "learned" else 0


# Numbers a token that a forward pass keeps for its backward pass, each stored once however many steps read it.


def kept_by_norm(config: PartsConfig) -> int:
    """Its input; RMSNorm also the inverse of its length."""
    return config.d_model + (config.norm == "rms")


def kept_by_sublayer(config: PartsConfig) -> int:
    """What stands around a sub-layer: its norm, its input, and what dropout let through."""
    return kept_by_norm(config) + config.d_model * (2 if config.dropout else 1)


def kept_by_queries(config: PartsConfig, n_keys: int, *, turned: bool) -> int:
    """A token that asks `n_keys` others: its query in each state, what comes out of the heads, and a sum a row."""
    states = 1 + (turned or config.qk_norm)
    # With dropout there is no fused kernel on CPUs: weights before and after, and what was dropped; and the scaled
    # queries besides the turned ones.
    dropped = 3 * config.n_heads * n_keys + (states - 1) * query_width(config) if config.attention_dropout else 0
    return query_width(config) * (states + 1) + config.n_heads * (1 + config.qk_norm) + dropped


def kept_by_keys(config: PartsConfig, *, turned: bool) -> int:
    """A token that is looked at: its value, and its key in each state."""
    states = 2 + (turned or config.qk_norm) * (2 if config.attention_dropout else 1)
    return key_width(config) * states + config.n_kv_heads * config.qk_norm


def kept_by_feedforward(config: PartsConfig) -> int:
    """Before and after the activation; ReLU needs one of them, a gated part three."""
    return {"relu": 1, "swiglu": 3}.get(config.feedforward, 2) * config.d_ff


def kept_by_ends(config: PartsConfig) -> int:
    """At the ends of a stack: what dropout let through of the embeddings, the final norm, and its result."""
    return config.final_norm * kept_by_norm(config) + config.d_model * (2 if config.dropout else 1)
