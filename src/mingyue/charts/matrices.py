"""Matrices as images of one byte a cell: one with axes, or a grid of thumbnails."""

from __future__ import annotations

import base64
import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mingyue.charts import colours, markup
from mingyue.charts.chart import Chart
from mingyue.charts.matrix_images import image_spec
from mingyue.charts.side_labels import FONT_SIZE, LINE, Mark, column_marks, column_room, mark, row_marks, widest
from mingyue.charts.vega import CONFIG, heading
from mingyue.words import Language, sentences, tr

MOST_CELLS_A_SIDE = 512
"""Larger matrices are averaged down to this, as their caption states."""
MOST_CELLS_OF_A_GRID = 4 << 20
"""Cells of all matrices of a grid together; larger ones are averaged down, as the caption states."""
_FEW_COLUMNS = 12
_ROOM = 560
"""Usual width of one matrix in an image, in pixels."""
_MOST_LABELS = 64
"""Rows or columns of a matrix that all have labels; of more some are left out."""
_LEAST_CELL, _LEAST_LETTERS = 10, 9
"""Pixels of the cells of a thumbnail that has labels, and of their letters."""
Array = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class _MatrixImage(Chart):
    """The common base of a matrix and a grid of matrices: labels, the ends of the colour scale, averaging."""

    row_labels: Sequence[str]
    column_labels: Sequence[str]
    low: float | None = None
    """Lower end of the colour scale. Default: the least value; of a diverging scale, minus the greatest magnitude."""
    high: float | None = None
    """Upper end. Default: the greatest value; of a diverging scale, the greatest magnitude."""
    language: Language = "en"
    """Language of the sentence about averaging."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def array(self) -> Array:
        """The values as float64; the last two axes are rows and columns."""

    @property
    def side(self) -> int:
        """Most cells along one side of a matrix that is drawn."""
        return MOST_CELLS_A_SIDE

    @property
    def is_diverging(self) -> bool:
        """Whether the colours diverge from white at 0."""
        return False

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The ends of the colour scale: those given, else from the finite values."""
        finite = self.array[np.isfinite(self.array)]
        least, greatest = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        if self.is_diverging:
            size = max(abs(least), abs(greatest))
            least, greatest = -size, size
        low = least if self.low is None else float(self.low)
        high = greatest if self.high is None else float(self.high)
        return (low, high) if high > low else (low, low + 1.0)

    @property
    def caption(self) -> str:
        """The note, with a sentence about averaging if a matrix is drawn averaged."""
        rows, columns = self.array.shape[-2:]
        if max(rows, columns) <= self.side:
            return self.note
        drawn = (min(rows, self.side), min(columns, self.side))
        averaging = tr(
            "Drawn with {drawn} × {drawn_columns} cells, each the mean of its part of the {rows} × {columns} values.",
            drawn[0],
            drawn[1],
            rows,
            columns,
        ).of(self.language)
        return sentences([self.note, averaging], self.language)

    def _cells(self, side: int) -> NDArray[np.uint8]:
        """The values as bytes of the colour scale, averaged down to at most `side` cells a side."""
        return colours.to_bytes(shrink(self.array, side), *self.limits)

    def _page_data(self) -> dict[str, Any]:
        """The data for the script of the page."""
        low, high = self.limits
        return {
            "rows": list(map(markup.visible_ends, shrink_labels(self.row_labels, self.side))),
            "columns": list(map(markup.visible_ends, shrink_labels(self.column_labels, self.side))),
            "rowTitle": "",
            "columnTitle": "",
            "low": low,
            "high": high,
            "diverging": self.is_diverging,
            "data": to_base64(self._cells(self.side)),
        }

    def _finished(self, spec: dict[str, Any]) -> dict[str, Any]:
        return {**spec, "title": heading(self), "config": CONFIG}

    def _dict(self, **titles: list[str]) -> dict[str, Any]:
        labels = {"row_labels": list(self.row_labels), "column_labels": list(self.column_labels)}
        words = {"kind": self.kind, "title": self.title, "note": self.caption}
        return {**words, **titles, **labels, "data": as_lists(self.array)}


@dataclass(frozen=True, kw_only=True, eq=False)
class MatrixChart(_MatrixImage):
    """One matrix as an image. Raises `ValueError` for labels that do not fit the values."""

    values: NDArray[Any] = field(kw_only=False)
    """[R, C]."""
    row_title: str = ""
    column_title: str = ""
    diverging: bool = False
    """Colours diverge from white at 0."""

    kind = "matrix"

    def __post_init__(self) -> None:
        shape, labels = self.array.shape, (len(self.row_labels), len(self.column_labels))
        if shape != labels:
            raise ValueError(f"a matrix of shape {shape} with {labels[0]} row labels and {labels[1]} column labels")

    @cached_property
    def array(self) -> Array:
        """[R, C] as float64."""
        return np.asarray(self.values, dtype=np.float64)

    @property
    def is_diverging(self) -> bool:
        """As given."""
        return self.diverging

    def spec(self) -> dict[str, Any]:
        """The Vega-Lite spec: the matrix as one image, labels along its sides, the colour scale."""
        cells = self._cells(self.side)
        rows, columns = cells.shape
        row_labels = shrink_labels(self.row_labels, self.side)
        column_labels = shrink_labels(self.column_labels, self.side)
        tall, wide = _cell_size(rows, columns, widest(column_labels))
        texts = row_marks(row_labels, tall) + column_marks(column_labels, wide)
        if self.row_title:
            left = -widest(row_labels) - 14
            texts.append(mark([self.row_title], left, tall * rows / 2, align="center", baseline="bottom", angle=-90,
                              grey=True))  # fmt: skip
        if self.column_title:
            top = -column_room(column_labels, wide) - 12
            texts.append(mark([self.column_title], wide * columns / 2, top, align="center", baseline="bottom",
                              grey=True))  # fmt: skip
        size = (round(columns * wide), round(rows * tall))
        picture = colours.colormap(self.diverging)[cells]
        stops = colours.stops(self.diverging)
        return self._finished(image_spec(picture, size, texts, limits=self.limits, stops=stops, frame=True))

    def html(self) -> str:
        """The figure for a page: its script draws the canvas when it comes into view."""
        data = self._page_data() | {"rowTitle": self.row_title, "columnTitle": self.column_title}
        return markup.render("drawn_by_script.html", chart=self, kind="matrix", data=data, one_image=True)

    def to_dict(self) -> dict[str, Any]:
        """Kind, text and values."""
        return self._dict()


@dataclass(frozen=True, kw_only=True, eq=False)
class MatrixGrid(_MatrixImage):
    """N rows (layers) of M matrices (heads) as thumbnails on one colour scale; on a page, a click enlarges one.

    Raises `ValueError` for titles or labels that do not fit.
    """

    matrices: NDArray[Any] = field(kw_only=False)
    """[N, M, T, S]."""
    row_titles: Sequence[str]
    """N titles of the rows of thumbnails."""
    column_titles: Sequence[str]
    """M titles of their columns."""

    kind = "matrix_grid"

    def __post_init__(self) -> None:
        wanted = tuple(map(len, (self.row_titles, self.column_titles, self.row_labels, self.column_labels)))
        if self.array.shape != wanted:
            raise ValueError(f"a grid of shape {self.array.shape} with titles and labels for {wanted}")

    @cached_property
    def array(self) -> Array:
        """[N, M, T, S] as float64."""
        return np.asarray(self.matrices, dtype=np.float64)

    @property
    def side(self) -> int:
        """Most cells along one side of a thumbnail: fewer where there are many thumbnails."""
        rows, columns = self.array.shape[:2]
        return min(MOST_CELLS_A_SIDE, math.isqrt(MOST_CELLS_OF_A_GRID // max(1, rows * columns)))

    def spec(self) -> dict[str, Any]:
        """The Vega-Lite spec: all thumbnails in one image; the outer ones have labels where their cells have room."""
        n_rows, n_columns = self.array.shape[:2]
        cells = self._cells(max(24, min(self.side, 960 // max(n_rows, n_columns, 1))))
        tall, wide = cells.shape[2:]
        zoom = _zoom(n_rows * tall, n_columns * wide)
        scale = max(1, round(2 * zoom))  # whole pixels of the image for each cell, so that all have one size
        drawn = colours.colormap()[cells.repeat(scale, axis=2).repeat(scale, axis=3)]
        framed = np.pad(drawn, ((0, 0), (0, 0), (2, 2), (2, 2), (0, 0)), constant_values=190)
        framed = np.pad(framed, ((0, 0), (0, 0), (4, 4), (4, 4), (0, 0)), constant_values=255)
        n, m, high, broad, _ = framed.shape
        picture = framed.transpose(0, 2, 1, 3, 4).reshape(n * high, m * broad, 3)
        step_x, step_y = broad * zoom / scale, high * zoom / scale
        has_labels = zoom >= _LEAST_CELL and cells.shape == self.array.shape
        texts, left, top = self._token_marks(zoom, step_x, step_y) if has_labels else ([], -8.0, -6.0)
        texts += row_marks(self.row_titles, step_y, x=left) + column_marks(self.column_titles, step_x, y=top)
        size = (round(m * step_x), round(n * step_y))
        stops = colours.SEQUENTIAL
        return self._finished(image_spec(picture, size, texts, limits=self.limits, stops=stops, frame=False))

    def _token_marks(self, cell: float, step_x: float, step_y: float) -> tuple[list[Mark], float, float]:
        """Labels of the outer thumbnails, and where the titles of rows and columns have room."""
        size = max(_LEAST_LETTERS, min(FONT_SIZE, int(cell) - 1))
        n_rows, n_columns = self.array.shape[:2]
        edge_y, edge_x = (step_y - cell * self.array.shape[2]) / 2, (step_x - cell * self.array.shape[3]) / 2
        texts: list[Mark] = []
        for row in range(n_rows):
            texts += row_marks(self.row_labels, cell, x=-4, top=row * step_y + edge_y, size=size)
        for column in range(n_columns):
            texts += column_marks(self.column_labels, cell, y=-4, left=column * step_x + edge_x, size=size)
        return texts, -widest(self.row_labels, size) - 14, -column_room(self.column_labels, cell, size) - 10

    def html(self) -> str:
        """The figure for a page: thumbnails, and room for the one that is enlarged."""
        titles = {"rowTitles": list(self.row_titles), "columnTitles": list(self.column_titles)}
        data = self._page_data() | titles
        return markup.render("drawn_by_script.html", chart=self, kind="matrix-grid", data=data, one_image=False)

    def to_dict(self) -> dict[str, Any]:
        """Kind, text and values."""
        return self._dict(row_titles=list(self.row_titles), column_titles=list(self.column_titles))


def one_scale(parts: Sequence[Any]) -> list[Any]:
    """The parts of one picture, with one colour scale for all matrices whose scale has no ends of its own.

    Those that diverge share a symmetric scale, the others one from the least to the greatest value of all.
    """
    found: dict[bool, list[_MatrixImage]] = {False: [], True: []}
    for part in parts:
        if isinstance(part, _MatrixImage) and part.low is None and part.high is None:
            found[part.is_diverging].append(part)
    ends = {
        diverging: {"low": min(one.limits[0] for one in charts), "high": max(one.limits[1] for one in charts)}
        for diverging, charts in found.items()
        if len(charts) > 1
    }
    shared = [id(one) for diverging in ends for one in found[diverging]]
    return [replace(part, **ends[part.is_diverging]) if id(part) in shared else part for part in parts]


def _cell_size(rows: int, columns: int, widest_label: float) -> tuple[float, float]:
    """Height and width of the cells of one matrix, in pixels: each has room for its label where there are not many."""
    least = LINE if max(rows, columns) <= _MOST_LABELS else 1.0
    size = max(least, min(26.0, _ROOM / max(columns, 1), _ROOM / max(rows, 1)))
    if columns > _FEW_COLUMNS:
        return size, size
    # As wide as their labels, which then need not be turned.
    return size, max(size, min(_ROOM / max(columns, 1), widest_label + 10))


def _zoom(rows: int, columns: int) -> float:
    """Pixels for each cell of a grid of so many cells: room for labels where that does not make it too large."""
    zoom = min(40.0, 720 / max(rows, columns, 1))
    return max(zoom, _LEAST_CELL) if columns * _LEAST_CELL <= 1080 and rows * _LEAST_CELL <= 1440 else zoom


def as_lists(values: Array) -> Any:  # noqa: ANN401
    """Nested lists of numbers with six digits; NaN and infinities as None."""
    finite = np.isfinite(values)
    if not finite.all() and values.ndim > 1:
        return [as_lists(part) for part in values]
    known = np.where(finite & (values != 0), values, 1.0).astype(np.float64)
    scale = 10.0 ** np.clip(5 - np.floor(np.log10(np.abs(known))), -300, 300)
    rounded: list[Any] = np.where(finite, np.rint(np.where(finite, values, 0.0) * scale) / scale, np.nan).tolist()
    return rounded if finite.all() else [None if math.isnan(value) else value for value in rounded]


def shrink(values: Array, side: int) -> Array:
    """The last two axes averaged down to at most `side` cells each."""
    for axis in (-2, -1):
        n = values.shape[axis]
        if n > side:
            starts = np.arange(side) * n // side
            sizes = np.diff([*starts, n])
            shape = [1] * values.ndim
            shape[axis] = side
            values = np.add.reduceat(values, starts, axis=axis) / sizes.reshape(shape)
    return values


def shrink_labels(labels: Sequence[str], side: int) -> list[str]:
    """Labels of the cells that `shrink` makes: the first and last label of each cell."""
    n = len(labels)
    if n <= side:
        return list(labels)
    starts = [number * n // side for number in range(side)] + [n]
    pairs = [(labels[start], labels[end - 1]) for start, end in itertools.pairwise(starts)]
    return [first if first == last else f"{first} … {last}" for first, last in pairs]


def to_base64(values: NDArray[np.uint8]) -> str:
    """Bytes for the scripts of a page."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
