"""The parts of a Transformer as nodes of a graph. Vectors are rows of a matrix, x_NM: all tokens of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from onnx import TensorProto

from mingyue.config import ModelConfig, PartsConfig
from mingyue.graphs.nodes import CONTRIB, GraphWriter
from mingyue.graphs.weights import BLOCK, WeightKind, padded_epsilon, padded_head


class Parts:
    """Writes the parts of one model; `name`s are those of the model's modules."""

    def __init__(self, graph: GraphWriter, config: PartsConfig, kind: WeightKind = "fp32") -> None:
        self.graph, self.config, self.kind = graph, config, kind
        self.head = padded_head(config)
        self._row_shapes: set[str] = set()

    def stack(self, x_NM: str, sublayers: Sequence[tuple[str, Callable[[str], str]]]) -> str:
        """x_NM through sub-layers with Add & Norm: (name of the norm, what writes the sub-layer) of each."""
        if self.config.norm_placement == "post":
            for name, sublayer in sublayers:
                x_NM, _ = self.added_norm(x_NM, sublayer(x_NM), name)
            return x_NM
        normed_NM = self.norm(x_NM, sublayers[0][0])
        for (_, sublayer), (following, _) in pairwise(sublayers):
            normed_NM, x_NM = self.added_norm(x_NM, sublayer(normed_NM), following)
        return self.graph.node("Add", x_NM, sublayers[-1][1](normed_NM))

    def flat(self, x: str, width: int) -> str:
        """[…, width] → [N, width]."""
        shape = self.graph.constant(f"shape_flat_{width}", np.array([-1, width]))
        return self.graph.node("Reshape", x, shape)

    def linear(self, x_NM: str, name: str, n_inputs: int, n_outputs: int, *, bias: bool, out: str | None = None) -> str:
        """x Wᵀ + b: the weight has the layout of `nn.Linear`."""
        biases = [self.graph.weight(f"{name}.bias", [n_outputs])] if bias else []
        if self.kind == "fp32":
            weight = self.graph.weight(f"{name}.weight", [n_outputs, n_inputs])
            return self.graph.node("Gemm", x_NM, weight, *biases, transB=1, out=out)
        n_blocks = -(-n_inputs // BLOCK)
        numbers = self.graph.weight(f"{name}.int8", [n_outputs, n_blocks, BLOCK], TensorProto.UINT8)
        scales = self.graph.weight(f"{name}.scales", [n_outputs * n_blocks])
        return self.graph.node(
            "MatMulNBits",
            x_NM,
            numbers,
            scales,
            *(["", "", *biases] if biases else []),
            out=out,
            domain=CONTRIB,
            K=n_inputs,
            N=n_outputs,
            bits=8,
            block_size=BLOCK,
            accuracy_level=4,  # products of int8 with int8; without it the weights are converted to fp32 first
        )

    def norm(self, x_NM: str, name: str) -> str:
        """LayerNorm or RMSNorm over the width of the model."""
        return self._norm_of(x_NM, name, self.config.d_model, self.config.norm, self.config.norm_eps)

    def added_norm(self, x_NM: str, added_NM: str, name: str) -> tuple[str, str]:
        """(Norm(x + added), x + added) in one node."""
        config = self.config
        gains = [self.graph.weight(f"{name}.weight", [config.d_model])]
        op = "SkipSimplifiedLayerNormalization"
        if config.norm == "layer":
            op = "SkipLayerNormalization"
            gains.append(self.graph.weight(f"{name}.bias", [config.d_model]))
        outputs = [self.graph.new_name(), "", "", self.graph.new_name()]
        self.graph.nodes(op, added_NM, x_NM, *gains, outputs=outputs, domain=CONTRIB, epsilon=config.norm_eps)
        return outputs[0], outputs[3]

    def embedded(self, ids: str, table: str, n_ids: int) -> str:
        """Embeddings, scaled as the config says: […, M]."""
        weight = self.graph.weight(f"{table}.weight", [n_ids, self.config.d_model])
        x = self.graph.node("Gather", weight, ids, axis=0)
        if not self.config.embedding_scale:
            return x
        scale = self.graph.constant("embedding_scale", np.array(math.sqrt(self.config.d_model), dtype=np.float32))
        return self.graph.node("Mul", x, scale)

    def with_positions(self, x: str, positions: str, name: str) -> str:
        """Learned or sinusoidal vectors added; other kinds of positions add nothing. `name`: of the module."""
        config = self.config
        if config.positions == "learned":
            table = self.graph.weight(f"{name}.table", [config.context, config.d_model])
        elif config.positions == "sinusoidal":
            table = "sinusoids"
        else:
            return x
        return self.graph.node("Add", x, self.graph.node("Gather", table, positions, axis=0))

    def output(self, x_NM: str, *, bias: bool = False) -> str:
        """The output layer: `logits`."""
        config = self.config
        if not config.tied_output:
            return self.linear(x_NM, "output", config.d_model, config.vocab_size, bias=bias, out="logits")
        out = None if bias else "logits"
        logits = self.linear(x_NM, "embedding", config.d_model, config.vocab_size, bias=False, out=out)
        if bias:
            self.graph.node("Add", logits, self.graph.weight("output.bias", [config.vocab_size]), out="logits")
        return "logits"

    def attention(self, x_NM: str, name: str, layer: int) -> str:
        """Causal self-attention on the cache of a layer (inputs `key_L`, `value_L`; outputs `new_key_L`, …)."""
        config, graph = self.config, self.graph
        n_q, n_kv = config.n_heads * self.head, config.n_kv_heads * self.head
        qkv_NE = self.linear(x_NM, f"{name}.qkv", config.d_model, n_q + 2 * n_kv, bias=config.bias_qkv)
        if config.qk_norm:
            sizes = graph.constant("qkv_sizes", np.array([n_q, n_kv, n_kv]))
            query, key, value = graph.nodes(
                "Split", qkv_NE, sizes, outputs=[graph.new_name() for _ in range(3)], axis=1
            )
            query = self._head_norm(query, f"{name}.query_norm", n_q)
            key = self._head_norm(key, f"{name}.key_norm", n_kv)
            packed = [self._by_row(query, n_q), self._by_row(key, n_kv), self._by_row(value, n_kv)]
        else:
            packed = [self._by_row(qkv_NE, n_q + 2 * n_kv), "", ""]
        inputs = [*packed, f"key_{layer}", f"value_{layer}", "last_positions", "n_positions"]
        attributes: dict[str, object] = {}
        if config.positions == "rotary":
            inputs += ["cosine", "sine"]
            attributes["do_rotary"] = 1
        if isinstance(config, ModelConfig) and config.window is not None:
            attributes["local_window_size"] = config.window
        heads_RTE, _, _ = graph.nodes(
            "GroupQueryAttention",
            *inputs,
            outputs=[graph.new_name(), f"new_key_{layer}", f"new_value_{layer}"],
            domain=CONTRIB,
            num_heads=config.n_heads,
            kv_num_heads=config.n_kv_heads,
            scale=1.0 / math.sqrt(config.d_head),
            **attributes,
        )
        return self.linear(self.flat(heads_RTE, n_q), f"{name}.output", n_q, config.d_model, bias=config.bias_output)

    def feedforward(self, x_NM: str, name: str) -> str:
        """The feed-forward network with its activation."""
        config, graph = self.config, self.graph
        gated = config.feedforward == "swiglu"
        inner_NF = self.linear(
            x_NM, f"{name}.inner", config.d_model, config.d_ff * (2 if gated else 1), bias=config.bias_feedforward
        )
        match config.feedforward:
            case "swiglu":
                gate, up = graph.nodes(
                    "Split", inner_NF, outputs=[graph.new_name(), graph.new_name()], axis=1, num_outputs=2
                )
                active = graph.node("Mul", self._silu(gate), up)
            case "relu":
                active = graph.node("Relu", inner_NF)
            case "relu2":
                positive = graph.node("Relu", inner_NF)
                active = graph.node("Mul", positive, positive)
            case "silu":
                active = self._silu(inner_NF)
            case "gelu":
                active = graph.node("Gelu", inner_NF, approximate="none")
            case "gelu-tanh":
                active = graph.node("Gelu", inner_NF, approximate="tanh")
        return self.linear(active, f"{name}.output", config.d_ff, config.d_model, bias=config.bias_feedforward)

    def _silu(self, x: str) -> str:
        return self.graph.node("QuickGelu", x, domain=CONTRIB, alpha=1.0)

    def _by_row(self, x_NE: str, width: int) -> str:
        """[N, width] → [R, T, width]."""
        name = f"shape_by_row_{width}"
        if name not in self._row_shapes:
            self._row_shapes.add(name)
            last = self.graph.constant(f"{name}_last", np.array([width]))
            self.graph.node("Concat", "shape_RT", last, out=name, axis=0)
        return self.graph.node("Reshape", x_NE, name)

    def _head_norm(self, x_NE: str, name: str, width: int) -> str:
        heads_ND = self.flat(x_NE, self.head)
        normed_ND = self._norm_of(heads_ND, name, self.head, "rms", padded_epsilon(self.config))
        return self.flat(normed_ND, width)

    def _norm_of(self, x: str, name: str, width: int, kind: str, eps: float) -> str:
        gains = [self.graph.weight(f"{name}.weight", [width])]
        if kind == "layer":
            gains.append(self.graph.weight(f"{name}.bias", [width]))
            return self.graph.node("LayerNormalization", x, *gains, axis=-1, epsilon=eps)
        return self.graph.node("SimplifiedLayerNormalization", x, *gains, axis=-1, epsilon=eps, stash_type=1)
