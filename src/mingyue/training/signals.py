"""Ctrl-C, SIGTERM and SIGHUP request a stop: the run finishes its step and saves. A second one ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

from mingyue.interrupts import HANGUP, is_ignored

_NAMES = ("SIGINT", "SIGTERM", "SIGBREAK", "SIGHUP")


class StopRequests:
    """Inside it, the first signal sets `requested`, and the second raises `KeyboardInterrupt`.

    A hangup never raises: a closed terminal often sends several, from the system and from the shell.
    Outside the main thread signals cannot be caught, and only `request` sets `requested`.
    """

    def __init__(self) -> None:
        self.requested = False
        self._requested_elsewhere = False
        self._before: dict[int, Any] = {}

    def request(self) -> None:
        """Request a stop after the current step."""
        self.requested = True

    def request_from_other_rank(self) -> None:
        """Request a stop that another rank received as a signal. The same signal on this rank is not a second one."""
        if not self.requested:
            self.requested = self._requested_elsewhere = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for name in _NAMES:
                number = getattr(signal, name, None)  # not every system has each
                if number is not None and not is_ignored(number):
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == HANGUP:
            self.requested = True
            return
        if self.requested and not self._requested_elsewhere:
            raise KeyboardInterrupt
        self.requested, self._requested_elsewhere = True, False
