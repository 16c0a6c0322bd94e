"""The reference back end: PyTorch, on every device. Its rows may differ in the last bits with their number."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mingyue.generation.backend import Backend, Logits, grown
from mingyue.generation.evaluating import evaluating
from mingyue.models import DecoderOnly, sizes


class TorchBackend(Backend):
    """A `DecoderOnly` and its cache of keys and values."""

    name = "torch"

    def __init__(self, model: DecoderOnly) -> None:
        self._model, self._device = model, model.embedding.weight.device
        self.context, self.vocab_size = model.config.context, model.config.vocab_size
        self.row_bytes = sizes(model.config).cache_bytes(1, self.context)
        self._cache = model.new_cache(0, capacity=1)

    def reserve(self, rows: int, capacity: int) -> None:
        """A larger cache, with what is held."""
        held = self._cache
        if rows <= len(held.lengths) and capacity <= held.capacity:
            return
        rows, capacity = grown(rows, len(held.lengths)), max(capacity, held.capacity)
        self._cache = self._model.new_cache(rows, capacity=capacity)
        for new, old in zip((*self._cache.keys, *self._cache.values), (*held.keys, *held.values), strict=True):
            new[: old.shape[0], :, : old.shape[2]] = old
        self._cache.lengths[: len(held.lengths)] = held.lengths

    def read(self, row: int, start: int, ids: Sequence[int], *, logits: bool = False) -> Logits | None:
        """A forward pass over one row."""
        self._cache.lengths[row] = start
        return self._forward([[*ids]], [row], logits=logits)

    def step(self, positions: Sequence[int], ids: Sequence[int]) -> Logits:
        """A forward pass over rows of one token."""
        self._cache.lengths[: len(positions)] = positions
        found = self._forward([[index] for index in ids], list(range(len(ids))), logits=True)
        assert found is not None
        return found

    def _forward(self, ids: list[list[int]], rows: list[int], *, logits: bool) -> Logits | None:
        """logits of all tokens, [rows · T, V]."""
        with evaluating(self._model), torch.inference_mode():
            step = self._cache.step(rows=rows)
            hidden_BTM = self._model.hidden(torch.tensor(ids, device=self._device), cache=step)
            if not logits:
                return None
            return self._model.output(hidden_BTM.flatten(0, 1)).float().cpu().numpy()

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies keys and values."""
        self._cache.lengths[source] = max(length, self._cache.lengths[source])
        self._cache.copy(source, target, length)


class UncachedBackend(Backend):
    """The same without a cache: the whole window is read again for every token. Slow; a check of the cache."""

    name = "torch, no cache"
    row_bytes = 0

    def __init__(self, model: DecoderOnly) -> None:
        self._model, self._device = model, model.embedding.weight.device
        self.context, self.vocab_size = model.config.context, model.config.vocab_size
        self._rows: list[list[int]] = []

    def reserve(self, rows: int, capacity: int) -> None:
        """Room for the ids of each row."""
        self._rows += [[] for _ in range(rows - len(self._rows))]

    def read(self, row: int, start: int, ids: Sequence[int], *, logits: bool = False) -> Logits | None:
        """Keeps the ids."""
        self._rows[row][start:] = ids
        return self._forward([row])[start:] if logits else None

    def step(self, positions: Sequence[int], ids: Sequence[int]) -> Logits:
        """One forward pass over all windows, padded on the right."""
        for row, (position, index) in enumerate(zip(positions, ids, strict=True)):
            self._rows[row][position:] = [index]
        longest = max(positions) + 1
        logits_NV = self._forward(list(range(len(ids))))
        return logits_NV[[row * longest + position for row, position in enumerate(positions)]]

    def _forward(self, rows: Sequence[int]) -> Logits:
        longest = max(len(self._rows[row]) for row in rows)
        ids = [[*self._rows[row], *[0] * (longest - len(self._rows[row]))] for row in rows]
        with evaluating(self._model), torch.inference_mode():
            hidden_BTM = self._model.hidden(torch.tensor(ids, device=self._device))
            return self._model.output(hidden_BTM.flatten(0, 1)).float().cpu().numpy()

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies ids."""
        self._rows[target] = self._rows[source][:length]
