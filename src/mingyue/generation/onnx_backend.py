"""The fast back end for CPUs: onnxruntime on the graph of a model. A row's bits do not depend on the other rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mingyue.config import ModelConfig
from mingyue.generation.backend import Backend, Logits, grown
from mingyue.graphs import bound, graph_weights, open_session, padded_head
from mingyue.graphs.weights import Array, WeightKind, adds_positions

_KEPT_SHAPES = 8
"""Numbers of rows whose buffers are kept: each has logits of its own, which are rows × V."""


class OnnxModel:
    """The graph of a decoder-only model, opened. Several back ends may use it at once."""

    def __init__(
        self,
        config: ModelConfig,
        graph: bytes,
        tensors: Mapping[str, Array],
        *,
        threads: int,
        kind: WeightKind = "fp32",
    ) -> None:
        """`tensors`: of the model's `state_dict()`. Raises `GraphError`."""
        self.config, self.kind, self.head = config, kind, padded_head(config)
        self._weights = graph_weights(config, tensors, kind)  # the session uses these arrays
        self.session = open_session(graph, self._weights, threads=threads)


class OnnxBackend(Backend):
    """Keys and values of a decoder-only model, which the graph reads and writes in place."""

    name = "onnxruntime"

    def __init__(self, model: OnnxModel) -> None:
        self.context, self.vocab_size = model.config.context, model.config.vocab_size
        self.model, self._config, self._head = model, model.config, model.head
        self.row_bytes = self._bytes(self.context)
        self._caches: dict[str, npt.NDArray[np.float32]] = {}
        self._rows = self._capacity = 0
        self._steps: dict[int, _Step] = {}

    def _bytes(self, capacity: int) -> int:
        return 2 * self._config.n_layers * self._config.n_kv_heads * capacity * self._head * 4

    def reserve(self, rows: int, capacity: int) -> None:
        """Larger buffers, with what is held; the system takes memory when it is first written to."""
        if rows <= self._rows and capacity <= self._capacity:
            return
        rows, capacity = grown(rows, self._rows), max(capacity, self._capacity)
        shape = (rows, self._config.n_kv_heads, capacity, self._head)
        for layer in range(self._config.n_layers):
            for name in (f"key_{layer}", f"value_{layer}"):
                new = np.zeros(shape, dtype=np.float32)
                if name in self._caches:
                    new[: self._rows, :, : self._capacity] = self._caches[name]
                self._caches[name] = new
        self._rows, self._capacity = rows, capacity
        self._steps.clear()

    def read(self, row: int, start: int, ids: Sequence[int], *, logits: bool = False) -> Logits | None:
        """One row, all tokens at once."""
        step = _Step(self.model, self._views(row, 1), 1, len(ids), n_logits=len(ids) if logits else 1)
        step.run(range(start, start + len(ids)), ids)
        return step.logits if logits else None

    def step(self, positions: Sequence[int], ids: Sequence[int]) -> Logits:
        """All rows, one token each."""
        n_rows = len(ids)
        if n_rows not in self._steps:
            if len(self._steps) == _KEPT_SHAPES:
                del self._steps[next(iter(self._steps))]
            self._steps[n_rows] = _Step(self.model, self._views(0, n_rows), n_rows, 1, n_logits=n_rows)
        step = self._steps[n_rows]
        step.run(positions, ids)
        return step.logits

    def _views(self, row: int, n_rows: int) -> dict[str, npt.NDArray[np.float32]]:
        return {name: held[row : row + n_rows] for name, held in self._caches.items()}

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies keys and values."""
        for held in self._caches.values():
            held[target, :, :length] = held[source, :, :length]


class _Step:
    """The buffers of a run over rows of so many tokens: bound once, used for every run of this shape."""

    def __init__(
        self,
        model: OnnxModel,
        caches: Mapping[str, npt.NDArray[np.float32]],
        n_rows: int,
        n_tokens: int,
        *,
        n_logits: int,
    ) -> None:
        self._session = model.session
        self._ids = np.zeros((n_rows, n_tokens), dtype=np.int64)
        self._positions = np.zeros((n_rows, n_tokens), dtype=np.int64)
        self._last = np.zeros(n_rows, dtype=np.int32)
        self._count = np.zeros(1, dtype=np.int32)
        self._wanted = np.arange(n_rows * n_tokens - n_logits, n_rows * n_tokens)  # the last ones
        self.logits = np.zeros((n_logits, model.config.vocab_size), dtype=np.float32)
        inputs: dict[str, Array] = {
            "ids": self._ids,
            "last_positions": self._last,
            "n_positions": self._count,
            "rows": self._wanted,
            **caches,
        }
        if adds_positions(model.config):
            inputs["positions"] = self._positions
        outputs: dict[str, Array] = {"logits": self.logits, **{f"new_{name}": held for name, held in caches.items()}}
        self._binding = bound(model.session, inputs, outputs)

    def run(self, positions: Sequence[int] | range, ids: Sequence[int]) -> None:
        """`logits` are those of the last tokens, as many as wanted, of all rows together."""
        self._ids[:] = np.reshape(ids, self._ids.shape)
        self._positions[:] = np.reshape(positions, self._ids.shape)
        self._last[:] = self._positions[:, -1]
        self._count[0] = positions[-1] + 1 if len(self._last) == 1 else self._last.max() + 1
        self._session.run_with_iobinding(self._binding)
