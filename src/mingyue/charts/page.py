"""One offline page: styles, data and scripts in a single file that loads nothing from outside."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mingyue.charts import colours, markup
from mingyue.charts.chart import Chart
from mingyue.charts.fonts import FONT_STACK
from mingyue.charts.vega import import_converter
from mingyue.words import Language, TextTable, Words

if TYPE_CHECKING:
    from markupsafe import Markup

Part = Chart | TextTable | str
_CONTENTS = Words("Contents", "目录")
_LANGUAGE_NAMES: Mapping[Language, str] = {"en": "English", "zh": "中文"}
_LANGUAGE_TAGS: Mapping[Language, str] = {"en": "en", "zh": "zh-Hans"}


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading. A string is a paragraph of prose; text in backticks is rendered as code."""

    title: Words
    parts: Mapping[Language, Sequence[Part]]
    anchor: str = ""
    """Target of links; empty: the number of the section."""


def page(
    *,
    title: Words,
    sections: Sequence[Section],
    languages: Sequence[Language],
    intro: Mapping[Language, str] | None = None,
) -> str:
    """An HTML page with a table of contents, and a switch where it has two languages.

    Blank lines in `intro` separate paragraphs. Raises `MissingExtraError` for Vega-Lite charts without `plot`.
    """
    if not languages:
        raise ValueError("a page needs a language")
    bodies = [_body(title, sections, language, (intro or {}).get(language, "")) for language in languages]
    parts = [part for section in sections for language in languages for part in section.parts.get(language, ())]
    needs_vega = any(isinstance(part, Chart) and part.needs_vega for part in parts)
    palettes = json.dumps({"sequential": colours.SEQUENTIAL, "diverging": colours.DIVERGING})
    scripts = [
        f"const PALETTES={palettes};{markup.asset('matrix.js')}",
        *map(markup.asset, ("film.js", "token_lines.js", "page.js")),
    ]
    return markup.render(
        "page.html",
        bodies=bodies,
        fonts=markup.verbatim(FONT_STACK),
        style=markup.verbatim(markup.asset("page.css")),
        scripts=[markup.verbatim(script) for script in ([vega_scripts()] if needs_vega else []) + scripts],
    )


def page_of_charts(charts: Sequence[Chart], *, title: str, tables: Sequence[TextTable] = (), language: Language) -> str:
    """A page of charts and tables in one language."""
    section = Section(Words("", ""), {language: [*charts, *tables]})
    return page(title=Words(title, title), sections=[section], languages=[language])


@functools.cache
def vega_scripts() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script. Raises `MissingExtraError` without vl-convert-python."""
    converter = import_converter("a page with charts")
    bundle: str = converter.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return re.sub(r"</(?=script)", r"<\\/", bundle, flags=re.IGNORECASE)


def _body(title: Words, sections: Sequence[Section], language: Language, intro: str) -> dict[str, Any]:
    """The values of the template for one language. Anchors begin with it, since all languages are on the page."""
    return {
        "language": language,
        "language_name": _LANGUAGE_NAMES[language],
        "tag": _LANGUAGE_TAGS[language],
        "title": title.of(language),
        "intro": intro.split("\n\n") if intro else [],
        "contents_title": _CONTENTS.of(language),
        "sections": [
            {
                "anchor": f"{language}-{section.anchor or number}",
                "title": section.title.of(language),
                "parts": [_part(part) for part in section.parts.get(language, ())],
            }
            for number, section in enumerate(sections)
        ],
    }


def _part(part: Part) -> Markup:
    if isinstance(part, Chart):
        return markup.verbatim(part.html())
    if isinstance(part, str):
        return markup.verbatim(markup.render("paragraph.html", text=part))
    right = {number for number, column in enumerate(part.columns) if column in part.right}
    return markup.verbatim(markup.render("table.html", table=part, right_columns=right))
