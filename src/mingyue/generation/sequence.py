"""One sequence while it is generated, and its results."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from mingyue.config import GenerateSettings
from mingyue.generation.allowed import AllowedTokens
from mingyue.generation.stopping import StopTexts
from mingyue.reprs import shortened, text_html
from mingyue.text.utf8 import BOUNDARY
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.text import Tokenizer

Stop = Literal["end", "stop text", "length"]


@dataclass(frozen=True, repr=False)
class Generation:
    """A generated text."""

    prompt: str
    text: str
    """The text after the prompt; ends before a stop text, and with `valid_utf8` before a character that was cut."""
    ids: list[int]
    """Every generated token, in order; EOS, if generated, is the last. Tokens of a stop text or of a character that was
    cut are included."""
    logprobs: list[float] | None
    """log P (natural) of each of `ids` under the model itself: temperature 1, nothing removed; on request only."""
    stop: Stop
    """Why generation stopped: EOS ("end"), a stop text, or `max_new_tokens` ("length")."""
    prompt_index: int
    """Index of the prompt in the request, from 0."""
    sample: int
    """Index among the samples of the prompt, from 0."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        return f"<mingyue.Generation: {shortened(self.prompt, 20)} + {shortened(self.text)}, stop {self.stop}>"

    def _repr_html_(self) -> str:
        """For notebooks: the whole text, and why it ends."""
        return text_html(self.prompt + self.text, tr("tokens: {n_ids:,}, stop: {stop}", len(self.ids), self.stop))


@dataclass(frozen=True)
class Event:
    """One generated token. The `text`s of all events of a sample join to exactly its `Generation.text`."""

    prompt_index: int
    sample: int
    text: str
    """Text that can be shown after this token; "" for part of a character, or a possible beginning of a stop text."""
    token: int | None
    """None only for `max_new_tokens` 0."""
    logprob: float | None = None
    result: Generation | None = None
    """The finished text, in its last event."""


class GeneratedSequence:
    """The state of one sample of one prompt while it is generated."""

    def __init__(
        self,
        prompt: str,
        prompt_ids: list[int],
        settings: GenerateSettings,
        tokenizer: Tokenizer,
        allowed: AllowedTokens,
        *,
        prompt_index: int,
        sample: int,
        logprobs: bool,
    ) -> None:
        self.prompt_index, self.sample = prompt_index, sample
        self.ids = list(prompt_ids)
        self.n_prompt = len(prompt_ids)
        self.start = 0
        """First token of the window that the model reads (see `mingyue.generation.window`)."""
        self.seen: Tensor | None = None
        """[V] boolean: the tokens of prompt and text so far; kept only for a repetition penalty."""
        self.state = BOUNDARY
        """Between two characters, or which part of one the text ends with (see `mingyue.generation.allowed`)."""
        self._allowed = allowed
        self._prompt, self._settings, self._eos_id = prompt, settings, tokenizer.eos_id
        self._stop_texts = StopTexts(settings.stop)
        self._pieces: list[str] = []
        self._logprobs: list[float] | None = [] if logprobs else None
        self._decoder = tokenizer.stream()
        self._decoder.push(prompt_ids[-1])  # some tokenizers decode the first token of a text differently
        if allowed.after(BOUNDARY, prompt_ids[-1]) != BOUNDARY:  # a `begin_id` that is the first part of a character
            self._decoder = tokenizer.stream()

    @property
    def n_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.ids) - self.n_prompt

    def track_seen(self, vocab_size: int, device: torch.device) -> None:
        """Start to keep `seen`."""
        self.seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.seen[self.ids] = True

    def add(self, token: int, logprob: float | None) -> Event:
        """Append a token."""
        self.ids.append(token)
        self.state = self._allowed.after(self.state, token)
        if self.seen is not None:
            self.seen[token] = True
        if self._logprobs is not None and logprob is not None:
            self._logprobs.append(logprob)
        counts = self.n_generated > self._settings.min_new_tokens
        stop: Stop | None = None
        if token == self._eos_id:
            stop, piece = "end", ""
        else:
            piece = self._stop_texts.push(self._decoder.push(token), counts=counts)
            if self.n_generated == self._settings.max_new_tokens:
                stop = "length"
        if stop and not self._stop_texts.found and self.state == BOUNDARY:
            piece += self._stop_texts.push(self._decoder.finish(), counts=counts)
        if self._stop_texts.found:
            stop = "stop text"
        if stop:
            piece += self._stop_texts.release()
        self._pieces.append(piece)
        return self._event(piece, token, logprob, stop)

    def empty(self) -> Event:
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
