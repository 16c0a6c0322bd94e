"""Output of the command line: consoles that never fail on an encoding and never interpret text as markup."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TextIO

from mingyue.cli.streams import output_errors, usable_width
from mingyue.printable import printable
from mingyue.words import localized, tr

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

_WIDE = 240
"""Width where there is no terminal: a file or a pipe must not lose the ends of lines."""


def stdout() -> Console:
    """The console for results."""
    return _console(sys.stdout, width=None if sys.stdout.isatty() else _WIDE)


def stderr() -> Console:
    """The console for errors and notes."""
    return _console(sys.stderr, width=None if sys.stderr.isatty() else _WIDE)


def help_console() -> Console:
    """The console for pages of help."""
    return _console(sys.stdout, soft_wrap=False)


def _console(file: TextIO, *, width: int | None = None, soft_wrap: bool = True) -> Console:
    from rich.console import Console

    class Screen(Console):
        """Draws control characters in strings, such as the cells of a table, as symbols."""

        def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401
            return super().render_str(localized(printable(text)), **options)

        def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401
            with output_errors() if file is sys.stdout else contextlib.nullcontext():
                super().print(*objects, **options)

    console = Screen(file=file, width=width, markup=False, emoji=False, highlight=False, soft_wrap=soft_wrap)
    if console.width != (usable := usable_width(console.width)):
        console.width = usable
    return console


def show(content: RenderableType, droppable: Collection[str] = ()) -> None:
    """Print a table or styled text as a result; the last columns of `droppable` are left out where they do not fit."""
    from rich.table import Table

    from mingyue.display.fitting import fit_table

    console = stdout()
    if isinstance(content, Table):
        fit_table(content, console.width, droppable)
    console.print(content, soft_wrap=False)


def say(text: str) -> None:
    """Print sentences as a result; on a terminal lines are broken between words."""
    from rich.text import Text

    from mingyue.display.wrapping import Wrapped

    console, said = stdout(), localized(text)
    console.print(Wrapped(Text(printable(said))) if console.is_terminal else Text(said), soft_wrap=True)


def print_note(text: str) -> None:
    """Print a note that is not part of the result, to stderr; work continues where that cannot be written.

    On a terminal its lines are broken between words.
    """
    from rich.text import Text

    from mingyue.display.wrapping import Wrapped

    with contextlib.suppress(OSError):
        console = stderr()
        note = Text.assemble((localized(tr("note: ")), "bold yellow"), localized(printable(text)))
        console.print(Wrapped(note) if console.is_terminal else note, soft_wrap=True)


def write(text: str) -> None:
    """Write the text of a model or a file and flush; on a terminal control characters are drawn as symbols."""
    text = localized(text)
    with output_errors():
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def write_json(value: object, *, indent: int | None = 2) -> None:
    """Write JSON, with characters that the output encoding lacks as escapes."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=True, indent=indent, allow_nan=False)
    with output_errors():
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def table(*columns: str, right: Collection[str] = ()) -> Table:
    """An empty table without frame; columns in `right` are right-aligned. Without `columns`: two, and no header."""
    from rich.table import Table as RichTable

    class Table(RichTable):
        """Breaks cells with wide characters as `Wrapped` does: rich would break words in them."""

        def add_row(self, *cells: Any, **options: Any) -> None:  # noqa: ANN401
            super().add_row(*map(_wrapped, cells), **options)

    result = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(columns))
    for name in columns or ("", ""):
        result.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=name in right)
    return result


def _wrapped(cell: Any) -> Any:  # noqa: ANN401
    from rich.text import Text

    from mingyue.display.fitting import cells
    from mingyue.display.wrapping import Wrapped

    if not isinstance(cell, str):
        return cell
    text = localized(printable(cell))
    return text if cells(text) == len(text) else Wrapped(Text(text))
