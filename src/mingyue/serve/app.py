"""The application: every route, the handlers of errors, and the OpenAPI document."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from mingyue import __version__
from mingyue.errors import MingyueError
from mingyue.serve.backend import Backend, ClientGoneError
from mingyue.serve.chat import chat_routes
from mingyue.serve.completions import completion_routes
from mingyue.serve.embeddings import embedding_routes
from mingyue.serve.errors import answer_error, answer_http_error, answer_invalid
from mingyue.serve.guard import OPEN, Guard
from mingyue.serve.own import own_routes
from mingyue.serve.status import status_routes
from mingyue.serve.tokenizing import tokenizer_routes
from mingyue.serve.translating import translation_routes
from mingyue.serve.views import view_routes

_ABOUT = "Generation, scores, embeddings, translation and views of models trained with Mingyue."
_CLIENT_GONE = 499
"""The status of requests whose client closed the connection, for the counters: nobody reads it."""


def create_app(backend: Backend) -> ASGIApp:
    """The application of a server."""
    app = FastAPI(
        title="Mingyue",
        summary=_ABOUT,
        version=__version__,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    for routes in (
        completion_routes,
        chat_routes,
        embedding_routes,
        status_routes,
        tokenizer_routes,
        translation_routes,
        own_routes,
        view_routes,
    ):
        app.include_router(routes(backend))
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(HTTPException, answer_http_error)
    app.add_exception_handler(MingyueError, answer_error)
    app.add_exception_handler(ClientGoneError, _answer_nobody)
    app.add_exception_handler(Exception, answer_error)
    _complete_document(app, backend)
    return Guard(app, backend)


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    return Response(status_code=_CLIENT_GONE)


def _complete_document(app: FastAPI, backend: Backend) -> None:
    """Add to the OpenAPI document what only this server knows: the names of its models, and whether it has a key."""
    plain, names = app.openapi, list(backend.catalog.models)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document = plain()
        for schema in document["components"]["schemas"].values():
            model = schema.get("properties", {}).get("model", {})
            for one in model.get("anyOf", ()):
                if one.get("type") == "string":
                    one.clear()
                    one.update(type="string", enum=names)
        for path, methods in document["paths"].items():
            for operation in methods.values():
                for parameter in operation.get("parameters", ()):
                    if parameter["name"] == "model":
                        parameter["schema"] = {"type": "string", "enum": names}
                if backend.settings.api_key is not None:
                    operation["security"] = [] if path in OPEN else [{"key": []}]
        if backend.settings.api_key is not None:
            document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        return document

    app.openapi = openapi  # type: ignore[method-assign]
