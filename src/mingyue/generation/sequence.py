"""One sequence while it is generated, and its results."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mingyue.generation.allowed import AllowedTokens
from mingyue.generation.request import PromptToken, Request
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
    """None for `max_new_tokens` 0, and for the event that has `prompt_scores`."""
    logprob: float | None = None
    result: Generation | None = None
    """The finished text, in its last event."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens in place of this one and their log P (natural), the likeliest first; on request."""
    prompt_scores: tuple[PromptToken, ...] | None = None
    """The tokens of the prompt and their log P, on request: an event of its own, before the first token."""


class GeneratedSequence:
    """The state of one request while it is generated."""

    def __init__(self, request: Request, tokenizer: Tokenizer, allowed: AllowedTokens, *, vocab_size: int) -> None:
        settings = request.settings
        self.request, self.allowed, self.eos_id = request, allowed, tokenizer.eos_id
        self.ids = list(request.ids)
        self.n_prompt = len(request.ids)
        self.state = BOUNDARY
        """Between two characters, or which part of one the text ends with (see `mingyue.generation.allowed`)."""
        self.seen: npt.NDArray[np.bool_] | None = None
        """[V]: the tokens of prompt and text so far; kept only for a repetition penalty."""
        self.counts: npt.NDArray[np.int32] | None = None
        """[V]: how often each token was generated; kept only for a presence or frequency penalty."""
        if settings.repetition_penalty != 1.0:
            self.seen = np.zeros(vocab_size, dtype=bool)
            self.seen[self.ids] = True
        if settings.presence_penalty or settings.frequency_penalty:
            self.counts = np.zeros(vocab_size, dtype=np.int32)
        self._stop_texts = StopTexts(settings.stop)
        self._pieces: list[str] = []
        self._logprobs: list[float] | None = None if request.top_logprobs is None else []
        self._decoder = tokenizer.stream()
        self._decoder.push(request.ids[-1])  # some tokenizers decode the first token of a text differently
        if allowed.after(BOUNDARY, request.ids[-1]) != BOUNDARY:  # a prompt that ends inside a character
            self._decoder = tokenizer.stream()

    @property
    def n_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.ids) - self.n_prompt

    @property
    def place(self) -> tuple[int, int, int]:
        """(prompt, sample, position) of the next token: with the seed, what its random number depends on."""
        return self.request.prompt_index, self.request.sample, self.n_generated

    def add(self, token: int, logprob: float | None = None, top: tuple[tuple[int, float], ...] = ()) -> Event:
        """Append a token."""
        settings = self.request.settings
        self.ids.append(token)
        self.state = self.allowed.after(self.state, token)
        if self.seen is not None:
            self.seen[token] = True
        if self.counts is not None:
            self.counts[token] += 1
        if self._logprobs is not None and logprob is not None:
            self._logprobs.append(logprob)
        counts = self.n_generated > settings.min_new_tokens
        stop: Stop | None = None
        if token == self.eos_id:
            stop, piece = "end", ""
        else:
            piece = self._stop_texts.push(self._decoder.push(token), counts=counts)
            if self.n_generated == settings.max_new_tokens:
                stop = "length"
        if stop and not self._stop_texts.found and self.state == BOUNDARY:
            piece += self._stop_texts.push(self._decoder.finish(), counts=counts)
        if self._stop_texts.found:
            stop = "stop text"
        if stop:
            piece += self._stop_texts.release()
        self._pieces.append(piece)
        return self._event(piece, token, logprob, stop, top)

    def empty(self) -> Event:
        """The only event of a text of 0 new tokens."""
        return self._event("", None, None, "length")

    def score_prompt(self, scores: tuple[PromptToken, ...]) -> Event:
        """The event with the log-probabilities of the prompt."""
        return Event(self.request.prompt_index, self.request.sample, "", None, prompt_scores=scores)

    def _event(
        self,
        piece: str,
        token: int | None,
        logprob: float | None,
        stop: Stop | None,
        top: tuple[tuple[int, float], ...] = (),
    ) -> Event:
        request, result = self.request, None
        if stop:
            result = Generation(
                prompt=request.prompt,
                text="".join(self._pieces),
                ids=self.ids[self.n_prompt :],
                logprobs=self._logprobs,
                stop=stop,
                prompt_index=request.prompt_index,
                sample=request.sample,
            )
        return Event(request.prompt_index, request.sample, piece, token, logprob, result, top)
