"""How coloured text is drawn: spans and tables on a page, boxes with text in a Vega-Lite spec."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from mingyue.charts import colours
from mingyue.charts.chart import TextMark
from mingyue.charts.lettering import MONO_STACK, shortened, width_of
from mingyue.charts.vega import CONFIG, heading, note_of

if TYPE_CHECKING:
    from mingyue.charts.texts import TextChart, WordGrid

_COLUMNS = 84  # of a line in a picture
_UNIT, _LINE = 9, 28  # points that a column and a line take
_MOST_LINES = 400
_CELL_COLUMNS = 14


def mark_dict(mark: TextMark) -> dict[str, Any]:
    """A mark as JSON."""
    return {"text": mark.text, "value": mark.value, "hover": list(mark.hover)}


def text_fragment(chart: TextChart) -> str:
    """Running text in spans; line ends are kept, and what was given to hover is shown by the page's script."""
    spans = "".join(_span(mark, chart.low, chart.high) for mark in chart.marks)
    return _figure(chart, f'<div class="marks">{spans}</div>')


def grid_fragment(chart: WordGrid) -> str:
    """A table that scrolls sideways if it must; its first column and row stay in sight."""
    head = "".join(f"<th>{escape(visible(label))}</th>" for label in chart.column_labels)
    rows = "".join(
        f"<tr><th>{escape(visible(label))}</th>{''.join(_cell(mark, chart.low, chart.high) for mark in row)}</tr>"
        for label, row in zip(chart.row_labels, chart.cells, strict=True)
    )
    return _figure(chart, f'<div class="scroll"><table class="words"><tr><th></th>{head}</tr>{rows}</table></div>')


def text_spec(chart: TextChart) -> dict[str, Any]:
    """Vega-Lite: a box and a text for each piece, in lines. What goes beyond so many lines is left out, and said."""
    boxes, column, line = list[dict[str, Any]](), 0, 0
    for mark in chart.marks:
        shown = visible(mark.text)
        width = max(1, width_of(shown))
        if column and column + width > _COLUMNS:
            column, line = 0, line + 1
        if line >= _MOST_LINES:
            break
        boxes.append(_box(mark, shown, column * _UNIT, line * _LINE, (column + width) * _UNIT, chart.low, chart.high))
        column += width
        if mark.text.endswith("\n"):
            column, line = 0, line + 1
    lines = (line if column == 0 else line + 1) or 1
    if len(boxes) < len(chart.marks):
        boxes.append(
            _box(TextMark(""), f"… + {len(chart.marks) - len(boxes)}", 0, line * _LINE, 12 * _UNIT, 0, 1) | {"fill": ""}
        )
    return _boxes(chart, boxes, _COLUMNS * _UNIT, min(lines, _MOST_LINES + 1) * _LINE)


def grid_spec(chart: WordGrid) -> dict[str, Any]:
    """Vega-Lite: the table as boxes, with labels on top and at the left; a wide one in bands below one another."""
    left = min(_CELL_COLUMNS * 2, max((width_of(visible(label)) for label in chart.row_labels), default=0) + 2) * _UNIT
    widths = [
        min(_CELL_COLUMNS, max([3, *(width_of(visible(text)) + 1 for text in (label, *words))])) * _UNIT
        for label, words in zip(
            chart.column_labels,
            ([row[place].text for row in chart.cells] for place in range(len(chart.column_labels))),
            strict=True,
        )
    ]
    boxes, top, widest = list[dict[str, Any]](), 0, left
    for band in _bands(widths, _COLUMNS * _UNIT - left):
        starts = {place: left + sum(widths[band.start : place]) for place in band}
        rights = {place: starts[place] + widths[place] for place in band}
        for place in band:
            label = chart.column_labels[place]
            shown = shortened(visible(label), widths[place] // _UNIT)
            boxes.append(_box(TextMark(label), shown, starts[place], top, rights[place], 0, 1, plain=True))
        for label, row in zip(chart.row_labels, chart.cells, strict=True):
            top += _LINE
            shown = shortened(visible(label), left // _UNIT)
            boxes.append(_box(TextMark(label), shown, 0, top, left, 0, 1, plain=True))
            for place in band:
                shown = shortened(visible(row[place].text), max(1, widths[place] // _UNIT - 1))
                boxes.append(_box(row[place], shown, starts[place], top, rights[place], chart.low, chart.high))
        top += 2 * _LINE
        widest = max(widest, *rights.values())
    return _boxes(chart, boxes, widest, max(top - _LINE, _LINE))


def _bands(widths: Sequence[int], room: int) -> list[range]:
    """Columns side by side as far as there is room; a wide table goes on below, like lines of text."""
    bands, first, used = list[range](), 0, 0
    for place, width in enumerate(widths):
        if place > first and used + width > room:
            bands.append(range(first, place))
            first, used = place, 0
        used += width
    return [*bands, range(first, len(widths))] if widths else bands


def visible(text: str) -> str:
    """Text with signs in place of what has no shape of its own."""
    text = text.replace("\r", "␍").replace("\n", "⏎").replace("\t", "⇥")
    return text.replace(" ", "␣") if text.strip(" ") == "" else text


def _span(mark: TextMark, low: float, high: float) -> str:
    end = "<br>" if mark.text.endswith("\n") else ""
    shown = visible(mark.text) if end else mark.text
    return f"<span{_attributes(mark, low, high)}>{escape(shown)}</span>{end}"


def _cell(mark: TextMark, low: float, high: float) -> str:
    return f"<td{_attributes(mark, low, high)}>{escape(visible(mark.text))}</td>"


def _attributes(mark: TextMark, low: float, high: float) -> str:
    style = ""
    if mark.value is not None:
        background, text = colours.colour(mark.value, low, high)
        style = f' style="background:{background};color:{text}"'
    hover = escape("\n".join(mark.hover), quote=True)
    return style + (f' data-hover="{hover}"' if mark.hover else "")


def _figure(chart: TextChart | WordGrid, inside: str) -> str:
    stops = ",".join(colours.SEQUENTIAL)
    legend = (
        f'<p class="legend"><span>{escape(chart.legend)}</span> <span>{chart.low:.3g}</span>'
        f'<span class="ramp" style="background:linear-gradient(to right,{stops})"></span>'
        f"<span>{chart.high:.3g}</span></p>"
    )
    more = f'<p class="note">{escape(chart.page_note)}</p>' if chart.page_note else ""
    return (
        f'<figure class="chart"><figcaption>{escape(chart.title)}</figcaption>{legend}{inside}{note_of(chart)}{more}'
        "</figure>"
    )


def _box(  # noqa: PLR0917
    mark: TextMark, shown: str, x: int, y: int, right: int, low: float, high: float, *, plain: bool = False
) -> dict[str, Any]:
    fill, text = ("", "#444444") if plain or mark.value is None else colours.colour(mark.value, low, high)
    return {"x": x, "x2": right, "y": y, "y2": y + _LINE - 3, "text": shown, "fill": fill, "ink": text,
            "mx": (x + right) / 2, "my": y + (_LINE - 3) / 2}  # fmt: skip


def _boxes(chart: TextChart | WordGrid, boxes: Sequence[dict[str, Any]], width: int, height: int) -> dict[str, Any]:
    """Boxes at points of the picture; the legend is a colour scale of its own beside them."""

    def at(field: str) -> dict[str, Any]:
        return {"field": field, "type": "quantitative", "scale": None, "axis": None}

    raw = {"type": "nominal", "scale": None}
    box = {"mark": {"type": "rect"}, "transform": [{"filter": "datum.fill != ''"}],
           "encoding": {"x": at("x"), "x2": {"field": "x2"}, "y": at("y"), "y2": {"field": "y2"},
                        "color": {"field": "fill", **raw}}}  # fmt: skip
    text = {"mark": {"type": "text", "fontSize": 14, "font": MONO_STACK},
            "encoding": {"x": at("mx"), "y": at("my"), "text": {"field": "text", "type": "nominal"},
                         "color": {"field": "ink", **raw}}}  # fmt: skip
    scale = {
        "data": {"values": [{"v": chart.low}, {"v": chart.high}]},
        "mark": {"type": "point", "opacity": 0},
        "encoding": {"fill": {"field": "v", "type": "quantitative",
                              "scale": {"domain": [chart.low, chart.high], "range": list(colours.SEQUENTIAL),
                                        "nice": False, "interpolate": "rgb"},
                              "legend": {"title": chart.legend or None, "orient": "top", "gradientLength": 160,
                                         "gradientThickness": 10, "direction": "horizontal", "format": ".3~g",
                                         "tickCount": 4, "gradientOpacity": 1}}},
    }  # fmt: skip
    return {
        "width": width,
        "height": height,
        "layer": [
            {"data": {"values": list(boxes)}, "layer": [box, text]},
            scale,
        ],
        "resolve": {"scale": {"color": "independent"}},
        "title": heading(chart),
        "config": CONFIG,
    }
