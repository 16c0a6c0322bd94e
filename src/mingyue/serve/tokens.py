"""Tokens of an answer with their text and log-probabilities, in the two forms of the OpenAI API.

A token is given with the text that it completes: none for part of a character, which the token that ends it shows. So
the texts of all tokens join to the text of the answer, and offsets do not depend on how it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mingyue.generation import Event
    from mingyue.text import Tokenizer

_LEAST = -9999.0
"""Stands for log 0, which JSON cannot hold, as in the OpenAI API."""


@dataclass(frozen=True)
class ShownToken:
    """One token of an answer."""

    id: int
    piece: str
    """The text that it completes."""
    offset: int
    """Characters of the answer before it."""
    logprob: float | None
    top: Sequence[tuple[int, float]]
    """The likeliest ids there, best first."""

    @property
    def end(self) -> int:
        """Characters of the answer up to its end."""
        return self.offset + len(self.piece)


class TokenLog:
    """The tokens of one text, each given out once its text is."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], offset: int = 0) -> None:
        """`offset`: characters of the answer before the text, those of an echoed prompt."""
        self._decoder = tokenizer.stream()
        last = prompt_ids[-1]
        if _is_whole(tokenizer.token_bytes(last)):
            self._decoder.push(last)  # some tokenizers decode the first token of a text differently
        self._read = self._shown = offset
        self._held: list[ShownToken] = []

    def add(self, event: Event) -> list[ShownToken]:
        """The tokens whose text has come out with this event. Tokens of a stop text never do."""
        self._shown += len(event.text)
        if event.token is not None:
            piece = self._decoder.push(event.token)
            self._held.append(ShownToken(event.token, piece, self._read, event.logprob, event.top))
            self._read += len(piece)
        if event.result is None:
            count = next((at for at, one in enumerate(self._held) if one.end > self._shown), len(self._held))
        elif event.result.stop == "stop text":
            count = next((at for at, one in enumerate(self._held) if one.offset >= self._shown), len(self._held))
        else:
            count = len(self._held)
        ready, self._held = self._held[:count], self._held[count:]
        return [_clipped(one, self._shown) for one in ready]


def _clipped(token: ShownToken, shown: int) -> ShownToken:
    """A token of which a stop text has cut the end."""
    if token.end <= shown:
        return token
    return ShownToken(token.id, token.piece[: max(shown - token.offset, 0)], token.offset, token.logprob, token.top)


def prompt_tokens(
    tokenizer: Tokenizer, ids: Sequence[int], scores: Sequence[tuple[float | None, Sequence[tuple[int, float]]]]
) -> list[ShownToken]:
    """The tokens of an echoed prompt; nothing precedes the first one, so it has no log-probability."""
    decoder, offset = tokenizer.stream(), 0
    found: list[ShownToken] = []
    for place, (index, (logprob, top)) in enumerate(zip(ids, scores, strict=True)):
        piece = decoder.push(index)
        found.append(ShownToken(index, piece, offset, logprob if place else None, top if place else ()))
        offset += len(piece)
    return found


def name_of(tokenizer: Tokenizer, index: int) -> str:
    r"""A token by itself, as the OpenAI API writes it: its text; `bytes:\xe6\x98` for a part of one; `<eos>`."""
    data = tokenizer.token_bytes(index)
    if not data:
        return tokenizer.token_text(index)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def legacy_logprobs(tokenizer: Tokenizer, tokens: Iterable[ShownToken], top: int) -> dict[str, list[Any]]:
    """The form of /v1/completions. The chosen token is among the likeliest of its position, whatever its rank."""
    found: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for one in tokens:
        own = name_of(tokenizer, one.id)
        found["text_offset"].append(one.offset)
        found["tokens"].append(own)
        if one.logprob is None:
            found["token_logprobs"].append(None)
            found["top_logprobs"].append(None)
            continue
        best: dict[str, float] = {}
        for index, logprob in [*one.top[:top], (one.id, one.logprob)]:
            best.setdefault(name_of(tokenizer, index), max(logprob, _LEAST))
        found["token_logprobs"].append(max(one.logprob, _LEAST))
        found["top_logprobs"].append(best)
    return found


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[ShownToken], top: int) -> dict[str, Any]:
    """The form of /v1/chat/completions."""
    content: list[dict[str, Any]] = []
    for one in tokens:
        best = [_entry(tokenizer, index, name_of(tokenizer, index), logprob) for index, logprob in one.top[:top]]
        own = _entry(tokenizer, one.id, one.piece, _LEAST if one.logprob is None else one.logprob)
        content.append({**own, "top_logprobs": best})
    return {"content": content, "refusal": None}


def _entry(tokenizer: Tokenizer, index: int, name: str, logprob: float) -> dict[str, Any]:
    return {"token": name, "logprob": max(logprob, _LEAST), "bytes": list(tokenizer.token_bytes(index))}


def _is_whole(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
