"""POST /v1/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mingyue.serve import shapes
from mingyue.serve.admission import Batch, completion_batch
from mingyue.serve.backend import Backend, unless_gone
from mingyue.serve.choices import Choice, Part, Texts
from mingyue.serve.fields import CompletionBody
from mingyue.serve.json_response import Json, to_json
from mingyue.serve.sse import EventStream, Frames, begun, with_errors
from mingyue.serve.tokens import ShownToken, legacy_logprobs


def completion_routes(backend: Backend) -> APIRouter:
    """The route."""
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/completions", responses=shapes.streamed(shapes.Completion))
    async def completions(request: Request, body: CompletionBody) -> Response:
        """Continue one or more prompts."""
        batch = await completion_batch(backend, body)
        texts = Texts(backend, batch, streamed=bool(body.stream))
        head = _head(batch)
        if not body.stream:
            await collected(request, texts)
            choices = [_choice(batch, choice) for choice in texts.choices]
            return Json({**head, "choices": choices, "usage": texts.usage()})
        chunks = _chunks(texts, Frames(head, "text", usage=body.usage_in_stream))
        return await streamed(backend, request, texts, chunks)

    return routes


async def collected(request: Request, texts: Texts) -> None:
    """Generate every text, unless the client goes away meanwhile. Raises `ApiError`, `ClientGoneError`."""
    try:
        await unless_gone(request, texts.collect())
    finally:
        texts.cancel()


async def streamed(backend: Backend, request: Request, texts: Texts, chunks: AsyncIterator[bytes]) -> Response:
    """The response that sends the chunks, from the moment at which there is a first one. Raises as `collected`."""
    try:
        sound = await unless_gone(request, begun(chunks))
    except BaseException:
        texts.cancel()
        raise
    return EventStream(backend, request, with_errors(request, sound), texts.cancel)


async def _chunks(texts: Texts, frames: Frames) -> AsyncIterator[bytes]:
    batch = texts.batch
    async for parts in texts.parts():
        sent = [
            frames.frame(
                part.index,
                part.text,
                logprobs=to_json(_logprobs(batch, part.tokens)) if part.tokens else b"null",
                finish=part.finish,
                more=_ids_of(batch, part) if batch.token_ids else b"",
            )
            for part in parts
            if part.text or part.tokens or part.finish or batch.token_ids
        ]
        if sent:
            yield b"".join(sent)
    yield frames.last(texts.usage())


def _head(batch: Batch) -> dict[str, Any]:
    model = batch.model
    return {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model.name,
        "system_fingerprint": model.fingerprint,
    }


def _choice(batch: Batch, choice: Choice) -> dict[str, Any]:
    tokens = [token for part in choice.parts for token in part.tokens]
    found: dict[str, Any] = {
        "index": choice.index,
        "text": "".join(part.text for part in choice.parts),
        "logprobs": None if batch.top is None else _logprobs(batch, tokens),
        "finish_reason": choice.finish,
    }
    if batch.token_ids:
        found["token_ids"] = [one for part in choice.parts for one in part.ids]
        found["prompt_token_ids"] = list(choice.prompt.ids)
    return found


def _logprobs(batch: Batch, tokens: list[ShownToken]) -> dict[str, Any]:
    return legacy_logprobs(batch.model.model.tokenizer, tokens, batch.top or 0)


def _ids_of(batch: Batch, part: Part) -> bytes:
    prompt = to_json(list(batch.prompt_of(part.index).ids)) if part.first else b"null"
    return b',"token_ids":' + to_json(part.ids) + b',"prompt_token_ids":' + prompt
