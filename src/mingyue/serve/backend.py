"""What the routes of one server share: models, limits, counters, and the worker of everything but generation."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request

from mingyue.config import ServeSettings
from mingyue.serve.catalog import Catalog
from mingyue.serve.errors import ApiError, busy, stopping
from mingyue.serve.mailbox import Channel, Mailbox
from mingyue.serve.metrics import Metrics
from mingyue.words import tr

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Receives the amount done and the total."""


class ClientGoneError(Exception):
    """The client closed the connection: nobody reads the answer."""


class _CancelledCallError(Exception):
    """Ends a call whose client is gone."""


class Backend:
    """One server without its sockets."""

    def __init__(self, catalog: Catalog, settings: ServeSettings) -> None:
        self.catalog, self.settings = catalog, settings
        self.metrics = Metrics()
        self.draining = False
        """Whether the server is about to stop: requests in progress complete, new ones are refused."""
        self.in_progress = 0
        """Requests admitted and not yet answered in full."""
        self.abort: Callable[[object], None] = lambda _client: None
        """Closes the connection of a client at once, without waiting for it to read."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """The tasks of the requests in progress."""
        self._channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._calls = 0
        self._worker = ThreadPoolExecutor(1, "mingyue-calls")
        self._computing = threading.Lock()
        self._mailbox: Mailbox | None = None

    @property
    def mailbox(self) -> Mailbox:
        """What brings events of the threads that generate to this event loop."""
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = Mailbox(loop)
        return self._mailbox

    def channel(self, limit: int) -> Channel:
        """A way for the events of one request, up to `limit` that nobody has taken."""
        found = Channel(self.mailbox, limit)
        self._channels.add(found)
        return found

    def end_texts(self) -> None:
        """End every text that is still generated; its reader learns that the server stops."""
        for channel in list(self._channels):
            channel.fail(stopping())

    def end_requests(self) -> None:
        """End every request in progress, whatever it waits for; its client learns that the server stops."""
        for task in list(self.tasks):
            task.cancel()

    async def call(self, request: Request, function: Callable[[Progress], T]) -> T:
        """The result of a computation in the worker thread; calls run one after another.

        `function` receives a `Progress`, which ends it when the client is gone. Raises `ApiError` (429) when too many
        calls wait.
        """
        if self._calls >= self.settings.max_calls:
            raise busy(tr("{n} calls wait already", self._calls))
        gone = threading.Event()

        def progress(_done: int, _total: int) -> None:
            if gone.is_set():
                raise _CancelledCallError

        def run() -> T:
            with self._computing:
                progress(0, 0)
                return function(progress)

        self._calls += 1
        waiting = asyncio.get_running_loop().run_in_executor(self._worker, run)
        waiting.add_done_callback(self._ended)
        try:
            return await unless_gone(request, waiting)
        finally:
            gone.set()

    def _ended(self, waiting: asyncio.Future[T]) -> None:
        self._calls -= 1
        if not waiting.cancelled():
            waiting.exception()  # it may have ended after its client went

    def close(self, drain_seconds: float) -> None:
        """End the worker and the threads that generate."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        self.catalog.close(drain_seconds)

    def is_idle_within(self, seconds: float) -> bool:
        """Whether the worker computes nothing any more, or ends what it computes within that time."""
        if found := self._computing.acquire(timeout=seconds):
            self._computing.release()
        return found


async def gone(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, awaitable: Awaitable[T]) -> T:
    """The result, unless the client closes the connection first. Raises `ClientGoneError`."""
    work = asyncio.ensure_future(awaitable)
    watch = asyncio.ensure_future(gone(request))
    try:
        await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientGoneError
        return work.result()
    finally:
        watch.cancel()
        work.cancel()


def not_supported(param: str, message: str) -> ApiError:
    """The error for a value that is valid, and that this server cannot do."""
    return ApiError(message, param=param, code="unsupported_value")
