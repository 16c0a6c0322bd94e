"""What fits into the width of a terminal, counted in cells: a Chinese character takes two."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from mingyue.words import localized

if TYPE_CHECKING:
    from rich.table import Column, Table

SEPARATOR = "  "
_CHINESE = 12  # cells of a column that are enough for Chinese text


def cells(text: str) -> int:
    """Columns that a text takes on a terminal."""
    from rich.cells import cell_len

    return cell_len(text)


def fitting(parts: Sequence[str], room: int) -> str:
    """The first of `parts` that fit into `room` columns, joined."""
    return fitting_line([(order, part) for order, part in enumerate(parts)], room, least=0)


def fitting_line(parts: Sequence[tuple[int, str]], room: int, *, least: int = 1) -> str:
    """The parts of a line, each with its rank, joined in their order; the highest ranks are left out until it fits.

    `least` parts are kept even where they do not fit.
    """
    kept = list(parts)
    while len(kept) > least and cells(SEPARATOR.join(text for _, text in kept)) > room:
        last = max(range(len(kept)), key=lambda index: (kept[index][0], index))
        del kept[last]
    return SEPARATOR.join(text for _, text in kept)


def fit_table(table: Table, width: int, droppable: Collection[str] = ()) -> None:
    """Keep the words of a table whole in `width` columns; for this, the last of `droppable` columns are removed first.

    Where it does not fit even so, it stays as it is, and its words are broken.
    """
    waiting = list(droppable)
    while True:
        gaps = len(SEPARATOR) * max(0, len(table.columns) - 1)
        needed = [_longest_word(column) for column in table.columns]
        if sum(needed) + gaps <= width:
            break
        if not waiting:
            return
        name = waiting.pop()
        table.columns = [column for column in table.columns if column.header != name]
        for index, column in enumerate(table.columns):
            column._index = index
    wanted = [max(map(cells, _texts(column)), default=0) for column in table.columns]
    while sum(wanted) + gaps > width:  # the column that loses most words by it is the last to be narrowed
        widest = max(range(len(wanted)), key=lambda index: wanted[index] - needed[index])
        wanted[widest] -= 1
    for column, room in zip(table.columns, wanted, strict=True):
        column.width = max(room, 1)


def _longest_word(column: Column) -> int:
    """Cells of the longest word of a column; of a column that is not wrapped, of its longest text."""
    words = _texts(column) if column.no_wrap else [word for text in _texts(column) for word in text.split()]
    return max(map(_room, words), default=0)


def _texts(column: Column) -> list[str]:
    return [line for text in (column.header, *column.cells) for line in _shown(text).split("\n")]


def _shown(text: object) -> str:
    return localized(text) if isinstance(text, str) else str(text)


def _room(word: str) -> int:
    """Cells of a word; Chinese is broken anywhere, so a long one counts as a few characters."""
    return cells(word) if cells(word) == len(word) else min(cells(word), _CHINESE)
