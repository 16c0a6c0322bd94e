"""V3, V4, V8: labels that can be read, one scale for one picture, colours for light and dark pages, nothing clipped."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    markup,
    matrices,
    render,
)
from mingyue.charts.rules import apart
from mingyue.charts.side_labels import column_marks, column_room, row_marks, text_width

POEM = ["<bos>", *"静夜思⏎床前明月光，疑是地上霜。"]
LABELS = {
    "Chinese characters and one long token": (POEM, 17.0),
    "Chinese words": (["明月", "故乡", "地上霜"], 17.0),
    "long words": (["<bos>", "moonlight", "frost"], 17.0),
    "words with room": (["moon", "frost"], 60.0),
    "small cells": (POEM, 5.0),
    "no label": ([], 10.0),
    "empty labels": (["", ""], 10.0),
}


def width_and_height(one) -> tuple[float, float]:
    """Room of a label across and down, turned if it is."""
    across = max(text_width(line, one["size"]) for line in one["text"])
    down = len(one["text"]) * (one["size"] + 1)
    return (down, across) if one["angle"] else (across, down)


@pytest.mark.parametrize(("labels", "cell"), LABELS.values(), ids=LABELS)
def test_labels_above_a_matrix_stand_upright_and_do_not_touch(labels, cell):
    """V4: Chinese is never laid on its side, and `<bos>` does not touch its neighbour."""
    marks = column_marks(labels, cell)
    for one in marks:
        assert not one["angle"] or not any(fonts.display_width(c) == 2 for c in "".join(one["text"]))
    for one, other in itertools.pairwise(marks):
        room = (width_and_height(one)[0] + width_and_height(other)[0]) / 2
        assert other["x"] - one["x"] >= room - 0.01, (one, other)
    if cell >= 13:
        assert len(marks) == len(labels), "every label has room"
    assert column_room(labels, cell) >= max((width_and_height(one)[1] for one in marks), default=0.0) - 0.01


@given(st.lists(st.text("ab 月。<>é́", max_size=6), max_size=12), st.floats(2, 60), st.sampled_from([9, 12]))
def test_labels_of_any_text_do_not_touch(labels, cell, size):
    for marks, axis in ((column_marks(labels, cell, size=size), "x"), (row_marks(labels, cell, size=size), "y")):
        for one, other in itertools.pairwise(marks):
            side = axis == "y"
            room = (width_and_height(one)[side] + width_and_height(other)[side]) / 2
            assert other[axis] - one[axis] >= room - 0.01


WHITE = {" ": "␣", "\n": "⏎", "\t": "⇥", " the": "␣the", "a ": "a␣", "a b": "a b", "\x07": "␇"}


def texts_of(spec) -> list[str]:
    return [text for layer in spec["layer"] for row in layer.get("data", {}).get("values", ())
            for text in row.get("text", ())]  # fmt: skip


@pytest.mark.parametrize("token", WHITE)
def test_white_space_is_visible_on_every_axis(token):
    names = [token, "x"]
    charts = [
        MatrixChart("", np.eye(2), row_labels=names, column_labels=names),
        MatrixGrid(
            "", np.zeros((1, 1, 2, 2)), row_titles=["r"], column_titles=["c"], row_labels=names, column_labels=names
        ),
    ]
    for chart in charts:
        assert texts_of(render.stacked([chart])).count(WHITE[token]) == 2
        block = re.search(r"json\">(.*?)</script>", chart.html())
        assert block
        assert json.loads(block[1])["rows"][0] == json.loads(block[1])["columns"][0] == WHITE[token]


def grid(n_rows, n_columns, tokens):
    maps = np.zeros((n_rows, n_columns, len(tokens), len(tokens)))
    layers, heads = [f"layer {n}" for n in range(n_rows)], [f"head {n}" for n in range(n_columns)]
    return MatrixGrid("", maps, row_titles=layers, column_titles=heads, row_labels=tokens, column_labels=tokens)


@pytest.mark.parametrize(
    ("n_rows", "n_columns", "n_tokens", "readable"),
    [(1, 1, 2, True), (2, 8, 6, True), (2, 8, 13, True), (2, 8, 33, False), (16, 16, 12, False), (1, 1, 600, False)],
)
def test_thumbnails_have_their_tokens_where_these_can_be_read(n_rows, n_columns, n_tokens, readable):
    tokens = [chr(0x4E00 + number) for number in range(n_tokens)]
    spec = grid(n_rows, n_columns, tokens).spec()
    drawn = texts_of(spec)
    assert {f"layer {n_rows - 1}", f"head {n_columns - 1}"} <= set(drawn)
    assert [drawn.count(token) for token in tokens] == [(n_rows + n_columns) * readable] * n_tokens
    assert spec["width"] <= 1400


def test_matrices_of_one_picture_share_a_scale_where_they_have_none_of_their_own():
    def one(values, **options):
        return MatrixChart("", np.array([values]), row_labels=["r"], column_labels=["a", "b"], **options)

    charts = [
        one([0.015, -0.01], diverging=True), one([0.1, -0.27], diverging=True), one([0.2, 0.84]), one([0.1, 0.987]),
        one([0.2, 0.4], low=0.0, high=1.0), TextChart("", [TextMark("a")], low=0, high=1),
    ]  # fmt: skip
    shared = matrices.one_scale(charts)
    assert [chart.limits for chart in shared[:5]] == [(-0.27, 0.27)] * 2 + [(0.1, 0.987)] * 2 + [(0.0, 1.0)]
    assert shared[5] is charts[5]
    assert one([0.1, -0.2], diverging=True).limits == (-0.2, 0.2), "alone it has its own"
    domains = re.findall(r'"domain": (\[-?[\d.]+, [\d.]+\])', json.dumps(render.stacked(charts[:2])))
    assert domains == ["[-0.27, 0.27]"] * 2, "in an image"


ROWS = [{"x": x, "y": y, "low": y - 1, "high": y + 1, "s": s} for s in ("one", "two") for x, y in ((1, 2.0), (2, 5.0))]


def plots(**options):
    shared = {"rows": ROWS, "x": "x", "y": "y", "series": "s"} | options
    rules = {"rules": [(4.9, "first rule, of several words"), (5.0, "second")], "low": "low", "high": "high"}
    yield LineChart("", **shared, **rules, dashed=["two"])
    yield BarChart("", **shared, **rules)
    yield ScatterChart("", **shared, label="s")


@pytest.mark.parametrize("chart", list(plots())[:2], ids=["line", "bar"])
def test_labels_of_rules_stand_beside_the_data_and_apart(chart):
    """V8: their lines come after the data, so in front of them, and their labels lie at the right of the picture."""
    layers = chart.spec()["layer"]
    marks = [layer["mark"]["type"] for layer in layers]
    rules = [number for number, layer in enumerate(layers) if layer["mark"].get("strokeDash") == [5, 4]]
    texts = [layer for layer in layers if layer["mark"]["type"] == "text"]
    assert len(rules) == len(texts) == 2
    assert all(number > max(at for at, kind in enumerate(marks) if kind in ("line", "bar", "area")) for number in rules)
    assert all(layer["encoding"]["x"] == {"value": "width"} and layer["mark"]["align"] == "left" for layer in texts)
    assert [layer["encoding"]["text"]["value"] for layer in texts] == [
        "second", ["first rule, of", "several words"],
    ]  # fmt: skip
    assert texts[1]["mark"]["dy"] > texts[0]["mark"]["dy"], "the lower one moves down"


@given(st.lists(st.tuples(st.floats(0, 300), st.floats(13, 40)), max_size=6))
def test_labels_moved_apart_keep_their_order_and_do_not_touch(labels):
    labels.sort()
    middles = [middle + shift for (middle, _), shift in zip(labels, apart(labels), strict=True)]
    for (one, (_, size)), (other, (_, next_size)) in itertools.pairwise(zip(middles, labels, strict=True)):
        assert other - one >= (size + next_size) / 2 - 1e-6


@pytest.mark.parametrize("chart", list(plots()), ids=["line", "bar", "scatter"])
def test_the_legend_of_a_page_is_text_that_wraps_and_not_part_of_the_drawing(chart):
    """V9: Vega's legend is as wide as its longest line and would be clipped on a phone."""
    fragment = chart.html()
    keys = re.findall(r'<span class="swatch [a-z ]+" style="--light:(#\w+);--dark:(#\w+)"></span> (\w+)', fragment)
    assert [name for *_, name in keys] == ["one", "two"]
    assert [light for light, *_ in keys] == list(colours.SERIES[:2]) and keys[0][0] != keys[0][1]
    block = re.search(r"json\">(.*?)</script>", fragment)
    assert block
    encodings = [layer["encoding"] for layer in json.loads(block[1])["layer"]]
    channels = [one[name] for one in encodings for name in ("color", "strokeDash") if "scale" in one.get(name, {})]
    assert channels and all(channel["legend"] is None for channel in channels)
    assert '"legend":{' in json.dumps(chart.spec(), separators=(",", ":")), "an image keeps it"


def luminance(colour: str) -> float:
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return float(
        np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
    )


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_every_colour_of_a_plot_has_one_for_dark_pages_that_can_be_read():
    used = set(re.findall(r"#[0-9a-f]{6}", json.dumps([chart.spec() for chart in plots()])))
    assert used <= set(colours.DARK)
    paper = colours.DARK["#ffffff"]
    assert paper in markup.asset("page.css")
    for light, dark in colours.DARK.items():
        if light in colours.SERIES or light in ("#222222", "#333333", "#444444"):
            assert contrast(dark, paper) >= 4.5, light
    for count in (9, 20, 30):
        for ordered in (True, False):
            assert all(contrast(colour, paper) >= 2 for colour in colours.of_series(count, ordered=ordered))


def test_scales_of_dark_pages_begin_at_the_page_and_get_lighter():
    shades = [luminance(stop) for stop in colours.SEQUENTIAL_DARK]
    assert shades == sorted(shades) and contrast(colours.SEQUENTIAL_DARK[0], colours.DARK["#ffffff"]) < 1.3
    middle = len(colours.DIVERGING_DARK) // 2
    sides = [[luminance(stop) for stop in part] for part in
             (colours.DIVERGING_DARK[middle:], colours.DIVERGING_DARK[middle::-1])]  # fmt: skip
    assert all(side == sorted(side) for side in sides)


def test_the_style_sheet_has_colours_only_as_variables_that_dark_pages_change():
    sheet = re.sub(r"/\*.*?\*/", "", markup.asset("page.css"), flags=re.DOTALL)
    light, dark = (re.findall(r"--([\w-]+): ?[#r]", block) for block in re.findall(r":root \{(.*?)\}", sheet)[:2])
    assert set(light) - set(dark) <= {"on-strong"}
    rules = re.sub(r":root \{.*?\}", "", sheet)
    assert not [line for line in rules.splitlines() if re.search("#[0-9a-f]{3}", line) and "#tip" not in line]


def test_coloured_text_has_its_value_for_the_script_that_paints_dark_pages():
    marks = [TextMark("a", 0.0), TextMark("b", 1.0), TextMark("c"), TextMark("d", float("nan"))]
    chart = WordGrid("", [marks], row_labels=["r"], column_labels=list("abcd"), low=0, high=1)
    assert re.findall(r'data-byte="(\d+)"', chart.html()) == ["0", "255"]
    assert chart.html().count('class="missing"') == 1
