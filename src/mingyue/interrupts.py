"""Ctrl-C while the command line starts or ends: one quiet line and exit code 130 at any moment.

An exception raised by Ctrl-C is lost or turned into another one while a library is imported or an object is deleted,
and in compiled code it may abort the process. There the process ends at once instead: nothing is open yet, or all is
done. Elsewhere Ctrl-C raises `KeyboardInterrupt`, as Python does. Only the command line calls `watch`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

INTERRUPTED = 130
"""The exit code that a shell gives to Ctrl-C."""
HANGUP: int | None = getattr(signal, "SIGHUP", None)
"""The signal that a closed terminal sends; Windows has none."""
_MESSAGE, _SHOW_CURSOR = b"error: stopped\n", b"\x1b[?25h"


class _State:  # no dataclass: until its module is imported, Ctrl-C would still be Python's
    """Of this process: whether Ctrl-C came, whether the work is done, and who takes the exit code."""

    def __init__(self) -> None:
        self.came = self.done = False
        self.hand_over: Callable[[int], int] = int


_state = _State()


def watch(hand_over: Callable[[int], int]) -> None:
    """Handle Ctrl-C from here on, unless the program was started with Ctrl-C ignored.

    `hand_over` takes the exit code and returns the one to exit with.
    """
    _state.hand_over = hand_over
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _receive)
        sys.unraisablehook = _unraisable


def is_ignored(number: int) -> bool:
    """Whether this is a hangup, and hangups are ignored, as `nohup` asks."""
    return number == HANGUP and signal.getsignal(number) is signal.SIG_IGN


def came() -> bool:
    """Whether Ctrl-C came, though its exception may have been lost or turned into another one."""
    return _state.came


def dealt_with() -> None:
    """The Ctrl-C that came ended what it should, such as one text of several: the next one is the first again."""
    _state.came = False


def finish() -> None:
    """The work is done: from here on Ctrl-C ends the process at once, whatever Python still cleans up."""
    _state.done = True


def _receive(number: int, frame: FrameType | None) -> None:
    again, _state.came = _state.came, True
    if again or _state.done or _imports(frame):
        _leave()
    raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _unraisable(error: sys.UnraisableHookArgs) -> None:
    """End the process where Python would drop the exception of Ctrl-C: in a destructor or a callback."""
    if error.exc_type is KeyboardInterrupt:
        _leave()
    sys.__unraisablehook__(error)


def _leave() -> None:
    """End the process now, with what the command line writes and returns after Ctrl-C."""
    code = INTERRUPTED
    with contextlib.suppress(Exception):  # whatever is half imported
        code = _state.hand_over(code)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with contextlib.suppress(OSError):  # the terminal may be closed
            os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + _MESSAGE)
    os._exit(code)
