"""The command line that this process was started with, and its exit codes."""

from __future__ import annotations

from contextvars import ContextVar

from mingyue import interrupts

OK, FAULT, USAGE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, interrupts.INTERRUPTED, 141

ARGUMENTS: ContextVar[tuple[str, ...]] = ContextVar("ARGUMENTS")
"""The command line as it was given; further processes of the same run are started with it."""
