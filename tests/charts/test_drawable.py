"""Text of every kind in every chart: drawn as PNG, valid as SVG, whole on a page, and never the end of the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from mingyue.charts import LineChart, MatrixChart, TextChart, TextMark, WordGrid, write_charts
from mingyue.words import TextTable

TEXTS = {
    "bell": "a\x07b",
    "form feed": "a\x0cb",
    "escape": "\x1b[31ma",
    "delete": "a\x7fb",
    "C1": "a\x85\x9b1mb",
    "NUL": "a\x00b",
    "direction": "a\u202eb\u202c\u2066c\u2069",
    "separators": "a\u2028b\u2029c",
    "not characters": "a\ufffe\uffffb",
    "lone surrogate": "a\ud800b\udce9",
    "combining": "\u0301a\u0301\u0301",
    "wide": "床前 明月",
    "joined": "👩‍👧 🇩🇪",
    "private": "\ue000\U000e0061",
    "backslash": "C:\\user\\x",
    "expression": "datum.v \"}]' \\ \\u0007",
}


def charts(text: str):
    """Every kind of chart, and a table, with the text wherever it takes one."""
    one = {"title": text, "note": text}
    rows = [{"x": text, "y": 1.0, "s": text}, {"x": "b", "y": 2.0, "s": "b"}]
    marks = [TextMark(text, 0.5, [text]), TextMark("b", 0.1)]
    return [
        LineChart(rows=rows, x="x", y="y", series="s", x_title=text, y_title=text, rules=[(1.5, text)], **one),
        MatrixChart(values=np.eye(2), row_labels=[text, "b"], column_labels=["a", text], row_title=text, **one),
        TextChart(marks=marks, low=0, high=1, legend=text, **one),
        WordGrid(cells=[marks], row_labels=[text], column_labels=[text, "b"], low=0, high=1, **one),
    ]


def draw(text: str, folder: Path) -> None:
    """Write pictures, a page and numbers."""
    for ending in ("svg", "png", "html", "json"):
        write_charts(folder / f"charts.{ending}", charts(text), title=text)
    write_charts(folder / "table.svg", [], title=text, tables=[TextTable(text, [text], [[text]], note=text)])


@pytest.mark.parametrize("kind", TEXTS)
def test_every_text_is_drawn(kind, tmp_path):
    pytest.importorskip("vl_convert")
    # In a process of its own, which a fault of the native library may end.
    done = subprocess.run([sys.executable, __file__, kind, str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-2000:]
    for name in ("charts.svg", "table.svg"):
        ElementTree.parse(tmp_path / name)
    assert (tmp_path / "charts.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "charts.html").read_text(encoding="utf-8")
    assert not set("\x07\x0c\x1b\x00\x7f\u202e\u2066\u2028") & set(page.partition("<body>")[2].partition("const ")[0])


if __name__ == "__main__":
    draw(TEXTS[sys.argv[1]], Path(sys.argv[2]))
