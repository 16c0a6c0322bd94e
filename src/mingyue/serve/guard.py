"""What stands before every route: who may ask, in which form, how much, and how many at once.

Any web page can send requests to 127.0.0.1, and a page whose name is pointed there after it was loaded may even read
the answers. So the names under which the server is reached are checked (Host), and the pages that ask (Origin).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import time
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from mingyue.serve.backend import Backend
from mingyue.serve.errors import ApiError, busy, error_event, error_response, language_of, stopping
from mingyue.serve.translating import FORM
from mingyue.words import tr

OPEN = frozenset({"/health"})
"""Paths that need no key; they are answered while the server drains as well."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_JSON = "application/json"
_BODY_SECONDS = 30.0
_LAST_SECONDS = 0.5
"""For the last message to a client when the server stops."""


class Guard:
    """The outermost ASGI application."""

    def __init__(self, app: Starlette, backend: Backend) -> None:
        self._app, self._backend = app, backend
        settings = backend.settings
        self._hosts = {*_LOOPBACK, settings.host.lower(), *(one.lower() for one in settings.allowed_host)}
        self._public = settings.host.lower() not in _LOOPBACK
        self._origins = frozenset(one.rstrip("/").lower() for one in settings.cors_origin)
        self._key = None if settings.api_key is None else settings.api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, read its body, hand both on."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, answer = Request(scope), _Answer(send, self._shared_with(Headers(scope=scope)))
        began = time.perf_counter()
        try:
            self._check_place(request)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in request.headers:
                await answer.send({"type": "http.response.start", "status": 204, "headers": []})
                await answer.send({"type": "http.response.body", "body": b""})
                return
            if scope["path"] in OPEN:
                await self._app(scope, receive, answer.send)
                return
            self._check_right(request)
            self._check_form(request)
            await self._admitted(request, receive, answer)
        except ApiError as error:
            await error_response(error, language_of(request))(scope, receive, answer.send)
        except asyncio.CancelledError:  # the time of this request is over, since the server stops
            await _give_up(request, receive, answer)
        except Exception:  # reported where it was answered; an answer that has begun just ends
            if not answer.begun:
                raise
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            self._backend.metrics.requests.labels(route, str(answer.status)).inc()
            self._backend.metrics.seconds.observe(time.perf_counter() - began)

    async def _admitted(self, request: Request, receive: Receive, answer: _Answer) -> None:
        backend = self._backend
        if backend.draining:
            raise stopping()
        if backend.in_progress >= backend.settings.max_requests:
            raise busy(tr("{n} requests are in progress already", backend.in_progress))
        task = asyncio.current_task()
        assert task is not None
        backend.tasks.add(task)
        backend.in_progress += 1
        backend.metrics.in_progress.inc()
        try:
            body = await _body(request, receive, backend.settings.max_body_bytes)
            await self._app(request.scope, _Replay(body, receive).receive, answer.send)
        finally:
            backend.tasks.discard(task)
            backend.in_progress -= 1
            backend.metrics.in_progress.dec()

    def _check_place(self, request: Request) -> None:
        """Raise `ApiError` (403) for a name of this server that was not given, and for pages that may not ask."""
        host = request.headers.get("host", "")
        name = _host_name(host)
        if not (name in self._hosts or name.endswith(".localhost") or (self._public and _is_address(name))):
            raise ApiError(
                tr("the server is not known as {host!r}; --allowed-host adds a name", host),
                status=403,
                code="host_not_allowed",
            )
        origin = request.headers.get("origin")
        if origin is not None:
            if origin.lower() in self._origins or urlsplit(origin.lower()).netloc == host.lower():
                return
            raise ApiError(
                tr("pages of {origin} may not use this server; --cors-origin allows them", origin),
                status=403,
                code="origin_not_allowed",
            )
        site, mode = request.headers.get("sec-fetch-site"), request.headers.get("sec-fetch-mode")
        if site in ("cross-site", "same-site") and not (mode == "navigate" and request.method == "GET"):
            raise ApiError(tr("pages of other sites may not use this server"), status=403, code="origin_not_allowed")

    def _check_right(self, request: Request) -> None:
        """Raise `ApiError` (401) without the key. The body of /translate may hold it: that route looks there."""
        if self._key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        sound = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._key)
        request.scope["mingyue.authorized"] = sound
        if not sound and request.url.path != "/translate":
            raise ApiError(tr("the API key is missing or wrong"), status=401, headers={"WWW-Authenticate": "Bearer"})

    def _check_form(self, request: Request) -> None:
        """Raise `ApiError` for a body that is not JSON (415), or said to be too large (413)."""
        length = request.headers.get("content-length", "0")
        has_body = length.strip() != "0" or "transfer-encoding" in request.headers
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        sound = kind == _JSON or (kind == FORM and request.url.path == "/translate")
        if has_body and not sound and any(one.matches(request.scope)[0] is Match.FULL for one in self._app.routes):
            raise ApiError(tr("the body must be application/json, not {kind!r}", kind), status=415)
        limit = self._backend.settings.max_body_bytes
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)

    def _shared_with(self, headers: Headers) -> str | None:
        """The origin of another site that may read the answer; None for most requests."""
        origin = headers.get("origin", "")
        return origin if origin.lower() in self._origins else None


class _Answer:
    """The way of an answer, whose status it remembers and to which it adds the headers that every answer has."""

    def __init__(self, send: Send, origin: str | None) -> None:
        self._send, self._origin = send, origin
        self.status = 0
        self.has_ended = self.is_stream = False

    @property
    def begun(self) -> bool:
        """Whether the status was sent."""
        return self.status != 0

    async def send(self, message: Message) -> None:
        """Send one message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=list(message["headers"]))
            headers["X-Content-Type-Options"] = "nosniff"
            self.is_stream = headers.get("content-type", "").startswith("text/event-stream")
            if self._origin is not None:
                headers["Access-Control-Allow-Origin"] = self._origin
                headers["Access-Control-Allow-Methods"] = "GET, POST"
                headers["Access-Control-Allow-Headers"] = "Authorization, Content-Type"
                headers.append("Vary", "Origin")
            message = {**message, "headers": headers.raw}
        elif not message.get("more_body", False):
            self.has_ended = True
        await self._send(message)


class _Replay:
    """A body that was read already, and what comes after it: that the client has gone."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def receive(self) -> Message:
        """The next message."""
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


async def _body(request: Request, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises `ApiError` for one that is too large (413) or comes too slowly (408)."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ApiError(tr("the body ended too early"))
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limit:
                    raise _too_large(limit)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise ApiError(
            tr("the body of {path} did not arrive in {seconds:.0f} s", request.url.path, _BODY_SECONDS),
            status=408,
            headers={"Connection": "close"},
        ) from None


async def _give_up(request: Request, receive: Receive, answer: _Answer) -> None:
    """Say that the server stops, in the form of the answer, to a client that takes it soon."""
    error, language = stopping(), language_of(request)
    with contextlib.suppress(TimeoutError, OSError, ClientDisconnect):
        async with asyncio.timeout(_LAST_SECONDS):
            if not answer.begun:
                await error_response(error, language)(request.scope, receive, answer.send)
            elif answer.is_stream and not answer.has_ended:
                await answer.send({"type": "http.response.body", "body": error_event(error, language)})


def _too_large(limit: int) -> ApiError:
    message = tr("the body is larger than {limit:,} bytes, the limit of this server", limit)
    return ApiError(message, status=413, headers={"Connection": "close"})


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    """Whether it is an IP address: no page can have one as a name that it points elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
