"""POST /v1/chat/completions, for models that were trained on conversations and say how these are written."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mingyue.serve import shapes
from mingyue.serve.admission import Batch, chat_batch
from mingyue.serve.backend import Backend
from mingyue.serve.choices import Choice, Part, Texts
from mingyue.serve.completions import collected, streamed
from mingyue.serve.fields import ChatBody
from mingyue.serve.json_response import Json, to_json
from mingyue.serve.sse import Frames
from mingyue.serve.tokens import ShownToken, chat_logprobs

_BEGINNING = b',"delta":{"role":"assistant","content":null}'
_NOTHING = b',"delta":{}'


def chat_routes(backend: Backend) -> APIRouter:
    """The route."""
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/chat/completions", responses=shapes.streamed(shapes.ChatCompletion))
    async def chat_completions(request: Request, body: ChatBody) -> Response:
        """Answer a conversation, with a model that has a chat template."""
        batch = await chat_batch(backend, body)
        texts = Texts(backend, batch, streamed=bool(body.stream))
        if not body.stream:
            head = _head(batch, "chat.completion")
            await collected(request, texts)
            choices = [_choice(batch, choice) for choice in texts.choices]
            return Json({**head, "choices": choices, "usage": texts.usage(), **_prompt_ids(batch)})
        frames = Frames(_head(batch, "chat.completion.chunk"), "delta", usage=body.usage_in_stream)
        return await streamed(backend, request, texts, _chunks(texts, frames))

    return routes


async def _chunks(texts: Texts, frames: Frames) -> AsyncIterator[bytes]:
    batch = texts.batch
    async for parts in texts.parts():
        sent: list[bytes] = []
        for part in parts:
            if part.first:
                sent.append(frames.choice(part.index, _BEGINNING, b"null", b"null"))
            if part.text or part.tokens or batch.token_ids:
                logprobs = to_json(_logprobs(batch, part.tokens)) if part.tokens else b"null"
                sent.append(frames.frame(part.index, part.text, logprobs=logprobs, more=_ids_of(batch, part)))
            if part.finish:
                sent.append(frames.choice(part.index, _NOTHING, b"null", b'"%s"' % part.finish.encode()))
        if sent:
            yield b"".join(sent)
    yield frames.last(texts.usage())


def _head(batch: Batch, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": batch.model.name,
        "system_fingerprint": batch.model.fingerprint,
    }


def _choice(batch: Batch, choice: Choice) -> dict[str, Any]:
    tokens = [token for part in choice.parts for token in part.tokens]
    text = "".join(part.text for part in choice.parts)
    found: dict[str, Any] = {
        "index": choice.index,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "logprobs": None if batch.top is None else _logprobs(batch, tokens),
        "finish_reason": choice.finish,
    }
    return found | ({"token_ids": [one for part in choice.parts for one in part.ids]} if batch.token_ids else {})


def _prompt_ids(batch: Batch) -> dict[str, list[int]]:
    return {"prompt_token_ids": list(batch.prompts[0].ids)} if batch.token_ids else {}


def _logprobs(batch: Batch, tokens: list[ShownToken]) -> dict[str, Any]:
    return chat_logprobs(batch.model.model.tokenizer, tokens, batch.top or 0)


def _ids_of(batch: Batch, part: Part) -> bytes:
    return b',"token_ids":' + to_json(part.ids) if batch.token_ids else b""
