"""POST /v1/embeddings: the vector of a text, from the last hidden states of the model."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from mingyue.serve import shapes
from mingyue.serve.admission import Prompt, read_prompt
from mingyue.serve.backend import Backend, Progress, not_supported
from mingyue.serve.errors import ApiError
from mingyue.serve.fields import Ids, Name
from mingyue.serve.json_response import Json
from mingyue.serve.neutral import Body, Takes
from mingyue.words import tr

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mingyue.serve.catalog import Generator

Texts = Annotated[str, Field(min_length=1)]


class EmbeddingsBody(Body):
    """A request for the vectors of texts."""

    input: Annotated[
        Texts | Annotated[list[Texts], Field(min_length=1)] | Ids | Annotated[list[Ids], Field(min_length=1)],
        Takes(tr("it is a text, a list of texts, a list of ids, or a list of lists of ids; none of them is empty")),
    ]
    """A text, several, or the same as lists of token ids, which are read as they are."""
    model: Name | None = None
    """Name of the model, as in /v1/models; null = the first that continues texts."""
    encoding_format: Literal["float", "base64"] | None = None
    """Numbers, or the base64 form of little-endian fp32 numbers; null = float."""
    dimensions: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Accepted where it is the width of the model: a vector cannot be shortened."""
    pooling: Literal["mean", "last"] = "mean"
    """The mean of the vectors of all tokens, or the vector of the last one."""
    user: Annotated[str, Field(max_length=1024)] | None = None
    """A name of the user for the caller's own records; it has no effect on the answer."""


def embedding_routes(backend: Backend) -> APIRouter:
    """The route."""
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/embeddings", responses=shapes.answers(shapes.Embeddings))
    async def embeddings(request: Request, body: EmbeddingsBody) -> Response:
        """Vectors of texts, of length 1: the mean, or the last, of the hidden states after the final norm."""
        model = backend.catalog.generator(body.model)
        width = model.model.config.d_model
        if body.dimensions not in (None, width):
            raise not_supported("dimensions", tr("the vectors of this model have {width} dimensions", width))
        given = _several(body.input)
        if len(given) > backend.settings.max_texts:
            raise ApiError(
                tr("{n} texts are more than the {limit} of a request", len(given), backend.settings.max_texts),
                param="input",
                code="too_many_texts",
            )
        prompts = await backend.call(request, lambda _: [_read(model, one) for one in given])
        rows = await backend.call(request, lambda progress: _vectors(model, prompts, body.pooling, progress))
        total = sum(len(prompt.ids) for prompt in prompts)
        encode = _base64 if body.encoding_format == "base64" else _numbers
        return Json(
            {
                "object": "list",
                "data": [{"object": "embedding", "index": at, "embedding": encode(row)} for at, row in enumerate(rows)],
                "model": model.name,
                "usage": {"prompt_tokens": total, "total_tokens": total},
            }
        )

    return routes


def _several(given: str | list[str] | list[int] | list[list[int]]) -> Sequence[str | Sequence[int]]:
    if isinstance(given, str):
        return [given]
    return [given] if isinstance(given[0], int) else given  # type: ignore[list-item, return-value]


def _read(model: Generator, given: str | Sequence[int]) -> Prompt:
    prompt = read_prompt(model, given, param="input")
    if len(prompt.ids) > model.context:
        raise ApiError(
            tr(
                "This model's maximum context length is {context:,} tokens, and the text has {length:,}",
                model.context,
                len(prompt.ids),
            ),
            param="input",
            code="context_length_exceeded",
        )
    return prompt


def _vectors(
    model: Generator, prompts: Sequence[Prompt], pooling: str, progress: Progress
) -> list[npt.NDArray[np.float32]]:
    """One forward pass for each text, so that its vector does not depend on the other texts."""
    import torch

    module = model.model.module
    found: list[npt.NDArray[np.float32]] = []
    device = module.embedding.weight.device
    with model.model.runtime.applied(), torch.inference_mode():
        for done, prompt in enumerate(prompts):
            progress(done, len(prompts))
            hidden_TM = module.hidden(torch.tensor([prompt.ids], device=device))[0].float()
            vector_M = hidden_TM.mean(dim=0) if pooling == "mean" else hidden_TM[-1]
            found.append(torch.nn.functional.normalize(vector_M, dim=0).cpu().numpy())
    return found


def _numbers(row_M: npt.NDArray[np.float32]) -> list[Any]:
    values: list[Any] = row_M.tolist()
    return values


def _base64(row_M: npt.NDArray[np.float32]) -> str:
    return base64.b64encode(row_M.astype("<f4").tobytes()).decode("ascii")
