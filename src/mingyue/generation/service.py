"""An engine for many callers: one thread owns it, requests come from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from mingyue.errors import GenerationError, MingyueError
from mingyue.generation.backend import Backend
from mingyue.generation.engine import Engine
from mingyue.generation.request import Request
from mingyue.generation.rules import TokenRules
from mingyue.generation.sequence import Event, GeneratedSequence
from mingyue.words import tr

Receive = Callable[[Event | Exception], None]


class BusyError(MingyueError):
    """The queue of waiting requests is full, or the service is closing."""


class Job:
    """A request that was handed to a `Service`."""

    def __init__(self, service: Service, sequence: GeneratedSequence, receive: Receive) -> None:
        self._service, self.sequence, self.receive = service, sequence, receive
        self.cancelled = False

    def cancel(self) -> None:
        """End the request before the next step; nothing is received after this call returned, and its row is free."""
        self._service.cancel(self)


class Service:
    """Generates requests of many threads side by side, on a thread of its own.

    `cache_bytes` limits the keys and values of all rows; a request beyond it waits for a row, and beyond `max_waiting`
    is refused. A row has room for the whole context.
    """

    def __init__(
        self,
        backend: Backend,
        rules: TokenRules,
        *,
        cache_bytes: int,
        max_waiting: int = 1024,
        max_rows: int = 1024,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`around` makes the context in which the thread works.

        Raises `GenerationError` if the limit leaves no room for a single row.
        """
        rows = min(max_rows, cache_bytes // max(1, backend.row_bytes))
        if rows < 1:
            raise GenerationError(
                tr(
                    "a text of {context} tokens needs {row_bytes:,} bytes for its keys and values; the limit is "
                    "{cache_bytes:,}",
                    backend.context,
                    backend.row_bytes,
                    cache_bytes,
                ),
                advice=tr("Set a higher limit."),
            )
        self.cache_bytes, self.max_rows, self.max_waiting = cache_bytes, rows, max_waiting
        self.tokens_generated = 0
        """Tokens generated since the start."""
        self._backend, self._rules, self._around = backend, rules, around
        self._engine = Engine(backend, max_rows=rows)
        self._jobs: dict[GeneratedSequence, Job] = {}
        self._new: list[Job] = []
        self._cancelled: list[Job] = []
        self._closing = self._abandoned = False
        self._changed = threading.Condition()
        self._delivering = threading.RLock()
        """Held while events are handed out: `Job.cancel` waits for it, so that nothing is received after it."""
        self._thread = threading.Thread(target=self._run, name="mingyue-generation", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Requests that have a row."""
        return self._engine.n_running

    @property
    def waiting(self) -> int:
        """Requests that wait for one."""
        with self._changed:
            return self._engine.n_waiting + len(self._new)

    @property
    def cache_bytes_used(self) -> int:
        """Bytes of the rows in use."""
        return self.running * self._backend.row_bytes

    def submit(self, request: Request, receive: Receive) -> Job:
        """Generate a text; `receive` gets every event, or the error that ends it, on the service's thread.

        `receive` must not block: every other text waits for it. Raises `BusyError` when too many requests wait, and
        `GenerationError` for ids that the model does not know.
        """
        job = Job(self, self._rules.sequence(request), receive)
        with self._changed:
            if self._closing:
                raise BusyError(tr("the service is closing"), advice=tr("Try again later."))
            free = self.max_rows - self._engine.n_running
            if self._engine.n_waiting + len(self._new) >= self.max_waiting + max(0, free):
                raise BusyError(
                    tr("{max_waiting:,} requests are waiting already", self.max_waiting), advice=tr("Try again later.")
                )
            self._new.append(job)
            self._changed.notify_all()
        return job

    def cancel(self, job: Job) -> None:
        """As `Job.cancel`."""
        with self._changed:
            self._cancelled.append(job)
            self._changed.notify_all()
        with self._delivering:
            job.cancelled = True

    def close(self, drain_seconds: float = 0.0) -> None:
        """Accept nothing more, complete what was accepted within the time given, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(drain_seconds)
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        with self._around():
            self._generate()

    def _generate(self) -> None:
        while self._next_work():
            try:
                outputs = self._engine.step()
            except Exception as error:  # whatever fails, those that wait must learn of it
                self._fail_all(error)
                continue
            with self._delivering:
                for sequence, output in outputs:
                    self._deliver(sequence, output)
        self._fail_all(BusyError(tr("the service is closing"), advice=tr("Try again later.")))

    def _next_work(self) -> bool:
        """Wait for something to do, and take it over; False when the thread shall end."""
        with self._changed:
            while not self._new and not self._cancelled and self._engine.idle and not self._closing:
                self._changed.wait()
            if self._abandoned or (self._closing and self._engine.idle and not self._new):
                return False
            new, cancelled = self._new.copy(), self._cancelled.copy()
            self._new.clear()
            self._cancelled.clear()
            self._jobs.update((job.sequence, job) for job in new)
            self._engine.add(job.sequence for job in new)
            for job in cancelled:
                if self._jobs.pop(job.sequence, None) is not None:
                    self._engine.cancel(job.sequence)
        return True

    def _deliver(self, sequence: GeneratedSequence, output: Event | GenerationError) -> None:
        job = self._jobs.get(sequence)
        if job is None:
            return
        if isinstance(output, GenerationError) or output.result is not None:
            del self._jobs[sequence]
        if isinstance(output, Event) and output.token is not None:
            self.tokens_generated += 1
        if not job.cancelled:
            job.receive(output)

    def _fail_all(self, error: Exception) -> None:
        """End every request with an error; a new engine takes over."""
        with self._changed:
            jobs = [*self._jobs.values(), *self._new]
            self._jobs.clear()
            self._new.clear()
            self._cancelled.clear()
            self._engine = Engine(self._backend, max_rows=self.max_rows)
        with self._delivering:
            for job in jobs:
                if not job.cancelled:
                    job.receive(error)
