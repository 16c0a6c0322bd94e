"""The base class of views: tables, charts, arrays, files and notebook display."""

from __future__ import annotations

from abc import ABC, abstractmethod
from html import escape
from pathlib import Path
from typing import Any

from mingyue.charts import Chart, check_output_path, page_of_charts, write_charts, write_json
from mingyue.paths import path_of
from mingyue.words import Language, TextTable, Words


class View(ABC):
    """A view of a model: named arrays as public fields (shapes in their names), with charts and tables.

    A view is a frozen dataclass; its `title` may be a field, or a plain class attribute `title = Words(…)`.
    """

    title: Words

    def __init_subclass__(cls) -> None:
        """Keep the short repr: that of a dataclass would print every array."""
        setattr(cls, "__repr__", View.__repr__)  # noqa: B010  (a type checker refuses the assignment)

    def __repr__(self) -> str:
        return f"<mingyue.{type(self).__name__}: {self.title.en}>"

    @abstractmethod
    def charts(self, language: Language = "en") -> list[Chart]:
        """Images, with titles and labels in that language."""

    def pictures(self, language: Language = "en") -> list[Chart]:
        """What an image shows, where that differs from the charts of a page, which has the tables as well."""
        return self.charts(language)

    @abstractmethod
    def tables(self, language: Language = "en") -> list[TextTable]:
        """The tables for a terminal."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The named arrays as lists, ready for JSON."""

    def save(self, path: Path | str, language: Language = "en") -> list[str]:
        """Write a file in the format of its suffix: .html (one offline page), .png, .svg (images), .json (`to_dict`).

        Returns notes for the user (a missing font). Raises as `write_charts` does.
        """
        path = path_of(path)
        check_output_path(path)
        if path.suffix.lower() == ".json":
            write_json(path, {"title": self.title.of(language), **self.to_dict()})
            return []
        charts = self.charts(language) if path.suffix.lower() == ".html" else self.pictures(language)
        return write_charts(
            path, charts, title=self.title.of(language), tables=self.tables(language), language=language
        )

    def _repr_html_(self) -> str:
        """For notebooks: the page of the view in an iframe, which isolates its scripts and styles."""
        page = page_of_charts(self.charts(), title=self.title.en, tables=self.tables(), language="en")
        fit = "this.style.height=this.contentDocument.documentElement.scrollHeight+24+'px'"
        return (
            f'<iframe srcdoc="{escape(page, quote=True)}" onload="{fit}" '
            'style="width:100%;height:640px;border:0" loading="lazy"></iframe>'
        )
