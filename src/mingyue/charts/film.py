"""A film: maps of many heads and a table of words at each of many steps, with a slider over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mingyue.charts import images
from mingyue.charts.chart import Chart, TextMark
from mingyue.charts.coloured import mark_dict, visible
from mingyue.charts.grids import matrix_grid
from mingyue.charts.vega import json_block, note_of

_SHOWN = 6  # scenes of a picture
_MOST_COLUMNS = 12
_SIDE = 64


@dataclass(frozen=True, eq=False)
class SceneMaps:
    """The maps of one part in one scene."""

    bytes_NMTS: NDArray[np.uint8]
    """255 = all of the weight."""
    rows: Sequence[str]
    columns: Sequence[str]


@dataclass(frozen=True, eq=False)
class Scene:
    """What is seen at one step."""

    label: str
    maps: Sequence[SceneMaps]
    """One for each part of the film."""
    words: Sequence[Sequence[TextMark]]
    """A row for each of the film's `word_rows`; values from 0 to 1."""
    word_columns: Sequence[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Film(Chart):
    """A film of several scenes. All have the same parts, layers and heads; texts may differ in length."""

    scenes: Sequence[Scene]
    part_titles: Sequence[str]
    row_titles: Sequence[Sequence[str]]
    """Layers of each part."""
    column_titles: Sequence[Sequence[str]]
    """Heads of each part."""
    word_title: str
    word_rows: Sequence[str]
    averaged: str = ""
    """Said in a picture that has no room for every head."""

    def spec(self) -> dict[str, Any]:
        """A picture: a few scenes below one another, the maps of the last part beside one another."""
        places = np.unique(np.linspace(0, len(self.scenes) - 1, _SHOWN).round().astype(int))
        chosen = [self.scenes[place] for place in places]
        n_layers, n_heads = len(self.row_titles[-1]), len(self.column_titles[-1])
        names, note = list(self.row_titles[-1]), [self.note]
        maps = [_same_size(scene.maps[-1].bytes_NMTS) / 255 for scene in chosen]
        if n_layers * n_heads <= _MOST_COLUMNS:
            names = [f"{row}, {column}" for row in names for column in self.column_titles[-1]]
            maps = [one.reshape(1, n_layers * n_heads, _SIDE, _SIDE) for one in maps]
        else:
            maps = [one.mean(axis=1)[None] for one in maps]
            note.append(self.averaged)
        blank = [""] * _SIDE
        grid = matrix_grid(
            f"{self.title}: {self.part_titles[-1]}",
            np.concatenate(maps),
            row_titles=[scene.label.split(" · ")[0] for scene in chosen],
            column_titles=names,
            row_labels=blank,
            column_labels=blank,
            low=0.0,
            high=1.0,
            note=" ".join(filter(None, note)),
        )
        return grid.spec()

    def html(self) -> str:
        """The figure for a page: a slider, a play button, thumbnails, the enlarged map, the table of words."""
        data = {
            "parts": [
                {"title": title, "rowTitles": list(rows), "columnTitles": list(columns)}
                for title, rows, columns in zip(self.part_titles, self.row_titles, self.column_titles, strict=True)
            ],
            "wordTitle": self.word_title,
            "wordRows": list(self.word_rows),
            "scenes": [
                {
                    "label": scene.label,
                    "maps": [
                        {"rows": list(one.rows), "columns": list(one.columns), "data": images.base64_of(one.bytes_NMTS)}
                        for one in scene.maps
                    ],
                    "columns": [visible(column) for column in scene.word_columns],
                    "words": [
                        [[visible(mark.text), round(255 * (mark.value or 0.0)), list(mark.hover)] for mark in row]
                        for row in scene.words
                    ],
                }
                for scene in self.scenes
            ],
        }
        return (
            f'<figure class="chart"><figcaption>{escape(self.title)}</figcaption>'
            f'<div class="film">{json_block(data)}</div>{note_of(self)}</figure>'
        )

    def to_dict(self) -> dict[str, Any]:
        """Labels, maps as numbers, and words of every scene."""
        return {
            "kind": "film",
            "title": self.title,
            "note": self.note,
            "data": [
                {
                    "label": scene.label,
                    "maps": [
                        {
                            "part": title,
                            "row_labels": list(one.rows),
                            "column_labels": list(one.columns),
                            "weights": (one.bytes_NMTS / 255).round(3).tolist(),
                        }
                        for title, one in zip(self.part_titles, scene.maps, strict=True)
                    ],
                    "words": [[mark_dict(mark) for mark in row] for row in scene.words],
                }
                for scene in self.scenes
            ],
        }


def _same_size(bytes_NMTS: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Each map on as many cells: nearest ones repeated, none left out."""
    rows, columns = (np.arange(_SIDE) * size // _SIDE for size in bytes_NMTS.shape[2:])
    return bytes_NMTS[:, :, rows][:, :, :, columns]
