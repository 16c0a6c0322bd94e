"""What a chart is: a Vega-Lite spec for pictures, a fragment for pages, a dict for programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Chart(ABC):
    """A chart whose words are in one language already."""

    title: str
    note: str = ""
    """A sentence under the chart."""
    page_note: str = ""
    """One more below coloured text on a page, about what only a page can do."""

    needs_vega = False
    """Whether its fragment needs the Vega scripts on the page."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """A Vega-Lite spec with its data inside, for PNG and SVG. Raises `MissingExtraError` without `plot`."""

    @abstractmethod
    def html(self) -> str:
        """A fragment of HTML; the page around it has the scripts and styles, once."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Kind, title and data, ready for JSON."""


@dataclass(frozen=True)
class TextMark:
    """A piece of text with a value that colours it."""

    text: str
    value: float | None = None
    """None: without colour."""
    hover: Sequence[str] = ()
    """Lines shown when a pointer is over it."""
