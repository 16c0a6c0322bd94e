"""Output of the command line: consoles that never fail on an encoding and never interpret text as markup."""

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
"""Width where there is no terminal: a file or a pipe must not lose the ends of lines."""


def language_of_system() -> Literal["en", "zh"]:
    """Language of the locale: zh for Chinese, else en. The default of views that exist in both languages."""
    found = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    return "zh" if found.lower().startswith("zh") else "en"


def stdout() -> Console:
    """The console for results."""
    return _console(stderr=False)


def stderr() -> Console:
    """The console for errors and notes."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDE
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False, soft_wrap=True)


def show(content: RenderableType) -> None:
    """Print a table or styled text as a result."""
    stdout().print(content, soft_wrap=False)


def print_note(text: str) -> None:
    """Print a note that is not part of the result, to stderr."""
    from rich.text import Text

    stderr().print(Text.assemble(("note: ", "bold yellow"), text))


def write(text: str) -> None:
    """Write the text of a model or a file and flush; on a terminal control characters are drawn as symbols."""
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_json(value: object, *, indent: int | None = 2) -> None:
    """Write JSON, with characters that the output encoding lacks as escapes."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    text = json.dumps(value, ensure_ascii=not encoding.startswith("utf"), indent=indent, allow_nan=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def visible(text: str) -> str:
    """`text` with control characters drawn as symbols; line ends and tabs are kept."""
    return text.translate(_CONTROL_PICTURES)


_CONTROL_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


def table(*columns: str, right: Collection[str] = ()) -> Table:
    """An empty table without frame; columns in `right` are right-aligned. Without `columns`: two, and no header."""
    from rich.table import Table

    result = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(columns))
    for name in columns or ("", ""):
        result.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return result
