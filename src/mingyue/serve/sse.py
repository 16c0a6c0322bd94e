"""Server-sent events: frames from a prepared template, and a response that watches its reader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mingyue.serve.backend import Backend, gone
from mingyue.serve.errors import as_api_error, error_event, language_of
from mingyue.serve.json_response import to_json

DONE = b"data: [DONE]\n\n"
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Neither a browser nor nginx is to hold a stream back."""


class Frames:
    """Frames of one stream: all that is the same in each is made once."""

    def __init__(self, head: dict[str, Any], text_key: str, *, usage: bool) -> None:
        """`head`: the fields of every frame; `text_key`: how the text is named, "text" or "delta"."""
        self._head = b"data: " + to_json(head)[:-1]
        self._usage = usage
        self._tail = b',"usage":null}\n\n' if usage else b"}\n\n"
        self._before, self._after = (b',"text":', b"") if text_key == "text" else (b',"delta":{"content":', b"}")

    def frame(
        self, index: int, text: str, *, logprobs: bytes = b"null", finish: str | None = None, more: bytes = b""
    ) -> bytes:
        """A frame with a piece of text; `more`: further fields of the choice, each after a comma."""
        ended = b"null" if finish is None else b'"%s"' % finish.encode()
        return self.choice(index, self._before + _quoted(text) + self._after, logprobs, ended + more)

    def choice(self, index: int, content: bytes, logprobs: bytes, finish: bytes) -> bytes:
        """A frame of one choice."""
        parts = (
            self._head,
            b',"choices":[{"index":%d' % index,
            content,
            b',"logprobs":',
            logprobs,
            b',"finish_reason":',
            finish,
            b"}]",
            self._tail,
        )
        return b"".join(parts)

    def last(self, usage: dict[str, int]) -> bytes:
        """What follows the last text: the numbers of tokens, where they are asked for, and the end."""
        if not self._usage:
            return DONE
        return self._head + b',"choices":[],"usage":' + to_json(usage) + b"}\n\n" + DONE


def _quoted(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "backslashreplace")


class EventStream(Response):
    """Sends what `chunks` gives. A reader that goes away, or takes nothing for too long, ends it at once."""

    media_type = "text/event-stream"

    def __init__(
        self, backend: Backend, request: Request, chunks: AsyncIterator[bytes], end: Callable[[], None]
    ) -> None:
        """`end` is called when nothing more will be sent, whatever the reason."""
        super().__init__(headers=_STREAM_HEADERS)
        del self.headers["content-length"]
        self._backend, self._request, self._chunks, self._end = backend, request, chunks, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of the response."""
        watch = asyncio.ensure_future(gone(self._request))
        sending = asyncio.ensure_future(self._send(scope, send))
        try:
            await asyncio.wait((watch, sending), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                self._backend.metrics.abandoned.labels("gone").inc()
        finally:
            watch.cancel()
            sending.cancel()
            await asyncio.wait((sending,))
            self._end()
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self._chunks:
                async with asyncio.timeout(self._backend.settings.stall_seconds):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TimeoutError:
            self._backend.metrics.abandoned.labels("stalled").inc()
            self._backend.abort(scope.get("client"))
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def with_errors(request: Request, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks; an error among them, after the status was sent, becomes an event, which clients raise."""
    try:
        async for chunk in chunks:
            yield chunk
    except Exception as error:  # whatever it is, the reader is told
        yield error_event(as_api_error(error), language_of(request))


async def begun(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same chunks, after the first one is there: what fails before it is still answered by a status."""
    first = await anext(chunks)

    async def all_of_them() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    return all_of_them()
