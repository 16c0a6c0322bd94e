"""Continuous batching: texts join and leave a running batch at any token.

Row i of the cache belongs to `_rows[i]`. The first rows are generating; those behind them are still reading their
prompt. So a step of generation takes a contiguous block of rows, and a row changes its place by a copy.

The tokens of a text do not depend on the other rows. A prompt is read in chunks that begin at multiples of the chunk
size of its request, all but its last token; that one and every generated token are read in steps of one token per row.
So the shape of every product that a text goes through is a function of the text alone, but for the number of rows,
which changes no bit on the onnxruntime back end and the last bits on the torch back end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from mingyue.errors import GenerationError
from mingyue.generation.backend import Backend, Logits
from mingyue.generation.request import PromptToken
from mingyue.generation.sampling import choose, log_softmax, top_tokens
from mingyue.generation.sequence import Event, GeneratedSequence
from mingyue.generation.window import window_start
from mingyue.words import tr

Note = Callable[[str], None]
Output = tuple[GeneratedSequence, Event | GenerationError]
"""What came of a step for one text: an event, or the error that ends it."""

READ_TOKENS = 512
"""Prompt tokens of a step, from as many prompts as fit: the texts that are being generated wait for them."""


class _Row:
    """A text in a row of the cache: which of its tokens the row holds."""

    def __init__(self, sequence: GeneratedSequence, context: int) -> None:
        self.sequence, self._context = sequence, context
        self.scores: list[PromptToken] = []
        """Of the prompt, where they are asked for."""
        self.waits_for_scores = sequence.request.prompt_logprobs is not None
        self.restart()

    def restart(self) -> None:
        """Begin to read the window of the text as it is now."""
        length = len(self.sequence.ids)
        self.start = window_start(length, self._context)
        """First token of the window."""
        self.end = length - 1
        """The tokens before this one are read in chunks."""
        self.held = 0
        """Tokens of the window that the row holds."""

    @property
    def ready(self) -> bool:
        """Whether all but the last token are read."""
        return self.start + self.held == len(self.sequence.ids) - 1

    @property
    def outgrown(self) -> bool:
        """Whether the window begins later now."""
        return window_start(len(self.sequence.ids), self._context) != self.start

    def next_chunk(self) -> list[int]:
        """The tokens to read next; chunks begin at multiples of the chunk size from the start of the window."""
        size, at = self.sequence.request.settings.prefill_chunk, self.start + self.held
        return self.sequence.ids[at : min(at + size - self.held % size, self.end)]

    def shared_with(self, other: _Row) -> int:
        """How many tokens of the window of this text, which has not read any, `other` holds or will hold.

        Only whole chunks, or all of one prompt: they were computed in the same products, so the bits are the same.
        """
        mine, theirs = self.sequence, other.sequence
        size = mine.request.settings.prefill_chunk
        if other.start != self.start or theirs.request.settings.prefill_chunk != size:
            return 0
        if mine.request.ids == theirs.request.ids and mine.n_generated == 0 and other.end == self.end:
            return self.end - self.start
        n_shared, at = 0, self.start
        while at + size <= min(self.end, other.end) and mine.ids[at : at + size] == theirs.ids[at : at + size]:
            n_shared, at = n_shared + size, at + size
        return n_shared

    def score(self, ids: list[int], logits_TV: Logits) -> None:
        """Keep log P of the tokens behind `ids`, which are read at the row's present end."""
        at, n_top = self.start + self.held, self.sequence.request.prompt_logprobs or 0
        logprobs_TV = log_softmax(logits_TV)
        for offset in range(len(ids)):
            token = self.sequence.ids[at + offset + 1]
            logprobs_V = logprobs_TV[offset]
            self.scores.append(PromptToken(token, float(logprobs_V[token]), top_tokens(logprobs_V, n_top)))


class Engine:
    """Generates requests side by side, `max_rows` at most; those beyond wait, first come, first served.

    `capacity`: positions of a row, at most (and by default) the context. Not for several threads: see `Service`.
    """

    def __init__(
        self, backend: Backend, *, max_rows: int, capacity: int | None = None, note: Note | None = None
    ) -> None:
        self._backend, self._max_rows = backend, max_rows
        self._capacity = min(capacity or backend.context, backend.context)
        self._note = note
        self._waiting: deque[GeneratedSequence] = deque()
        self._rows: list[_Row] = []
        self._n_ready = 0
        self._cancelled: set[GeneratedSequence] = set()

    @property
    def n_waiting(self) -> int:
        """Requests that have no row yet."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        """Requests that have a row."""
        return len(self._rows)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._waiting and not self._rows

    def add(self, sequences: Iterable[GeneratedSequence]) -> None:
        """Let sequences wait for a row."""
        self._waiting.extend(sequences)

    def cancel(self, sequence: GeneratedSequence) -> None:
        """End a sequence without a result, before the next step; its row is free then."""
        self._cancelled.add(sequence)

    def step(self) -> list[Output]:
        """Read a part of the prompts, and generate a token of every text whose prompt is read."""
        self._drop_cancelled()
        self._restart_full_windows()
        return [*self._admit(), *self._read_prompts(), *self._generate()]

    def _drop_cancelled(self) -> None:
        if self._cancelled:
            self._waiting = deque(one for one in self._waiting if one not in self._cancelled)
            for row in [row for row in self._rows if row.sequence in self._cancelled]:
                self._remove(row)
            self._cancelled.clear()

    def _admit(self) -> list[Output]:
        """Give free rows to those that wait. A text whose prompt another row is reading waits for it, to copy it."""
        outputs: list[Output] = []
        while self._waiting and len(self._rows) < self._max_rows:
            sequence = self._waiting[0]
            row = _Row(sequence, self._backend.context)
            if sequence.request.settings.max_new_tokens == 0 and not row.waits_for_scores:
                outputs.append((self._waiting.popleft(), sequence.empty()))
                continue
            best = max(self._rows, key=row.shared_with, default=None)
            n_shared = 0 if best is None or row.waits_for_scores else row.shared_with(best)
            if best is not None and n_shared > best.held:
                break
            # All that may come at once: growing row by row would copy the rows each time.
            self._backend.reserve(min(self._max_rows, len(self._rows) + len(self._waiting)), self._capacity)
            if best is not None and n_shared:
                self._backend.copy(self._rows.index(best), len(self._rows), n_shared)
                row.held = n_shared
            self._rows.append(row)
            self._waiting.popleft()
            self._move_if_ready(row)
        return outputs

    def _remove(self, row: _Row) -> None:
        """The rows in use stay contiguous, and those that generate stay in front."""
        index = self._rows.index(row)
        if index < self._n_ready:
            self._n_ready -= 1
            self._move(self._n_ready, index)
            index = self._n_ready
        self._move(len(self._rows) - 1, index)
        self._rows.pop()

    def _move(self, source: int, target: int) -> None:
        """Put the row at `source` where the row at `target` was, which is lost."""
        if source != target:
            self._backend.copy(source, target, self._rows[source].held)
            self._rows[target] = self._rows[source]

    def _swap(self, one: int, other: int) -> None:
        """Exchange two rows, by way of a row behind all others."""
        if one != other:
            spare = len(self._rows)
            self._backend.reserve(spare + 1, self._capacity)
            self._backend.copy(one, spare, self._rows[one].held)
            self._backend.copy(other, one, self._rows[other].held)
            self._backend.copy(spare, other, self._rows[one].held)
            self._rows[one], self._rows[other] = self._rows[other], self._rows[one]

    def _move_if_ready(self, row: _Row) -> None:
        """A row whose prompt is read joins those in front."""
        if row.ready:
            self._swap(self._rows.index(row), self._n_ready)
            self._n_ready += 1

    def _restart_full_windows(self) -> None:
        """The rows whose context is full read its last half again, as a prompt."""
        for row in [row for row in self._rows[: self._n_ready] if row.outgrown]:
            self._n_ready -= 1
            self._swap(self._rows.index(row), self._n_ready)
            row.restart()
            self._move_if_ready(row)
            if self._note is not None:
                context = self._backend.context
                self._note(
                    tr(
                        "The text is longer than the context of {context} tokens: whenever the context is "
                        "full, generation continues from its last {max} tokens.",
                        context,
                        max(1, context // 2),
                    )
                )
                self._note = None  # said once

    def _read_prompts(self) -> list[Output]:
        """Chunks of as many prompts as a step has time for, those that came first first."""
        outputs: list[Output] = []
        n_left = READ_TOKENS
        for row in self._rows[self._n_ready :]:
            while not row.ready and n_left > 0:
                ids = row.next_chunk()
                index, scored = self._rows.index(row), row.waits_for_scores
                logits_TV = self._backend.read(index, row.held, ids, logits=scored)
                if logits_TV is not None:
                    row.score(ids, logits_TV)
                row.held += len(ids)
                n_left -= len(ids)
            self._move_if_ready(row)
            if n_left <= 0:
                break
        for row in self._rows[: self._n_ready]:
            if row.waits_for_scores:
                outputs += self._prompt_scores(row)
        return outputs

    def _prompt_scores(self, row: _Row) -> list[Output]:
        """The log-probabilities of a prompt that is read; tokens before the window have none."""
        sequence, row.waits_for_scores = row.sequence, False
        without = [PromptToken(token, None) for token in sequence.request.ids[: row.start + 1]]
        outputs: list[Output] = [(sequence, sequence.score_prompt((*without, *row.scores)))]
        row.scores = []
        if sequence.request.settings.max_new_tokens == 0:
            outputs.append((sequence, sequence.empty()))
            self._remove(row)
        return outputs

    def _generate(self) -> list[Output]:
        """The next token of every row whose prompt is read."""
        rows = self._rows[: self._n_ready]
        if not rows:
            return []
        sequences = [row.sequence for row in rows]
        logits_RV = self._backend.step([row.held for row in rows], [one.ids[-1] for one in sequences])
        for row in rows:
            row.held += 1
        outputs: list[Output] = []
        for row, choice in zip(rows, choose(np.asarray(logits_RV), sequences), strict=True):
            if isinstance(choice, GenerationError):
                outputs.append((row.sequence, choice))
                self._remove(row)
                continue
            event = row.sequence.add(choice.token, choice.logprob, choice.top)
            outputs.append((row.sequence, event))
            if event.result is not None:
                self._remove(row)
        return outputs
