"""Opens a graph in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mingyue.errors import MingyueError
from mingyue.graphs.quiet import import_onnxruntime
from mingyue.graphs.weights import Array
from mingyue.words import tr


class GraphError(MingyueError):
    """A graph cannot be opened by onnxruntime, or does not compute what the model computes."""


def open_session(graph: bytes, weights: Mapping[str, Array], *, threads: int) -> Any:  # noqa: ANN401  (an InferenceSession: onnxruntime has no annotations)
    """A session for the graph on CPU. The arrays of `weights` are used as they are and must live as long as it does.

    Raises `GraphError`.
    """
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # A waiting thread gives its core back soon: on cores that others use, the default of milliseconds costs a third to
    # three quarters of the speed, and on free ones this costs 2 %.
    options.add_session_config_entry("session.intra_op.spin_duration_us", "100")
    options.log_severity_level = 4  # errors are raised, and need not be printed as well
    values = [ort.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
    options.add_external_initializers(list(weights), values)
    try:
        return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has many classes of errors, without a common base
        raise GraphError(tr("onnxruntime {version} cannot open the graph: {error}", ort.__version__, error)) from error


def bound(session: Any, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Any:  # noqa: ANN401
    """A binding of arrays, which must live as long as it does: the session reads and writes them in place."""
    binding = session.io_binding()
    for bind, arrays in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, array in arrays.items():
            bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    return binding
