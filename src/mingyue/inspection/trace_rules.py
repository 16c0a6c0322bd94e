"""Names, symbolic shapes and formulas of the operations of a forward pass.

Each rule matches an operation by the module that it runs in, the function that calls it, and its name in PyTorch.
Bookkeeping (position indices, building the mask) has no rule and is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mingyue.inspection.recording import Operation
from mingyue.words import Words, tr

_STACK = re.compile(r"^(encoder|decoder)\.")
_BLOCK = re.compile(r"^blocks\.\d+")


@dataclass(frozen=True)
class Rule:
    """One kind of step. In `symbols` Q are the positions of queries and K those of keys, in either text."""

    name: Words
    symbols: str
    """Dimensions separated by spaces, after the batch."""
    formula: str
    flow: int = 0
    """Its number among the eight shapes of multi-head attention; 0 = none of them."""


def kind_of(module: str) -> str:
    """The kind of a module: `decoder.blocks.3.attention.qkv` → `attention.qkv`; a block → `block`."""
    inner = _STACK.sub("", module)
    block = _BLOCK.match(inner)
    if block is None:
        return inner or "model"
    return inner[block.end() + 1 :] or "block"


def rule_of(operation: Operation, count: int) -> Rule | None:
    """The rule of an operation, the `count`-th (from 0) of its name by the same function in the same module.

    None for bookkeeping.
    """
    kind, name = kind_of(operation.module), operation.name
    function = operation.function.replace(".<locals>", "").removesuffix(".<genexpr>").removesuffix(".<lambda>")
    if name in ("layer_norm", "rms_norm"):
        return _norm(kind, name)
    for key in ((kind, function, name, count), (kind, "", name, count), (kind, function, name), (kind, "", name)):
        if key in _RULES:
            return _RULES[key]
    shared = re.sub(r"^cross_attention", "attention", kind)
    return _RULES.get((shared, function, name, count)) or _RULES.get((shared, function, name))


def _norm(kind: str, name: str) -> Rule:
    formula = "(x − mean) / √(var + ε) · g + b" if name == "layer_norm" else "x / √(mean(x²) + ε) · g"
    if kind.endswith("query_norm"):
        return Rule(tr("normalise each query"), "Q H D", formula)
    if kind.endswith("key_norm"):
        return Rule(tr("normalise each key"), "K G D", formula)
    place = tr("final norm") if kind == "final_norm" else tr("norm")
    return Rule(place, "Q M", formula)


_LOOKUP = Rule(tr("look up the embeddings of the ids"), "Q M", "x = E[ids]")
_SCALE = Rule(tr("scale the vectors"), "Q M", "x = x · √M")
_RESIDUAL = Rule(tr("add to the residual stream"), "Q M", "x = x + sublayer(x)")
_ACTIVATION = Rule(tr("activation"), "Q F", "h = activation(u)")
_SPLIT = Rule(tr("split into heads (view)"), "Q H+2G D", "", 3)
_QUERY = Rule(tr("queries: heads before positions (transpose)"), "H Q D", "q = Qᵀ", 4)
_KEY = Rule(tr("keys: heads before positions (transpose)"), "G K D", "k = Kᵀ", 4)
_VALUE = Rule(tr("values: heads before positions (transpose)"), "G K D", "v = Vᵀ", 4)

INPUT = Rule(tr("input of attention"), "Q M", "x", 1)
"""Not an operation: the input of the fused projection."""

_RULES: dict[tuple[str, str, str] | tuple[str, str, str, int], Rule] = {
    ("embedding", "", "embedding"): _LOOKUP,
    ("source_embedding", "", "embedding"): _LOOKUP,
    ("model", "TransformerBase._embed", "mul"): _SCALE,
    ("positions", "LearnedPositions.add", "embedding"): Rule(
        tr("look up the embeddings of the positions"), "Q M", "p = P[0 … T−1]"
    ),
    ("positions", "SinusoidalPositions.add", "embedding"): Rule(
        tr("sines and cosines of the positions"), "Q M", "p = sin, cos(pos / 10000^(2i/M))"
    ),
    ("positions", "LearnedPositions.add", "add"): Rule(tr("add the positions"), "Q M", "x = x + p"),
    ("positions", "SinusoidalPositions.add", "add"): Rule(tr("add the positions"), "Q M", "x = x + p"),
    ("positions", "RotaryPositions.rotation", "embedding", 0): Rule(
        tr("cosines of the rotary angles"), "Q D", "cos(pos · θᵢ)"
    ),
    ("positions", "RotaryPositions.rotation", "embedding", 1): Rule(
        tr("sines of the rotary angles"), "Q D", "±sin(pos · θᵢ)"
    ),
    # Self-attention: one projection, then views of its result.
    ("attention.qkv", "", "linear"): Rule(
        tr("queries, keys and values by one matrix"),
        "Q (H+2G)·D", "[Q; K; V] = x·Wᵀ + b", 2,
    ),
    ("attention", "MultiHeadAttention.project_qkv", "view"): _SPLIT,
    ("attention", "MultiHeadAttention.project_qkv", "transpose", 0): _QUERY,
    ("attention", "MultiHeadAttention.project_qkv", "transpose", 1): _KEY,
    ("attention", "MultiHeadAttention.project_qkv", "transpose", 2): _VALUE,
    ("attention", "RotaryRotation.rotate", "addcmul", 0): Rule(
        tr("rotate the queries by position"), "H Q D", "q = R(pos)·q"
    ),
    ("attention", "RotaryRotation.rotate", "addcmul", 1): Rule(
        tr("rotate the keys by position"), "G K D", "k = R(pos)·k"
    ),
    # Cross-attention: queries of the target, keys and values of the source.
    ("cross_attention.key_value", "", "linear"): Rule(
        tr("keys and values of the source"), "K 2G·D", "[K; V] = memory·Wᵀ + b"
    ),
    ("cross_attention", "CrossAttention.project_kv", "view"): Rule(
        tr("split into heads (view)"), "K 2G D", ""
    ),
    ("cross_attention", "CrossAttention.project_kv", "transpose", 0): _KEY,
    ("cross_attention", "CrossAttention.project_kv", "transpose", 1): _VALUE,
    ("cross_attention.query", "", "linear"): Rule(
        tr("queries of the target"), "Q H·D", "Q = x·Wᵀ + b"
    ),
    ("cross_attention", "CrossAttention.forward", "view", 0): Rule(
        tr("split into heads (view)"), "Q H D", ""
    ),
    ("cross_attention", "CrossAttention.forward", "transpose", 0): _QUERY,
    # Both kinds of attention.
    ("attention", "explicit_attention", "repeat_interleave", 0): Rule(
        tr("repeat keys for the heads that share them"), "H K D", ""
    ),
    ("attention", "explicit_attention", "repeat_interleave", 1): Rule(
        tr("repeat values for the heads that share them"), "H K D", ""
    ),
    ("attention", "explicit_attention", "matmul", 0): Rule(
        tr("dot product of every query with every key"), "H Q K", "q·kᵀ", 5
    ),
    ("attention", "explicit_attention", "div"): Rule(
        tr("scores: scaled"), "H Q K", "q·kᵀ / √D", 5
    ),
    ("attention", "explicit_attention", "masked_fill", 0): Rule(
        tr("mask the scores"), "H Q K", "masked → −∞", 5
    ),
    ("attention", "explicit_attention", "softmax"): Rule(
        tr("weights: softmax of each row"), "H Q K", "exp(s) / Σ exp(s)", 5
    ),
    ("attention", "explicit_attention", "masked_fill", 1): Rule(
        tr("masked weights are exactly 0"), "H Q K", "masked → 0", 5
    ),
    ("attention", "explicit_attention", "matmul", 1): Rule(
        tr("weighted sum of values per head"), "H Q D", "weights·v", 5
    ),
    ("attention", "Attention.join_heads", "transpose"): Rule(
        tr("back: positions before heads (transpose)"), "Q H D", "", 6
    ),
    ("attention", "Attention.join_heads", "flatten"): Rule(
        tr("concatenate the heads (flatten)"), "Q H·D", "", 7
    ),
    ("attention.output", "", "linear"): Rule(
        tr("output projection"), "Q M", "heads·Wᵀ + b", 8
    ),
    ("cross_attention.output", "", "linear"): Rule(
        tr("output projection"), "Q M", "heads·Wᵀ + b", 8
    ),
    # Feed-forward.
    ("feedforward.inner", "", "linear"): Rule(
        tr("project to the inner width"), "Q F", "u = x·W₁ᵀ + b₁"
    ),
    ("feedforward", "FeedForward.forward", "relu"): _ACTIVATION,
    ("feedforward", "FeedForward.forward", "gelu"): _ACTIVATION,
    ("feedforward", "FeedForward.forward", "silu"): _ACTIVATION,
    ("feedforward", "squared_relu", "mul"): _ACTIVATION,
    ("feedforward", "gated", "mul"): Rule(
        tr("gate: silu of one half times the other"), "Q F", "h = silu(gate) ⊙ up"
    ),
    ("feedforward.output", "", "linear"): Rule(
        tr("project back to the model width"), "Q M", "h·W₂ᵀ + b₂"
    ),
    ("block", "Block._add", "add"): _RESIDUAL,
    ("output", "", "linear"): Rule(
        tr("logits: a score for every token of the vocabulary"), "Q V", "x·Wᵀ + b"
    ),
    # Outside the modules.
    ("model", "text_loss", "log_softmax"): Rule(
        tr("softmax, as logarithms"), "N V", "log P = z − log Σ exp(z)"
    ),
    ("model", "text_loss", "neg"): Rule(
        tr("−log P of the next token"), "N", "−log P(xₜ₊₁ | x₁ … xₜ)"
    ),
    ("model", "loss_of_logits", "cross_entropy"): Rule(
        tr("sum: what training minimises"), "", "−Σ log P"
    ),
    ("model", "text_loss", "div"): Rule(
        tr("loss of the text, nats per token"), "", "−Σ log P / N"
    ),
}  # fmt: skip
