"""Ctrl-C and SIGTERM ask a run to finish its step and save; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

_NAMES = ("SIGINT", "SIGTERM", "SIGBREAK")


class StopRequests:
    """While it is entered, the first signal sets `requested`; the second raises `KeyboardInterrupt`.

    Outside the main thread signals cannot be caught: there `requested` is only set by `request`.
    """

    def __init__(self) -> None:
        self.requested = False
        self._heard = False
        self._before: dict[int, Any] = {}

    def request(self) -> None:
        """Ask the run to stop after its step."""
        self.requested = True

    def hear(self) -> None:
        """The same, asked for on another rank: the signal that is on its way to this one is not a second one."""
        if not self.requested:
            self.requested = self._heard = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for name in _NAMES:
                number = getattr(signal, name, None)  # not every system has each
                if number is not None:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested and not self._heard:
            raise KeyboardInterrupt
        self.requested, self._heard = True, False
