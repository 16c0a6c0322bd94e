"""Errors as clients of the OpenAI API read them: {"error": {message, type, param, code}}.

Clients repeat a request after status 408, 409, 429 and every 5xx, so an error that the same request would meet again
has none of these.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mingyue.config.numbers import said_of
from mingyue.errors import MingyueError
from mingyue.generation.service import BusyError
from mingyue.serve.json_response import Json, to_json
from mingyue.words import Language, Words, in_language, tr

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_CODES = {
    401: "invalid_api_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_media_type",
    429: "rate_limit_exceeded",
    503: "unavailable",
}
_PHRASES = {
    400: tr("the body cannot be read"),
    404: tr("there is nothing under this address"),
    405: tr("this address does not take this method"),
}
_LOG = logging.getLogger("mingyue.serve")
BUSY_SECONDS, STOPPING_SECONDS = 1, 5
"""What Retry-After says when a queue is full, and when the server stops."""


class ApiError(MingyueError):
    """A request that cannot be answered, with the status and the code of the answer."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code or _CODES.get(status)
        self.headers = dict(headers or {})


def busy(message: str) -> ApiError:
    """The error for a queue that is full: worth trying again."""
    return ApiError(message, status=429, headers={"Retry-After": str(BUSY_SECONDS)})


def stopping() -> ApiError:
    """The error for a request that the server does not complete, since it stops."""
    return ApiError(tr("the server is stopping"), status=503, headers={"Retry-After": str(STOPPING_SECONDS)})


def error_body(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The object that every error is."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def as_api_error(error: Exception) -> ApiError:
    """Any error of a request as one that can be sent. What Mingyue raises would come again, so it is no 5xx."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BusyError):  # the models are being closed
        return stopping()
    if isinstance(error, MingyueError):
        return ApiError(error.words, code="invalid_request")
    _LOG.error("unexpected error", exc_info=error)
    # Whether it would come again is unknown; clients are asked not to try.
    return ApiError(
        tr("unexpected error: {kind}", type(error).__name__), status=500, headers={"x-should-retry": "false"}
    )


def error_response(error: ApiError, language: Language = "en") -> Response:
    """The answer for an error."""
    message = in_language(error.message, language)
    return Json(error_body(message, error.status, error.param, error.code), error.status, error.headers)


def error_event(error: ApiError, language: Language = "en") -> bytes:
    """The event for an error after the status of a stream was sent; clients raise it."""
    message = in_language(error.message, language)
    return b"data: " + to_json(error_body(message, error.status, error.param, error.code)) + b"\n\n"


def language_of(request: Request) -> Language:
    """The language of the messages of an answer: Chinese where the client prefers it."""
    return "zh" if request.headers.get("accept-language", "").lower().startswith("zh") else "en"


async def answer_error(request: Request, error: Exception) -> Response:
    """The handler of `MingyueError`, and of errors that nothing foresaw."""
    return error_response(as_api_error(error), language_of(request))


async def answer_http_error(request: Request, error: Exception) -> Response:
    """The handler of what the router refuses: an unknown address, another method, a body that is not JSON."""
    assert isinstance(error, HTTPException)
    message = _PHRASES.get(error.status_code) or error.detail
    raised = ApiError(message, status=error.status_code, headers=error.headers)
    return error_response(raised, language_of(request))


async def answer_invalid(request: Request, error: Exception) -> Response:
    """The handler of a body that is not as described: it names the first field that is wrong."""
    assert isinstance(error, RequestValidationError)
    return error_response(invalid(error.errors()), language_of(request))


def invalid(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """The error for the problems that pydantic found, named by the field of the request."""
    problem = problems[0]
    path = [part for part in problem["loc"] if part not in ("body", "query", "path")]
    param = str(path[0]) if path else None
    kind = problem["type"]
    if kind == "json_invalid":
        return ApiError(tr("the body is not JSON{reason}", _place_of(problem)))
    if param is None:
        return ApiError(tr("the body must be a JSON object"), code="invalid_body")
    if kind == "extra_forbidden":
        return ApiError(tr("there is no field {param!r}", param), param=param, code="unknown_field")
    if kind == "missing" and len(path) == 1:
        return ApiError(tr("the field {param} is missing", param), param=param, code="missing_field")
    if kind == "value_error" and problem.get("ctx", {}).get("error") is not None:
        cause = problem["ctx"]["error"]
        message = cause.args[0] if cause.args else problem["msg"]
        return ApiError(tr("{param}: {message}", param, message), param=param, code="invalid_value")
    same = {said_of(one): None for one in problems if list(_own(one))[:1] == [param]}
    message = Words(" / ".join(same), lambda: " / ".join(in_language(one, "zh") for one in same))
    return ApiError(tr("{param}: {message}", param, message), param=param, code="invalid_value")


def _place_of(problem: Mapping[str, Any]) -> Words:
    """Where, and in English why, a text is not JSON."""
    reason = ": " + problem.get("ctx", {}).get("error", problem["msg"])
    at = problem["loc"][-1] if problem["loc"] else None
    if not isinstance(at, int):  # pydantic's own reason names the place
        return Words(reason, "")
    place = tr(" (character {at:,})", at + 1)
    return Words(reason + str(place), lambda: place.zh)


def _own(problem: Mapping[str, Any]) -> list[str]:
    return [str(part) for part in problem["loc"] if part not in ("body", "query", "path")]
