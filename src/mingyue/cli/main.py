"""Entry point: parses the arguments, runs a verb, and turns errors into messages and exit codes.

Exit codes: 0 success; 1 an error of the program or the machine; 2 an error that the user can correct; 130 stopped with
Ctrl-C; 141 the reader of the output closed it (the codes that a shell gives to those signals).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mingyue import interrupts
from mingyue.cli.invocation import ARGUMENTS, FAULT, INTERRUPTED, OK, PIPE_CLOSED, USAGE
from mingyue.cli.streams import discard_output, output_errors, prepare_streams
from mingyue.cli.usage import HIDDEN, explain
from mingyue.errors import LostRankError, MingyueError, SettingsError, naming_options
from mingyue.files import describe_os_error
from mingyue.printable import printable
from mingyue.runtime import OWNS_PROCESS, processes
from mingyue.words import CHOSEN_LANGUAGE, LANGUAGES, localized, tr

_OPTION = re.compile(r"--|-[A-Za-z]\w*(=.*)?|--[A-Za-z][\w-]*(=.*)?|-\.?\d[\w.+-]*", re.DOTALL)

_SECONDS_TO_BE_STOPPED = 10.0


@naming_options()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: those of the process); returns the exit code."""
    ARGUMENTS.set(tuple(sys.argv[1:] if arguments is None else arguments))
    OWNS_PROCESS.set(arguments is None)
    tokens, debug, language = _take_common(ARGUMENTS.get())
    prepare_streams()
    try:
        _choose_language(language)
        command = _parse(tokens)
        result = USAGE if command is None else command()
        code = result if isinstance(result, int) else OK
        if interrupts.came() and code == OK:
            raise KeyboardInterrupt  # the one that came was lost on the way
        with output_errors():
            sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        try:
            code = _end(error, debug=debug)
        except (MemoryError, SystemError):  # there is no memory for more than this
            os.write(2, b"error: there is not enough memory\n")
            os._exit(USAGE)
    except SystemExit as error:  # raised by rich when a pipe is closed while it prints
        if isinstance(error.__context__, BrokenPipeError):
            return _leave_quietly()
        raise
    from mingyue.cli.launch import hand_over

    return hand_over(code)


def _end(error: BaseException, *, debug: bool) -> int:
    """Report `error`; returns its exit code."""
    if interrupts.came():
        error = KeyboardInterrupt()  # whatever a library made of it
    if _is_closed_pipe(error):
        return _leave_quietly()
    message, advice, code = _describe(error)
    if not isinstance(error, MingyueError | KeyboardInterrupt) and (rank := _ranks()[0]):
        message = tr("rank {rank}: {message}", rank, message)
    if debug:
        traceback.print_exception(error)
    elif _reported_here(error):
        _print_error(message, advice)
    if isinstance(error, LostRankError):
        time.sleep(_SECONDS_TO_BE_STOPPED)  # the launcher must see the process that failed first
    return code


def _reported_here(error: BaseException) -> bool:
    """Whether this process reports `error`; of an error that all processes have, one per machine does."""
    from mingyue.cli.launch import is_launched

    if isinstance(error, LostRankError):
        return not is_launched()  # the launcher reports it
    common = isinstance(error, MingyueError | KeyboardInterrupt)
    return not common or _ranks()[1] == 0


def _ranks() -> tuple[int, int]:
    """Rank of this process in the run, and on its machine."""
    try:
        found = processes()
    except MingyueError:  # the environment is invalid, which is the error to report
        return 0, 0
    return found.rank, found.local_rank


def _describe(error: BaseException) -> tuple[str, str | None, int]:
    if isinstance(error, LostRankError):
        return error.message, error.advice, FAULT
    if isinstance(error, MingyueError):
        return error.message, error.advice, USAGE
    if isinstance(error, KeyboardInterrupt):
        return tr("stopped"), None, INTERRUPTED
    if (found := _surroundings(error)) is not None:
        return *found, USAGE
    name, text = type(error).__name__, str(error)
    advice = tr("Unexpected error. Run the same command with --debug to see where it happened.")
    return f"{name}: {text}" if text else name, advice, FAULT


def _surroundings(error: BaseException) -> tuple[str, str] | None:
    """Message and advice for an error of the machine, or of the command line, that nothing closer has explained."""
    if isinstance(error, OSError):
        return describe_os_error(error)
    if _is_out_of_memory(error):
        text = tr("there is not enough memory ({error})", error) if str(error) else tr("there is not enough memory")
        return text, tr("Free some memory, or raise its limit (ulimit -v).")
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        return tr("an argument on the command line is not UTF-8"), tr("Put the text into a UTF-8 file.")
    return None


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether memory could not be had: by Python, or by the loader of a library, which says so in its text only."""
    refused = ("failed to map segment", "allocate memory", "out of memory", "can't start new thread")
    return isinstance(error, MemoryError) or any(text in str(error).lower() for text in refused)


def _is_closed_pipe(error: BaseException) -> bool:
    """Whether the reader of the output closed it (on Windows: EINVAL without a file name)."""
    if isinstance(error, OSError) and os.name == "nt":
        return error.errno == errno.EINVAL and error.filename is None
    return isinstance(error, BrokenPipeError)


def _parse(tokens: list[str]) -> Callable[[], Any] | None:
    """The verb with its arguments, ready to be called; None after reporting what is wrong with them."""
    from cyclopts import CycloptsError

    from mingyue.cli.app import EVERYWHERE, app
    from mingyue.cli.screen import help_console

    app.help_epilogue = localized(EVERYWHERE)

    try:
        verb, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False, console=help_console())
    except CycloptsError as error:
        _print_error(*explain(error))
        return None
    positional = (_restore(value) for value in bound.args)
    return partial(verb, *positional, **{name: _restore(value) for name, value in bound.kwargs.items()})


def _take_common(arguments: Sequence[str]) -> tuple[list[str], bool, str | None]:
    """The arguments without `--debug` and `--language` (allowed anywhere before `--`), and these.

    Arguments that cannot be options are hidden from the parser.
    """
    arguments = list(arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, rest = arguments[:end], arguments[end:]
    kept: list[str] = []
    debug, language = False, None
    given = iter(options)
    for token in given:
        if token == "--debug":
            debug = True
        elif token == "--language" or token.startswith("--language="):
            language = token.partition("=")[2] if "=" in token else next(given, "")
        else:
            kept.append(HIDDEN + token if token.startswith("-") and not _OPTION.fullmatch(token) else token)
    return kept + rest, debug, language


def _choose_language(asked: str | None) -> None:
    """Set the language of the interface; None: that of the system. Raises `SettingsError` for another one."""
    if asked is not None and asked not in LANGUAGES:
        raise SettingsError(
            tr("--language {asked}: there is no such language", asked), advice=tr("Give en (English) or zh (Chinese).")
        )
    CHOSEN_LANGUAGE.set(asked)


def _restore(value: object) -> object:
    if isinstance(value, list):
        return [_restore(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_restore(item) for item in value)
    return value.removeprefix(HIDDEN) if isinstance(value, str) else value


def _print_error(message: str, advice: str | None) -> None:
    from rich.text import Text

    from mingyue.cli.screen import stderr
    from mingyue.display.wrapping import Wrapped

    text = Text.assemble((localized(tr("error: ")), "bold red"), (localized(printable(message)), "red"))
    if advice is not None:
        text.append(f"\n{localized(printable(advice))}", style="default")
    with contextlib.suppress(OSError):  # stderr may be closed; the exit code remains
        console = stderr()
        console.print(Wrapped(text) if console.is_terminal else text, soft_wrap=True)


def _leave_quietly() -> int:
    """End quietly after a closed pipe (`mingyue … | head`), without a second error when Python flushes at exit."""
    discard_output()
    return PIPE_CLOSED
