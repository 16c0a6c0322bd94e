"""One offline page: styles, data and scripts in a single file that may not reach for anything outside."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

from mingyue.charts import colours
from mingyue.charts.chart import Chart
from mingyue.charts.lettering import FONT_STACK
from mingyue.charts.vega import marked
from mingyue.errors import MissingExtraError
from mingyue.words import Language, TextTable, Words

Part = Chart | TextTable | str
_CONTENTS = Words("Contents", "目录")
_NAMES: Mapping[Language, str] = {"en": "English", "zh": "中文"}
# A browser that obeys this loads nothing from anywhere, whatever a script on the page might try.
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading. A string is a paragraph of prose, in which `code` may stand in backticks."""

    title: Words
    parts: Mapping[Language, Sequence[Part]]
    anchor: str = ""
    """Where links may point to; empty: made from the section's number."""


def write_page(
    path: Path | str,
    *,
    title: Words,
    sections: Sequence[Section],
    languages: Sequence[Language],
    intro: Mapping[Language, str] | None = None,
) -> None:
    """Write one offline file, with a table of contents, and a switch if there are two languages.

    Raises `SettingsError` if it cannot be written there, `MissingExtraError` for Vega-Lite charts without `plot`.
    """
    from mingyue.charts.write import write_whole

    write_whole(Path(path), page(title=title, sections=sections, languages=languages, intro=intro).encode("utf-8"))


def page(
    *,
    title: Words,
    sections: Sequence[Section],
    languages: Sequence[Language],
    intro: Mapping[Language, str] | None = None,
) -> str:
    """The page that `write_page` writes."""
    if not languages:
        raise ValueError("a page needs a language")
    bodies = []
    for language in languages:
        hidden = " hidden" if language != languages[0] else ""
        content = [f"<h1>{escape(title.of(language))}</h1>"]
        if intro and intro.get(language):
            content += [_prose(part) for part in intro[language].split("\n\n")]
        if len(sections) > 2:
            content.append(_contents(sections, language))
        content += [_section(section, number, language) for number, section in enumerate(sections)]
        bodies.append(f'<main lang="{_tag(language)}" data-language="{language}"{hidden}>{"".join(content)}</main>')
    return _document(title.of(languages[0]), bodies, languages, _needs_vega(sections, languages))


def page_of_charts(charts: Sequence[Chart], *, title: str, tables: Sequence[TextTable] = (), language: Language) -> str:
    """A page of charts and tables in one language."""
    section = Section(Words("", ""), {language: [*charts, *tables]})
    return page(title=Words(title, title), sections=[section], languages=[language])


@functools.cache
def vega_scripts() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script. Raises `MissingExtraError` without vl-convert-python."""
    try:
        import vl_convert
    except ImportError as error:
        raise MissingExtraError(
            f"a page with charts needs vl-convert-python, which could not be imported ({error})",
            advice="Install it: pip install 'mingyue[plot]'",
        ) from error
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return re.sub(r"</(?=script)", r"<\\/", bundle, flags=re.IGNORECASE)


def asset(name: str) -> str:
    """A style or script of ours."""
    return (resources.files("mingyue.charts") / "assets" / name).read_text(encoding="utf-8")


def _document(title: str, bodies: Sequence[str], languages: Sequence[Language], vega: bool) -> str:
    switch = ""
    if len(languages) > 1:
        buttons = "".join(
            f'<button type="button" data-to="{language}" lang="{_tag(language)}">{_NAMES[language]}</button>'
            for language in languages
        )
        switch = f'<nav class="languages">{buttons}</nav>'
    palettes = json.dumps({"sequential": colours.SEQUENTIAL, "diverging": colours.DIVERGING})
    scripts = [f"const PALETTES={palettes};{asset('matrix.js')}", asset("film.js"), asset("page.js")]
    if vega:
        scripts.insert(0, vega_scripts())
    return (
        f'<!doctype html>\n<html lang="{_tag(languages[0])}"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>:root{{--fonts:{FONT_STACK}}}{asset('page.css')}</style></head><body>"
        f'{switch}{"".join(bodies)}<div id="tip" hidden></div>'
        f"{''.join(f'<script>{script}</script>' for script in scripts)}</body></html>\n"
    )


def _needs_vega(sections: Sequence[Section], languages: Sequence[Language]) -> bool:
    parts = [part for section in sections for language in languages for part in section.parts.get(language, ())]
    return any(isinstance(part, Chart) and part.needs_vega for part in parts)


def _section(section: Section, number: int, language: Language) -> str:
    title = section.title.of(language)
    head = f"<h2>{escape(title)}</h2>" if title else ""
    inside = "".join(map(_part, section.parts.get(language, ())))
    return f'<section id="{escape(_anchor(section, number, language), quote=True)}">{head}{inside}</section>'


def _contents(sections: Sequence[Section], language: Language) -> str:
    links = "".join(
        f'<li><a href="#{escape(_anchor(section, number, language), quote=True)}">{escape(section.title.of(language))}'
        "</a></li>"
        for number, section in enumerate(sections)
        if section.title.of(language)
    )
    return f'<nav class="contents"><p>{_CONTENTS.of(language)}</p><ol>{links}</ol></nav>'


def _anchor(section: Section, number: int, language: Language) -> str:
    """One for each language, since both are on the page."""
    return f"{language}-{section.anchor or number}"


def _part(part: Part) -> str:
    if isinstance(part, Chart):
        return part.html()
    return _prose(part) if isinstance(part, str) else _table(part)


def _prose(text: str) -> str:
    return f"<p>{marked(text)}</p>"


def _table(table: TextTable) -> str:
    right = {place for place, column in enumerate(table.columns) if column in table.right}
    classes = ['class="number"' if place in right else "" for place in range(max(map(len, table.rows), default=0))]
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td {kind}>{escape(cell)}</td>" for cell, kind in zip(row, classes, strict=False)) + "</tr>"
        for row in table.rows
    )
    title = f"<figcaption>{escape(table.title)}</figcaption>" if table.title else ""
    head = f"<thead><tr>{head}</tr></thead>" if table.columns else ""
    note = f'<p class="note">{marked(table.note)}</p>' if table.note else ""
    inside = f'<div class="scroll"><table>{head}<tbody>{rows}</tbody></table></div>'
    return f'<figure class="table">{title}{inside}{note}</figure>'


def _tag(language: Language) -> str:
    return "zh-Hans" if language == "zh" else "en"
