"""The graph of a decoder-only model with a cache.

Inputs: `ids` [R, T]; `positions` [R, T], where positions are added to embeddings; `last_positions` [R], that of the
last token of each row; `n_positions` [1], the largest of them + 1; `rows` [N], the tokens of the flattened [R · T]
whose logits are wanted; `key_L` and `value_L` [R, G, capacity, D] of every layer. Outputs: `logits` [N, V]; `new_key_L`
and `new_value_L`, which may be the same buffers. T above 1 needs R = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx
from onnx import TensorProto
from torch import nn

from mingyue.config import ModelConfig, PartsConfig
from mingyue.graphs.nodes import GraphWriter
from mingyue.graphs.parts import Parts
from mingyue.graphs.weights import WeightKind, adds_positions, padded_angles, padded_head
from mingyue.models import DecoderOnly


def decoder_graph(model: DecoderOnly, kind: WeightKind = "fp32") -> onnx.ModelProto:
    """The graph of a model, without its weights (`graph_weights` has them); tables of positions are in it."""
    config, graph = model.config, GraphWriter()
    _declare(graph, config)
    parts = Parts(graph, config, kind)
    write_tables(graph, model.positions, config)
    graph.node("Shape", "ids", out="shape_RT")
    x_RTM = parts.with_positions(parts.embedded("ids", "embedding", config.vocab_size), "positions", "positions")
    x_NM = parts.stack(parts.flat(x_RTM, config.d_model), _sublayers(parts))
    wanted_NM = graph.node("Gather", x_NM, "rows", axis=0)
    if config.final_norm:
        wanted_NM = parts.norm(wanted_NM, "final_norm")
    parts.output(wanted_NM)
    return graph.model()


def _sublayers(parts: Parts) -> list[tuple[str, Callable[[str], str]]]:
    """Those of all blocks: the name of the norm, and what writes the sub-layer."""
    sublayers: list[tuple[str, Callable[[str], str]]] = []
    for layer in range(parts.config.n_layers):
        name = f"blocks.{layer}"
        sublayers += [
            (f"{name}.attention_norm", partial(parts.attention, name=f"{name}.attention", layer=layer)),
            (f"{name}.feedforward_norm", partial(parts.feedforward, name=f"{name}.feedforward")),
        ]
    return sublayers


def _declare(graph: GraphWriter, config: ModelConfig) -> None:
    graph.input("ids", TensorProto.INT64, ["R", "T"])
    if adds_positions(config):
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


def write_tables(graph: GraphWriter, positions: nn.Module, config: PartsConfig, *, pad: bool = True) -> None:
    """Constants that are computed from the config alone, as PyTorch computes them."""
    buffers = dict(positions.named_buffers())
    if config.positions == "sinusoidal":
        graph.constant("sinusoids", buffers["table"].cpu().contiguous().numpy())
    if config.positions == "rotary":
        half = config.d_head // 2
        cosine_CP, sine_CP = (
            part.cpu().contiguous().numpy() for part in (buffers["cosine"][:, :half], buffers["signed_sine"][:, half:])
        )
        graph.constant("cosine", padded_angles(config, cosine_CP, 1.0) if pad else cosine_CP)
        graph.constant("sine", padded_angles(config, sine_CP, 0.0) if pad else sine_CP)
