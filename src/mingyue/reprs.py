"""Short descriptions of objects, for the Python prompt and for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from mingyue.printable import printable

_LONGEST = 60
_TABLE = "border-collapse:collapse;margin:.4em 0"
_CELL = "text-align:left;padding:.1em 1em .1em 0;vertical-align:top"
_TEXT = "white-space:pre-wrap;border-left:3px solid #8888;padding-left:.8em;margin:.4em 0"


def shortened(text: str, longest: int = _LONGEST) -> str:
    """`text` as Python writes it, in one line, with … in place of what follows the first `longest` characters."""
    return repr(text) if len(text) <= longest else f"{text[:longest]!r}…"


def facts_html(title: str, facts: Mapping[str, object], *below: str) -> str:
    """A title, a table of names and values, and `below` as further HTML. Needs no script and no style sheet."""
    rows = "".join(
        f'<tr><th style="{_CELL};opacity:.7;font-weight:normal">{_html(name)}</th>'
        f'<td style="{_CELL}">{_html(value)}</td></tr>'
        for name, value in facts.items()
    )
    table = f'<table style="{_TABLE}">{rows}</table>' if rows else ""
    return f"<div><b>{_html(title)}</b>{table}{''.join(below)}</div>"


def text_html(text: str, label: str = "") -> str:
    """A text as a block that keeps its lines."""
    above = f'<div style="opacity:.7">{_html(label)}</div>' if label else ""
    return f'{above}<div style="{_TEXT}">{_html(text)}</div>'


def curve_html(lines: Mapping[str, Sequence[tuple[float, float]]], *, x: str, y: str) -> str:
    """A small picture of lines, as SVG: points (x, y) by the name of the line; a line of one point is left out."""
    drawn = {name: points for name, points in lines.items() if len(points) > 1}
    if not drawn:
        return ""
    width, height, left, bottom = 460, 200, 46, 34
    xs = [point[0] for points in drawn.values() for point in points]
    ys = [point[1] for points in drawn.values() for point in points]
    low_x, high_x, low_y, high_y = min(xs), max(xs), min(ys), max(ys)

    def place(point: tuple[float, float]) -> str:
        across = left + (point[0] - low_x) / ((high_x - low_x) or 1) * (width - left - 12)
        up = 12 + (high_y - point[1]) / ((high_y - low_y) or 1) * (height - bottom - 18)
        return f"{across:.1f},{up:.1f}"

    colours = ("#4c78a8", "#e4572e", "#3a8f5d", "#9467bd")
    parts = [
        f'<polyline points="{" ".join(map(place, points))}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        for points, colour in zip(drawn.values(), colours, strict=False)
    ]
    parts += [
        _label(left - 4, 18, f"{high_y:.3g}", "end"),
        _label(left - 4, height - bottom - 4, f"{low_y:.3g}", "end"),
        _label(left, height - bottom + 12, f"{low_x:,.4g}", "start"),
        _label(width - 12, height - bottom + 12, f"{high_x:,.6g}", "end"),
        _label((left + width) / 2, height - bottom + 12, x, "middle"),
        *(
            f'<text x="{left + 130 * number}" y="{height - 4}" font-size="11" fill="{colour}">■ {_html(name)}</text>'
            for number, (name, colour) in enumerate(zip(drawn, colours, strict=False))
        ),
        f'<text x="12" y="{height / 2}" font-size="11" fill="currentColor" text-anchor="middle" '
        f'transform="rotate(-90 12 {height / 2})">{_html(y)}</text>',
        f'<path d="M{left} 8V{height - bottom}H{width - 8}" fill="none" stroke="currentColor" stroke-opacity=".4"/>',
    ]
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'style="max-width:100%">{"".join(parts)}</svg>'
    )


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="11" fill="currentColor" fill-opacity=".8" text-anchor="{anchor}">'
        f"{_html(text)}</text>"
    )


def _html(value: object) -> str:
    return escape(printable(str(value)))
