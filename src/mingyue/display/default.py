"""The display of a run that is trained from Python: in the notebook, or on standard error."""

from __future__ import annotations

from rich.console import Console

from mingyue.display.live import Live
from mingyue.display.notebook import NotebookLive, notebook_display
from mingyue.display.run_display import RunDisplay


def default_display() -> RunDisplay:
    """A display for wherever this is: a notebook, a terminal (with a bar), or anything else (plain lines)."""
    display = notebook_display()
    if display is not None:
        return RunDisplay(NotebookLive(display))
    return RunDisplay(Live(Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)))
