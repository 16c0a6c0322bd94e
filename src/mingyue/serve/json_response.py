"""JSON answers: any text can be in them, and numbers that JSON lacks become null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response


class Json(Response):
    """An answer in JSON. Half of a surrogate pair, which has no UTF-8, is written as its escape."""

    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:  # noqa: ANN401
        super().__init__(content, status_code, headers)

    def render(self, content: Any) -> bytes:  # noqa: ANN401  (any JSON value)
        """The bytes of the body."""
        return to_json(content)


def to_json(value: Any) -> bytes:  # noqa: ANN401  (any JSON value)
    """JSON in UTF-8; infinity and NaN are null."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def _finite(value: Any) -> Any:  # noqa: ANN401  (any JSON value)
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
