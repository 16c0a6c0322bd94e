"""One live line on a terminal, plain lines elsewhere; work goes on where the output is closed."""

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

from mingyue.display.fitting import SEPARATOR, cells, fitting, fitting_line
from mingyue.display.wrapping import Wrapped
from mingyue.errors import MingyueError
from mingyue.printable import printable
from mingyue.words import localized, stored, tr

_LIVE_EVERY = 0.5
"""Seconds between two redraws: costs no noticeable share of two cores."""
_BAR_WIDTH, _NARROW = 20, 72
_WAITING = tr("waiting for")
STAGES = tuple(map(str, (tr("reading"), tr("fetching"), tr("vocabulary"), tr("merging"), tr("encoding"))))
"""Stages of the preparation of a text, as it reports them."""
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
        self._bar_width = _BAR_WIDTH if console.width >= _NARROW else _BAR_WIDTH // 3
        self.lost: Exception | None = None
        """Why the output could no longer be written."""
        self._bar: Bar | None = None
        self._drawn = float("-inf")
        self._said = clock()
        self._stage = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    @property
    def has_bar(self) -> bool:
        """Whether the progress is always visible; otherwise only in lines, from time to time."""
        return self._terminal

    def show_stage(self, stage: str, done: int, total: int) -> None:
        """Show a stage of some work: its percentage, or its count where the total is unknown (0)."""
        stage = stored(stage)
        if stage.startswith(_WAITING):  # it may take any time, and nothing else will be shown meanwhile
            self.say(tr("{stage} …", stage))
            return
        if stage != self._stage:
            self._stage, self._drawn = stage, float("-inf")  # drawn at once: it may be the only report of this stage
        numbers = [f"{done / total:.0%}"] if total else [f"{done:,}"] if done else []
        self.show(stage, done, total or None, numbers)

    def show(self, what: str, done: float, total: float | None, numbers: Sequence[str] = ()) -> None:
        """Update the bar (`total` None = unknown); `numbers` follow it, as many as fit into the line.

        Not on a terminal: print a plain line if nothing was printed for a while.
        """
        now = self._clock()
        if not self._terminal:
            if now - self._said >= _PLAIN_EVERY:
                self.say(SEPARATOR.join(map(localized, [what, *numbers])))
            return
        finished = total is not None and done >= total
        if now - self._drawn < _LIVE_EVERY and not finished:
            return
        self._drawn = now
        shown = localized(what)
        room = self.console.width - cells(shown) - self._bar_width - 4
        self._try(lambda: self._draw(shown, done, total, fitting(list(map(localized, numbers)), room)))

    def say(self, text: str, style: str = "") -> None:
        """Print a line above the bar; on a terminal it is broken between words."""
        self._said = self._clock()
        line = Text(localized(printable(text)), style=style)
        self._try(lambda: self.console.print(Wrapped(line) if self._terminal else line))

    def say_parts(self, parts: Sequence[tuple[int, str]]) -> None:
        """Print a line of parts, each with its rank: on a terminal without those of high rank that do not fit."""
        shown = [(rank, localized(text)) for rank, text in parts]
        width = self.console.width
        self.say(fitting_line(shown, width) if self._terminal else SEPARATOR.join(text for _, text in shown))

    def clear(self) -> None:
        """Remove the bar."""
        bar, self._bar = self._bar, None
        if bar is not None:
            self._try(bar.stop)

    def _draw(self, what: str, done: float, total: float | None, numbers: str) -> None:
        if self._bar is None:
            # No refresh thread: it would compete with training for the cores.
            columns = (
                TextColumn("{task.description}"),
                BarColumn(self._bar_width),
                TextColumn("{task.fields[numbers]}"),
            )
            self._bar = Bar(*columns, console=self.console, auto_refresh=False, transient=True)
            self._bar.add_task(what, total=total, numbers=numbers)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=what, completed=done, total=total, numbers=numbers)
        self._bar.refresh()

    def _try(self, action: Callable[[], object]) -> None:
        if self.lost is not None:
            return
        try:
            action()
        except (OSError, MingyueError, SystemExit) as error:  # rich raises SystemExit where a pipe is closed
            self.lost = error if isinstance(error, Exception) else BrokenPipeError()
            with contextlib.suppress(OSError, MingyueError, SystemExit):
                self.clear()


def duration(seconds: float) -> str:
    """A readable time: `42 s`, `3 min 05 s`, `2 h 07 min`."""
    if not math.isfinite(seconds):
        return "? s"
    whole = max(0, round(seconds))
    if whole < 100:
        return tr("{seconds} s", whole)
    if whole < 3600:
        return tr("{minutes} min {seconds:02d} s", whole // 60, whole % 60)
    return tr("{hours} h {minutes:02d} min", whole // 3600, whole % 3600 // 60)
