"""Messages name settings as their reader does: options on the command line, `name` or `name=False` in Python."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

from mingyue.errors import MingyueError, names_options

_COMMAND = re.compile(r"(`[^`]*`|\bmingyue [a-z]+ [^\n]*)")
_OPTION = re.compile(r"(?<![\w-])--(no-)?([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")


def for_caller(message: str) -> str:
    """`message`, with options written as settings unless the command line is what is running. Commands stay."""
    if names_options():
        return message
    parts = _COMMAND.split(message)  # every second one is a command
    return "".join(part if index % 2 else _OPTION.sub(_setting, part) for index, part in enumerate(parts))


@contextmanager
def speaks_python() -> Generator[None]:
    """Let the errors of a block, or of a public function that this decorates, name settings as Python does."""
    try:
        yield
    except MingyueError as error:
        error.reword(for_caller)
        raise


def _setting(option: re.Match[str]) -> str:
    name = option[2].replace("-", "_")
    return f"{name}=False" if option[1] else name
