"""The base class of charts: a Vega-Lite spec for images, an HTML fragment for pages, a dict for programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class Chart(ABC):
    """A chart with text in one language."""

    title: str = field(kw_only=False)
    note: str = ""
    """A sentence under the chart; text in backticks is rendered as code."""

    needs_vega: ClassVar[bool] = False
    """Whether its fragment needs the Vega scripts on the page."""

    @property
    def caption(self) -> str:
        """The note as shown, with additions of the chart itself."""
        return self.note

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """A Vega-Lite spec with its data inside, for PNG and SVG. Raises `MissingExtraError` without `plot`."""

    @abstractmethod
    def html(self) -> str:
        """An HTML fragment; the page around it holds the scripts and styles, once."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Kind, title, note and data, ready for JSON."""


@dataclass(frozen=True)
class TextMark:
    """A piece of text with a value that colours it."""

    text: str
    value: float | None = None
    """None: no colour."""
    hover: Sequence[str] = ()
    """Lines shown when the pointer is over it."""

    def to_dict(self) -> dict[str, Any]:
        """The mark, ready for JSON."""
        return {"text": self.text, "value": self.value, "hover": list(self.hover)}
