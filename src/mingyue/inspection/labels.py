"""Labels of layers, heads and numbers, as tables and charts show them. Layers and heads are counted from 0."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mingyue.words import Language, tr

_AXIS_COLUMNS = 90
"""Columns of text that fit below an axis."""
FROM_BOS = tr("Positions are counted from 0; at position 0 the model reads <bos>.")
"""A note of views that do not show the BOS token itself."""
_WIDE = 0x2E80  # from here on characters are as wide as two letters


def decimals(value: float, digits: int = 3) -> str:
    """A number with that many decimals; "–" for one that is not finite."""
    return f"{round(value, digits) + 0.0:.{digits}f}" if math.isfinite(value) else "–"  # -0.000 is 0.000


def percent(value: float) -> str:
    """A probability, with two digits where it is small: 12.3%, 0.034%, 2e-06."""
    if not math.isfinite(value):
        return "–"
    if value >= 0.01 or value == 0:
        return f"{value:.1%}"
    return f"{value * 100:.2g}%" if value >= 1e-5 else f"{value:.0e}"


def layer_label(layer: int, language: Language) -> str:
    """`layer 3`."""
    return tr("layer {layer}", layer).of(language)


def head_label(head: int, language: Language) -> str:
    """`head 3`."""
    return tr("head {head}", head).of(language)


def token_at(position: int | str, piece: str) -> str:
    """`3:月`: a token and its position, counted from 0, as tables and hover texts name it."""
    return f"{position}:{piece}"


def layer_ticks(labels: Sequence[str]) -> list[str] | list[int]:
    """Labels of the axis of layers: their names, or numbers from 0 where the names do not fit."""
    widest = max((sum(2 if ord(c) > _WIDE else 1 for c in label) for label in labels), default=0)
    return list(labels) if (widest + 2) * len(labels) <= _AXIS_COLUMNS else list(range(len(labels)))
