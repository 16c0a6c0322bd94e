"""What translation needs of a model: source texts in, then one step after another for hypotheses of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mingyue.generation.evaluating import evaluating

if TYPE_CHECKING:
    from mingyue.generation.hypotheses import SourceBatch
    from mingyue.models import EncoderDecoder


class Decoding(ABC):
    """The decoder on a batch of source texts. Each has K rows side by side: its hypotheses, of equal length."""

    @abstractmethod
    def step(self, ids_R: Tensor) -> Tensor:
        """Read one more token into each row; logits_RV of the next, in fp32, which the caller may change."""

    @abstractmethod
    def keep_rows(self, rows: Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was."""

    @abstractmethod
    def keep_texts(self, texts: Sequence[int]) -> None:
        """Only these source texts stay; their rows are chosen by `keep_rows`."""


class Decoder(ABC):
    """An encoder-decoder model, ready to translate."""

    vocab_size: int

    @abstractmethod
    def start(self, batch: SourceBatch, rows_per_text: int, capacity: int) -> Decoding:
        """Encode a batch, with so many empty rows for each text, each of `capacity` tokens at most."""


class TorchDecoder(Decoder):
    """The reference: PyTorch, on every device."""

    def __init__(self, model: EncoderDecoder) -> None:
        self._model = model
        self.vocab_size = model.config.vocab_size

    def start(self, batch: SourceBatch, rows_per_text: int, capacity: int) -> Decoding:
        """Encode a batch."""
        return _TorchDecoding(self._model, batch, rows_per_text, capacity)


class _TorchDecoding(Decoding):
    def __init__(self, model: EncoderDecoder, batch: SourceBatch, rows_per_text: int, capacity: int) -> None:
        self._model = model
        with evaluating(model), torch.inference_mode():
            memory_BSM = model.encode(batch.source_BS, source_lengths_B=batch.lengths_B)
            self._memory = model.project_kv(memory_BSM, source_lengths_B=batch.lengths_B)
        self._cache = model.new_cache(len(batch.limits) * rows_per_text, capacity=capacity)

    def step(self, ids_R: Tensor) -> Tensor:
        """A forward pass."""
        with evaluating(self._model), torch.inference_mode():
            hidden_R1M = self._model.hidden(ids_R[:, None], self._memory, cache=self._cache.step())
            return self._model.output(hidden_R1M[:, 0]).float()

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Reorders the cache."""
        if list(rows) != list(range(len(self._cache.lengths))):
            self._cache.keep(rows)

    def keep_texts(self, texts: Sequence[int]) -> None:
        """Drops keys and values of source texts."""
        self._memory = self._memory.keep(texts)
