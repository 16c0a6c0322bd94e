"""What the engine needs of a model: tokens into the rows of a cache, logits out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


class Backend(ABC):
    """Computes a decoder-only model on rows of a cache. One thread uses it at a time.

    A row holds a text from its first position; what stands behind the positions that the caller names does not matter,
    so a row is emptied by reading a new text into it from position 0.
    """

    name: str
    """As in `--backend`."""
    context: int
    """Positions of a row: 0 … context − 1."""
    vocab_size: int
    row_bytes: int
    """Bytes of the keys and values of a full row."""

    @abstractmethod
    def reserve(self, rows: int, capacity: int) -> None:
        """Make room for so many rows of so many positions, if there is less; held rows keep their content."""

    @abstractmethod
    def read(self, row: int, start: int, ids: Sequence[int], *, logits: bool = False) -> Logits | None:
        """Read tokens into a row from position `start`, behind those it holds. logits_TV of all of them if wanted."""

    @abstractmethod
    def step(self, positions: Sequence[int], ids: Sequence[int]) -> Logits:
        """Read one token into each of rows 0 … R − 1, at its position. logits_RV, which the caller may change."""

    @abstractmethod
    def copy(self, source: int, target: int, length: int) -> None:
        """Make row `target` hold the first `length` positions of row `source`."""


def grown(wanted: int, held: int) -> int:
    """How many rows to make room for: twice those held at least, so that rows that come singly are seldom copied."""
    return held if wanted <= held else max(wanted, 2 * held)
