"""GET /v1/models, /health, /version and /metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from mingyue import __version__, api
from mingyue.serve import shapes
from mingyue.serve.backend import Backend
from mingyue.serve.catalog import Generator, ServedTranslator
from mingyue.serve.json_response import Json
from mingyue.serve.metrics import CONTENT_TYPE


def status_routes(backend: Backend) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.get("/v1/models", tags=["OpenAI"], responses=shapes.answers(shapes.ModelList))
    async def models() -> Response:
        """Every model that is served."""
        return Json({"object": "list", "data": [_card(one) for one in backend.catalog.models.values()]})

    @routes.get("/v1/models/{model}", tags=["OpenAI"], responses=shapes.answers(shapes.ModelCard))
    async def model_card(model: str) -> Response:
        """One model."""
        return Json(_card(backend.catalog.find(model)))

    @routes.get(
        "/health", tags=["monitoring"], responses={**shapes.answers(shapes.Health), 503: {"model": shapes.Health}}
    )
    async def health() -> Response:
        """Whether the server takes requests; 503 while it stops."""
        return Json({"status": "draining" if backend.draining else "ok"}, 503 if backend.draining else 200)

    @routes.head("/health", include_in_schema=False)
    async def health_alone() -> Response:
        """The status of /health."""
        return await health()

    @routes.get("/version", tags=["monitoring"], responses=shapes.answers(shapes.Version))
    async def version() -> Response:
        """The version of Mingyue."""
        return Json({"version": __version__})

    @routes.get(
        "/metrics",
        tags=["monitoring"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **shapes.ERRORS},
    )
    async def metrics() -> Response:
        """Counters in the text format of Prometheus."""
        return Response(backend.metrics.text(backend.catalog), media_type=CONTENT_TYPE)

    return routes


def _card(one: Generator | ServedTranslator) -> dict[str, Any]:
    return {
        "id": one.name,
        "object": "model",
        "created": one.created,
        "owned_by": "mingyue",
        "max_model_len": one.model.config.context,
        "architecture": "decoder-only" if isinstance(one, Generator) else "encoder-decoder",
        "parameters": api.describe(one.model).sizes.parameters,
    }
