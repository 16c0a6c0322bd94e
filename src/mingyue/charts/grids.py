"""Many matrices of one kind (all layers and heads): thumbnails, one of which is enlarged by a click."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mingyue.charts import images
from mingyue.charts.chart import Chart
from mingyue.words import Language

MOST_BYTES = 4 << 20
"""Cells of a grid, all together; larger ones are averaged down, and the note says so."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MatrixGrid(Chart):
    """See `matrix_grid`."""

    matrices_NMTS: NDArray[np.floating[Any]]
    """As given, before averaging."""
    row_titles: Sequence[str]
    column_titles: Sequence[str]
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    low: float
    high: float
    side: int
    """Most cells a side of what is drawn."""
    language: Language = "en"

    def spec(self) -> dict[str, Any]:
        """The spec of the picture."""
        return images.grid_spec(self)

    def html(self) -> str:
        """The figure for a page."""
        return images.grid_fragment(self)

    def to_dict(self) -> dict[str, Any]:
        """Kind, words and data."""
        return {
            "kind": "matrix_grid",
            "title": self.title,
            "note": self.note,
            "row_titles": list(self.row_titles),
            "column_titles": list(self.column_titles),
            "row_labels": list(self.row_labels),
            "column_labels": list(self.column_labels),
            "data": images.as_lists(self.matrices_NMTS),
        }


def matrix_grid(
    title: str,
    matrices: NDArray[Any],
    *,
    row_titles: Sequence[str],
    column_titles: Sequence[str],
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    low: float | None = None,
    high: float | None = None,
    note: str = "",
    language: Language = "en",
) -> MatrixGrid:
    """matrices [N, M, T, S]: N rows (layers) of M thumbnails (heads), all on one colour scale.

    Raises `ValueError` for titles or labels that do not fit.
    """
    matrices = np.asarray(matrices, dtype=np.float64)
    wanted = (len(row_titles), len(column_titles), len(row_labels), len(column_labels))
    if matrices.shape != wanted:
        raise ValueError(f"a grid of shape {matrices.shape} with titles and labels for {wanted}")
    low, high = images.ends(matrices, low, high, diverging=False)
    side = min(images.MOST_CELLS_A_SIDE, math.isqrt(MOST_BYTES // max(1, wanted[0] * wanted[1])))
    note = images.note_of_size(note, matrices.shape[2:], side, language)
    return MatrixGrid(
        title=title, matrices_NMTS=matrices, row_titles=tuple(row_titles), column_titles=tuple(column_titles),
        row_labels=tuple(row_labels), column_labels=tuple(column_labels), low=low, high=high, side=side, note=note,
        language=language,
    )  # fmt: skip
