"""The texts of one request while the engine generates them: submitted together, ended together."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from mingyue.generation.service import BusyError
from mingyue.serve.admission import Batch
from mingyue.serve.backend import Backend
from mingyue.serve.errors import as_api_error, busy
from mingyue.serve.tokens import ShownToken, TokenLog, prompt_tokens

if TYPE_CHECKING:
    from mingyue.generation import Event
    from mingyue.generation.service import Job

Finish = Literal["stop", "length"]
_FINISH: dict[str, Finish] = {"end": "stop", "stop text": "stop", "length": "length"}


@dataclass(frozen=True)
class Part:
    """What comes out of one text with one event."""

    index: int
    text: str
    tokens: list[ShownToken] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    finish: Finish | None = None
    first: bool = False
    """Whether it is the first part of its text."""


class Choice:
    """One text of an answer."""

    def __init__(self, batch: Batch, index: int) -> None:
        self.index, self.prompt = index, batch.prompt_of(index)
        self._tokenizer = batch.model.model.tokenizer
        self._echo = self.prompt.text if batch.echo else ""
        self._scored = batch.top is not None
        self._log = TokenLog(self._tokenizer, self.prompt.ids, len(self._echo)) if self._scored else None
        self._begun = False
        self._waits_for_scores = batch.echo and self._scored
        self.parts: list[Part] = []
        self.n_generated = 0
        self.finish: Finish | None = None

    def add(self, event: Event) -> Part | None:
        """The part that this event brings; None if it brings nothing to be shown."""
        text, tokens = "", list[ShownToken]()
        if not self._begun and not (self._waits_for_scores and event.prompt_scores is None):
            text = self._echo
            if event.prompt_scores is not None:
                hidden = self.prompt.hidden
                scores = [(one.logprob, one.top) for one in event.prompt_scores[hidden:]]
                tokens = prompt_tokens(self._tokenizer, self.prompt.ids[hidden:], scores)
        first, self._begun = not self._begun, True
        text += event.text
        if self._log is not None and (event.token is not None or event.result is not None):
            tokens = tokens + self._log.add(event)
        ids = list[int]() if event.token is None else [event.token]
        self.n_generated += len(ids)
        if event.result is not None:
            self.finish = _FINISH[event.result.stop]
        part = Part(self.index, text, tokens, ids, self.finish, first)
        return part if text or tokens or ids or self.finish else None


class Texts:
    """The texts of one request in the engine."""

    def __init__(self, backend: Backend, batch: Batch, *, streamed: bool) -> None:
        """Hands every text to the engine, or none. Raises `ApiError` (429) when its queue is full."""
        self._backend, self.batch = backend, batch
        self.choices = [Choice(batch, index) for index in range(len(batch.requests))]
        # An answer that is collected is read at once; only the reader of a stream can be behind.
        limit = max(backend.settings.stream_buffer, 4 * len(batch.requests)) if streamed else 10**9
        self.channel = backend.channel(limit)
        self._jobs: list[Job] = []
        self._began, self._first = time.perf_counter(), True
        try:
            for index, request in enumerate(batch.requests):
                self._jobs.append(batch.model.service.submit(request, self.channel.receiver(index)))
        except BusyError as error:
            self.cancel()
            raise busy(error.message) from None
        except BaseException:
            self.cancel()
            raise
        backend.metrics.prompt_tokens.labels(batch.model.name).inc(batch.prompt_tokens)

    def cancel(self) -> None:
        """End what is still generated; nothing is lost where everything has ended."""
        for job in self._jobs:
            job.cancel()
        self._jobs.clear()

    async def parts(self) -> AsyncIterator[list[Part]]:
        """The parts of all texts as they come, several at once where the reader was busy. Raises `ApiError`.

        The texts are cancelled when the iteration ends early.
        """
        metrics, unfinished = self._backend.metrics, len(self.choices)
        counter = metrics.completion_tokens.labels(self.batch.model.name)
        try:
            while unfinished:
                parts: list[Part] = []
                for index, event in await self.channel.take():
                    if isinstance(event, Exception):
                        raise as_api_error(event) from event
                    part = self.choices[index].add(event)
                    if self._first and event.token is not None:
                        self._first = False
                        metrics.first_token.observe(time.perf_counter() - self._began)
                    if part is not None:
                        counter.inc(len(part.ids))
                        parts.append(part)
                        unfinished -= part.finish is not None
                if parts:
                    yield parts
        finally:
            self.cancel()

    async def collect(self) -> None:
        """Generate everything; each of `choices` then has all of its parts. Raises `ApiError`."""
        async for parts in self.parts():
            for part in parts:
                self.choices[part.index].parts.append(part)

    def usage(self) -> dict[str, int]:
        """The numbers of tokens so far."""
        completion = sum(choice.n_generated for choice in self.choices)
        prompt = self.batch.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
