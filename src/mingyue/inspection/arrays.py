"""Tensors as numpy arrays, and arrays as plain lists for JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def to_numpy(values: Tensor) -> Floats:
    """A tensor of any device and number format as fp32."""
    return values.detach().float().cpu().numpy()


def to_lists(array: NDArray[Any], digits: int = 7) -> Any:  # noqa: ANN401  (lists as deep as the array)
    """Nested lists of plain numbers, rounded to `digits` significant digits; NaN and infinities become None."""
    if not np.issubdtype(array.dtype, np.floating):
        return array.tolist()
    return _rounded(array.astype(np.float64).tolist(), digits)


def _rounded(value: Any, digits: int) -> Any:  # noqa: ANN401
    if isinstance(value, list):
        return [_rounded(one, digits) for one in value]
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
