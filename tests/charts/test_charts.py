"""Charts say what they were given: specs that Vega-Lite takes, bytes that stand for values, text that stays text."""

from __future__ import annotations

import ast
import base64
import io
import itertools
import json
import re
import subprocess
import sys
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
    TextChart,
    TextMark,
    WordGrid,
    colours,
    fonts,
    matrices,
    render,
    write_charts,
)
from mingyue.errors import MissingExtraError, SettingsError
from mingyue.inspection.view import View
from mingyue.words import TextTable, Words

EVIL = "<script>alert(1)</script>"
ROWS = [
    {"d.k": d, "v[0]": d**p, "low": 0.9 * d**p, "high": 1.1 * d**p, "how": f"p = {p}"} for p in (0.5, 1) for d in (4, 8)
]


def line(**changes):
    given = {"x": "d.k", "y": "v[0]", "series": "how", "low": "low", "high": "high", "rules": [(2, "chance")]} | changes
    return LineChart("Lines", ROWS, **given)


def all_kinds():
    maps = np.linspace(0, 1, 2 * 3 * 2 * 2).reshape(2, 3, 2, 2)
    mark = TextMark(EVIL, 0.5, [EVIL])
    yield line()
    yield BarChart("Bars", ROWS, x="how", y="v[0]", low="low", high="high", log_y=True)
    yield ScatterChart("Points", ROWS, x="d.k", y="v[0]", label="how", series="how")
    yield MatrixChart(EVIL, maps[0, 0], row_labels=[EVIL, "b"], column_labels=["a", EVIL])
    yield MatrixGrid(
        "Grid", maps, row_titles=["0", "1"], column_titles=[EVIL, "1", "2"], row_labels=["a", "b"], column_labels="ab"
    )
    yield TextChart("Text", [mark, TextMark("\n"), TextMark("月")], low=0, high=1, legend=EVIL)
    yield WordGrid("Words", [[mark, mark]], row_labels=[EVIL], column_labels=["a", "b"], low=0, high=1)


KINDS = ["line", "bar", "scatter", "matrix", "matrix_grid", "text", "word_grid"]


def marks_of(spec):
    """Kinds of marks anywhere in a spec."""
    if isinstance(spec, dict):
        mark = spec.get("mark")
        found = {mark["type"] if isinstance(mark, dict) else mark} if mark else set()
        return found.union(*map(marks_of, spec.values()))
    return set().union(*map(marks_of, spec)) if isinstance(spec, list) else set()


@pytest.mark.parametrize(("kind", "chart"), list(zip(KINDS, all_kinds(), strict=True)), ids=KINDS)
def test_every_chart_gives_a_spec_a_fragment_and_json(kind, chart):
    spec, told = chart.spec(), chart.to_dict()
    assert json.loads(json.dumps(spec, allow_nan=False))["title"]["text"]
    assert json.loads(json.dumps(told, allow_nan=False))["kind"] == kind
    assert told["title"] == chart.title
    assert "<figure" in chart.html()


@pytest.mark.parametrize("chart", list(all_kinds()), ids=KINDS)
def test_a_token_that_looks_like_markup_stays_text(chart):
    fragment = chart.html()
    assert "<script>" not in fragment, "only our own data blocks, which have a type, may be scripts"
    for block in re.findall(r'<script type="application/json">(.*?)</script>', fragment, re.DOTALL):
        assert "<" not in block
        json.loads(block)
    assert fragment.count("<script") == fragment.count("</script")


# --- lines, bars, points ---------------------------------------------------------------------------------------------


def test_a_line_chart_has_a_band_its_lines_and_a_dashed_rule():
    spec = line().spec()
    assert {"area", "line", "circle", "rule", "text"} <= marks_of(spec)
    assert spec["data"]["values"][0] == {"x": 4, "y": 2.0, "s": "p = 0.5", "lo": 1.8, "hi": 2.2}
    assert not [layer for layer in spec["layer"][:3] if "data" in layer], "data of a layer would hide the rows"


def test_a_line_that_lies_on_another_is_dashed_and_named_in_one_legend():
    lines = next(layer for layer in line(dashed=["p = 1"]).spec()["layer"] if layer["mark"]["type"] == "line")
    dash, colour = lines["encoding"]["strokeDash"], lines["encoding"]["color"]
    assert dash["scale"] == {"domain": ["p = 0.5", "p = 1"], "range": [[1, 0], [5, 4]]}
    assert (dash["field"], dash["legend"]) == (colour["field"], colour["legend"])
    assert "strokeDash" not in json.dumps(line(rules=()).spec()["layer"])
    # Shared between charts below one another, the dashes would get a legend of their own above them all.
    assert render.stacked([line(), line(dashed=["p = 1"])])["resolve"]["scale"]["strokeDash"] == "independent"


def test_lines_without_intervals_have_no_band():
    assert "area" not in marks_of(line(low=None, high=None).spec())


def test_bars_keep_the_order_of_rows_and_have_error_bars():
    rows = [{"n": name, "v": 1, "a": 0.5, "b": 2} for name in ("zebra", "ant", "cow")]
    spec = BarChart("", rows, x="n", y="v", low="a", high="b").spec()
    assert all(layer["encoding"]["x"]["sort"] is None for layer in spec["layer"])
    assert [row["x"] for row in spec["data"]["values"]] == ["zebra", "ant", "cow"]
    assert {"bar", "rule", "tick"} <= marks_of(spec)


def test_names_below_bars_are_slanted_only_where_they_do_not_touch():
    for count, angle in ((3, 0), (12, -35), (26, -35), (27, -90), (40, -90)):
        rows = [{"x": f"a name {n:02}" if angle else str(n), "y": n} for n in range(count)]
        assert BarChart("", rows, x="x", y="y").spec()["layer"][0]["encoding"]["x"]["axis"]["labelAngle"] == angle


def test_what_a_logarithmic_axis_cannot_show_is_left_out_and_bands_end_above_zero():
    rows = [{"x": 0, "y": 1.0, "l": 1, "h": 2}, {"x": 1, "y": 0.0, "l": 1, "h": 2}, {"x": 2, "y": 3.0, "l": -1, "h": 4}]
    values = LineChart("", rows, x="x", y="y", low="l", high="h", log_x=True, log_y=True).spec()["data"]["values"]
    assert [(row["x"], row["y"], row["lo"]) for row in values] == [(1, None, 1), (2, 3.0, 1)]


def test_numbers_of_numpy_and_those_that_are_not_finite_become_json():
    rows = [{"x": np.int64(1), "y": np.float32(0.5)}, {"x": 2, "y": float("nan")}, {"x": 3, "y": float("inf")}]
    values = LineChart("", rows, x="x", y="y").spec()["data"]["values"]
    assert [row["y"] for row in values] == [0.5, None, None]
    assert json.dumps(LineChart("", rows, x="x", y="y").to_dict(), allow_nan=False)


@pytest.mark.parametrize(("least", "greatest"), [(400, 900), (1.2, 1.3), (3, 40), (0.001, 5), (1, 1e6), (2, 2)])
def test_a_logarithmic_axis_has_some_ticks_whatever_its_range(least, greatest):
    rows = [{"x": 1, "y": least}, {"x": 2, "y": greatest}]
    y = LineChart("", rows, x="x", y="y", log_y=True).spec()["layer"][0]["encoding"]["y"]
    low, high = y["scale"]["domain"]
    seen = [tick for tick in y["axis"]["values"] if low <= tick <= high]
    assert (1 if least == greatest else 3) <= len(seen) <= 9


def test_whole_numbers_stand_as_whole_numbers_on_the_axis():
    rows = [{"layer": layer, "y": 1.0} for layer in range(3)]
    axis = LineChart("", rows, x="layer", y="y").spec()["layer"][0]["encoding"]["x"]["axis"]
    assert axis["values"] == [0, 1, 2] and axis["format"] == ",d"


def test_the_name_of_a_column_is_not_shown_to_readers():
    """Where an axis had no title, a tooltip in Chinese had the English name of its column."""
    for made in (LineChart, BarChart):
        spec = made("", ROWS, x="d.k", y="v[0]", series="how").spec()
        titles = [one["title"] for layer in spec["layer"] for one in layer["encoding"].get("tooltip", [])]
        assert len(titles) == 3 and set(titles) == {" "}


def test_a_column_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"row 0 of the chart has no column 'nothing'; it has d\.k"):
        line(y="nothing")


def test_many_series_have_colours_of_their_own():
    rows = [{"x": x, "y": x * s, "s": s} for s in range(12) for x in (1, 2)]
    legend = LineChart("", rows, x="x", y="y", series="s").spec()["layer"][0]["encoding"]["color"]
    assert len(legend["scale"]["domain"]) == 12


# --- matrices --------------------------------------------------------------------------------------------------------


def test_bytes_of_a_matrix_stand_for_its_values():
    values = np.array([[0.0, 0.25], [0.5, 1.0]])
    block = re.search(r"json\">(.*?)</script>", MatrixChart("", values, row_labels="ab", column_labels="cd").html())
    assert block
    data = json.loads(block[1])
    cells = np.frombuffer(base64.b64decode(data["data"]), np.uint8).reshape(2, 2)
    shown = data["low"] + cells / 255 * (data["high"] - data["low"])
    assert np.abs(shown - values).max() <= 0.5 / 255


def test_a_large_matrix_is_averaged_down_and_its_note_says_so():
    values = np.random.default_rng(0).random((1024, 520))
    labels = [str(i) for i in range(1024)]
    chart = MatrixChart("", values, row_labels=labels, column_labels=labels[:520], note="As measured.")
    assert chart.caption == (
        "As measured. Drawn with 512 × 512 cells, each the mean of its part of the 1024 × 520 values."
    )
    drawn = matrices.shrink(values, 512)
    assert drawn.shape == (512, 512)
    assert drawn[0, 0] == pytest.approx(values[:2, :1].mean())
    assert drawn[:, -1].mean() == pytest.approx(values[:, 518:].mean(), abs=1e-12)
    assert matrices.shrink_labels(labels, 512)[:2] == ["0 … 1", "2 … 3"]
    zh = MatrixChart("", values, row_labels=labels, column_labels=labels[:520], language="zh")
    assert "1024 × 520" in zh.caption and "平均" in zh.caption
    assert np.array(chart.to_dict()["data"]).shape == (1024, 520), "numbers for programs are whole"


def test_a_grid_that_would_be_a_heavy_page_is_averaged_further():
    maps = np.zeros((16, 16, 140, 140), dtype=np.float16)
    names = [str(i) for i in range(140)]
    chart = MatrixGrid("", maps, row_titles=names[:16], column_titles=names[:16], row_labels=names, column_labels=names)
    assert chart.side == 128
    assert len(chart.html()) < 6 << 20
    assert "128 × 128" in chart.caption


def test_a_diverging_scale_has_zero_in_its_middle():
    chart = MatrixChart("", np.array([[-3.0, 1.0]]), row_labels="a", column_labels="bc", diverging=True)
    assert chart.limits == (-3.0, 3.0)
    assert colours.colormap(diverging=True)[127:129].min() >= 250


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"shape \(2, 2\) with 3 row labels"):
        MatrixChart("", np.zeros((2, 2)), row_labels="abc", column_labels="ab")


def test_the_colour_scale_falls_in_lightness_all_along_so_that_every_eye_reads_it():
    lightness = colours.colormap().astype(float) @ [0.299, 0.587, 0.114]
    assert (np.diff(lightness) <= 0).all() and lightness[0] == pytest.approx(255) and lightness[-1] < 60


def test_text_on_a_colour_has_contrast():
    for value in np.linspace(0, 1, 21):
        background, text = colours.cell_colours(value, 0, 1)
        channels = [np.array([int(c[i : i + 2], 16) for i in (1, 3, 5)]) / 255 for c in (background, text)]
        linear = [np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
                  for c in channels]  # fmt: skip
        assert (max(linear) + 0.05) / (min(linear) + 0.05) >= 4.5


# --- files -----------------------------------------------------------------------------------------------------------


def pixels(png: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=int)


def test_all_kinds_are_drawn_below_one_another(tmp_path):
    charts = list(all_kinds())
    notes = write_charts(tmp_path / "all.png", charts, title="All")
    assert len(notes) == (fonts.chinese_font() is None), notes
    picture = pixels((tmp_path / "all.png").read_bytes())
    assert picture.shape[0] > 2000, "seven charts, at two pixels a point"
    blue = colours.SERIES[0]
    wanted = [int(blue[i : i + 2], 16) for i in (1, 3, 5)]
    assert (np.abs(picture - wanted).max(axis=2) < 3).sum() > 100, "the first line is there"


def test_a_picture_as_svg_has_its_words(tmp_path):
    chart = MatrixChart("Cosine", np.eye(2), row_labels=["one", EVIL], column_labels=["three", "four"])
    write_charts(tmp_path / "one.svg", [chart], title="One")
    drawn = (tmp_path / "one.svg").read_text("utf-8")
    assert all(word in drawn for word in ("Cosine", "one", "three", "data:image/png"))
    assert "<script" not in drawn


def test_tables_are_drawn_where_there_is_no_chart():
    table = TextTable("Steps", ["name", "size"], [["weights", "1,024"]] * 3, right=["size"])
    drawn = render.svg(render.stacked([], [table]))
    assert "weights" in drawn and "Steps" in drawn


def test_json_has_charts_and_tables(tmp_path):
    write_charts(tmp_path / "all.json", [line()], title="T", tables=[TextTable("n", ["a"], [["1"]])])
    told = json.loads((tmp_path / "all.json").read_text("utf-8"))
    assert told["charts"][0]["data"] == ROWS
    assert told["tables"][0]["rows"] == [["1"]]


@pytest.mark.parametrize("name", ["chart.pdf", "chart", "chart.png.bak"])
def test_another_suffix_names_the_four(tmp_path, name):
    with pytest.raises(SettingsError, match=r"\.html, \.png, \.svg, \.json"):
        write_charts(tmp_path / name, [line()], title="T")


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(SettingsError, match="could not be written"):
        write_charts(tmp_path / "file" / "chart.json", [line()], title="T")


def test_chinese_is_drawn_with_glyphs_of_its_own():
    if fonts.chinese_font() is None:
        pytest.skip("no font with Chinese characters is installed here")
    one, other = (render.png(render.stacked([TextChart("", [TextMark(sign)], low=0, high=1)])) for sign in ("明", "月"))
    assert (pixels(one) != pixels(other)).any(), "boxes in place of glyphs would all be the same"


def test_a_missing_chinese_font_is_told_only_where_it_matters(monkeypatch):
    monkeypatch.setattr(render, "chinese_font", lambda: None)
    (note,) = render.notes_on_fonts(line(x_title="宽度").spec())
    assert "fonts-noto-cjk" in note and "汉字" in note.zh
    assert render.notes_on_fonts(line().spec()) == []


# --- the extra -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "act"),
    [
        ("altair", lambda: line().spec()),
        ("PIL", lambda: MatrixChart("", np.eye(2), row_labels="ab", column_labels="ab").spec()),
        ("vl_convert", lambda: render.png({"mark": "bar"})),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_has_it(monkeypatch, module, act):
    render._converter.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"mingyue\[plot\]"):
        act()


def test_importing_charts_needs_nothing_of_the_extra():
    folder = Path(render.__file__).parent
    for path in folder.glob("*.py"):
        tops = [
            node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        assert not [ast.unparse(node) for node in tops if re.search("altair|vl_convert|PIL", ast.unparse(node))]


def test_importing_charts_loads_neither_what_draws_nor_what_writes_pages():
    heavy = ("altair", "vl_convert", "PIL", "jinja2", "torch")
    code = f"import sys, mingyue.charts; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert found.stdout.strip() == "[]"


# --- fonts -------------------------------------------------------------------------------------------------------


def test_lines_are_broken_at_spaces_or_between_chinese_characters():
    assert fonts.wrap("one two three", 8) == ["one two", "three"]
    assert fonts.wrap("床前明月光疑是地上霜", 10) == ["床前明月光", "疑是地上霜"]
    assert fonts.wrap("", 8) == []
    assert " ".join(fonts.wrap("a b c d e f", 3)) == "a b c d e f"


@pytest.mark.parametrize("symbol", "⏎␇…√“α月")
def test_boxes_of_coloured_text_are_as_wide_as_its_symbols_are_drawn(symbol):
    """In the monospaced fonts with Chinese, many symbols are as wide as Chinese: ⏎ stuck out of its box."""
    assert fonts.drawn_width(f"a{symbol}␣") == 4
    boxes = {}
    for text in ("ab", symbol):
        values = TextChart("", [TextMark(text, 0.5)], low=0, high=1).spec()["layer"][0]["data"]["values"]
        boxes[text] = values[0]["x2"] - values[0]["x"]
    assert boxes[symbol] == boxes["ab"]


def test_text_without_colours_has_no_colour_scale():
    """A scale from 0 to 1 stood above numbers of which none was coloured."""
    for value in (None, 0.5):
        mark = TextMark("a", value)
        grid = WordGrid("", [[mark, TextMark("b")]], row_labels=["r"], column_labels=["x", "y"], low=0, high=1)
        for chart in (grid, TextChart("", [mark, TextMark("b")], low=0, high=1)):
            assert ("gradientLength" in json.dumps(chart.spec())) == (value is not None)
            assert ('class="ramp"' in chart.html()) == (value is not None)


@pytest.mark.parametrize("high", [0.0087, 0.025, 0.1, 0.18, 0.25, 0.5, 0.52, 1.0, 8.0])
def test_numbers_of_a_colour_scale_do_not_touch(high):
    """0.2 and 0.25 were drawn as 0.20.25."""
    chart = TextChart("", [TextMark("a", high / 2)], low=0, high=high, legend="scale")
    drawn = ElementTree.fromstring(render.svg(render.stacked([chart])))
    labels = []
    for group in drawn.iterfind(".//{*}g"):
        if "role-legend-label" in group.get("class", ""):
            for text in group.iterfind(".//{*}text"):
                x = float(re.search(r"translate\(([\d.]+)", text.get("transform"))[1])  # type: ignore[index]
                width = 6.7 * len(text.text or "")
                start = {"start": 0.0, "middle": width / 2, "end": width}[text.get("text-anchor", "start")]
                labels.append((x - start, x - start + width))
    assert len(labels) > 2
    assert all(one[1] + 3 < other[0] for one, other in itertools.pairwise(labels)), labels


def test_long_labels_are_cut_to_their_columns():
    assert fonts.truncate("abcdef", 4) == "abc…"
    assert fonts.display_width(fonts.truncate("床前明月光", 6)) <= 6


# --- views -----------------------------------------------------------------------------------------------------------


class Small(View):
    title = Words("Small", "小")

    def charts(self, language="en"):
        return [MatrixChart(self.title.of(language), np.eye(2), row_labels="ab", column_labels="ab")]

    def tables(self, language="en"):
        return [TextTable(self.title.of(language), ["a"], [["1"]])]

    def to_dict(self):
        return {"weights_TS": [[1.0, 0.0], [0.0, 1.0]]}


def test_a_view_saves_its_page_and_its_arrays_and_shows_itself_in_a_notebook(tmp_path):
    view = Small()
    view.save(tmp_path / "view.json", "zh")
    assert json.loads((tmp_path / "view.json").read_text("utf-8")) == {"title": "小", **view.to_dict()}
    view.save(tmp_path / "view.html")
    assert "Small" in (tmp_path / "view.html").read_text("utf-8")
    frame = view._repr_html_()
    assert frame.startswith("<iframe srcdoc=") and "<script" not in frame


def test_numbers_for_programs_have_six_digits():
    given = np.array([[0.123456789, -1234567.0], [0.0, 1e-30], [np.nan, np.inf]])
    assert matrices.as_lists(given) == [[0.123457, -1234570.0], [0.0, 1e-30], [None, None]]


def test_a_wide_table_of_words_goes_on_below_and_keeps_every_cell():
    cells = [[TextMark(f"{row}.{column}", 0.5) for column in range(60)] for row in range(2)]
    chart = WordGrid("Words", cells, row_labels=["a", "b"], column_labels=[str(n) for n in range(60)], low=0, high=1)
    boxes = chart.spec()["layer"][0]["data"]["values"]
    assert sorted(box["text"] for box in boxes if "." in box["text"]) == sorted(m.text for row in cells for m in row)
    assert max(box["x2"] for box in boxes) < 900
    assert len({box["y"] for box in boxes}) > 3, "one row of labels and two of words would be one band"
    places = [(box["x"], box["y"]) for box in boxes]
    assert len(set(places)) == len(places)
    assert {box["text"] for box in boxes if box["x"] == 0} == {"a", "b"}


@pytest.mark.parametrize("text", ["a", "床", "␣question", "<E6><98>", "x" * 60])
def test_a_table_of_words_fits_a_screen_of_1280_pixels_and_keeps_every_column(text):
    """V6: the last column of a lens was cut off on a page."""
    cells = [[TextMark(text, 0.5) for _ in range(61)] for _ in range(3)]
    labels = [f"{number}" for number in range(61)]
    chart = WordGrid("Words", cells, row_labels=["layer 11 = output"] * 3, column_labels=labels, low=0, high=1)
    bands = chart.page_bands()
    assert [number for band in bands for number in band] == list(range(61))
    letter = 8 if text.isascii() or "␣" in text else 14  # pixels of the page's font
    cell = min(190, max(31, letter * len(text) + 13))
    assert all(130 + len(band) * cell <= 920 for band in bands), "main is 920 pixels wide"
    assert chart.html().count("<tr>") == 4 * len(bands)
    assert chart.html().count("<td") == 3 * 61
