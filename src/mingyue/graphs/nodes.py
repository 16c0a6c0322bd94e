"""Writes the nodes of an ONNX graph one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

CONTRIB = "com.microsoft"
_OPSETS = {"": 20, CONTRIB: 1}
_IR_VERSION = 10


class GraphWriter:
    """Nodes, constants, and the names of weights that are given when the graph is opened."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._known: set[str] = set()
        self._n_values = 0

    def input(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        """An input of the graph; a word in the shape is a size that may vary."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        """An output of the graph."""
        self._outputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def node(self, op: str, *inputs: str, out: str | None = None, domain: str = "", **attributes: Any) -> str:  # noqa: ANN401
        """A node with one output; returns its name."""
        return self.nodes(op, *inputs, outputs=[self._named(out)], domain=domain, **attributes)[0]

    def nodes(
        self,
        op: str,
        *inputs: str,
        outputs: Sequence[str],
        domain: str = "",
        **attributes: Any,  # noqa: ANN401
    ) -> Sequence[str]:
        """A node with several outputs; "" leaves one out."""
        self._nodes.append(helper.make_node(op, list(inputs), list(outputs), domain=domain, **attributes))
        return outputs

    def new_name(self) -> str:
        """A name that no other value has."""
        self._n_values += 1
        return f"x_{self._n_values}"

    def constant(self, name: str, value: npt.NDArray[Any]) -> str:
        """A constant that is a part of the graph; one of a name is written once."""
        if name not in self._known:
            self._known.add(name)
            self._initializers.append(numpy_helper.from_array(value, name))
        return name

    def weight(self, name: str, shape: Sequence[int], kind: int = TensorProto.FLOAT) -> str:
        """A weight that is not in the file: its array is given when the graph is opened."""
        if name not in self._known:
            self._known.add(name)
            proto = TensorProto(name=name, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
            proto.external_data.add(key="location", value="weights")
            self._initializers.append(proto)
        return name

    def model(self) -> onnx.ModelProto:
        """The finished graph."""
        graph = helper.make_graph(self._nodes, "mingyue", self._inputs, self._outputs, self._initializers)
        opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="mingyue")

    def _named(self, out: str | None) -> str:
        return self.new_name() if out is None else out
