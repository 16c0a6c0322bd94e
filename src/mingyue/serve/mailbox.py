"""Events from the threads that generate to the event loop.

A thread that generates must not wait for a socket. It leaves an event and goes on; the loop is woken once for all
events that came meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from mingyue.serve.errors import ApiError
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.generation import Event

Letter = tuple[int, "Event | Exception"]
"""Index of the text in its request, and what happened to it."""


class Mailbox:
    """The way of all events to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._letters: deque[tuple[Channel, int, Event | Exception]] = deque()
        self._woken = False

    def put(self, channel: Channel, index: int, event: Event | Exception) -> None:
        """Leave an event; from any thread."""
        self._letters.append((channel, index, event))
        if not self._woken:
            self._woken = True
            try:
                self.loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop has ended, and with it every reader
                self._letters.clear()

    def _deliver(self) -> None:
        self._woken = False  # before the look: what comes after it wakes the loop again
        while self._letters:
            channel, index, event = self._letters.popleft()
            channel.deliver(index, event)


class Channel:
    """The events of one request, up to `limit` that its reader has not taken yet."""

    def __init__(self, mailbox: Mailbox, limit: int) -> None:
        self._mailbox, self._limit = mailbox, limit
        self._letters: list[Letter] = []
        self._ready = asyncio.Event()
        self._closed = False

    def receiver(self, index: int) -> Callable[[Event | Exception], None]:
        """The function that a thread calls with each event of text `index`."""
        return lambda event: self._mailbox.put(self, index, event)

    def deliver(self, index: int, event: Event | Exception) -> None:
        """Add an event; in the event loop."""
        if self._closed:
            return
        if len(self._letters) >= self._limit:
            self.fail(StalledError(tr("the reader is more than {limit:,} tokens behind", self._limit)))
            return
        self._letters.append((index, event))
        self._ready.set()

    def fail(self, error: Exception) -> None:
        """Replace what waits by an error, after which nothing comes."""
        self._closed = True
        self._letters = [(0, error)]
        self._ready.set()

    async def take(self) -> list[Letter]:
        """Every event that has come, at least one."""
        await self._ready.wait()
        self._ready.clear()
        letters, self._letters = self._letters, list[Letter]()
        return letters


class StalledError(ApiError):
    """A reader that takes nothing, or too little."""
