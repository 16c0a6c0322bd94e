"""POST /api/inspect/VIEW: every view of a model and a text, as JSON."""

from __future__ import annotations

from typing import Annotated, Any, get_origin

from fastapi import APIRouter
from pydantic import Field, create_model
from starlette.requests import Request
from starlette.responses import Response

from mingyue.api.inspecting import Inspection, view_command
from mingyue.config import Count
from mingyue.errors import SettingsError
from mingyue.inspection.command import Command, Option
from mingyue.serve import shapes
from mingyue.serve.backend import Backend, Progress
from mingyue.serve.catalog import Generator
from mingyue.serve.errors import ApiError
from mingyue.serve.fields import Name
from mingyue.serve.json_response import Json
from mingyue.serve.neutral import Body
from mingyue.words import tr

VIEWS = (
    "attention",
    "attended",
    "contexts",
    "curve",
    "film",
    "head",
    "heads",
    "lens",
    "lines",
    "logits",
    "neighbours",
    "patch",
    "relations",
    "surprise",
    "trace",
    "vectors",
)
_PATHS = frozenset({"corpus", "file"})
"""Options that name files: a request reads none."""
_TEXTS = frozenset({"text", "texts", "source", "target", "step"})
_MOST_TEXTS = 64
_LONGEST = 50_000


class ViewBody(Body):
    """What every view reads."""

    model: Name | None = None
    """Name of the model, as in /v1/models; null = the first."""


def view_routes(backend: Backend) -> APIRouter:
    """A route for each view, with the fields that the view declares for the command line."""
    routes = APIRouter(prefix="/api/inspect", tags=["Mingyue"])
    for name in VIEWS:
        _add(routes, backend, name, view_command(name))
    return routes


def _add(routes: APIRouter, backend: Backend, name: str, command: Command) -> None:
    shape = _body(name, command)

    async def view(request: Request, body: Any) -> Response:  # noqa: ANN401  (its own class for each view)
        model = backend.catalog.find(body.model)
        given = {key: value for key, value in body.model_dump().items() if key != "model" and value is not None}
        _check(name, command, model, given)
        found = await backend.call(request, lambda progress: _view(model, name, command, given, progress))
        return Json({"model": model.name, "view": name, **found})

    view.__annotations__["body"] = shape
    routes.post(f"/{name}", name=name, summary=f"The view {name}.", responses=shapes.answers(dict[str, Any]))(view)


def _body(name: str, command: Command) -> type[ViewBody]:
    """The class of the body of a view."""
    fields: dict[str, Any] = {}
    for option in command.options:
        if option.name not in _PATHS:
            fields[option.name] = (_type(option, command), Field(None, description=option.help))
    title = "".join(word.capitalize() for word in name.split("_"))
    return create_model(f"{title}View", __base__=ViewBody, **fields)


def _type(option: Option, command: Command) -> Any:  # noqa: ANN401
    text = Annotated[str, Field(max_length=_LONGEST)]
    several = Annotated[list[text], Field(max_length=_MOST_TEXTS)] | None
    if option.name == "text":
        return text | None if command.texts in ("one", "optional") else several
    if option.name == "step":
        return Count | None
    if get_origin(option.type) is list:
        return several
    return (text if option.type is str else option.type) | None


def _check(name: str, command: Command, model: object, given: dict[str, Any]) -> None:
    """Raise `ApiError` for a text or a word that is missing, and for what the architecture does not take."""
    texts = given.get("text") or given.get("texts") or given.get("source")
    if command.texts in ("one", "compared") and not texts:
        raise ApiError(tr("{name} needs a text", name), param="text", code="missing_field")
    for required in {"vectors": ("word",), "neighbours": ("word",), "patch": ("other",)}.get(name, ()):
        if required not in given:
            raise ApiError(tr("the field {param} is missing", required), param=required, code="missing_field")
    for option in command.options:
        if option.architecture == "encoder-decoder" and option.name in given and isinstance(model, Generator):
            raise ApiError(
                tr("{param} is of encoder-decoder models only", option.name), param=option.name, code="invalid_value"
            )


def _view(model: Any, name: str, command: Command, given: dict[str, Any], progress: Progress) -> dict[str, Any]:  # noqa: ANN401
    """The arrays of a view, its title, and what is to be noted about it."""
    if command.texts == "runs" and model.run is None:
        raise SettingsError(tr("training curves are those of a run"), advice=tr("Give the folder of the run."))
    texts = given.get("text", [])
    texts = ([texts] if isinstance(texts, str) else list(texts)) + list(given.get("texts", []))
    options = {key: value for key, value in given.items() if key not in _TEXTS}
    if command.texts == "compared":
        options["texts"], texts = texts, list[str]()
    elif command.texts == "any number":
        options["texts"] = texts[1:]
    if command.slow:
        options["progress"] = progress
    step = given.get("step")
    inspection = _inspection(model, texts[0] if texts else None, given, step)
    found = inspection.view(name, **options)
    notes = [{"en": note.en, "zh": note.zh} for note in inspection.remarks]
    return {"title": {"en": found.title.en, "zh": found.title.zh}, "notes": notes, "arrays": found.to_dict()}


def _inspection(model: Any, text: str | None, given: dict[str, Any], step: int | None) -> Inspection:  # noqa: ANN401
    source, target = given.get("source"), given.get("target")
    if not isinstance(model, Generator):
        if source is not None and text is not None:
            raise ApiError(
                tr("text and source are one field, and both are given"), param="source", code="invalid_value"
            )
        source, text = text if source is None else source, target
    loaded = model.model
    if step is not None:
        from mingyue import api

        loaded = api.load_either(
            model.folder, device=loaded.runtime.device.type, threads=loaded.runtime.threads, step=step
        )
    return Inspection(loaded, text, source, folder=model.folder, step=step)


__all__ = ["VIEWS", "view_routes"]
