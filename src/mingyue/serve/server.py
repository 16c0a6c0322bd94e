"""Sockets, signals and the end: requests in progress when the server stops are completed."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from mingyue.claims.report import load_results
from mingyue.config import ServeSettings
from mingyue.errors import SettingsError
from mingyue.files import reason_of
from mingyue.paths import path_of
from mingyue.serve.app import create_app
from mingyue.serve.backend import Backend
from mingyue.serve.catalog import Catalog
from mingyue.words import tr

_LOOK_SECONDS = 0.05
_LAST_SECONDS = 0.5
"""For what is still to be sent when the time to drain is over."""
_BACKLOG = 2048
_SPARE_CONNECTIONS = 64
_FIRST_SECONDS = 30.0
"""For the head of the first request of a connection."""


class Server:
    """Serves the models of a catalog until it is stopped."""

    def __init__(self, catalog: Catalog, settings: ServeSettings) -> None:
        """Listens from now on, and answers once it runs.

        Raises `SettingsError` for an address that cannot be used, `DataError` for a folder without results of claims.
        """
        if settings.claims is not None:
            load_results(path_of(settings.claims))
        self.backend = Backend(catalog, settings)
        self._socket = _listening(settings)
        self._connections: dict[object, asyncio.Transport] = {}
        self.backend.abort = self._abort
        config = uvicorn.Config(
            create_app(self.backend),
            http=self._protocol(),
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.keep_alive_seconds,
            backlog=_BACKLOG,
        )
        self._uvicorn = _Uvicorn(config, self._drain)

    @property
    def url(self) -> str:
        """Its address for this machine."""
        host, port = self._socket.getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self, stopping: Callable[[int], None] = lambda _n: None) -> None:
        """Serve until SIGTERM or Ctrl-C, complete what is in progress, and close the models.

        `stopping` receives the number of requests in progress when the signal comes.
        """
        self._uvicorn.told = stopping
        try:
            self._uvicorn.run([self._socket])
        finally:
            self.backend.close(0.0)
            self._socket.close()

    @contextmanager
    def running(self) -> Generator[str]:
        """Serve in a thread for the length of a block, whose value is the address; for tests and notebooks."""
        thread = threading.Thread(target=self.run, name="mingyue-serve")
        thread.start()
        try:
            while not self._uvicorn.started and thread.is_alive():
                threading.Event().wait(_LOOK_SECONDS / 5)
            yield self.url
        finally:
            self._uvicorn.should_exit = True
            thread.join()

    async def _drain(self) -> None:
        """Refuse new requests, wait for those in progress, and end."""
        backend, loop = self.backend, asyncio.get_running_loop()
        backend.draining = True
        if backend.in_progress:
            self._uvicorn.told(backend.in_progress)
        until = loop.time() + backend.settings.drain_seconds
        while backend.in_progress and loop.time() < until and not self._uvicorn.hurried:
            await asyncio.sleep(_LOOK_SECONDS)
        if backend.in_progress:  # their time is over
            for end in (backend.end_texts, backend.end_requests):
                end()
                until = loop.time() + _LAST_SECONDS
                while backend.in_progress and loop.time() < until:
                    await asyncio.sleep(_LOOK_SECONDS / 5)
            self._uvicorn.force_exit = True
        self._uvicorn.should_exit = True

    def _abort(self, client: object) -> None:
        if (transport := self._connections.get(client)) is not None:
            transport.abort()

    def _protocol(self) -> type[H11Protocol]:
        connections, most = self._connections, 2 * self.backend.settings.max_requests + _SPARE_CONNECTIONS

        class Protocol(H11Protocol):
            """Keeps the transport of each connection, so that one that is not read, or asks nothing, can be closed."""

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                connections[self.client] = transport
                if len(connections) > most:
                    transport.abort()
                else:
                    self.loop.call_later(_FIRST_SECONDS, self._close_if_idle, transport)

            def _close_if_idle(self, transport: asyncio.Transport) -> None:
                if self.cycle is None:  # no request came
                    transport.abort()

            def connection_lost(self, exc: Exception | None) -> None:
                connections.pop(self.client, None)
                super().connection_lost(exc)

        return Protocol


class _Uvicorn(uvicorn.Server):
    """The server of uvicorn, whose first signal starts to drain; a second one ends that, a third one everything."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], object]) -> None:
        super().__init__(config)
        self._drain = drain
        self._signals = 0
        self.hurried = False
        """Whether what is in progress is not to be waited for."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: object = None
        self.told: Callable[[int], None] = lambda _n: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Remember the event loop, for signals."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM and SIGINT."""
        self._signals += 1
        if self._loop is None or self._signals > 2:
            self.should_exit = self.force_exit = True
        elif self._signals > 1:
            self.hurried = True
        else:
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._drain())  # type: ignore[arg-type]


def _listening(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((settings.host, settings.port))
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        raise SettingsError(
            tr("cannot listen on {host}, port {port}: {reason}", settings.host, settings.port, reason_of(error)),
            advice=tr("Give another --port; --port 0 takes any free one.")
            if port
            else tr("Give --host an address of this machine; 0.0.0.0 stands for all of them."),
        ) from None
    return found
