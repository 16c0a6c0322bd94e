"""A film of training: attention maps of all heads and a table of words at each step, with a slider over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mingyue.charts import markup
from mingyue.charts.chart import Chart, TextMark
from mingyue.charts.markup import visible, visible_ends
from mingyue.charts.matrices import MatrixGrid, to_base64
from mingyue.words import Language, sentences

FRAMES_OF_A_PICTURE = 6
"""Steps that an image shows, evenly spaced."""
_MOST_COLUMNS = 12  # of an image
_SIDE = 64  # cells of a map in an image


@dataclass(frozen=True, eq=False)
class StepMaps:
    """The maps of one kind of attention at one step: N layers of M heads."""

    bytes_NMTS: NDArray[np.uint8]
    """255 is a weight of 1."""
    rows: Sequence[str]
    columns: Sequence[str]


@dataclass(frozen=True, eq=False)
class FilmStep:
    """The content of one step."""

    label: str
    maps: Sequence[StepMaps]
    """One for each of the film's `part_titles`."""
    words: Sequence[Sequence[TextMark]]
    """A row for each of the film's `word_rows`; values from 0 to 1."""
    word_columns: Sequence[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionFilm(Chart):
    """The steps of a film. All have the same parts, layers and heads; texts may differ in length."""

    steps: Sequence[FilmStep] = field(kw_only=False)
    part_titles: Sequence[str]
    """Kinds of attention."""
    row_titles: Sequence[Sequence[str]]
    """Layers of each part."""
    column_titles: Sequence[Sequence[str]]
    """Heads of each part."""
    word_title: str
    word_rows: Sequence[str]
    averaged: str = ""
    """Sentence in the caption of an image, where heads are averaged for lack of space."""
    language: Language = "en"
    """Language of the sentences that an image adds."""

    def spec(self) -> dict[str, Any]:
        """The Vega-Lite spec: a few steps as rows, with the maps of the last part side by side."""
        numbers = np.unique(np.linspace(0, len(self.steps) - 1, FRAMES_OF_A_PICTURE).round().astype(int))
        chosen = [self.steps[number] for number in numbers]
        n_layers, n_heads = len(self.row_titles[-1]), len(self.column_titles[-1])
        names, note = list(self.row_titles[-1]), [self.note]
        shown = [step.maps[-1] for step in chosen]
        rows, columns = list(shown[0].rows), list(shown[0].columns)
        if any((list(one.rows), list(one.columns)) != (rows, columns) for one in shown):
            # Texts of different length: translations of a model that is still learning.
            rows, columns = [""] * _SIDE, [""] * _SIDE
            maps = [_same_size(one.bytes_NMTS) / 255 for one in shown]
        else:
            maps = [one.bytes_NMTS / 255 for one in shown]
        if n_layers * n_heads <= _MOST_COLUMNS:
            names = [f"{row} · {column}" for row in names for column in self.column_titles[-1]]
            maps = [one.reshape(1, n_layers * n_heads, *one.shape[2:]) for one in maps]
        else:
            maps = [one.mean(axis=1)[None] for one in maps]
            note.append(self.averaged)
        grid = MatrixGrid(
            f"{self.title} · {self.part_titles[-1]}",
            np.concatenate(maps),
            row_titles=[step.label.split(" · ")[0] for step in chosen],
            column_titles=names,
            row_labels=rows,
            column_labels=columns,
            low=0.0,
            high=1.0,
            note=sentences(note, self.language),
            language=self.language,
        )
        return grid.spec()

    def html(self) -> str:
        """The figure for a page, whose script makes a slider, a play button, thumbnails and the table of words."""
        data = {
            "parts": [
                {"title": title, "rowTitles": list(rows), "columnTitles": list(columns)}
                for title, rows, columns in zip(self.part_titles, self.row_titles, self.column_titles, strict=True)
            ],
            "wordTitle": self.word_title,
            "wordRows": list(self.word_rows),
            "steps": [
                {
                    "label": step.label,
                    "maps": [
                        {
                            "rows": list(map(visible_ends, one.rows)),
                            "columns": list(map(visible_ends, one.columns)),
                            "data": to_base64(one.bytes_NMTS),
                        }
                        for one in step.maps
                    ],
                    "columns": [visible(column) for column in step.word_columns],
                    "words": [[_cell(mark) for mark in row] for row in step.words],
                }
                for step in self.steps
            ],
        }
        return markup.render("drawn_by_script.html", chart=self, kind="film", data=data, one_image=False)

    def to_dict(self) -> dict[str, Any]:
        """Labels, maps as numbers, and words of every step."""
        return {
            "kind": "film",
            "title": self.title,
            "note": self.note,
            "data": [
                {
                    "label": step.label,
                    "maps": [
                        {
                            "part": title,
                            "row_labels": list(one.rows),
                            "column_labels": list(one.columns),
                            "weights": (one.bytes_NMTS / 255).round(3).tolist(),
                        }
                        for title, one in zip(self.part_titles, step.maps, strict=True)
                    ],
                    "words": [[mark.to_dict() for mark in row] for row in step.words],
                }
                for step in self.steps
            ],
        }


def _cell(mark: TextMark) -> list[Any]:
    """Text, colour and hover lines for the script of the page."""
    return [visible(mark.text), None if mark.value is None else round(255 * mark.value), list(mark.hover)]


def _same_size(bytes_NMTS: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Maps resized to one size by repeating the nearest cells."""
    rows, columns = (np.arange(_SIDE) * size // _SIDE for size in bytes_NMTS.shape[2:])
    return bytes_NMTS[:, :, rows][:, :, :, columns]
