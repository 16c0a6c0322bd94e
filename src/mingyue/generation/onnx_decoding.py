"""Translation on onnxruntime: the graphs of an encoder-decoder model and its cache of keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mingyue.config import EncoderDecoderConfig
from mingyue.generation.decoding import Decoder, Decoding
from mingyue.graphs import Array, WeightKind, bound, graph_weights, open_session, padded_head
from mingyue.graphs.weights import adds_positions, weights_of_encoder, weights_of_steps

if TYPE_CHECKING:
    from mingyue.generation.hypotheses import SourceBatch


class OnnxDecoder(Decoder):
    """The two graphs of a model, opened."""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        encoder: bytes,
        step: bytes,
        tensors: Mapping[str, Array],
        *,
        threads: int,
        kind: WeightKind = "fp32",
    ) -> None:
        """`tensors`: of the model's `state_dict()`. Raises `GraphError`."""
        self.config, self.kind, self.vocab_size = config, kind, config.vocab_size
        weights = graph_weights(config, tensors, kind)
        self._weights = weights_of_encoder(config, weights), weights_of_steps(weights)  # the sessions use these arrays
        self.encoder, self.decoder = (
            open_session(graph, arrays, threads=threads)
            for graph, arrays in zip((encoder, step), self._weights, strict=True)
        )

    def start(self, batch: SourceBatch, rows_per_text: int, capacity: int) -> Decoding:
        """Encode a batch."""
        return _OnnxDecoding(self, batch, rows_per_text, capacity)


class _OnnxDecoding(Decoding):
    def __init__(self, decoder: OnnxDecoder, batch: SourceBatch, rows_per_text: int, capacity: int) -> None:
        self._decoder, self._config = decoder, decoder.config
        source_BS = batch.source_BS.numpy()
        n_texts, n_tokens = source_BS.shape
        lengths_B = np.full(n_texts, n_tokens) if batch.lengths_B is None else batch.lengths_B.numpy()
        hidden_BS = np.arange(n_tokens) >= lengths_B[:, None]
        bias_BS = np.where(hidden_BS, np.float32(-np.inf), np.float32(0))
        self._memory: dict[str, Array] = {"bias": np.ascontiguousarray(bias_BS[:, None, None])}
        names = [f"memory_{part}_{layer}" for layer in range(self._config.n_layers) for part in ("key", "value")]
        inputs = {"ids": source_BS.astype(np.int64), "bias": self._memory["bias"]}
        for name, found in zip(names, decoder.encoder.run(names, inputs), strict=True):
            self._memory[name] = np.asarray(found)
        shape = (n_texts * rows_per_text, self._config.n_kv_heads, capacity, padded_head(self._config))
        self._caches = {
            f"{part}_{layer}": np.zeros(shape, dtype=np.float32)
            for layer in range(self._config.n_layers)
            for part in ("key", "value")
        }
        self._n_rows, self._held = shape[0], 0

    def step(self, ids_R: Tensor) -> Tensor:
        """A run of the graph; keys and values are written in place."""
        n_rows, position = self._n_rows, self._held
        logits_RV = np.empty((n_rows, self._config.vocab_size), dtype=np.float32)
        inputs: dict[str, Array] = {
            "ids": ids_R.numpy()[:, None],
            "last_positions": np.full(n_rows, position, dtype=np.int32),
            "n_positions": np.array([position + 1], dtype=np.int32),
            **self._memory,
        }
        if adds_positions(self._config):
            inputs["positions"] = np.full((n_rows, 1), position, dtype=np.int64)
        caches = {name: held[:n_rows] for name, held in self._caches.items()}
        outputs: dict[str, Array] = {"logits": logits_RV, **{f"new_{name}": held for name, held in caches.items()}}
        session = self._decoder.decoder
        session.run_with_iobinding(bound(session, inputs | caches, outputs))
        self._held += 1
        return torch.from_numpy(logits_RV)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Only the positions that are held are copied, and only if the order changes."""
        if list(rows) == list(range(self._n_rows)):
            return
        index = np.array(rows, dtype=np.int64)
        for name, held in self._caches.items():
            chosen = held[: self._n_rows, :, : self._held][index]
            target = held
            if len(rows) > len(held):
                target = self._caches[name] = np.zeros((len(rows), *held.shape[1:]), dtype=np.float32)
            target[: len(rows), :, : self._held] = chosen
        self._n_rows = len(rows)

    def keep_texts(self, texts: Sequence[int]) -> None:
        """Drops keys and values of source texts."""
        self._memory = {name: np.ascontiguousarray(held[list(texts)]) for name, held in self._memory.items()}
