"""The live line of the command line, with its consoles."""

from __future__ import annotations

from rich.console import Console

from mingyue.cli.screen import stderr
from mingyue.display.fitting import fitting
from mingyue.display.live import Live, duration

__all__ = ["Live", "Stages", "duration", "fitting"]


class Stages(Live):
    """Progress of named stages, for `progress=` of the data functions; on stderr, apart from results."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(stderr() if console is None else console)

    def __call__(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` units of `stage` are finished; `total` 0 = unknown."""
        self.show_stage(stage, done, total)
