"""Charts to a file: a page, a picture, or numbers, by the suffix."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mingyue.charts import drawing
from mingyue.charts.chart import Chart
from mingyue.charts.page import page_of_charts
from mingyue.errors import SettingsError
from mingyue.files import explain_os_error, write_bytes_atomically
from mingyue.words import Language, TextTable

SUFFIXES = (".html", ".png", ".svg", ".json")


def write_charts(
    path: Path | str,
    charts: Sequence[Chart],
    *,
    title: str,
    tables: Sequence[TextTable] = (),
    language: Language = "en",
) -> list[str]:
    """Write charts by the suffix of `path`: .html (one offline page, with the tables), .png, .svg (charts below one
    another; the tables if there is no chart), .json.

    Returns sentences for the user, such as that no font with Chinese characters was found. Raises `SettingsError` for
    another suffix and for a place that cannot be written, `MissingExtraError` without `plot` where needed.
    """
    path = Path(path)
    suffix = check_place(path)
    notes = list[str]()
    if suffix == ".html":
        write_whole(path, page_of_charts(charts, title=title, tables=tables, language=language).encode("utf-8"))
    elif suffix == ".json":
        write_json(path, {
            "title": title,
            "charts": [chart.to_dict() for chart in charts],
            "tables": [table_dict(table) for table in tables],
        })  # fmt: skip
    else:
        spec = drawing.stacked(charts, tables)
        notes = drawing.notes_on_fonts(spec)
        write_whole(path, drawing.png(spec) if suffix == ".png" else drawing.svg(spec).encode("utf-8"))
    return notes


def write_json(path: Path | str, value: Mapping[str, Any]) -> None:
    """Write a JSON file of plain values. Raises `SettingsError` if it cannot be written there."""
    write_whole(Path(path), (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8"))


def check_place(path: Path | str, suffixes: Sequence[str] = SUFFIXES) -> str:
    """The suffix of a file to be written, in small letters; for use before any work is done.

    Raises `SettingsError` for a suffix that is not among these, for a folder, and for a folder that is not there.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        uses = {".html": "for a page", ".png": "or .svg for pictures", ".json": "for the numbers"}
        known = ", ".join(f"{one} {use}" for one, use in uses.items() if one in suffixes)
        raise SettingsError(
            f"{path.name}: a file name that ends in {suffix or 'nothing'!r} does not say what to write; "
            f"known here: {', '.join(suffixes)}",
            advice=f"Use {known}.",
        )
    if path.is_dir():
        raise SettingsError(f"{path} could not be written: it is a folder", advice="Name a file.")
    check_folder(path)
    return suffix


def check_folder(path: Path) -> None:
    """Raise `SettingsError` for a file in a folder that is not there."""
    if not path.parent.is_dir():
        raise SettingsError(
            f"{path} could not be written: there is no folder {path.parent}", advice="Make the folder first."
        )


def table_dict(table: TextTable) -> dict[str, Any]:
    """A table as JSON."""
    return {
        "title": table.title,
        "columns": list(table.columns),
        "rows": [list(row) for row in table.rows],
        "note": table.note,
    }


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that the user named, whole. Raises `SettingsError` without its folder, and if the disk refuses."""
    check_folder(path)
    try:
        write_bytes_atomically(path, content)
    except OSError as error:
        message, advice = explain_os_error("the file", path, error)
        raise SettingsError(message, advice=advice) from error
