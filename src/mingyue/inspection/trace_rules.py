"""Names, symbolic shapes and formulas of the operations of a forward pass.

Each rule matches an operation by the module that it runs in, the function that calls it, and its name in PyTorch.
Bookkeeping (position indices, building the mask) has no rule and is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mingyue.inspection.recording import Operation
from mingyue.words import Words

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
        return Rule(Words("normalise each query", "归一化每个查询"), "Q H D", formula)
    if kind.endswith("key_norm"):
        return Rule(Words("normalise each key", "归一化每个键"), "K G D", formula)
    place = Words("final norm", "最终归一化") if kind == "final_norm" else Words("norm", "归一化")
    return Rule(place, "Q M", formula)


_LOOKUP = Rule(Words("look up the embeddings of the ids", "查表：取出各 id 的嵌入"), "Q M", "x = E[ids]")
_SCALE = Rule(Words("scale the vectors", "放大向量"), "Q M", "x = x · √M")
_RESIDUAL = Rule(Words("add to the residual stream", "加回残差流"), "Q M", "x = x + sublayer(x)")
_ACTIVATION = Rule(Words("activation", "激活函数"), "Q F", "h = activation(u)")
_SPLIT = Rule(Words("split into heads (view)", "拆成各头（view）"), "Q H+2G D", "", 3)
_QUERY = Rule(
    Words("queries: heads before positions (transpose)", "查询：头换到位置之前（transpose）"), "H Q D", "q = Qᵀ", 4
)
_KEY = Rule(Words("keys: heads before positions (transpose)", "键：头换到位置之前（transpose）"), "G K D", "k = Kᵀ", 4)
_VALUE = Rule(
    Words("values: heads before positions (transpose)", "值：头换到位置之前（transpose）"), "G K D", "v = Vᵀ", 4
)

INPUT = Rule(Words("input of attention", "注意力的输入"), "Q M", "x", 1)
"""Not an operation: the input of the fused projection."""

_RULES: dict[tuple[str, str, str] | tuple[str, str, str, int], Rule] = {
    ("embedding", "", "embedding"): _LOOKUP,
    ("source_embedding", "", "embedding"): _LOOKUP,
    ("model", "TransformerBase._embed", "mul"): _SCALE,
    ("positions", "LearnedPositions.add", "embedding"): Rule(
        Words("look up the embeddings of the positions", "查表：取出各位置的嵌入"), "Q M", "p = P[0 … T−1]"
    ),
    ("positions", "SinusoidalPositions.add", "embedding"): Rule(
        Words("sines and cosines of the positions", "各位置的正弦与余弦"), "Q M", "p = sin, cos(pos / 10000^(2i/M))"
    ),
    ("positions", "LearnedPositions.add", "add"): Rule(Words("add the positions", "加上位置"), "Q M", "x = x + p"),
    ("positions", "SinusoidalPositions.add", "add"): Rule(Words("add the positions", "加上位置"), "Q M", "x = x + p"),
    ("positions", "RotaryPositions.rotation", "embedding", 0): Rule(
        Words("cosines of the rotary angles", "旋转角的余弦"), "Q D", "cos(pos · θᵢ)"
    ),
    ("positions", "RotaryPositions.rotation", "embedding", 1): Rule(
        Words("sines of the rotary angles", "旋转角的正弦"), "Q D", "±sin(pos · θᵢ)"
    ),
    # Self-attention: one projection, then views of its result.
    ("attention.qkv", "", "linear"): Rule(
        Words("queries, keys and values by one matrix", "一个矩阵同时算出查询、键、值"),
        "Q (H+2G)·D", "[Q; K; V] = x·Wᵀ + b", 2,
    ),
    ("attention", "MultiHeadAttention.project_qkv", "view"): _SPLIT,
    ("attention", "MultiHeadAttention.project_qkv", "transpose", 0): _QUERY,
    ("attention", "MultiHeadAttention.project_qkv", "transpose", 1): _KEY,
    ("attention", "MultiHeadAttention.project_qkv", "transpose", 2): _VALUE,
    ("attention", "RotaryRotation.rotate", "addcmul", 0): Rule(
        Words("rotate the queries by position", "按位置旋转查询"), "H Q D", "q = R(pos)·q"
    ),
    ("attention", "RotaryRotation.rotate", "addcmul", 1): Rule(
        Words("rotate the keys by position", "按位置旋转键"), "G K D", "k = R(pos)·k"
    ),
    # Cross-attention: queries of the target, keys and values of the source.
    ("cross_attention.key_value", "", "linear"): Rule(
        Words("keys and values of the source", "源文本的键和值"), "K 2G·D", "[K; V] = memory·Wᵀ + b"
    ),
    ("cross_attention", "CrossAttention.project_kv", "view"): Rule(
        Words("split into heads (view)", "拆成各头（view）"), "K 2G D", ""
    ),
    ("cross_attention", "CrossAttention.project_kv", "transpose", 0): _KEY,
    ("cross_attention", "CrossAttention.project_kv", "transpose", 1): _VALUE,
    ("cross_attention.query", "", "linear"): Rule(
        Words("queries of the target", "目标文本的查询"), "Q H·D", "Q = x·Wᵀ + b"
    ),
    ("cross_attention", "CrossAttention.forward", "view", 0): Rule(
        Words("split into heads (view)", "拆成各头（view）"), "Q H D", ""
    ),
    ("cross_attention", "CrossAttention.forward", "transpose", 0): _QUERY,
    # Both kinds of attention.
    ("attention", "explicit_attention", "repeat_interleave", 0): Rule(
        Words("repeat keys for the heads that share them", "键复制给共用它的各头"), "H K D", ""
    ),
    ("attention", "explicit_attention", "repeat_interleave", 1): Rule(
        Words("repeat values for the heads that share them", "值复制给共用它的各头"), "H K D", ""
    ),
    ("attention", "explicit_attention", "matmul", 0): Rule(
        Words("dot product of every query with every key", "每个查询与每个键的点积"), "H Q K", "q·kᵀ", 5
    ),
    ("attention", "explicit_attention", "div"): Rule(
        Words("scores: scaled", "得分：缩放"), "H Q K", "q·kᵀ / √D", 5
    ),
    ("attention", "explicit_attention", "masked_fill", 0): Rule(
        Words("mask the scores", "用掩码遮住不可见的位置"), "H Q K", "masked → −∞", 5
    ),
    ("attention", "explicit_attention", "softmax"): Rule(
        Words("weights: softmax of each row", "权重：逐行 softmax"), "H Q K", "exp(s) / Σ exp(s)", 5
    ),
    ("attention", "explicit_attention", "masked_fill", 1): Rule(
        Words("masked weights are exactly 0", "被遮住的权重恰好为 0"), "H Q K", "masked → 0", 5
    ),
    ("attention", "explicit_attention", "matmul", 1): Rule(
        Words("weighted sum of values per head", "各头对值加权求和"), "H Q D", "weights·v", 5
    ),
    ("attention", "Attention.join_heads", "transpose"): Rule(
        Words("back: positions before heads (transpose)", "换回：位置在前，头在后（transpose）"), "Q H D", "", 6
    ),
    ("attention", "Attention.join_heads", "flatten"): Rule(
        Words("concatenate the heads (flatten)", "拼接各头（flatten）"), "Q H·D", "", 7
    ),
    ("attention.output", "", "linear"): Rule(
        Words("output projection", "输出投影"), "Q M", "heads·Wᵀ + b", 8
    ),
    ("cross_attention.output", "", "linear"): Rule(
        Words("output projection", "输出投影"), "Q M", "heads·Wᵀ + b", 8
    ),
    # Feed-forward.
    ("feedforward.inner", "", "linear"): Rule(
        Words("project to the inner width", "投影到内部宽度"), "Q F", "u = x·W₁ᵀ + b₁"
    ),
    ("feedforward", "FeedForward.forward", "relu"): _ACTIVATION,
    ("feedforward", "FeedForward.forward", "gelu"): _ACTIVATION,
    ("feedforward", "FeedForward.forward", "silu"): _ACTIVATION,
    ("feedforward", "squared_relu", "mul"): _ACTIVATION,
    ("feedforward", "gated", "mul"): Rule(
        Words("gate: silu of one half times the other", "门控：一半过 silu，再乘另一半"), "Q F", "h = silu(gate) ⊙ up"
    ),
    ("feedforward.output", "", "linear"): Rule(
        Words("project back to the model width", "投影回模型宽度"), "Q M", "h·W₂ᵀ + b₂"
    ),
    ("block", "Block._add", "add"): _RESIDUAL,
    ("output", "", "linear"): Rule(
        Words("logits: a score for every token of the vocabulary", "logits：给词表里每个 token 打分"), "Q V", "x·Wᵀ + b"
    ),
    # Outside the modules.
    ("model", "text_loss", "log_softmax"): Rule(
        Words("softmax, as logarithms", "softmax（取对数）"), "N V", "log P = z − log Σ exp(z)"
    ),
    ("model", "text_loss", "neg"): Rule(
        Words("−log P of the next token", "下一个 token 的 −log P"), "N", "−log P(xₜ₊₁ | x₁ … xₜ)"
    ),
    ("model", "loss_of_logits", "cross_entropy"): Rule(
        Words("sum: what training minimises", "求和：训练所最小化的量"), "", "−Σ log P"
    ),
    ("model", "text_loss", "div"): Rule(
        Words("loss of the text, nats per token", "整段文本的损失，每 token 的 nat"), "", "−Σ log P / N"
    ),
}  # fmt: skip
