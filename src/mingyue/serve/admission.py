"""From the body of a request to requests of the engine, with every check that can be made before it starts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mingyue.config import GenerateSettings
from mingyue.errors import MingyueError
from mingyue.generation import Request
from mingyue.serve.backend import Backend, not_supported
from mingyue.serve.errors import ApiError
from mingyue.serve.fields import DEFAULT_TOKENS, ChatBody, CompletionBody, Sampling
from mingyue.words import Words, tr

if TYPE_CHECKING:
    from mingyue.serve.catalog import Generator

_LONG = 10_000
"""Characters and ids of a prompt that are read outside the event loop."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it."""

    text: str
    """What `echo` repeats."""
    ids: tuple[int, ...]
    hidden: int
    """Ids at its beginning that the client did not write: a BOS token, or the token that stands for an empty prompt."""


@dataclass(frozen=True)
class Batch:
    """The texts of one request: text `prompt × n + sample` continues prompt number `prompt`."""

    model: Generator
    prompts: list[Prompt]
    requests: list[Request]
    n: int
    top: int | None
    """Number of likeliest tokens that the answer gives for each position; None: no log-probabilities."""
    echo: bool = False
    token_ids: bool = False

    def prompt_of(self, index: int) -> Prompt:
        """The prompt of a text."""
        return self.prompts[index // self.n]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(prompt.ids) for prompt in self.prompts)


async def completion_batch(backend: Backend, body: CompletionBody) -> Batch:
    """The texts of a request to /v1/completions. Raises `ApiError` for what cannot be done."""
    model = backend.catalog.generator(body.model)
    given = _several(body.prompt)
    n = _count(backend, body, len(given))
    if body.best_of is not None and body.best_of != n:
        raise not_supported(
            "best_of", tr("best_of {best_of} is not n {n}: only texts that are returned are generated", body.best_of, n)
        )
    if sum(len(one) for one in given) > _LONG:
        prompts = await asyncio.to_thread(_read_all, model, given, body)
    else:
        prompts = _read_all(model, given, body)
    echo = bool(body.echo)
    scores = body.logprobs if echo else None
    tokens = _tokens(backend, model, prompts, body, asked=body.max_tokens, default=DEFAULT_TOKENS, param="max_tokens")
    if scores is not None and max(len(one.ids) for one in prompts) > model.context:
        raise _too_long(model, max(len(one.ids) for one in prompts), 0, sliding=False)
    requests = _requests(model, prompts, body, tokens=tokens, n=n, top=body.logprobs, prompt_top=scores)
    return Batch(model, prompts, requests, n, body.logprobs, echo, bool(body.return_token_ids))


async def chat_batch(backend: Backend, body: ChatBody) -> Batch:
    """The texts of a request to /v1/chat/completions. Raises `ApiError` for what cannot be done."""
    model = backend.catalog.generator(body.model)
    if model.template is None:
        raise ApiError(
            tr("{name} has no chat template: it continues texts, so use /v1/completions", model.name),
            param="messages",
            code="no_chat_template",
        )
    n = _count(backend, body, 1)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(tr("top_logprobs needs logprobs: true"), param="top_logprobs", code="invalid_value")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise ApiError(
            tr("max_tokens and max_completion_tokens are one setting, and differ"),
            param="max_completion_tokens",
            code="invalid_value",
        )
    messages = [_message(one.role, one.text(), one.name) for one in body.messages]
    ids = tuple(await asyncio.to_thread(model.template.ids, messages))
    if not ids:
        raise ApiError(tr("the chat template makes an empty text of these messages"), param="messages")
    prompts = [Prompt("", ids, 0)]
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    param = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    tokens = _tokens(backend, model, prompts, body, asked=asked, default=None, param=param)
    top = (body.top_logprobs or 0) if body.logprobs else None
    requests = _requests(model, prompts, body, tokens=tokens, n=n, top=top, prompt_top=None)
    return Batch(model, prompts, requests, n, top, token_ids=bool(body.return_token_ids))


def read_prompt(model: Generator, given: str | Sequence[int], *, param: str = "prompt") -> Prompt:
    """A prompt as the model reads it: a BOS token precedes a text where the model has it, and never ids.

    Raises `ApiError` for ids outside the vocabulary, and for text that is none.
    """
    tokenizer = model.model.tokenizer
    if isinstance(given, str):
        try:
            ids = model.model.request(given).ids
            return Prompt(given, ids, len(ids) - len(tokenizer.encode(given)))
        except MingyueError as error:  # half of a surrogate pair
            raise ApiError(error.words, param=param, code="invalid_value") from None
    if max(given) >= tokenizer.vocab_size:
        raise ApiError(
            tr("id {id} is not in the vocabulary, whose ids are 0 to {last}", max(given), tokenizer.vocab_size - 1),
            param=param,
            code="invalid_value",
        )
    return Prompt(tokenizer.decode(given), tuple(given), 0)


def _several(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str] | list[list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [[one for one in prompt if isinstance(one, int)]]
    return prompt  # type: ignore[return-value]  (a list whose first item is text, or a list of ids)


def _read_all(model: Generator, given: list[str] | list[list[int]], body: CompletionBody) -> list[Prompt]:
    return [_cut(model, read_prompt(model, one), body.truncate_prompt_tokens) for one in given]


def _cut(model: Generator, prompt: Prompt, limit: int | None) -> Prompt:
    """The last `limit` tokens of a prompt; a BOS token before it counts, and stays."""
    if limit is None or len(prompt.ids) <= limit:
        return prompt
    first, rest = prompt.ids[: prompt.hidden], prompt.ids[prompt.hidden :]
    kept = rest[len(rest) - max(limit - len(first), 0) :]
    return (
        Prompt(model.model.tokenizer.decode(kept), first + kept, len(first))
        if kept
        else replace(prompt, text="", ids=first)
    )


def _count(backend: Backend, body: Sampling, n_prompts: int) -> int:
    """How many texts each prompt has. Raises `ApiError` where that is too many for one request."""
    if body.stream_options is not None and not body.stream:
        raise ApiError(
            tr("stream_options are of streams only: give stream too"), param="stream_options", code="invalid_value"
        )
    n = 1 if body.n is None else body.n
    if n_prompts * n > backend.settings.max_texts:
        raise ApiError(
            tr(
                "{n_prompts} prompts × n {n} are more than the {limit} texts that a request may have",
                n_prompts,
                n,
                backend.settings.max_texts,
            ),
            param="n" if n > 1 else "prompt",
            code="too_many_texts",
        )
    return n


def _tokens(
    backend: Backend,
    model: Generator,
    prompts: Sequence[Prompt],
    body: Sampling,
    *,
    asked: int | None,
    default: int | None,
    param: str,
) -> int:
    """The largest number of generated tokens. Raises `ApiError` where prompt and text do not fit the context."""
    limit = backend.settings.max_tokens
    if asked is not None and asked > limit:
        raise ApiError(
            tr("{param} {asked:,} is above the limit of this server, {limit:,}", param, asked, limit),
            param=param,
            code="too_many_tokens",
        )
    longest = max(len(prompt.ids) for prompt in prompts)
    room = limit if body.sliding else max(model.context - longest, 0)
    if asked is None:
        tokens = min(limit, room if default is None else min(default, room))
        too_long = tokens == 0
    else:
        tokens, too_long = asked, longest + asked > model.context and not body.sliding
    if too_long:
        fits = longest < model.context and asked
        prompt = "messages" if isinstance(body, ChatBody) else "prompt"
        raise _too_long(model, longest, asked, sliding=True, param=param if fits else prompt)
    if body.min_tokens is not None and body.min_tokens > tokens:
        raise ApiError(
            tr("min_tokens {min_tokens} is above the largest number of tokens, {tokens}", body.min_tokens, tokens),
            param="min_tokens",
            code="invalid_value",
        )
    return tokens


def _too_long(model: Generator, length: int, asked: int | None, *, sliding: bool, param: str = "prompt") -> ApiError:
    generated = Words("", "") if not asked else tr(", to be generated: {asked:,}", asked)
    advice = tr(" With `sliding: true` generation continues beyond the context.") if sliding else Words("", "")
    return ApiError(
        tr(
            "This model's maximum context length is {context:,} tokens. Tokens of the prompt: {length:,}{generated}."
            "{advice}",
            model.context,
            length,
            generated,
            advice,
        ),
        param=param,
        code="context_length_exceeded",
    )


def _requests(
    model: Generator,
    prompts: Sequence[Prompt],
    body: Sampling,
    *,
    tokens: int,
    n: int,
    top: int | None,
    prompt_top: int | None,
) -> list[Request]:
    settings, bias = _settings(body, tokens), _bias(model, body)
    made: list[Request] = []
    for index, prompt in enumerate(prompts):
        request = model.model.request(
            prompt.ids,
            settings,
            prompt_index=index,
            logit_bias=bias,
            top_logprobs=top,
            prompt_logprobs=prompt_top,
        )
        made += [replace(request, prompt=prompt.text, sample=sample) for sample in range(n)]
    return made


def _bias(model: Generator, body: Sampling) -> dict[int, float]:
    bias = {int(key): value for key, value in (body.logit_bias or {}).items()}
    size = model.model.tokenizer.vocab_size
    if unknown := [one for one in bias if one >= size]:
        raise ApiError(
            tr("logit_bias: id {id} is not in the vocabulary, whose ids are 0 to {last}", unknown[0], size - 1),
            param="logit_bias",
            code="invalid_value",
        )
    return bias


def _settings(body: Sampling, tokens: int) -> GenerateSettings:
    def given(value: float | None, default: float) -> float:
        return default if value is None else float(value)

    return GenerateSettings(
        max_new_tokens=tokens,
        min_new_tokens=body.min_tokens or 0,
        temperature=given(body.temperature, 1.0),
        top_k=max(body.top_k or 0, 0),
        top_p=max(given(body.top_p, 1.0), 1e-12),
        min_p=given(body.min_p, 0.0),
        repetition_penalty=given(body.repetition_penalty, 1.0),
        presence_penalty=given(body.presence_penalty, 0.0),
        frequency_penalty=given(body.frequency_penalty, 0.0),
        ignore_eos=bool(body.ignore_eos),
        allow_unseen=bool(body.allow_unseen),
        valid_utf8=body.valid_utf8 is not False,
        stop=body.stops(),
        seed=secrets.randbits(48) if body.seed is None else body.seed,
    )


def _message(role: str, content: str, name: str | None) -> dict[str, str]:
    return {"role": role, "content": content} | ({} if name is None else {"name": name})
