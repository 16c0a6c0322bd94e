"""Our own routes under /api: scores, runs with their metrics, claims with their results."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi import Path as PathField
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from mingyue.claims.registry import NAMES, find, group_of, written
from mingyue.claims.report import load_results
from mingyue.paths import path_of
from mingyue.serve import shapes
from mingyue.serve.backend import Backend, Progress
from mingyue.serve.catalog import Generator, ServedModel
from mingyue.serve.errors import ApiError
from mingyue.serve.fields import Name
from mingyue.serve.json_response import Json
from mingyue.serve.neutral import Body
from mingyue.training.curves import RunCurves
from mingyue.training.log import read_log
from mingyue.words import tr

_CLAIM_NAMES = PathField(json_schema_extra={"enum": list(NAMES)})
Answer = dict[str, Any]
Both = dict[str, str]
"""A text in English and Chinese."""


class ScoreBody(Body):
    """A text to score."""

    model: Name | None = None
    """Name of the model, as in /v1/models; null = the first that continues texts."""
    text: Annotated[str, Field(min_length=1)]
    """The text, of any length."""
    stride: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Tokens by which the window moves over a text longer than the context; null = half of the context."""


def own_routes(backend: Backend) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/api", tags=["Mingyue"])

    @routes.post("/score", responses=shapes.answers(Answer))
    async def score(request: Request, body: ScoreBody) -> Response:
        """Log-probability of each token of a text, and of the whole."""
        model = backend.catalog.generator(body.model)
        if body.stride is not None and body.stride > model.context:
            raise ApiError(
                tr("stride {stride} is above the context, {context}", body.stride, model.context),
                param="stride",
                code="invalid_value",
            )

        def scored(progress: Progress) -> Answer:
            return model.model.score(body.text, stride=body.stride, progress=progress).to_dict()

        found = await backend.call(request, scored)
        return Json({"model": model.name, **found})

    @routes.get("/runs", responses=shapes.answers(list[Answer]))
    async def runs(request: Request) -> Response:
        """The runs of the models that are served."""
        models = list(backend.catalog.models.values())
        return Json(await backend.call(request, lambda _: [_run(one) for one in models]))

    @routes.get("/runs/{model}/metrics", responses=shapes.answers(list[Answer]))
    async def metrics(request: Request, model: str, after: Annotated[int, Query(ge=0, le=10**12)] = 0) -> Response:
        """The events of the log of a run, from number `after` on."""
        path = _run_of(backend, model).metrics
        events = await backend.call(request, lambda _: read_log(path))
        return Json(events[after:])

    @routes.get("/runs/{model}/curves", responses=shapes.answers(Answer))
    async def curves(request: Request, model: str) -> Response:
        """Losses, learning rates and speed of a run, by step, time and tokens."""
        path = _run_of(backend, model).metrics
        return Json(await backend.call(request, lambda _: RunCurves.read(model, path).to_dict()))

    @routes.get("/claims", responses=shapes.answers(list[Answer]))
    async def claims(request: Request) -> Response:
        """The claims, with their results where the server was given a folder of results."""
        results = await backend.call(request, lambda _: _results(backend))
        known = await backend.call(request, lambda _: [_claim(name) for name in written()])
        return Json([{**one, "result": _summary(results.get(one["name"]))} for one in known])

    @routes.get("/claims/{name}", responses=shapes.answers(Answer))
    async def claim(request: Request, name: Annotated[str, _CLAIM_NAMES]) -> Response:
        """One claim in words, and its result in full."""
        if name not in NAMES:
            raise ApiError(tr("there is no claim {name!r}", name), status=404, code="claim_not_found")
        results = await backend.call(request, lambda _: _results(backend))
        return Json({**await backend.call(request, lambda _: _claim_in_full(name)), "result": results.get(name)})

    return routes


def _run(one: Generator | ServedModel) -> Answer:
    run = one.run
    events = list[Answer]() if run is None else read_log(run.metrics)
    last = events[-1] if events else {}
    ended = last.get("event") == "end"
    return {
        "model": one.name,
        "is_run": run is not None,
        "events": len(events),
        "ended": ended,
        "step": last.get("step"),
        "tokens": last.get("tokens"),
        "seconds": last.get("seconds"),
    }


def _run_of(backend: Backend, name: str) -> Any:  # noqa: ANN401
    run = backend.catalog.find(name).run
    if run is None:
        raise ApiError(
            tr("{name} was given as a model folder, without the run that trained it", name),
            status=404,
            param="model",
            code="run_not_found",
        )
    return run


def _results(backend: Backend) -> dict[str, Answer]:
    folder = backend.settings.claims
    return {} if folder is None else {one.name: one.to_dict() for one in load_results(path_of(folder))}


def _claim(name: str) -> Answer:
    claim = find(name).claim
    return {"name": name, "group": group_of(name), "claim": {"en": claim.en, "zh": claim.zh}}


def _claim_in_full(name: str) -> Answer:
    claim = find(name)
    words = {"prediction": claim.prediction, "method": claim.method, "correction": claim.correction}
    texts: dict[str, Both | None] = {
        key: None if text is None else {"en": text.en, "zh": text.zh} for key, text in words.items()
    }
    return {**_claim(name), **texts, "labels": {key: {"en": one.en, "zh": one.zh} for key, one in claim.labels.items()}}


def _summary(result: Answer | None) -> Answer | None:
    kept = ("verdict", "reason", "size", "seed", "seconds", "machine", "error")
    return None if result is None else {key: result.get(key) for key in kept}
