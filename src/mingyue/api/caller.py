"""Messages name settings as their reader does: options on the command line, `name` or `name=False` in Python."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from mingyue.errors import MingyueError, names_options

P = ParamSpec("P")
T = TypeVar("T")

_COMMAND = re.compile(r"(`[^`]*`)")
_OPTION = re.compile(r"(?<![\w-])--(no-)?([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")


def for_caller(message: str) -> str:
    """`message`, with options written as settings unless the command line is what is running. Commands stay."""
    if names_options():
        return message
    parts = _COMMAND.split(message)  # every second one is in backticks
    return "".join(part if index % 2 else _OPTION.sub(_setting, part) for index, part in enumerate(parts))


def speaks_python(function: Callable[P, T]) -> Callable[P, T]:
    """Let the errors of a public function name settings as Python does."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except MingyueError as error:
            error.reword(for_caller)
            raise

    return call


def _setting(option: re.Match[str]) -> str:
    name = option[2].replace("-", "_")
    return f"{name}=False" if option[1] else name
