"""Models as ONNX graphs, for onnxruntime: of a decoder-only model with a cache of keys and values.

Building a graph (`graphs.decoder`) needs the onnx package and a PyTorch model; running one needs onnxruntime alone.
"""

from mingyue.graphs.quiet import import_onnxruntime
from mingyue.graphs.session import GraphError, bound, open_session
from mingyue.graphs.store import graph_key, keep_graph, kept_graph
from mingyue.graphs.weights import Array, WeightKind, graph_weights, padded_head

__all__ = [
    "Array",
    "GraphError",
    "WeightKind",
    "bound",
    "graph_key",
    "graph_weights",
    "import_onnxruntime",
    "keep_graph",
    "kept_graph",
    "open_session",
    "padded_head",
]
