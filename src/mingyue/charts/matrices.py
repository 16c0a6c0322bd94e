"""A matrix as one small image: a byte a cell, its value on hover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mingyue.charts import images
from mingyue.charts.chart import Chart
from mingyue.words import Language


@dataclass(frozen=True, kw_only=True, eq=False)
class MatrixChart(Chart):
    """See `matrix_chart`."""

    values_RC: NDArray[np.floating[Any]]
    """As given, before averaging."""
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    row_title: str = ""
    column_title: str = ""
    low: float
    high: float
    diverging: bool = False
    language: Language = "en"

    def spec(self) -> dict[str, Any]:
        """The spec of the picture."""
        return images.matrix_spec(self)

    def html(self) -> str:
        """The figure for a page."""
        return images.matrix_fragment(self)

    def to_dict(self) -> dict[str, Any]:
        """Kind, words and data."""
        return {
            "kind": "matrix",
            "title": self.title,
            "note": self.note,
            "row_labels": list(self.row_labels),
            "column_labels": list(self.column_labels),
            "data": images.as_lists(self.values_RC),
        }


def matrix_chart(
    title: str,
    values: NDArray[Any],
    *,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    row_title: str = "",
    column_title: str = "",
    low: float | None = None,
    high: float | None = None,
    diverging: bool = False,
    note: str = "",
    language: Language = "en",
) -> MatrixChart:
    """values [R, C] as one image. `low` and `high` end the colour scale (default: least and greatest value, or, of a
    diverging scale, plus and minus the greatest size).

    `language` is that of the sentence that says how a large matrix was averaged. Raises `ValueError` for labels that do
    not fit the values.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or values.shape != (len(row_labels), len(column_labels)):
        raise ValueError(
            f"a matrix of shape {values.shape} with {len(row_labels)} row labels and {len(column_labels)} column labels"
        )
    low, high = images.ends(values, low, high, diverging=diverging)
    note = images.note_of_size(note, values.shape, images.MOST_CELLS_A_SIDE, language)
    return MatrixChart(
        title=title, values_RC=values, row_labels=tuple(row_labels), column_labels=tuple(column_labels),
        row_title=row_title, column_title=column_title, low=low, high=high, diverging=diverging, note=note,
        language=language,
    )  # fmt: skip
