"""POST /tokenize and /detokenize, GET /tokenizer_info, in the forms of vLLM, which lm-evaluation-harness reads."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from mingyue.serve import shapes
from mingyue.serve.admission import read_prompt
from mingyue.serve.backend import Backend
from mingyue.serve.catalog import Generator, ServedTranslator
from mingyue.serve.errors import ApiError
from mingyue.serve.fields import Id, Message, Name
from mingyue.serve.json_response import Json
from mingyue.serve.neutral import Body, OnlyEmptyList
from mingyue.words import tr


class TokenizeBody(Body):
    """A text or a conversation whose ids are wanted."""

    model: Name | None = None
    """Name of the model, as in /v1/models; null = the first."""
    prompt: str | None = None
    """The text."""
    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)] | None = None
    """In its place a conversation, for a model with a chat template."""
    add_special_tokens: bool | None = None
    """Whether a BOS token precedes the text where the model has it; null = true."""
    add_generation_prompt: bool | None = None
    """Whether a conversation ends with the beginning of the answer; null = true."""
    return_token_strs: bool | None = None
    """Whether the tokens are returned as text too."""
    tools: OnlyEmptyList = None


class DetokenizeBody(Body):
    """Ids whose text is wanted."""

    model: Name | None = None
    """Name of the model, as in /v1/models; null = the first."""
    tokens: Annotated[list[Id], Field(max_length=1_000_000)]
    """The ids; special ones have no text."""


def tokenizer_routes(backend: Backend) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["tokenizer"])

    @routes.post("/tokenize", responses=shapes.answers(shapes.Tokens))
    async def tokenize(request: Request, body: TokenizeBody) -> Response:
        """The ids of a text."""
        model = backend.catalog.find(body.model)
        ids = await backend.call(request, lambda _: _ids(model, body))
        text = model.model.tokenizer.token_text
        names = [text(one) for one in ids] if body.return_token_strs else None
        context = model.model.config.context
        return Json({"count": len(ids), "max_model_len": context, "tokens": ids, "token_strs": names})

    @routes.post("/detokenize", responses=shapes.answers(shapes.Detokenized))
    async def detokenize(request: Request, body: DetokenizeBody) -> Response:
        """The text of ids."""
        tokenizer = backend.catalog.find(body.model).model.tokenizer
        if body.tokens and max(body.tokens) >= tokenizer.vocab_size:
            raise ApiError(
                tr(
                    "id {id} is not in the vocabulary, whose ids are 0 to {last}",
                    max(body.tokens),
                    tokenizer.vocab_size - 1,
                ),
                param="tokens",
                code="invalid_value",
            )
        return Json({"prompt": await backend.call(request, lambda _: tokenizer.decode(body.tokens))})

    @routes.get("/tokenizer_info", responses=shapes.answers(shapes.TokenizerInfo))
    async def tokenizer_info(model: Annotated[str | None, Query(max_length=256)] = None) -> Response:
        """Special tokens and sizes of a tokenizer."""
        found = backend.catalog.find(model)
        tokenizer = found.model.tokenizer
        generates = isinstance(found, Generator)
        return Json(
            {
                "tokenizer_class": "Tokenizer",
                "kind": tokenizer.kind,
                "vocab_size": tokenizer.vocab_size,
                "bos_token": tokenizer.token_text(tokenizer.bos_id),
                "eos_token": tokenizer.token_text(tokenizer.eos_id),
                "pad_token": tokenizer.token_text(tokenizer.pad_id),
                "bos_token_id": tokenizer.bos_id,
                "eos_token_id": tokenizer.eos_id,
                "pad_token_id": tokenizer.pad_id,
                "add_bos_token": generates and found.model.starts_with_bos,
                "model_max_length": found.model.config.context,
                "chat_template": found.template.source if generates and found.template is not None else None,
            }
        )

    return routes


def _ids(model: Generator | ServedTranslator, body: TokenizeBody) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(tr("give either prompt or messages"), param="prompt", code="invalid_value")
    if body.prompt is not None and body.add_generation_prompt is not None:
        raise ApiError(
            tr("add_generation_prompt is of conversations only"), param="add_generation_prompt", code="invalid_value"
        )
    if body.messages is not None:
        if not isinstance(model, Generator) or model.template is None:
            raise ApiError(tr("{name} has no chat template", model.name), param="messages", code="no_chat_template")
        messages = [{"role": one.role, "content": one.text()} for one in body.messages]
        return model.template.ids(messages, add_generation_prompt=body.add_generation_prompt is not False)
    assert body.prompt is not None
    if isinstance(model, Generator) and model.model.starts_with_bos and body.add_special_tokens is not False:
        return list(read_prompt(model, body.prompt).ids)
    tokenizer = model.model.tokenizer
    if body.add_special_tokens is False:
        # lm-evaluation-harness finds the id of a special token by its name. A text that is more than the name is text.
        for index in (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id):
            if body.prompt == tokenizer.token_text(index):
                return [index]
    return tokenizer.encode(body.prompt)
