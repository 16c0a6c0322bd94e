"""One offline page: styles, data and scripts in a single file that loads nothing from outside."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mingyue.charts import colours, markup
from mingyue.charts.chart import Chart
from mingyue.charts.fonts import FONT_STACK, display_width
from mingyue.charts.matrices import one_scale
from mingyue.charts.table_chart import TableChart
from mingyue.charts.vega import import_converter
from mingyue.words import Language, TextTable, Words, tr

if TYPE_CHECKING:
    from markupsafe import Markup

_CONTENTS = tr("Contents")
_LONG_HEADING = 60  # columns; a longer one is a sentence, in smaller letters
_LANGUAGE_NAMES: Mapping[Language, str] = {"en": "English", "zh": "中文"}
_LANGUAGE_TAGS: Mapping[Language, str] = {"en": "en", "zh": "zh-Hans"}


@dataclass(frozen=True)
class Folded:
    """Parts that a reader opens by a click."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Labelled:
    """A paragraph that begins with a word in bold."""

    label: str
    text: str


Part = Chart | TextTable | str | Labelled | Folded
"""A string is a paragraph of prose; text in backticks is rendered as code."""


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading, which the table of contents repeats."""

    title: Words
    parts: Mapping[Language, Sequence[Part]]
    anchor: str = ""
    """Target of links; empty: the number of the section."""
    tag: Words | None = None
    """A word or two beside the heading, such as a verdict."""
    group: Words | None = None
    """Heading in the table of contents above this section and those of the same group after it."""


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
    sections = [
        replace(one, parts={key: _noted_once(one_scale(parts)) for key, parts in one.parts.items()}) for one in sections
    ]
    bodies = [_body(title, sections, language, (intro or {}).get(language, "")) for language in languages]
    parts = [part for section in sections for language in languages for part in section.parts.get(language, ())]
    needs_vega = any(map(_needs_vega, parts))
    scripts = [_palettes() + markup.asset("matrix.js")]
    scripts += map(markup.asset, ("film.js", "token_lines.js", "page.js"))
    return markup.render(
        "page.html",
        bodies=bodies,
        fonts=markup.verbatim(FONT_STACK),
        ramps=markup.verbatim(_ramps()),
        style=markup.verbatim(markup.asset("page.css")),
        scripts=[markup.verbatim(script) for script in ([vega_scripts()] if needs_vega else []) + scripts],
    )


def page_of_charts(charts: Sequence[Chart], *, title: str, tables: Sequence[TextTable] = (), language: Language) -> str:
    """A page of charts and tables in one language."""
    section = Section(Words("", ""), {language: [*charts, *tables]})
    return page(title=Words(title, title), sections=[section], languages=[language])


def _noted_once(parts: Sequence[Part]) -> list[Part]:
    """The parts of a section, each note once: tables lack those of a chart, or of a later table."""
    said = {part.caption for part in parts if isinstance(part, Chart)}
    kept = list[Part]()
    for part in reversed(parts):
        if isinstance(part, TextTable):
            kept.append(replace(part, note="") if part.note in said else part)
            said.add(part.note)
        else:
            kept.append(part)
    return kept[::-1]


def _palettes() -> str:
    """The colours for the scripts of a page."""
    palettes = {
        "sequential": colours.SEQUENTIAL,
        "diverging": colours.DIVERGING,
        "sequentialDark": colours.SEQUENTIAL_DARK,
        "divergingDark": colours.DIVERGING_DARK,
    }
    return f"const PALETTES={json.dumps(palettes)},DARK={json.dumps(colours.DARK)};"


def _ramps() -> str:
    """The colour bars for the style sheet of a page."""
    names = ("ramp", "diverging", "ramp-dark", "diverging-dark")
    scales = (colours.SEQUENTIAL, colours.DIVERGING, colours.SEQUENTIAL_DARK, colours.DIVERGING_DARK)
    bars = (f"--{name}:linear-gradient(to right,{','.join(stops)})" for name, stops in zip(names, scales, strict=True))
    return ";".join(bars)


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
                "tag": "" if section.tag is None else section.tag.of(language),
                "group": "" if section.group is None else section.group.of(language),
                "is_long": display_width(section.title.of(language)) > _LONG_HEADING,
                "parts": [_part(part) for part in section.parts.get(language, ())],
            }
            for number, section in enumerate(sections)
        ],
    }


def _needs_vega(part: Part) -> bool:
    if isinstance(part, Folded):
        return any(map(_needs_vega, part.parts))
    return isinstance(part, Chart) and part.needs_vega


def _part(part: Part) -> Markup:
    if isinstance(part, Chart):
        return markup.verbatim(part.html())
    if isinstance(part, str):
        return markup.verbatim(markup.render("paragraph.html", text=part, label=""))
    if isinstance(part, Labelled):
        return markup.verbatim(markup.render("paragraph.html", text=part.text, label=part.label))
    if isinstance(part, Folded):
        return markup.verbatim(markup.render("folded.html", title=part.title, parts=list(map(_part, part.parts))))
    return markup.verbatim(TableChart.of(part).html())
