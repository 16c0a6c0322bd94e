"""HTML from the templates of this package. Inserted values are escaped; `tojson` is safe inside a script."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from mingyue.charts.fonts import display_width
from mingyue.charts.vega import drawable
from mingyue.printable import printable, standing_alone

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render(template: str, **values: object) -> str:
    """The HTML of a template with these values."""
    return environment().get_template(template).render(**values)


def verbatim(text: str) -> Markup:
    """HTML, CSS or JavaScript that a template inserts as it is: what `render` made, or files of this package."""
    from markupsafe import Markup

    return Markup(text)


def inline_code(text: str) -> Markup:
    """Text as HTML; text in backticks is rendered as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def visible(text: str) -> str:
    """Text with signs for line ends and tabs, and for spaces where there is nothing else."""
    text = standing_alone(text.replace("\r", "␍").replace("\n", "⏎").replace("\t", "⇥"))
    return text.replace(" ", "␣") if text.strip(" ") == "" else text


def visible_ends(text: str) -> str:
    """As `visible`, with the spaces at the start and the end too, which an axis would not show."""
    text = visible(text)
    inner = text.strip(" ")
    before = len(text) - len(text.lstrip(" "))
    return "␣" * before + inner + "␣" * (len(text) - before - len(inner))


def groups_of(sections: Iterable[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Sections that follow one another with the same group."""
    return [(group, list(members)) for group, members in itertools.groupby(sections, key=lambda one: one["group"])]


def _without_controls(value: object) -> object:
    """What a template inserts, but HTML that was made before."""
    return printable(value) if type(value) is str else value


def asset(name: str) -> str:
    """A style sheet or script of this package."""
    return (resources.files("mingyue.charts") / "assets" / name).read_text(encoding="utf-8")


@functools.cache
def environment() -> Environment:
    """The templates. Imported here, since most uses of this package render no HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("mingyue.charts", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_without_controls,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {"inline_code": inline_code, "visible": visible, "drawable": drawable}
    made.filters |= filters | {"groups_of": groups_of, "display_width": display_width}
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return made
