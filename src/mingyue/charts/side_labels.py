"""Labels along the sides of a matrix: Chinese stays upright, long words are turned, and no label touches another.

`matrix.js` does the same on pages.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from mingyue.charts.fonts import display_width, truncate
from mingyue.charts.markup import visible_ends

FONT_SIZE, LINE = 12, 13
"""Of a label, in pixels: its letters, and the room of a line."""
_LETTER = 6.5  # width of a column of text at that size
_GAP = 4  # between neighbours
LABEL_COLUMNS = 16
"""A longer label is cut."""
Mark = dict[str, Any]
"""A text of the picture: `text` (lines), x, y, angle, align, baseline, size, grey."""


def text_width(text: str, size: int = FONT_SIZE) -> float:
    """Roughly the width of a text in pixels."""
    return _LETTER * display_width(text) * size / FONT_SIZE


def shown(labels: Sequence[str]) -> list[str]:
    """Labels as they are drawn: spaces and line ends visible, long ones cut."""
    return [truncate(visible_ends(label), LABEL_COLUMNS) for label in labels]


def widest(labels: Sequence[str], size: int = FONT_SIZE) -> float:
    """Width of the longest of the labels in pixels, as drawn."""
    return max((text_width(text, size) for text in shown(labels)), default=0.0)


def row_marks(
    labels: Sequence[str], cell: float, *, x: float = -6, top: float = 0, size: int = FONT_SIZE
) -> list[Mark]:
    """Labels at the left of rows that are `cell` pixels high, as many as fit."""
    step = max(1, math.ceil((size + 1) / cell))
    return [
        mark([text], x, top + (number + 0.5) * cell, align="right", baseline="middle", size=size)
        for number, text in enumerate(shown(labels))
        if number % step == 0
    ]


def column_marks(
    labels: Sequence[str], cell: float, *, y: float = -6, left: float = 0, size: int = FONT_SIZE
) -> list[Mark]:
    """Labels above columns that are `cell` pixels wide, as many as fit.

    If they do not fit side by side, words of narrow letters that are wider than their column are turned, and Chinese
    of several characters runs from top to bottom.
    """
    texts, line = shown(labels), size + 1
    crowded = _crowded(texts, cell, size)
    step = max(1, math.ceil(line / cell)) if crowded else 1
    marks: list[Mark] = []
    for number, text in enumerate(texts):
        if number % step:
            continue
        x = left + (number + 0.5) * cell
        if not crowded or text_width(text, size) <= max(cell * step - _GAP, 2 * _LETTER):
            marks.append(mark([text], x, y, align="center", baseline="bottom", size=size))
        elif is_wide(text):
            lines = list(_clusters(text))
            marks.append(mark(lines, x, y - (len(lines) - 1) * line, align="center", baseline="bottom", size=size))
        else:
            marks.append(mark([text], x, y, align="left", baseline="middle", size=size, angle=-90))
    return marks


def column_room(labels: Sequence[str], cell: float, size: int = FONT_SIZE) -> float:
    """Height of the labels above the columns in pixels."""
    marks = column_marks(labels, cell, y=0, size=size)
    heights = (
        text_width(one["text"][0], size) if one["angle"] else len(one["text"]) * (size + 1) for one in marks
    )  # fmt: skip
    return max(heights, default=0.0)


def mark(
    lines: Sequence[str], x: float, y: float, *, align: str, baseline: str, size: int = FONT_SIZE, angle: int = 0,
    grey: bool = False,
) -> Mark:  # fmt: skip
    """A text at a place of the picture."""
    return {"text": list(lines), "x": x, "y": y, "align": align, "baseline": baseline, "size": size, "angle": angle,
            "grey": grey}  # fmt: skip


def is_wide(text: str) -> bool:
    """Whether a text has characters that are read from top to bottom as well: Chinese, Japanese, Korean."""
    return any(display_width(character) == 2 for character in text)


def _crowded(texts: Sequence[str], cell: float, size: int) -> bool:
    widths = [text_width(text, size) for text in texts]
    return any((one + other) / 2 + _GAP > cell for one, other in itertools.pairwise(widths))


def _clusters(text: str) -> Iterator[str]:
    """Characters with the combining marks and joined characters that follow them."""
    cluster = ""
    for character in text:
        if cluster and display_width(character) and not cluster.endswith("\u200d"):
            yield cluster
            cluster = ""
        cluster += character
    yield cluster
