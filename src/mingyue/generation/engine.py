"""Batched writing: texts of different lengths side by side; one that ends leaves, one that waits takes its place.

Row i of the cache belongs to `texts[i]`. Rows are filled from the left and hold their own number of tokens, so who
else is in the batch changes no text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from mingyue.generation.evaluating import evaluating
from mingyue.generation.sampling import Choice, Sampler
from mingyue.generation.window import window_start
from mingyue.generation.writing import Event, Writing
from mingyue.models import DecoderOnly
from mingyue.nn import Cache, for_inference

Note = Callable[[str], None]


class Engine:
    """Writes all of `waiting`, at most `batch_size` at a time, and yields every token as it comes."""

    def __init__(
        self,
        model: DecoderOnly,
        sampler: Sampler,
        waiting: Sequence[Writing],
        *,
        use_cache: bool,
        note: Note,
    ) -> None:
        self._model, self._sampler, self._note = model, sampler, note
        self._bare = for_inference(model)
        self._settings = sampler.settings
        self._context = model.config.context
        self._device = model.embedding.weight.device
        self._waiting = deque(waiting)
        self._texts: list[Writing] = []
        self._outgrown = False
        self._cache: Cache | None = None
        if use_cache and waiting:
            longest = max(len(text.ids) for text in waiting) + self._settings.max_new_tokens
            rows = min(self._settings.batch_size, len(waiting))
            self._cache = model.new_cache(rows, capacity=min(self._context, longest))

    def run(self) -> Iterator[Event]:
        """Every token of every text; texts that are written side by side take turns."""
        while self._waiting or self._texts:
            self._admit()
            # Not around the yield: the mode would reach the caller's code.
            with evaluating(self._model), torch.inference_mode():
                texts, choices = self._step()
            for text, choice in zip(texts, choices, strict=True):
                event = text.add(choice.token, choice.logprob)
                if event.result is not None:
                    self._leave(text)
                yield event

    def _admit(self) -> None:
        """First come, first served: a text enters if there is room, and not while it can soon copy from its sibling."""
        while self._waiting and len(self._texts) < self._settings.batch_size:
            text = self._waiting[0]
            text.start = window_start(len(text.ids), self._context)
            if self._cache is not None:
                row, held = len(self._texts), len(text.ids) - text.start - 1
                self._cache.clear(row)
                for sibling, other in enumerate(self._texts):
                    if other.prompt_index == text.prompt_index and other.start == text.start:
                        if self._cache.lengths[sibling] < held:
                            return  # it is still reading the prompt
                        self._cache.copy(sibling, row, held)
                        break
            if self._settings.repetition_penalty != 1.0:
                text.watch(self._model.config.vocab_size, self._device)
            self._texts.append(self._waiting.popleft())

    def _leave(self, text: Writing) -> None:
        """The last row takes the place of the one that leaves, so that the rows in use stay side by side."""
        row, last = self._texts.index(text), self._texts.pop()
        if last is not text:
            self._texts[row] = last
            if self._cache is not None:
                self._cache.copy(len(self._texts), row)

    def _step(self) -> tuple[list[Writing], list[Choice]]:
        """One forward pass: the texts that have been read to their end, and the next token of each."""
        for row, text in enumerate(self._texts):
            start = window_start(len(text.ids), self._context)
            if start != text.start:
                text.start = start
                if self._cache is not None:
                    self._cache.clear(row)
                self._tell_outgrown()
        rows, last_RM = self._read_all() if self._cache is None else self._read_new()
        texts = [self._texts[row] for row in rows]
        return texts, self._sampler.choose(self._bare.output(last_RM), texts) if texts else []

    def _tell_outgrown(self) -> None:
        if not self._outgrown:
            self._outgrown = True
            self._note(
                f"The text has outgrown the context of {self._context} tokens: whenever that is full, the model "
                f"goes on from the last {max(1, self._context // 2)}."
            )

    def _read_new(self) -> tuple[list[int], Tensor]:
        """With a cache: what each row does not hold yet. Rows that lack much are read first, in bounded pieces."""
        assert self._cache is not None
        pending = [text.ids[text.start + held :] for text, held in zip(self._texts, self._cache.lengths, strict=False)]
        most = max(len(ids) for ids in pending)
        if most == 1:
            ids_R1 = torch.tensor(pending, device=self._device)
            hidden_R1M = self._bare.hidden(ids_R1, cache=self._cache.step(rows=range(len(pending))))
            return list(range(len(pending))), hidden_R1M[:, 0]
        rows = [row for row, ids in enumerate(pending) if len(ids) > 1]
        pieces = [pending[row][: self._settings.prefill_chunk] for row in rows]
        step = self._cache.step([len(piece) for piece in pieces], rows=rows)
        hidden_RTM = self._bare.hidden(self._padded(pieces), cache=step)
        done = [i for i, row in enumerate(rows) if len(pieces[i]) == len(pending[row])]
        return [rows[i] for i in done], hidden_RTM[done, [len(pieces[i]) - 1 for i in done]]

    def _read_all(self) -> tuple[list[int], Tensor]:
        """Without a cache: everything that the model may see, again for every token."""
        pieces = [text.ids[text.start :] for text in self._texts]
        hidden_RTM = self._bare.hidden(self._padded(pieces))
        rows = list(range(len(pieces)))
        return rows, hidden_RTM[rows, [len(piece) - 1 for piece in pieces]]

    def _padded(self, pieces: Sequence[Sequence[int]]) -> Tensor:
        """Padding stands on the right, where nothing that is real looks; its value does not matter."""
        longest = max(len(piece) for piece in pieces)
        return torch.tensor([[*piece, *[0] * (longest - len(piece))] for piece in pieces], device=self._device)
