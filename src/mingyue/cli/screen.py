"""Where words go, and in which language: consoles that never choke on an encoding or take text for markup."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_WIDE = 240
"""Columns of a table that no terminal limits: a file or a pipe must not lose the ends of lines."""


def language_of_system() -> Literal["en", "zh"]:
    """Chinese where the locale of the environment is: for what is said in both languages and none was asked for."""
    found = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    return "zh" if found.lower().startswith("zh") else "en"


def stdout() -> Console:
    """Results go here."""
    return _console(stderr=False)


def stderr() -> Console:
    """Errors and remarks go here."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDE
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False, soft_wrap=True)


def show(content: RenderableType) -> None:
    """A table or styled text, as a result."""
    stdout().print(content, soft_wrap=False)


def remark(text: str) -> None:
    """One sentence for the user that is not part of the result."""
    from rich.text import Text

    stderr().print(Text.assemble(("note: ", "bold yellow"), text))


def write(text: str) -> None:
    """Text of a model or a file, as it is and at once; a terminal is shown control characters, not sent them."""
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_json(value: object, *, indent: int | None = 2) -> None:
    """JSON in characters where the terminal or file can hold them, else in escapes."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    text = json.dumps(value, ensure_ascii=not encoding.startswith("utf"), indent=indent, allow_nan=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def visible(text: str) -> str:
    """`text` with control characters (a terminal would obey them) drawn as symbols; line ends and tabs stay."""
    return text.translate(_CONTROL_PICTURES)


_CONTROL_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


def table(*columns: str, right: Collection[str] = ()) -> Table:
    """An empty table without frame; the columns named in `right` hold numbers. No columns: two, without a header."""
    from rich.table import Table

    result = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(columns))
    for name in columns or ("", ""):
        result.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return result
