"""The way in and the way out: arguments to a verb, and whatever happens to an exit code.

Exit codes: 0 done; 1 a fault of the program or of the machine; 2 something that the user can put right;
130 stopped with Ctrl-C; 141 the reader of the output went away (the codes that a shell gives to those signals).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from mingyue.errors import LostRankError, MingyueError
from mingyue.runtime import processes

if TYPE_CHECKING:
    from cyclopts import CycloptsError

OK, FAULT, USAGE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141

# A lone `-` means standard input, but the parser takes whatever begins with a dash for an option.
# No argument can hold a NUL, so this stand-in can never be someone's file name.
_STANDARD_INPUT = "\0-"

ARGUMENTS: ContextVar[tuple[str, ...]] = ContextVar("ARGUMENTS")
"""The command line as it was given: what further processes of the same run are started with."""
_SECONDS_TO_BE_STOPPED = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (those of the process if none are given); returns the exit code."""
    ARGUMENTS.set(tuple(sys.argv[1:] if arguments is None else arguments))
    tokens, debug = _take_debug(ARGUMENTS.get())
    _never_fail_to_encode()
    try:
        command = _parse(tokens)
        result = USAGE if command is None else command()
        code = result if isinstance(result, int) else OK
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        code = _end(error, debug=debug)
    except SystemExit as error:  # rich leaves like this when a pipe is closed while it prints
        if isinstance(error.__context__, BrokenPipeError):
            return _leave_quietly()
        raise
    from mingyue.cli.launch import hand_over

    return hand_over(code)


def _end(error: BaseException, *, debug: bool) -> int:
    """Tell the user about `error`; returns the exit code that it stands for."""
    if _is_closed_pipe(error):
        return _leave_quietly()
    message, advice, code = _describe(error)
    if not isinstance(error, MingyueError | KeyboardInterrupt) and (rank := _place()[0]):
        message = f"rank {rank}: {message}"
    if debug:
        traceback.print_exception(error)
    elif _is_told_here(error):
        _print_error(message, advice)
    if isinstance(error, LostRankError):
        time.sleep(_SECONDS_TO_BE_STOPPED)  # so that the launcher sees who died first, and not who missed it
    return code


def _is_told_here(error: BaseException) -> bool:
    """Whether this process tells the user: of an error that all processes of a run have, one of each machine does."""
    from mingyue.cli.launch import is_launched

    if isinstance(error, LostRankError):
        return not is_launched()  # the launcher says who is gone
    common = isinstance(error, MingyueError | KeyboardInterrupt)
    return not common or _place()[1] == 0


def _place() -> tuple[int, int]:
    """Number of this process among those of its run, and among those on its machine."""
    try:
        place = processes()
    except MingyueError:  # the environment that is at fault is what is about to be told
        return 0, 0
    return place.rank, place.local_rank


def _describe(error: BaseException) -> tuple[str, str | None, int]:
    if isinstance(error, LostRankError):
        return error.message, error.advice, FAULT
    if isinstance(error, MingyueError):
        return error.message, error.advice, USAGE
    if isinstance(error, KeyboardInterrupt):
        return "stopped", None, INTERRUPTED
    name, text = type(error).__name__, str(error)
    advice = "This was not foreseen. The same command with --debug shows where it happened."
    return f"{name}: {text}" if text else name, advice, FAULT


def _is_closed_pipe(error: BaseException) -> bool:
    """Whether the reader of our output went away (Windows calls it an invalid argument, of no file)."""
    if isinstance(error, OSError) and os.name == "nt":
        return error.errno == errno.EINVAL and error.filename is None
    return isinstance(error, BrokenPipeError)


def _parse(tokens: list[str]) -> Callable[[], Any] | None:
    """The verb with its arguments, ready to be called; None after reporting what is wrong with them."""
    from cyclopts import CycloptsError

    from mingyue.cli.app import app

    try:
        verb, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _print_error(*_explain(error))
        return None
    positional = (_restore(value) for value in bound.args)
    return partial(verb, *positional, **{name: _restore(value) for name, value in bound.kwargs.items()})


def _take_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """The arguments without `--debug`, which may stand anywhere before `--`, and with `-` protected."""
    arguments = list(arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, rest = arguments[:end], arguments[end:]
    kept = [_STANDARD_INPUT if token == "-" else token for token in options if token != "--debug"]
    return kept + rest, "--debug" in options


def _restore(value: object) -> object:
    if isinstance(value, list):
        return [_restore(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_restore(item) for item in value)
    return "-" if value == _STANDARD_INPUT else value


def _never_fail_to_encode() -> None:
    """A terminal that lacks a character shows a replacement for it; it never ends the program."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _explain(error: CycloptsError) -> tuple[str, str]:
    """What was wrong with the arguments, and where to look."""
    from cyclopts import exceptions
    from pydantic import ValidationError

    command = " ".join(["mingyue", *(error.command_chain or ())])
    message = str(error).replace(_STANDARD_INPUT, "-")
    if isinstance(error, exceptions.UnusedCliTokensError):
        left = ", ".join(repr(token).replace("\\x00", "") for token in error.unused_tokens or ())
        message = f"{command} has no place for {left}."
    elif isinstance(error, exceptions.MissingArgumentError) and error.argument is not None:
        name = error.keyword or error.argument.name
        what = f"{name} needs a value" if name.startswith("--") else f"{name} is missing"
        message = f"{command}: {what}."
    elif isinstance(error, exceptions.ValidationError) and isinstance(error.__cause__, ValidationError):
        refused = error.__cause__.errors()[0]
        name = "" if error.argument is None else error.argument.name
        message = f"{name} {refused['input']}: {refused['msg']}."
    return message, f"`{command} --help` lists what there is."


def _print_error(message: str, advice: str | None) -> None:
    from rich.text import Text

    from mingyue.cli.screen import stderr

    text = Text.assemble(("error: ", "bold red"), (message, "red"))
    if advice is not None:
        text.append(f"\n{advice}", style="default")
    with contextlib.suppress(OSError):  # nobody may be left to tell; the exit code says it
        stderr().print(text)


def _leave_quietly() -> int:
    """`mingyue … | head`: end like any other tool, and do not fail a second time when Python flushes at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return PIPE_CLOSED
