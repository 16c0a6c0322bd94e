"""A page is one file that reaches for nothing, in one or two languages, and works in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from mingyue.charts import (
    BarChart,
    LineChart,
    MatrixChart,
    MatrixGrid,
    ScatterChart,
    Section,
    TextChart,
    TextMark,
    TokenLines,
    WordGrid,
    markup,
    write_charts,
    write_page,
)
from mingyue.charts.attention_film import AttentionFilm, FilmStep, StepMaps
from mingyue.charts.render import svg
from mingyue.errors import SettingsError
from mingyue.words import TextTable, Words

EVIL = "</script><script>alert(1)</script><img src=https://example.org/x>"
HOSTILE = (
    "</script><script>alert(1)</script>\u2028<img src=x onerror=\"alert('1')\"> &amp; 'a' {{ 7 * 7 }} {% raw %} --> ]]>"
)
DRAWN = HOSTILE.replace("\u2028", "\\u2028")  # Vega cannot take the line separator
TABLE = TextTable(EVIL, ["name", "value"], [[EVIL, "1.5"]], right=["value"], note="a note")


def charts(title="one"):
    maps = np.tril(np.ones((2, 2, 3, 3)))
    names = ["a", EVIL, "月"]
    return [
        MatrixGrid(title, maps, row_titles=["0", "1"], column_titles=["0", "1"], row_labels=names, column_labels=names),
        MatrixChart(title, maps[0, 0], row_labels=names, column_labels=names, row_title=EVIL),
        TextChart(title, [TextMark(EVIL, 0.5, [EVIL])], low=0, high=1),
        WordGrid(title, [[TextMark(EVIL, 0.5, [EVIL])]], row_labels=[EVIL], column_labels=["a"], low=0, high=1),
    ]


def lines():
    return LineChart(EVIL, [{"x": 1, "y": 2, "s": EVIL}, {"x": 2, "y": 3, "s": "b"}], x="x", y="y", series="s")


def film():
    maps = np.full((2, 2, 3, 3), 85, dtype=np.uint8)
    steps = [
        FilmStep(f"step {step}", [StepMaps(maps, "abc", "abc")], [[TextMark(EVIL, 0.2), TextMark("moon", 0.9)]], "ab")
        for step in (1, 2)
    ]
    names = ["0", "1"]
    return AttentionFilm(
        "Film", steps, part_titles=["self"], row_titles=[names], column_titles=[names],
        word_title="Words", word_rows=[EVIL],
    )  # fmt: skip


def hostile_charts():
    """Every kind of chart, with hostile text wherever it takes text."""
    one = {"title": HOSTILE, "note": HOSTILE}
    rows = [
        {HOSTILE: 1, "y": 2.0, "s": HOSTILE, "low": 1, "high": 3},
        {HOSTILE: 2, "y": 3.0, "s": "b", "low": 2, "high": 4},
    ]
    lines = {"rows": rows, "x": HOSTILE, "y": "y", "series": "s", "y_title": HOSTILE, **one}
    intervals = {"low": "low", "high": "high", "rules": [(2.5, HOSTILE)]}
    labels = {"row_labels": [HOSTILE, "b"], "column_labels": ["a", HOSTILE]}
    marks = [TextMark(HOSTILE, 0.5, [HOSTILE]), TextMark(f"{HOSTILE}\n")]
    scale = {"low": 0, "high": 1, "legend": HOSTILE, "page_note": HOSTILE, **one}
    maps = StepMaps(np.zeros((1, 1, 2, 2), dtype=np.uint8), [HOSTILE, "b"], ["a", HOSTILE])
    titles = {"row_titles": [[HOSTILE]], "column_titles": [[HOSTILE]], "part_titles": [HOSTILE]}
    return {
        "line": LineChart(**lines, **intervals, x_title=HOSTILE, dashed=[HOSTILE]),
        "bar": BarChart(**lines, **intervals),
        "scatter": ScatterChart(**lines, label="s"),
        "matrix": MatrixChart(values=np.eye(2), **labels, row_title=HOSTILE, column_title=HOSTILE, **one),
        "MatrixGrid": MatrixGrid(
            matrices=np.zeros((1, 1, 2, 2)), **labels, row_titles=[HOSTILE], column_titles=[HOSTILE], **one
        ),
        "text": TextChart(marks=marks, **scale),
        "WordGrid": WordGrid(cells=[marks, marks], **labels, **scale),
        "TokenLines": TokenLines(
            weights=np.full((2, 2, 2), 0.5), left=[HOSTILE, "b"], right=["a", HOSTILE], series=[HOSTILE, "b"],
            left_title=HOSTILE, right_title=HOSTILE, **one,
        ),
        "film": AttentionFilm(
            steps=[FilmStep(HOSTILE, [maps], [marks], ["a", HOSTILE])] * 2, **titles, word_title=HOSTILE,
            word_rows=[HOSTILE], averaged=HOSTILE, **one,
        ),
    }  # fmt: skip


def strings(value):
    """All strings in a value read from JSON."""
    if isinstance(value, dict):
        return [found for item in value.items() for found in strings(list(item))]
    return [found for item in value for found in strings(item)] if isinstance(value, list) else [value]


def sections(*more):
    return [
        Section(
            Words("Maps & words", "图与词"), {"en": ["Prose `x < y`.", *charts()], "zh": ["文字。", *charts("一")]}
        ),
        Section(Words("Table", "表"), {"en": [TABLE], "zh": [TABLE]}, anchor="table"),
        Section(Words("More", "其他"), {"en": list(more), "zh": list(more)}),
    ]


class Reader(HTMLParser):
    """What a browser would see: elements with attributes, text outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    def ids(self):
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_page(path, title=Words("A page", "一页"), sections=sections(), languages=["en", "zh"], intro={"en": "Hello."})
    return path.read_text("utf-8")


def test_a_page_loads_nothing(written):
    page = Reader(written)
    assert not [(tag, a) for tag, a in page.elements if tag in ("link", "img", "iframe", "object", "embed", "source")]
    assert not [a for _, a in page.elements for name in ("src", "srcset", "data", "poster", "action") if name in a]
    targets = [a["href"] or "" for _, a in page.elements if "href" in a]
    assert targets and all(target.startswith("#") and target[1:] in page.ids() for target in targets)
    ours = "".join(markup.asset(name) for name in ("matrix.js", "film.js", "page.js", "page.css"))
    assert not re.search(r"fetch|XMLHttp|import\s*\(|importScripts|WebSocket|sendBeacon|https?:|url\(|@import", ours)


def test_a_browser_is_told_to_load_nothing_even_if_a_script_tried(written):
    policies = [a["content"] for tag, a in Reader(written).elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies and "default-src 'none'" in (policies[0] or "")
    assert "http" not in (policies[0] or "") and "*" not in (policies[0] or "")


def test_text_that_looks_like_markup_stays_text(written):
    page = Reader(written)
    assert EVIL in page.text
    assert not [script for script in page.scripts if "alert(1)" in script and "\\u003c" not in script]
    assert page.text.count("Prose x < y.") == 1


@pytest.mark.parametrize("kind", list(hostile_charts()))
def test_hostile_text_stays_text_in_every_kind_of_chart(kind):
    html = hostile_charts()[kind].html()
    assert type(html) is str, "a Markup would escape whatever a caller compares it with or adds to it"
    fragment = Reader(html)
    inert = {"figure", "figcaption", "p", "div", "span", "br", "table", "tr", "th", "td", "script"}
    if kind == "TokenLines":
        inert |= {"svg", "g", "line", "text", "button"}
    assert {tag for tag, _ in fragment.elements} <= inert
    names = {name for _, attributes in fragment.elements for name in attributes}
    if kind == "TokenLines":
        assert not [name for name in names if name.startswith("on") or name in ("href", "src")]
    else:
        assert names <= {"class", "style", "role", "aria-label", "data-hover", "data-byte", "type"}
    types = [attributes.get("type") for tag, attributes in fragment.elements if tag == "script"]
    assert types == ["application/json"] * len(fragment.scripts)
    assert not [script for script in fragment.scripts if re.search("[<>&\u2028]", script)]
    assert fragment.text.count(DRAWN) >= 2, "the title and the note"
    values = [value for script in fragment.scripts for value in strings(json.loads(script))]
    attributes = [value for _, attributes in fragment.elements for value in attributes.values()]
    assert DRAWN in [*values, *attributes], "labels, or the lines for the pointer"


@pytest.mark.parametrize("kind", list(hostile_charts()))
def test_hostile_text_is_drawn_as_text(kind):
    drawn = ElementTree.fromstring(svg(hostile_charts()[kind].spec()))
    tags = {element.tag.rpartition("}")[2] for element in drawn.iter()}
    assert "text" in tags and not tags & {"script", "img", "foreignObject", "a"}
    assert "onerror" in "".join(drawn.itertext()) and not [e for e in drawn.iter() if "onerror" in e.attrib]


def test_hostile_text_stays_text_in_a_page(tmp_path):
    words, n_sections = Words(HOSTILE, HOSTILE), 3
    table = TextTable(HOSTILE, [HOSTILE], [[HOSTILE]], note=HOSTILE)
    parts = {"en": [f"`{HOSTILE}`", *hostile_charts().values(), table]}
    write_page(
        tmp_path / "p.html", title=words, sections=[Section(words, parts, anchor=HOSTILE)] * n_sections,
        languages=["en"], intro={"en": HOSTILE},
    )  # fmt: skip
    page = Reader((tmp_path / "p.html").read_text("utf-8"))
    assert not [tag for tag, _ in page.elements if tag in ("img", "iframe", "raw")]
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert {a["id"] for tag, a in page.elements if tag == "section"} == {f"en-{DRAWN}"}
    assert {a["href"] for tag, a in page.elements if tag == "a"} == {f"#en-{DRAWN}"}
    kinds = [attributes.get("type") for tag, attributes in page.elements if tag == "script"]
    data = [script for script, kind in zip(page.scripts, kinds, strict=True) if kind == "application/json"]
    assert len(data) == 6 * n_sections
    assert all(DRAWN in strings(json.loads(script)) for script in data)
    assert kinds.count(None) == 5, "our own scripts: Vega, matrices, films, lines of tokens, the page"
    assert not [script for script in page.scripts if "alert(1)" in script and "\\u003c" not in script]
    once, in_a_section = ["title", "h1", "intro"], ["contents", "heading", "prose", "caption", "column", "cell", "note"]
    assert page.text.count(DRAWN) >= len(once) + n_sections * (len(in_a_section) + 2 * len(hostile_charts()))


def test_both_languages_are_there_with_their_own_anchors(written):
    page = Reader(written)
    mains = [a for tag, a in page.elements if tag == "main"]
    assert [a["lang"] for a in mains] == ["en", "zh-Hans"]
    assert "hidden" not in mains[0] and "hidden" in mains[1]
    assert len(set(page.ids())) == len(page.ids())
    assert {"en-table", "zh-table", "en-0", "zh-0"} <= set(page.ids())
    assert [a["data-to"] for tag, a in page.elements if "data-to" in a] == ["en", "zh"]
    assert "目录" in page.text and "Contents" in page.text


def test_one_language_has_no_switch(tmp_path):
    write_page(tmp_path / "p.html", title=Words("A", "甲"), sections=sections(), languages=["zh"])
    page = Reader((tmp_path / "p.html").read_text("utf-8"))
    assert not [a for _, a in page.elements if "data-to" in a]
    assert "图与词" in page.text and "Maps" not in page.text


def test_numbers_and_their_headings_stand_at_the_right(written):
    cells = [tag for tag, a in Reader(written).elements if a.get("class") == "number"]
    assert cells == ["th", "td"] * 2, "one cell of one column, in both languages"


def test_matrices_of_a_section_share_a_scale_on_a_page(tmp_path):
    """V3: images had one scale for one picture, pages had several."""
    matrices = [
        MatrixChart(name, np.array([[low, high]]), row_labels=["r"], column_labels=["a", "b"], diverging=True)
        for name, low, high in (("one", -0.01, 0.015), ("two", -0.27, 0.1))
    ]
    write_charts(tmp_path / "p.html", matrices, title="two", language="en")
    page = (tmp_path / "p.html").read_text("utf-8")
    assert re.findall(r'"low":([-.\d]+),"high":([-.\d]+)', page) == [("-0.27", "0.27")] * 2


def test_a_note_stands_once_in_a_section(tmp_path):
    note = "Said of the picture and of its numbers."
    chart = WordGrid("w", [[TextMark("a")]], row_labels=["r"], column_labels=["c"], low=0, high=1, note=note)
    tables = [TextTable(name, [], [["1"]], note=said) for name, said in (("t", note), ("u", "both"), ("v", "both"))]
    write_charts(tmp_path / "p.html", [chart], title="notes", tables=tables, language="en")
    page = (tmp_path / "p.html").read_text("utf-8")
    assert page.count(note) == 1 and page.index(note) < page.index(">t<"), "below the chart"
    assert page.count(">both<") == 1 and page.index(">both<") > page.index(">v<"), "below the last table"


def test_the_vega_scripts_are_there_once_and_only_where_a_chart_needs_them(written, tmp_path):
    assert len(written) < 60_000
    write_page(tmp_path / "p.html", title=Words("A", "甲"), sections=sections(lines(), lines()), languages=["en", "zh"])
    page = Reader((tmp_path / "p.html").read_text("utf-8"))
    assert len([script for script in page.scripts if len(script) > 400_000]) == 1
    assert not [script for script in page.scripts if "alert(1)" in script and "\\u003c" not in script]


def test_a_page_is_written_whole_or_refused(tmp_path):
    with pytest.raises(SettingsError, match="could not be written"):
        write_page(tmp_path, title=Words("A", "甲"), sections=sections(), languages=["en"])
    assert not list(tmp_path.iterdir())


def test_charts_alone_make_a_page_with_their_tables(tmp_path):
    write_charts(tmp_path / "p.html", charts(), title="View", tables=[TABLE], language="zh")
    page = Reader((tmp_path / "p.html").read_text("utf-8"))
    assert page.elements[0][1]["lang"] == "zh-Hans" and "View" in page.text


def test_styles_and_scripts_are_part_of_the_package():
    root = Path(__file__).resolve().parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    assert settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/mingyue"]
    ignored = (root / ".gitignore").read_text("utf-8")
    assert not re.search(r"\.(js|css|html)|assets|templates", ignored), "hatchling leaves out what git ignores"
    assert all(markup.asset(name) for name in ("matrix.js", "film.js", "page.js", "page.css"))
    assert all(markup.environment().get_template(name) for name in markup.environment().list_templates())


def browse(page: Path, folder: Path, *more: str) -> Reader:
    """The elements of a page after its scripts ran, in Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here")
    quiet = ("gpu", "quic", "background-networking", "component-update", "sync")
    switches = ["--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet), *more]
    switches += ["--virtual-time-budget=5000", "--dump-dom", f"--user-data-dir={folder / 'profile'}", page.as_uri()]
    found = subprocess.run([browser, *switches], capture_output=True, timeout=120, check=True)
    return Reader(found.stdout.decode("utf-8"))


@pytest.mark.slow
def test_a_browser_draws_the_page_without_a_network(tmp_path):
    write_page(tmp_path / "p.html", title=Words("A", "甲"), sections=sections(lines(), film()), languages=["en", "zh"])
    seen = browse(tmp_path / "p.html", tmp_path, "--window-size=1000,4000")
    kinds = [tag for tag, _ in seen.elements]
    # In the language that is shown: four thumbnails with two rows and two columns of labels, a matrix, and the film's.
    assert kinds.count("canvas") == (4 + 4) + 1 + (4 + 4)
    assert "step 2" in seen.text and "moon" in seen.text, "the last scene of the film"
    assert "Click a map" in seen.text
    assert any(tag == "svg" for tag in kinds), "the line chart"
    assert not [a for tag, a in seen.elements if tag == "img"]


FRAME = """<!doctype html><meta charset="utf-8"><body style="margin:0">
<iframe style="width:{width}px;height:9000px;border:0"></iframe><pre></pre><script>
const frame = document.querySelector("iframe");
frame.srcdoc = {page};
setTimeout(() => {{
  const inside = frame.contentDocument, right = frame.contentWindow.innerWidth + 1, found = [];
  if (inside.documentElement.scrollWidth > right) found.push("the page is wider than the screen");
  for (const one of inside.querySelectorAll("main:not([hidden]) *")) {{
    const box = one.getBoundingClientRect();
    if (box.width && box.right > right && !one.closest(".scroll")) found.push(one.tagName + " " + one.className);
  }}
  for (const drawing of inside.querySelectorAll("svg")) {{
    const all = drawing.getBoundingClientRect();
    for (const text of drawing.querySelectorAll("text")) {{
      if (text.getAttribute("opacity") === "0") continue;  // left out by Vega
      const box = text.getBoundingClientRect();
      if (box.width && (box.left < all.left - 1 || box.right > all.right + 1)) found.push(text.textContent);
    }}
    const ticks = Array.from(drawing.querySelectorAll(".role-axis-label text"), (one) => [one.textContent, one])
      .filter(([text, one]) => text && one.getAttribute("opacity") !== "0")
      .map(([text, one]) => [text, one.getBoundingClientRect()]).filter(([, box]) => box.width);
    ticks.forEach(([text, one], n) => {{
      const gap = /^[0-9.,]+$/.test(text) ? 2 : -1;  // letters have room of their own
      for (const [other, box] of ticks.slice(n + 1))
        if (Math.abs(one.top - box.top) < 1 && one.left < box.right + gap && box.left < one.right + gap)
          found.push(`${{text}} touches ${{other}}`);
    }});
  }}
  for (const axis of inside.querySelectorAll(".role-axis-label")) {{
    const slanted = Array.from(axis.querySelectorAll("text"), (text) => text.getAttribute("transform"))
      .filter((one) => one.includes("rotate(-35")).map((one) => Number(/translate.([-.0-9]+)/.exec(one)[1]));
    slanted.slice(1).forEach((x, n) => {{
      if (x - slanted[n] < 20) found.push(`slanted names at ${{slanted[n]}} and ${{x}}`);
    }});
  }}
  for (const text of inside.querySelectorAll(".role-axis-label text"))
    if (/城/.test(text.textContent) && /rotate/.test(text.getAttribute("transform")))
      found.push(`${{text.textContent}} lies on its side`);
  for (const title of inside.querySelectorAll(".thumbs thead th")) {{
    const area = inside.createRange();
    area.selectNodeContents(title);
    const text = area.getBoundingClientRect(), box = title.getBoundingClientRect();
    if (text.width > box.width - 2) found.push(`the title ${{title.textContent}} fills its column`);
  }}
  for (const cell of inside.querySelectorAll(".table td"))
    if (cell.offsetHeight > 120) found.push(`${{cell.offsetHeight}} pixels high: ${{cell.textContent}}`);
  const drawn = inside.querySelectorAll("canvas, svg").length;
  const colour = inside.defaultView.getComputedStyle(inside.body).backgroundColor;
  document.querySelector("pre").textContent = JSON.stringify({{ found, drawn, colour }});
}}, 3000);
</script>"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_is_clipped_on_a_phone_or_a_screen(width, dark, tmp_path):
    """V9: what is wider than the page scrolls in a box of its own; a page follows the reader's light or dark system."""
    names = [f"a series with a long name, {number}" for number in range(4)]
    rows = [{"x": f"a long name {x}", "y": x, "s": name} for name in names for x in (1, 2, 3)]
    plot = {"rows": rows, "x": "x", "y": "y", "series": "s", "rules": [(2.5, "a rule with quite a long label")]}
    tokens = [f"token{number}" for number in range(60)]
    wide = TextTable("wide", [f"column {n}" for n in range(20)], [["a cell of some words"] * 20])
    listed = TextTable(
        "list", ["number", "a", "b", "c", "list"], [["1", "2", "3", "4", "one 98.6%, two 1.3%, three 0.002%, 4 0.01%"]]
    )
    chinese, english = [f"{one}城" for one in "东西南北中山江海石林雨云雪风花月星"], [f"city {n}" for n in range(17)]
    ends = (3.95, 605.0, 700_000.0, 2_200_000, 9_100_000)  # of axes: the last number may stick out, or touch another
    steps = [[{"x": round(end * n / 44, 3), "y": n} for n in range(45)] for end in ends]
    parts = [
        LineChart("lines", **plot), BarChart("bars", **plot), film(), wide, listed,
        *(BarChart("names", [{"x": name, "y": 1} for name in names], x="x", y="y", rules=[(0.5, "平均猜测")])
          for names in (chinese, english)),
        *(LineChart("steps", one, x="x", y="y", y_title="loss") for one in steps),
        *(LineChart("whole", [row | {"x": int(row["x"])} for row in one], x="x", y="y") for one in steps),
        MatrixChart("matrix", np.eye(60), row_labels=tokens, column_labels=tokens),
        WordGrid("words", [[TextMark(one, 0.5) for one in tokens]], row_labels=["r"], column_labels=tokens, low=0,
                 high=1),
        MatrixGrid("few", np.zeros((2, 8, 30, 30)), row_titles=["layer 0", "layer 1"],
                   column_titles=[f"head {n}" for n in range(8)], row_labels=tokens[:30], column_labels=tokens[:30]),
        MatrixGrid("grid", np.zeros((12, 16, 3, 3)), row_titles=tokens[:12], column_titles=tokens[:16],
                   row_labels="abc", column_labels="abc"),
    ]  # fmt: skip
    write_page(tmp_path / "p.html", title=Words("A", "甲"), languages=["en"],
               sections=[Section(Words("All", "全"), {"en": parts}), *sections()])  # fmt: skip
    page = json.dumps((tmp_path / "p.html").read_text("utf-8")).replace("</", "<\\/")
    (tmp_path / "frame.html").write_text(FRAME.format(width=width, page=page), encoding="utf-8")
    scheme = "--blink-settings=preferredColorScheme=" + ("0" if dark else "1")
    seen = browse(tmp_path / "frame.html", tmp_path, f"--window-size={max(width, 500)},2000", scheme)
    told = json.loads(re.search(r'\{"found".*\}', seen.text)[0])  # type: ignore[index]
    assert told["found"] == [] and told["drawn"] > 200
    assert told["colour"] == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
