"""Charts and pages to files: a page, an image or numbers, by the suffix."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mingyue.charts import render
from mingyue.charts.chart import Chart
from mingyue.charts.page import Section, page, page_of_charts
from mingyue.errors import SettingsError
from mingyue.files import explain_os_error, write_bytes_atomically
from mingyue.paths import path_of
from mingyue.words import Language, TextTable, Words, tr

SUFFIXES = (".html", ".png", ".svg", ".json")


def write_charts(
    path: Path | str,
    charts: Sequence[Chart],
    *,
    title: str,
    tables: Sequence[TextTable] = (),
    language: Language = "en",
) -> list[str]:
    """Write charts by the suffix of `path`: .html (one offline page, with the tables), .png or .svg (the charts in a
    column; the tables if there is no chart), .json.

    Returns notes for the user, such as a missing Chinese font. Raises `SettingsError` for another suffix and for a path
    that cannot be written, `MissingExtraError` without `plot` where needed.
    """
    path = path_of(path)
    suffix = check_output_path(path)
    if suffix == ".html":
        _write(path, page_of_charts(charts, title=title, tables=tables, language=language).encode("utf-8"))
        return []
    if suffix == ".json":
        data = [chart.to_dict() for chart in charts]
        write_json(path, {"title": title, "charts": data, "tables": [table.to_dict() for table in tables]})
        return []
    spec = render.stacked(charts, tables)
    notes: list[str] = [*render.notes_on_fonts(spec)]
    _write(path, render.png(spec) if suffix == ".png" else render.svg(spec).encode("utf-8"))
    return notes


def write_page(
    path: Path | str,
    *,
    title: Words,
    sections: Sequence[Section],
    languages: Sequence[Language],
    intro: Mapping[Language, str] | None = None,
) -> None:
    """Write the HTML of `page` as one offline file.

    Raises `SettingsError` for a path that cannot be written, `MissingExtraError` for Vega-Lite charts without `plot`.
    """
    _write(path_of(path), page(title=title, sections=sections, languages=languages, intro=intro).encode("utf-8"))


def write_json(path: Path | str, value: Mapping[str, Any]) -> None:
    """Write plain values as JSON. Raises `SettingsError` for a path that cannot be written."""
    _write(
        path_of(path),
        (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "backslashreplace"),
    )


def check_output_path(path: Path | str, suffixes: Sequence[str] = SUFFIXES) -> str:
    """The suffix of a file to be written, in lower case; called before any work starts.

    Raises `SettingsError` for a suffix that is not in `suffixes`, for a folder, and for a file whose folder does not
    exist.
    """
    path = path_of(path)
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        uses = {".html": tr("for a page"), ".png": tr("or .svg for images"), ".json": tr("for the numbers")}
        known = ", ".join(f"{one} {use}" for one, use in uses.items() if one in suffixes)
        raise SettingsError(
            tr(
                "{name}: a file name that ends in {suffix!r} does not say what to write; known here: {suffixes}",
                path.name,
                suffix or "nothing",
                ", ".join(suffixes),
            ),
            advice=tr("Use {known}.", known),
        )
    if path.is_dir():
        raise SettingsError(tr("{path} could not be written: it is a folder", path), advice=tr("Name a file."))
    _check_parent(path)
    return suffix


def _check_parent(path: Path) -> None:
    if not path.parent.is_dir():
        raise SettingsError(
            tr("{path} could not be written: there is no folder {folder}", path, path.parent),
            advice=tr("Make the folder first."),
        )


def _write(path: Path, content: bytes) -> None:
    _check_parent(path)
    try:
        write_bytes_atomically(path, content)
    except OSError as error:
        message, advice = explain_os_error(tr("the file"), path, error)
        raise SettingsError(message, advice=advice) from error
