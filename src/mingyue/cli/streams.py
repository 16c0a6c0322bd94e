"""The standard streams: encodings, streams that are closed, outputs that cannot be written, widths."""

from __future__ import annotations

import codecs
import errno
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

from mingyue.errors import MingyueError
from mingyue.files import reason_of
from mingyue.printable import printable
from mingyue.words import tr

_NARROWEST, _WIDEST = 40, 1_000
"""Columns of an output. In less, tables and panels do not fit and rich does not end; more is a wrong COLUMNS."""


_ESCAPED = "mingyue.escaped"
codecs.register_error(
    _ESCAPED, lambda error: (printable(str(getattr(error, "object", ""))[error.start : error.end]), error.end)
)


def prepare_streams() -> None:
    """Open streams that are closed, and set the encodings.

    Standard output is UTF-8 where it is a file or a pipe; a terminal shows a replacement for what it lacks. A closed
    stream takes its number again, so that no other file does, and reports an error when it is used.
    """
    sys.stdin = sys.stdin or _closed(0, os.O_WRONLY, "r")
    sys.stdout = sys.stdout or _closed(1, os.O_RDONLY, "w")
    sys.stderr = sys.stderr or _closed(2, os.O_WRONLY, "w")  # an error that nobody can read: the exit code remains
    for stream, other in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is None:
            continue
        if stream is sys.stdout and not stream.isatty():
            reconfigure(encoding="utf-8", errors=_ESCAPED)
        else:
            reconfigure(errors=other)


def _closed(number: int, flags: int, mode: str):  # noqa: ANN202
    """A stream on which every read or write fails: the null device, opened for the other direction."""
    handle = os.open(os.devnull, flags)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)
    return os.fdopen(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)


@contextmanager
def output_errors() -> Generator[None]:
    """Turn the error of a result that cannot be printed into a `MingyueError`; a closed pipe stays what it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        closed = error.errno == errno.EBADF
        raise MingyueError(
            tr("standard output cannot be written: {reason}", reason_of(error)),
            advice=tr("Direct it to a file.") if closed else tr("Direct it to another file."),
        ) from error


def discard_output() -> None:
    """Direct what is still to be written to the null device: Python flushes it at exit, which would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def usable_width(columns: int) -> int:
    """The width to use in a terminal of so many columns, as it or COLUMNS says."""
    return min(max(columns, _NARROWEST), _WIDEST)
