"""Progress display: one live line on a terminal, plain lines elsewhere; a closed output is never an error."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from mingyue.cli.screen import stderr
from mingyue.errors import MingyueError
from mingyue.printable import printable
from mingyue.words import localized

_LIVE_EVERY = 0.5
"""Seconds between two redraws: costs no noticeable share of two cores."""
_BAR_WIDTH = 20
_PLAIN_EVERY = 30.0
"""Seconds without output after which a plain line shows the progress."""


class Live:
    """A progress bar below printed lines. Use it as a context manager, so that the bar is always removed.

    When the output is closed (a pipe, a terminal that hung up), work continues without it.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self._clock = clock
        self._terminal = console.is_terminal
        self._gone = False
        self._bar: Bar | None = None
        self._drawn = float("-inf")
        self._said = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, what: str, done: float, total: float | None, numbers: Sequence[str] = ()) -> None:
        """Update the bar (`total` None = unknown); `numbers` follow it, as many as fit into the line.

        Not on a terminal: print a plain line if nothing was printed for a while.
        """
        now = self._clock()
        if not self._terminal:
            if now - self._said >= _PLAIN_EVERY:
                self.say("  ".join([what, *numbers]))
            return
        finished = total is not None and done >= total
        if now - self._drawn < _LIVE_EVERY and not finished:
            return
        self._drawn = now
        room = self.console.width - len(what) - _BAR_WIDTH - 4
        self._try(lambda: self._draw(what, done, total, fitting(numbers, room)))

    def say(self, text: str, style: str = "") -> None:
        """Print a line above the bar."""
        self._said = self._clock()
        self._try(lambda: self.console.print(Text(localized(printable(text)), style=style)))

    def clear(self) -> None:
        """Remove the bar."""
        bar, self._bar = self._bar, None
        if bar is not None:
            self._try(bar.stop)

    def _draw(self, what: str, done: float, total: float | None, numbers: str) -> None:
        if self._bar is None:
            # No refresh thread: it would compete with training for the cores.
            columns = (TextColumn("{task.description}"), BarColumn(_BAR_WIDTH), TextColumn("{task.fields[numbers]}"))
            self._bar = Bar(*columns, console=self.console, auto_refresh=False, transient=True)
            self._bar.add_task(what, total=total, numbers=numbers)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=what, completed=done, total=total, numbers=numbers)
        self._bar.refresh()

    def _try(self, action: Callable[[], object]) -> None:
        if self._gone:
            return
        try:
            action()
        except (OSError, MingyueError, SystemExit):  # rich raises SystemExit where a pipe is closed
            self._gone = True
            with contextlib.suppress(OSError, MingyueError, SystemExit):
                self.clear()


class Stages(Live):
    """Progress of named stages, for `progress=` of the data functions; on stderr, apart from results."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(stderr() if console is None else console)

    def __call__(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` units of `stage` are finished; `total` 0 = unknown."""
        show_stage(self, stage, done, total)


def show_stage(live: Live, stage: str, done: int, total: int) -> None:
    """Show a stage of data work: its percentage, or its count where the total is unknown."""
    live.show(stage, done, total or None, [f"{done / total:.0%}" if total else f"{done:,}"])


def fitting(numbers: Sequence[str], room: int) -> str:
    """The first of `numbers` that fit into `room` columns, joined."""
    kept = list(numbers)
    while kept and len("  ".join(kept)) > room:
        kept.pop()
    return "  ".join(kept)


def duration(seconds: float) -> str:
    """A readable time: `42 s`, `3 min 05 s`, `2 h 07 min`."""
    if not math.isfinite(seconds):
        return "? s"
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
