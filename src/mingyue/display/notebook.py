"""The display of long work in a Jupyter notebook: one block of HTML that is replaced as the work proceeds.

It needs only IPython, which every notebook has: no widgets, and no scripts, so that it is also shown where a notebook
is only read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any

from rich.console import Console

from mingyue.display.live import Live
from mingyue.printable import printable

_MOST_LINES = 400
_WIDTH = 160  # columns for the numbers beside the bar
_BAR = "display:flex;gap:1em;align-items:center;font-variant-numeric:tabular-nums"
_BOX = "max-height:20em;overflow:auto;display:flex;flex-direction:column-reverse"  # scrolled to its end, without script
_LINES = "margin:.3em 0 0;font-size:12px;line-height:1.4;white-space:pre-wrap"


class NotebookLive(Live):
    """A `Live` whose bar and lines are one output of the cell."""

    def __init__(self, display: Callable[..., Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Console(width=_WIDTH), clock=clock)
        self._terminal = True  # the bar is always visible
        self._display = display
        self._handle: Any = None
        self._top = ""
        self._lines: list[str] = []

    def say(self, text: str, style: str = "") -> None:
        """Add a line below the bar."""
        line = escape(printable(text))
        self._lines.append(f'<span style="opacity:.6">{line}</span>' if style == "dim" else line)
        self._try(self._update)

    def clear(self) -> None:
        """Remove the bar; the lines stay."""
        if self._top:
            self._top = ""
            self._try(self._update)

    def _draw(self, what: str, done: float, total: float | None, numbers: str) -> None:
        value = "" if total is None else f' value="{done:.4f}" max="{max(total, 1e-09):.4f}"'
        parts = [f"<b>{escape(what)}</b>", f'<progress style="width:16em"{value}></progress>', escape(numbers)]
        self._top = f'<div style="{_BAR}">' + "".join(f"<span>{part}</span>" for part in parts) + "</div>"
        self._update()

    def _update(self) -> None:
        dropped = len(self._lines) - _MOST_LINES
        lines = [f"… ({dropped:,})", *self._lines[dropped:]] if dropped > 0 else self._lines
        text = "\n".join(lines)
        log = f'<div style="{_BOX}"><pre style="{_LINES}">{text}</pre></div>' if lines else ""
        data = {"text/html": f"<div>{self._top}{log}</div>", "text/plain": "\n".join(lines[-1:])}
        if self._handle is None:
            self._handle = self._display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def notebook_display() -> Callable[..., Any] | None:
    """The function of IPython that displays something; None outside of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    from importlib import import_module

    display: Callable[..., Any] = import_module("IPython.display").display
    return display
