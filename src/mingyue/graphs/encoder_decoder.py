"""The two graphs of an encoder-decoder model: one reads source texts, the other makes a step of the decoder.

Encoder. Inputs: `ids` [B, S]; `bias` [B, 1, 1, S], 0 for tokens and −infinity for padding. Outputs: `memory_key_L` and
`memory_value_L` [B, G, S, D] for every layer of the decoder.

Decoder. Inputs: `ids` [R, 1]; `positions` [R, 1], where positions are added to embeddings; `last_positions` [R],
`n_positions` [1], `key_L` and `value_L` as in `graphs.decoder`; the outputs of the encoder, and its `bias`. R is a
multiple of B: rows b · K … b · K + K − 1 are hypotheses of source text b. Outputs: `logits` [R, V], `new_key_L`,
`new_value_L`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto

from mingyue.config import EncoderDecoderConfig
from mingyue.graphs.decoder import write_tables
from mingyue.graphs.nodes import CONTRIB, GraphWriter
from mingyue.graphs.parts import Parts
from mingyue.graphs.weights import WeightKind, adds_positions, padded_head
from mingyue.models import EncoderDecoder

_Sublayers = list[tuple[str, Callable[[str], str]]]


def encoder_graph(model: EncoderDecoder, kind: WeightKind = "fp32") -> onnx.ModelProto:
    """The graph of the encoder, and of the keys and values that the decoder reads."""
    config, graph = model.config, GraphWriter()
    graph.input("ids", TensorProto.INT64, ["B", "S"])
    graph.input("bias", TensorProto.FLOAT, ["B", 1, 1, "S"])
    parts = _Parts(graph, config, kind)
    write_tables(graph, model.encoder.positions, config, pad=False)
    graph.node("Shape", "ids", out="shape_BS")
    source_ids = config.source_vocab_size
    table = "embedding" if source_ids is None else "source_embedding"
    x_BSM = parts.embedded("ids", table, source_ids or config.vocab_size)
    parts.write_positions()
    x_BSM = parts.with_positions(x_BSM, "source_positions", "encoder.positions")
    sublayers: _Sublayers = []
    for layer in range(config.n_encoder_layers):
        name = f"encoder.blocks.{layer}"
        sublayers += [
            (f"{name}.attention_norm", partial(parts.encoder_attention, name=f"{name}.attention")),
            (f"{name}.feedforward_norm", partial(parts.feedforward, name=f"{name}.feedforward")),
        ]
    x_NM = parts.stack(parts.flat(x_BSM, config.d_model), sublayers)
    if config.final_norm:
        x_NM = parts.norm(x_NM, "encoder.final_norm")
    for layer in range(config.n_layers):
        parts.memory(x_NM, f"decoder.blocks.{layer}.cross_attention", layer)
        for part in ("key", "value"):
            graph.output(f"memory_{part}_{layer}", TensorProto.FLOAT, ["B", config.n_kv_heads, "S", config.d_head])
    return graph.model()


def decoder_step_graph(model: EncoderDecoder, kind: WeightKind = "fp32") -> onnx.ModelProto:
    """The graph of one step of the decoder."""
    config, graph = model.config, GraphWriter()
    _declare_step(graph, config)
    parts = _Parts(graph, config, kind)
    write_tables(graph, model.decoder.positions, config)
    graph.node("Shape", "ids", out="shape_RT")
    graph.node("Shape", "memory_key_0", out="shape_B", end=1)
    x_R1M = parts.embedded("ids", "embedding", config.vocab_size)
    x_R1M = parts.with_positions(x_R1M, "positions", "decoder.positions")
    sublayers: _Sublayers = []
    for layer in range(config.n_layers):
        name = f"decoder.blocks.{layer}"
        sublayers += [
            (f"{name}.attention_norm", partial(parts.attention, name=f"{name}.attention", layer=layer)),
            (
                f"{name}.cross_attention_norm",
                partial(parts.cross_attention, name=f"{name}.cross_attention", layer=layer),
            ),
            (f"{name}.feedforward_norm", partial(parts.feedforward, name=f"{name}.feedforward")),
        ]
    x_RM = parts.stack(parts.flat(x_R1M, config.d_model), sublayers)
    if config.final_norm:
        x_RM = parts.norm(x_RM, "decoder.final_norm")
    parts.output(x_RM, bias=config.output_bias)
    return graph.model()


def _declare_step(graph: GraphWriter, config: EncoderDecoderConfig) -> None:
    graph.input("ids", TensorProto.INT64, ["R", 1])
    if adds_positions(config):
        graph.input("positions", TensorProto.INT64, ["R", 1])
    graph.input("last_positions", TensorProto.INT32, ["R"])
    graph.input("n_positions", TensorProto.INT32, [1])
    graph.input("bias", TensorProto.FLOAT, ["B", 1, 1, "S"])
    graph.output("logits", TensorProto.FLOAT, ["R", config.vocab_size])
    for layer in range(config.n_layers):
        held = ["R", config.n_kv_heads, "C", padded_head(config)]
        memory = ["B", config.n_kv_heads, "S", config.d_head]
        for name in ("key", "value"):
            graph.input(f"{name}_{layer}", TensorProto.FLOAT, held)
            graph.output(f"new_{name}_{layer}", TensorProto.FLOAT, held)
            graph.input(f"memory_{name}_{layer}", TensorProto.FLOAT, memory)


class _Parts(Parts):
    """The parts that only an encoder-decoder model has: attention without a cache, of queries by group."""

    def write_positions(self) -> None:
        """`source_positions` [S]: 0 … S − 1."""
        graph = self.graph
        zero, one = graph.constant("zero", np.array(0)), graph.constant("one", np.array(1))
        length = graph.node("Gather", "shape_BS", one, axis=0)
        graph.node("Range", zero, length, one, out="source_positions")

    def encoder_attention(self, x_NM: str, name: str) -> str:
        """Self-attention of every token to every token of its text."""
        config, graph = self.config, self.graph
        sizes = [config.n_heads, config.n_kv_heads, config.n_kv_heads]
        qkv_NE = self.linear(x_NM, f"{name}.qkv", config.d_model, sum(sizes) * config.d_head, bias=config.bias_qkv)
        heads_BNSD = self._heads(qkv_NE, sum(sizes))
        lengths = graph.constant("heads_of_qkv", np.array(sizes))
        outputs = [graph.new_name() for _ in range(3)]
        query, key, value = graph.nodes("Split", heads_BNSD, lengths, outputs=outputs, axis=1)
        query = self._rotated(self._normed(query, f"{name}.query_norm"))
        key = self._rotated(self._normed(key, f"{name}.key_norm"))
        grouped_BGQD = self._reshaped(query, "shape_grouped", [0, config.n_kv_heads, -1, config.d_head])
        found_BGQD = self._attended(grouped_BGQD, key, value)
        found_BHSD = self._reshaped(found_BGQD, "shape_heads", [0, config.n_heads, -1, config.d_head])
        return self._joined(graph.node("Transpose", found_BHSD, perm=[0, 2, 1, 3]), name)

    def memory(self, x_NM: str, name: str, layer: int) -> None:
        """Keys and values of the encoder's output for one layer of the decoder."""
        config, graph = self.config, self.graph
        n_heads = 2 * config.n_kv_heads
        kv_NE = self.linear(x_NM, f"{name}.key_value", config.d_model, n_heads * config.d_head, bias=config.bias_qkv)
        heads_BNSD = self._heads(kv_NE, n_heads)
        normed = config.qk_norm
        outputs = [graph.new_name() if normed else f"memory_key_{layer}", f"memory_value_{layer}"]
        graph.nodes("Split", heads_BNSD, outputs=outputs, axis=1, num_outputs=2)
        if normed:
            self._normed(outputs[0], f"{name}.key_norm", out=f"memory_key_{layer}")

    def cross_attention(self, x_RM: str, name: str, layer: int) -> str:
        """Attention of the hypotheses of a text, side by side as its queries, to that text."""
        config, graph = self.config, self.graph
        width, per_group = config.n_heads * config.d_head, config.n_heads // config.n_kv_heads
        query_RE = self.linear(x_RM, f"{name}.query", config.d_model, width, bias=config.bias_qkv)
        if config.qk_norm:
            query_RE = self.flat(self._normed(self.flat(query_RE, config.d_head), f"{name}.query_norm"), width)
        rest = graph.constant("query_rest", np.array([-1, config.n_kv_heads, per_group, config.d_head]))
        shape = graph.node("Concat", "shape_B", rest, axis=0)
        query_BKGHD = graph.node("Reshape", query_RE, shape)
        query_BGHKD = graph.node("Transpose", query_BKGHD, perm=[0, 2, 3, 1, 4])
        grouped_BGQD = self._reshaped(query_BGHKD, "shape_queries", [0, 0, -1, config.d_head])
        found_BGQD = self._attended(grouped_BGQD, f"memory_key_{layer}", f"memory_value_{layer}")
        found_BGHKD = self._reshaped(found_BGQD, "shape_found", [0, 0, per_group, -1, config.d_head])
        return self._joined(graph.node("Transpose", found_BGHKD, perm=[0, 3, 1, 2, 4]), name)

    def _attended(self, query_BGQD: str, key_BGSD: str, value_BGSD: str) -> str:
        """softmax(Q Kᵀ / √d + bias) V."""
        graph, scale = self.graph, 1.0 / math.sqrt(self.config.d_head)
        scores = graph.node("FusedMatMul", query_BGQD, key_BGSD, domain=CONTRIB, transB=1, alpha=scale)
        weights = graph.node("Softmax", graph.node("Add", scores, "bias"), axis=-1)
        return graph.node("MatMul", weights, value_BGSD)

    def _joined(self, heads: str, name: str) -> str:
        config, width = self.config, self.config.n_heads * self.config.d_head
        return self.linear(self.flat(heads, width), f"{name}.output", width, config.d_model, bias=config.bias_output)

    def _heads(self, x_NE: str, n_heads: int) -> str:
        """[B · S, heads · D] → [B, heads, S, D]."""
        name = f"shape_of_{n_heads}_heads"
        rest = self.graph.constant(f"{name}_rest", np.array([n_heads, self.config.d_head]))
        shape = self.graph.node("Concat", "shape_BS", rest, axis=0)
        return self.graph.node("Transpose", self.graph.node("Reshape", x_NE, shape), perm=[0, 2, 1, 3])

    def _normed(self, x: str, name: str, *, out: str | None = None) -> str:
        """QK-norm over the components of each head, where the config has it."""
        if not self.config.qk_norm:
            return x
        gain = self.graph.weight(f"{name}.weight", [self.config.d_head])
        return self.graph.node(
            "SimplifiedLayerNormalization", x, gain, axis=-1, epsilon=self.config.norm_eps, stash_type=1, out=out
        )

    def _rotated(self, x_BHSD: str) -> str:
        """Rotary positions: each pair (x[i], x[i + D/2]) by the angle of its position."""
        if self.config.positions != "rotary":
            return x_BHSD
        graph = self.graph
        cosine, sine = (graph.node("Gather", table, "source_positions", axis=0) for table in ("cosine", "sine"))
        outputs = [graph.new_name(), graph.new_name()]
        first, second = graph.nodes("Split", x_BHSD, outputs=outputs, axis=-1, num_outputs=2)
        left = graph.node("Sub", graph.node("Mul", first, cosine), graph.node("Mul", second, sine))
        right = graph.node("Add", graph.node("Mul", second, cosine), graph.node("Mul", first, sine))
        return graph.node("Concat", left, right, axis=-1)

    def _reshaped(self, x: str, name: str, shape: list[int]) -> str:
        return self.graph.node("Reshape", x, self.graph.constant(name, np.array(shape)))
