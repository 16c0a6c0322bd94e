"""POST /translate and GET /languages, in the forms of LibreTranslate."""

from __future__ import annotations

import hmac
from typing import Annotated, Literal
from urllib.parse import parse_qs

from fastapi import APIRouter
from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from mingyue.config import TranslateSettings
from mingyue.serve import shapes
from mingyue.serve.backend import Backend, Progress
from mingyue.serve.catalog import UNNAMED, Catalog, ServedTranslator
from mingyue.serve.errors import ApiError, invalid
from mingyue.serve.json_response import Json
from mingyue.serve.neutral import Body, Takes
from mingyue.words import tr

FORM = "application/x-www-form-urlencoded"
_AUTO = "auto"
_BEAM = 4
_MOST_ALTERNATIVES = 16
_LONGEST = 20_000
_MOST_FIELDS = 1000
Code = Annotated[str, Field(min_length=1, max_length=64)]
Line = Annotated[str, Field(max_length=_LONGEST)]


class TranslateBody(Body):
    """A text to translate."""

    q: Annotated[
        Line | Annotated[list[Line], Field(min_length=1)],
        Takes(tr("it is a text of at most {n:,} characters, or a list of such texts, which is not empty", _LONGEST)),
    ]
    """The text, or several; each line of a text is translated by itself."""
    source: Code
    """Code of its language, as in /languages; "auto" = that of the only model, where there is one."""
    target: Code
    """Code of the language of the translation."""
    format: Annotated[Literal["text"], Takes(tr('only "text" is translated, no HTML'))] = "text"
    """Form of the text; HTML is not translated."""
    alternatives: Annotated[int, Field(ge=0, le=_MOST_ALTERNATIVES)] = 0
    """Number of further translations."""
    api_key: Annotated[str, Field(max_length=4096)] | None = None
    """The key of the server, for clients that do not send it in a header; without effect where there is none."""


def translation_routes(backend: Backend) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["LibreTranslate"])
    schema = TranslateBody.model_json_schema()
    content = {kind: {"schema": schema} for kind in ("application/json", FORM)}

    @routes.post(
        "/translate",
        responses=shapes.answers(shapes.Translations),
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )
    async def translate(request: Request) -> Response:
        """Translate a text, or several."""
        body = await _read(request)
        _check_key(backend, request, body.api_key)
        model = _find(backend.catalog, body.source, body.target)
        texts = [body.q] if isinstance(body.q, str) else body.q
        n_lines = sum(len(text.split("\n")) for text in texts)
        if n_lines > backend.settings.max_texts:
            raise ApiError(
                tr("{n} lines are more than the {limit} of a request", n_lines, backend.settings.max_texts),
                param="q",
                code="too_many_texts",
            )
        found = await backend.call(request, lambda progress: _translate(model, texts, body.alternatives, progress))
        best, others = [one[0] for one in found], [one[1:] for one in found]
        single = isinstance(body.q, str)
        answer: dict[str, object] = {"translatedText": best[0] if single else best}
        if body.alternatives:
            answer["alternatives"] = others[0] if single else others
        return Json(answer)

    @routes.get("/languages", responses=shapes.answers(list[shapes.Language]))
    async def languages() -> Response:
        """The languages of the encoder-decoder models."""
        targets: dict[str, list[str]] = {}
        for one in backend.catalog.translators():
            targets.setdefault(one.source, []).append(one.target)
            targets.setdefault(one.target, [])
        return Json([{"code": code, "name": code, "targets": found} for code, found in targets.items()])

    return routes


async def _read(request: Request) -> TranslateBody:
    """The body, from JSON or (some clients of LibreTranslate) from a form. Raises `ApiError`."""
    try:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            return TranslateBody.model_validate_json(await request.body(), strict=True)
        values: dict[str, object] = {}
        form = (await request.body()).decode("ascii")
        fields = parse_qs(form, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
        for name, texts in fields.items():
            values[name] = texts[0] if len(texts) == 1 else texts
        number = values.get("alternatives")
        if isinstance(number, str) and number.isascii() and number.isdigit():
            values["alternatives"] = int(number)
        return TranslateBody.model_validate(values)
    except ValidationError as error:
        raise invalid(error.errors()) from None
    except ValueError:  # bytes that are not UTF-8, too many fields
        raise ApiError(
            tr("the body is no form of at most {n:,} fields in UTF-8", _MOST_FIELDS), code="invalid_body"
        ) from None


def _check_key(backend: Backend, request: Request, given: str | None) -> None:
    key = backend.settings.api_key
    if key is None or request.scope.get("mingyue.authorized"):
        return
    if given is None or not hmac.compare_digest(given.encode("utf-8", "replace"), key.encode()):
        raise ApiError(tr("the API key is missing or wrong"), status=401, headers={"WWW-Authenticate": "Bearer"})


def _find(catalog: Catalog, source: str, target: str) -> ServedTranslator:
    for one in catalog.translators():
        if (one.source, one.target) == (source, target):
            return one
    served = list(catalog.translators())
    if not served:
        raise ApiError(tr("no encoder-decoder model is served, so nothing is translated"), code="no_translator")
    fits = any(one.source == source for one in served)
    known = ", ".join(f"{one.source} → {one.target}" for one in served)
    if source == _AUTO and len(served) == 1:
        if served[0].target == target:
            return served[0]
        fits = True
    if source == _AUTO and not fits:
        message = tr("languages are not detected: give the source; there are {known}", known)
    else:
        message = tr("no model translates {source} to {target}; there are {known}", source, target, known)
    unnamed = [one.name for one in served if (one.source, one.target) == UNNAMED]
    if unnamed:
        message += tr(". Whoever starts the server names the languages: --language-pair {name}=en:de", unnamed[0])
    raise ApiError(message, param="target" if fits else "source", code="unsupported_language")


def _check_lengths(model: ServedTranslator, texts: list[list[str]]) -> None:
    """Raise `ApiError` for a line with more tokens than the model reads: it would be cut."""
    tokenizer, context = model.model.source_tokenizer, model.model.config.context
    for number, lines in enumerate(texts, start=1):
        for at, line in enumerate(lines, start=1):
            length = len(tokenizer.encode(line)) + 1  # EOS
            if length <= context or not line.strip():
                continue
            if len(texts) == len(lines) == 1:
                message = tr(
                    "This model's maximum context length is {context:,} tokens, and the text has {length:,}",
                    context,
                    length,
                )
            else:
                message = tr(
                    "This model's maximum context length is {context:,} tokens, and line {line:,} of text {number:,} "
                    "has {length:,}",
                    context,
                    at,
                    number,
                    length,
                )
            raise ApiError(message, param="q", code="context_length_exceeded")


def _translate(model: ServedTranslator, texts: list[str], alternatives: int, progress: Progress) -> list[list[str]]:
    """For each text its translations, the best first."""
    n_best = alternatives + 1
    settings = TranslateSettings(beam=max(_BEAM, n_best), n_best=n_best)
    lines = [text.split("\n") for text in texts]
    _check_lengths(model, lines)
    flat = [line for text in lines for line in text]
    found = iter(model.model.translate(flat, settings, progress=progress))
    results: list[list[str]] = []
    for text in lines:
        best = [next(found) for _ in text]
        count = min(n_best, max(len(one) for one in best))
        results.append(["\n".join(one[min(rank, len(one) - 1)].text for one in best) for rank in range(count)])
    return results
