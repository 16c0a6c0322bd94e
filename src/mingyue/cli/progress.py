"""The display of a training run on the command line."""

from __future__ import annotations

import time
from collections.abc import Callable

from mingyue.cli.live import Live
from mingyue.cli.screen import stdout
from mingyue.display.run_display import RunDisplay
from mingyue.errors import MingyueError


class RunScreen(RunDisplay):
    """The display of a run on standard output."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Live(stdout(), clock=clock))

    def __exit__(self, *error: object) -> None:
        """Remove the bar. Raises the error of an output that could not be written: a run goes on without it."""
        super().__exit__(*error)
        if not any(error) and isinstance(self.lost, MingyueError):
            raise self.lost
