"""Arrays as plain lists for JSON, numbers as people read them, and the places of the residual stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mingyue.words import Language, Words

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_ROOM = 90  # letters below an axis
_WIDE = 0x2E80  # from here on characters are as wide as two letters


def to_numpy(values: Tensor) -> Floats:
    """A tensor of any device and number format as fp32."""
    return values.detach().float().cpu().numpy()


def to_lists(array: NDArray[Any], digits: int = 7) -> Any:  # noqa: ANN401  (lists as deep as the array)
    """Nested lists of plain numbers, rounded to so many significant digits; what is not finite becomes None."""
    if not np.issubdtype(array.dtype, np.floating):
        return array.tolist()
    return _rounded(array.astype(np.float64).tolist(), digits)


def _rounded(value: Any, digits: int) -> Any:  # noqa: ANN401
    if isinstance(value, list):
        return [_rounded(one, digits) for one in value]
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def shown(value: float, digits: int = 3) -> str:
    """A number with so many places after the point; "–" where there is none."""
    return f"{round(value, digits) + 0.0:.{digits}f}" if math.isfinite(value) else "–"  # -0.000 is 0.000


def share(value: float) -> str:
    """A probability for people, with two digits where it is small: 12.3%, 0.034%, 2e-06."""
    if not math.isfinite(value):
        return "–"
    if value >= 0.01 or value == 0:
        return f"{value:.1%}"
    return f"{value * 100:.2g}%" if value >= 1e-5 else f"{value:.0e}"


def stream_places(n_blocks: int, stack: str = "") -> list[str]:
    """Taps of the residual stream of a stack, in the order of a pass: embeddings, after each block, final.

    `stack` is "" (decoder-only), "encoder." or "decoder.".
    """
    return [f"{stack}embeddings", *(f"{stack}blocks.{layer}.output" for layer in range(n_blocks)), f"{stack}final"]


def layer_ticks(labels: Sequence[str]) -> list[str] | list[int]:
    """What stands under the axis of layers: their names, or numbers from 0 where names would not find room."""
    widest = max((sum(2 if ord(c) > _WIDE else 1 for c in label) for label in labels), default=0)
    return list(labels) if (widest + 2) * len(labels) <= _ROOM else list(range(len(labels)))


def place_label(place: str, language: Language = "en") -> str:
    """The name of such a tap for people. Blocks are counted from 0."""
    parts = place.split(".")
    if "blocks" in parts:
        layer = parts[parts.index("blocks") + 1]
        return Words(f"block {layer}", f"第 {layer} 层").of(language)
    names = {
        "static": Words("static", "静态"),
        "embeddings": Words("embeddings", "嵌入"),
        "final": Words("final", "末端"),
    }
    return names[parts[-1]].of(language)
