"""One text while it is written, and what is said about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from mingyue.config import GenerateSettings
from mingyue.generation.stopping import StopTexts

if TYPE_CHECKING:
    from mingyue.text import Tokenizer

Stop = Literal["end", "stop text", "length"]


@dataclass(frozen=True)
class Generation:
    """A finished text."""

    prompt: str
    text: str
    """What was written after the prompt; ends before a stop text."""
    ids: list[int]
    """Every token written, in order; the end mark, if it was written, is the last. With a stop text, its tokens too."""
    logprobs: list[float] | None
    """log P (natural) of each of `ids` under the model itself: temperature 1, nothing removed. Only on request."""
    stop: Stop
    """Why it ended: the end mark, a stop text, or `max_new_tokens`."""
    prompt_index: int
    """Which of the request's prompts, from 0."""
    sample: int
    """Which of the samples of the prompt, from 0."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Event:
    """A token was written. The `text`s of a sample's events, joined, are exactly its `Generation.text`."""

    prompt_index: int
    sample: int
    text: str
    """What this token lets be shown; "" after half a character, or what may become a stop text."""
    token: int | None
    """None only when there was nothing to write (0 new tokens)."""
    logprob: float | None = None
    result: Generation | None = None
    """The finished text, with its last event."""


class Writing:
    """The state of one sample of one prompt."""

    def __init__(
        self,
        prompt: str,
        prompt_ids: list[int],
        settings: GenerateSettings,
        tokenizer: Tokenizer,
        *,
        prompt_index: int,
        sample: int,
        logprobs: bool,
    ) -> None:
        self.prompt_index, self.sample = prompt_index, sample
        self.ids = list(prompt_ids)
        self.n_prompt = len(prompt_ids)
        self.start = 0
        """Where the window begins that the model last read (see `mingyue.generation.window`)."""
        self.seen: Tensor | None = None
        """[V] boolean: tokens of prompt and text so far; kept only for a repetition penalty."""
        self._prompt, self._settings, self._end = prompt, settings, tokenizer.eos_id
        self._stops = StopTexts(settings.stop)
        self._pieces: list[str] = []
        self._logprobs: list[float] | None = [] if logprobs else None
        self._decoder = tokenizer.stream()
        self._decoder.push(prompt_ids[-1])  # some tokenizers spell the first token of a text in another way

    @property
    def n_written(self) -> int:
        """Tokens written so far."""
        return len(self.ids) - self.n_prompt

    def watch(self, vocab_size: int, device: torch.device) -> None:
        """Keep `seen` from here on."""
        self.seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.seen[self.ids] = True

    def add(self, token: int, logprob: float | None) -> Event:
        """Write a token."""
        self.ids.append(token)
        if self.seen is not None:
            self.seen[token] = True
        if self._logprobs is not None and logprob is not None:
            self._logprobs.append(logprob)
        counts = self.n_written > self._settings.min_new_tokens
        stop: Stop | None = None
        if token == self._end:
            stop, piece = "end", ""
        else:
            piece = self._stops.push(self._decoder.push(token), counts=counts)
            if self.n_written == self._settings.max_new_tokens:
                stop = "length"
        if stop and not self._stops.found:
            piece += self._stops.push(self._decoder.finish(), counts=counts)
        if self._stops.found:
            stop = "stop text"
        if stop:
            piece += self._stops.release()
        self._pieces.append(piece)
        return self._event(piece, token, logprob, stop)

    def nothing(self) -> Event:
        """The only event of a text of 0 new tokens."""
        return self._event("", None, None, "length")

    def _event(self, piece: str, token: int | None, logprob: float | None, stop: Stop | None) -> Event:
        result = None
        if stop:
            result = Generation(
                prompt=self._prompt,
                text="".join(self._pieces),
                ids=self.ids[self.n_prompt :],
                logprobs=self._logprobs,
                stop=stop,
                prompt_index=self.prompt_index,
                sample=self.sample,
            )
        return Event(self.prompt_index, self.sample, piece, token, logprob, result)
