"""Batched generation: sequences of different length side by side; a finished one is replaced by one that waits.

Row i of the cache belongs to `_sequences[i]`. Rows are filled from the left and hold their own number of tokens, so
the other rows of the batch do not change a text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mingyue.generation.evaluating import evaluating
from mingyue.generation.sampling import Sampler
from mingyue.generation.sequence import Event, GeneratedSequence
from mingyue.generation.window import window_start
from mingyue.models import DecoderOnly
from mingyue.nn import Cache, CacheStep, for_inference
from mingyue.words import tr

Note = Callable[[str], None]


@dataclass(frozen=True)
class _Input:
    """The input of one forward pass, and the rows of the batch whose next token it predicts."""

    ids_RT: Tensor
    step: CacheStep | None
    rows: list[int]
    predicts: tuple[list[int], list[int]] | None
    """Input row and position of the last token of each of `rows`; None when `ids_RT` is [rows, 1]."""


class Engine:
    """Generates all of `waiting`, at most `batch_size` at a time, and yields every token as it is chosen."""

    def __init__(
        self,
        model: DecoderOnly,
        sampler: Sampler,
        waiting: Sequence[GeneratedSequence],
        *,
        use_cache: bool,
        note: Note,
    ) -> None:
        self._module, self._sampler, self._note = model, sampler, note
        self._model = for_inference(model)
        self._settings = sampler.settings
        self._context = model.config.context
        self._device = model.embedding.weight.device
        self._waiting = deque(waiting)
        self._sequences: list[GeneratedSequence] = []
        self._noted_full_context = False
        self._cache: Cache | None = None
        if use_cache and waiting:
            longest = max(len(sequence.ids) for sequence in waiting) + self._settings.max_new_tokens
            rows = min(self._settings.batch_size, len(waiting))
            self._cache = model.new_cache(rows, capacity=min(self._context, longest))

    def run(self) -> Iterator[Event]:
        """Every token of every sequence; sequences of one batch take turns."""
        while self._waiting or self._sequences:
            self._admit()
            self._restart_full_windows()
            # Not around the yield: the mode would reach the caller's code.
            with evaluating(self._module), torch.inference_mode():
                given = self._all_tokens() if self._cache is None else self._new_tokens(self._cache)
                hidden_RTM = self._model.hidden(given.ids_RT, cache=given.step)
                last_RM = hidden_RTM[:, 0] if given.predicts is None else hidden_RTM[given.predicts]
                sequences = [self._sequences[row] for row in given.rows]
                choices = self._sampler.choose(self._model.output(last_RM), sequences) if sequences else []
            for sequence, choice in zip(sequences, choices, strict=True):
                event = sequence.add(choice.token, choice.logprob)
                if event.result is not None:
                    self._remove(sequence)
                yield event

    def _admit(self) -> None:
        """First come, first served. A sequence waits while another sample of its prompt reads it, to copy the cache."""
        while self._waiting and len(self._sequences) < self._settings.batch_size:
            sequence = self._waiting[0]
            sequence.start = window_start(len(sequence.ids), self._context)
            if self._cache is not None:
                row, needed = len(self._sequences), len(sequence.ids) - sequence.start - 1
                self._cache.clear(row)
                for other_row, other in enumerate(self._sequences):
                    if other.prompt_index == sequence.prompt_index and other.start == sequence.start:
                        if self._cache.lengths[other_row] < needed:
                            return
                        self._cache.copy(other_row, row, needed)
                        break
            if self._settings.repetition_penalty != 1.0:
                sequence.track_seen(self._module.config.vocab_size, self._device)
            self._sequences.append(self._waiting.popleft())

    def _remove(self, sequence: GeneratedSequence) -> None:
        """The last row moves to the index of the removed one, so that the rows in use stay contiguous."""
        row, last = self._sequences.index(sequence), self._sequences.pop()
        if last is not sequence:
            self._sequences[row] = last
            if self._cache is not None:
                self._cache.copy(len(self._sequences), row)

    def _restart_full_windows(self) -> None:
        """Empty the rows whose context is full; their last half context is read again."""
        for row, sequence in enumerate(self._sequences):
            start = window_start(len(sequence.ids), self._context)
            if start == sequence.start:
                continue
            sequence.start = start
            if self._cache is not None:
                self._cache.clear(row)
            if not self._noted_full_context:
                self._noted_full_context = True
                self._note(
                    tr(
                        "The text is longer than the context of {context} tokens: whenever the context is "
                        "full, generation continues from its last {max} tokens.",
                        self._context,
                        max(1, self._context // 2),
                    )
                )

    def _new_tokens(self, cache: Cache) -> _Input:
        """With a cache: the tokens that each row does not hold yet. Prompts are read first, in chunks."""
        pending = [
            sequence.ids[sequence.start + held :]
            for sequence, held in zip(self._sequences, cache.lengths, strict=False)
        ]
        if max(len(ids) for ids in pending) == 1:
            rows = list(range(len(pending)))
            return _Input(torch.tensor(pending, device=self._device), cache.step(rows=rows), rows, None)
        rows = [row for row, ids in enumerate(pending) if len(ids) > 1]
        chunks = [pending[row][: self._settings.prefill_chunk] for row in rows]
        step = cache.step([len(chunk) for chunk in chunks], rows=rows)
        complete = [i for i, row in enumerate(rows) if len(chunks[i]) == len(pending[row])]
        predicts = complete, [len(chunks[i]) - 1 for i in complete]
        return _Input(self._padded(chunks), step, [rows[i] for i in complete], predicts)

    def _all_tokens(self) -> _Input:
        """Without a cache: the whole window of each sequence, again for every token."""
        windows = [sequence.ids[sequence.start :] for sequence in self._sequences]
        rows = list(range(len(windows)))
        return _Input(self._padded(windows), None, rows, (rows, [len(window) - 1 for window in windows]))

    def _padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Padding is on the right, where no real token attends to it; its value does not matter."""
        longest = max(len(row) for row in rows)
        return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=self._device)
