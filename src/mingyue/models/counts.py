"""Counts for single parts of a model: parameters, and numbers that a forward pass keeps for its backward pass."""

from __future__ import annotations

from mingyue.config import PartsConfig


def query_width(config: PartsConfig) -> int:
    """Components of the queries of one token, all heads: H · D."""
    return config.n_heads * config.d_head


def key_width(config: PartsConfig) -> int:
    """Components of the keys of one token, and of its values: G · D."""
    return config.n_kv_heads * config.d_head


def query_matrices(config: PartsConfig) -> int:
    """Weights of attention used for each query token: its query, and the output projection."""
    return 2 * config.d_model * query_width(config)


def key_matrices(config: PartsConfig) -> int:
    """Weights of attention used for each key token: its key and its value."""
    return 2 * config.d_model * key_width(config)


def attention_matrices(config: PartsConfig) -> int:
    """Weights of one attention, self- or cross-: queries, keys, values and output."""
    return query_matrices(config) + key_matrices(config)


def attention_parameters(config: PartsConfig) -> int:
    """Parameters of one attention: weights, biases and the gains of QK-norm."""
    biases = config.bias_qkv * (query_width(config) + 2 * key_width(config)) + config.bias_output * config.d_model
    return attention_matrices(config) + biases + config.qk_norm * 2 * config.d_head


def feedforward_matrices(config: PartsConfig) -> int:
    """Weights of one feed-forward network; a gated one has three matrices."""
    return config.d_model * config.d_ff * (3 if config.feedforward == "swiglu" else 2)


def feedforward_parameters(config: PartsConfig) -> int:
    """Parameters of one feed-forward network: weights and biases."""
    inner = config.d_ff * (2 if config.feedforward == "swiglu" else 1)
    return feedforward_matrices(config) + config.bias_feedforward * (inner + config.d_model)


def norm_parameters(config: PartsConfig) -> int:
    """Parameters of one norm: gains, and biases of a LayerNorm."""
    return config.d_model * (2 if config.norm == "layer" else 1)


def position_parameters(config: PartsConfig) -> int:
    """Parameters of one learned table of positions; 0 for the other kinds."""
    return config.context * config.d_model if config.positions == "learned" else 0


# Numbers per token that a forward pass keeps for its backward pass, each stored once however many operations read it.


def kept_by_norm(config: PartsConfig) -> int:
    """The input of a norm; RMSNorm also keeps 1 / RMS."""
    return config.d_model + (config.norm == "rms")


def kept_by_sublayer(config: PartsConfig) -> int:
    """Around a sub-layer: its norm, its input, and its output after dropout."""
    return kept_by_norm(config) + config.d_model * (2 if config.dropout else 1)


def kept_by_queries(config: PartsConfig, n_keys: int, *, rotated: bool) -> int:
    """Of a query token that attends to `n_keys` keys: its queries in each state, its heads, a log-sum-exp per head."""
    states = 1 + (rotated or config.qk_norm)
    # With dropout there is no fused kernel on CPUs: weights before and after dropout and its mask, and the scaled
    # queries besides the rotated ones.
    dropout = 3 * config.n_heads * n_keys + (states - 1) * query_width(config) if config.attention_dropout else 0
    return query_width(config) * (states + 1) + config.n_heads * (1 + config.qk_norm) + dropout


def kept_by_keys(config: PartsConfig, *, rotated: bool) -> int:
    """Of a key token: its values, and its keys in each state."""
    states = 2 + (rotated or config.qk_norm) * (2 if config.attention_dropout else 1)
    return key_width(config) * states + config.n_kv_heads * config.qk_norm


def kept_by_feedforward(config: PartsConfig) -> int:
    """Before and after the activation; ReLU needs one of them, a gated network three."""
    return {"relu": 1, "swiglu": 3}.get(config.feedforward, 2) * config.d_ff


def kept_by_ends(config: PartsConfig) -> int:
    """Outside the blocks of a stack: embeddings after dropout, the final norm, and its output."""
    return config.final_norm * kept_by_norm(config) + config.d_model * (2 if config.dropout else 1)
