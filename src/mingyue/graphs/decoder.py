"""The graph of a decoder-only model with a cache.

Inputs: `ids` [R, T]; `positions` [R, T], where positions are added to embeddings; `last_positions` [R], that of the
last token of each row; `n_positions` [1], the largest of them + 1; `rows` [N], the tokens of the flattened [R · T]
whose logits are wanted; `key_L` and `value_L` [R, G, capacity, D] of every layer. Outputs: `logits` [N, V]; `new_key_L`
and `new_value_L`, which may be the same buffers. T above 1 needs R = 1.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from mingyue.config import ModelConfig
from mingyue.graphs.nodes import GraphWriter
from mingyue.graphs.parts import Parts
from mingyue.graphs.weights import Array, WeightKind, padded_angles, padded_head
from mingyue.models import DecoderOnly


def decoder_graph(model: DecoderOnly, kind: WeightKind = "fp32") -> onnx.ModelProto:
    """The graph of a model, without its weights (`graph_weights` has them); tables of positions are in it."""
    config, graph = model.config, GraphWriter()
    _declare(graph, config)
    parts = Parts(graph, config, kind)
    x_NM = _embedded(graph, parts, config, _tables(model))
    normed_NM = parts.norm(x_NM, "blocks.0.attention_norm") if config.norm_placement == "pre" else x_NM
    for layer in range(config.n_layers):
        name = f"blocks.{layer}"
        if config.norm_placement == "pre":
            added_NM = parts.attention(normed_NM, f"{name}.attention", layer)
            normed_NM, x_NM = parts.added_norm(x_NM, added_NM, f"{name}.feedforward_norm")
            added_NM = parts.feedforward(normed_NM, f"{name}.feedforward")
            if layer + 1 < config.n_layers:
                normed_NM, x_NM = parts.added_norm(x_NM, added_NM, f"blocks.{layer + 1}.attention_norm")
            else:
                x_NM = graph.node("Add", x_NM, added_NM)
        else:
            added_NM = parts.attention(x_NM, f"{name}.attention", layer)
            x_NM, _ = parts.added_norm(x_NM, added_NM, f"{name}.attention_norm")
            added_NM = parts.feedforward(x_NM, f"{name}.feedforward")
            x_NM, _ = parts.added_norm(x_NM, added_NM, f"{name}.feedforward_norm")
    wanted_NM = graph.node("Gather", x_NM, "rows", axis=0)
    if config.final_norm:
        wanted_NM = parts.norm(wanted_NM, "final_norm")
    output = "embedding" if config.tied_output else "output"
    parts.linear(wanted_NM, output, config.d_model, config.vocab_size, bias=False, out="logits")
    return graph.model()


def _declare(graph: GraphWriter, config: ModelConfig) -> None:
    graph.input("ids", TensorProto.INT64, ["R", "T"])
    if config.positions in ("learned", "sinusoidal"):
        graph.input("positions", TensorProto.INT64, ["R", "T"])
    graph.input("last_positions", TensorProto.INT32, ["R"])
    graph.input("n_positions", TensorProto.INT32, [1])
    graph.input("rows", TensorProto.INT64, ["N"])
    graph.output("logits", TensorProto.FLOAT, ["N", config.vocab_size])
    for layer in range(config.n_layers):
        shape = ["R", config.n_kv_heads, "C", padded_head(config)]
        for name in ("key", "value"):
            graph.input(f"{name}_{layer}", TensorProto.FLOAT, shape)
            graph.output(f"new_{name}_{layer}", TensorProto.FLOAT, shape)


def _embedded(graph: GraphWriter, parts: Parts, config: ModelConfig, tables: dict[str, Array]) -> str:
    """Embeddings with their positions: x_NM. Writes what rotary positions need."""
    graph.node("Shape", "ids", out="shape_RT")
    x_RTM = graph.node("Gather", graph.weight("embedding.weight", [config.vocab_size, config.d_model]), "ids", axis=0)
    if config.embedding_scale:
        scale = graph.constant("embedding_scale", np.array(np.sqrt(config.d_model), dtype=np.float32))
        x_RTM = graph.node("Mul", x_RTM, scale)
    if config.positions == "learned":
        table = graph.weight("positions.table", [config.context, config.d_model])
        x_RTM = graph.node("Add", x_RTM, graph.node("Gather", table, "positions", axis=0))
    for name, table in tables.items():
        graph.constant(name, table)
    if config.positions == "sinusoidal":
        x_RTM = graph.node("Add", x_RTM, graph.node("Gather", "sinusoids", "positions", axis=0))
    return parts.flat(x_RTM, config.d_model)


def _tables(model: DecoderOnly) -> dict[str, Array]:
    """What is computed from the config alone, as PyTorch computes it."""
    config, buffers = model.config, dict(model.positions.named_buffers())
    if config.positions == "sinusoidal":
        return {"sinusoids": buffers["table"].cpu().numpy()}
    if config.positions == "rotary":
        half = config.d_head // 2
        cosine_CP, sine_CP = buffers["cosine"][:, :half].cpu().numpy(), buffers["signed_sine"][:, half:].cpu().numpy()
        return {
            "cosine": padded_angles(config, cosine_CP, 1.0),
            "sine": padded_angles(config, sine_CP, 0.0),
        }
    return {}
