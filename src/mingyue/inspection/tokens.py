"""Tokens as printable text, and the occurrences of a word among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mingyue.text import Tokenizer


def token_label(tokenizer: Tokenizer, index: int) -> str:
    """The token as printable text: ␣ for a space, ⏎ for a line end, `<E6><98>` for a part of a character, `<eos>`.

    `<id 7>` for an id that only the model has (its table is padded).
    """
    if index >= tokenizer.vocab_size:
        return f"<id {index}>"
    return tokenizer.token_label(index)


def token_string(tokenizer: Tokenizer, index: int) -> str | None:
    """The text of a token; None for one that is no text by itself: a special token, a part of a character."""
    if index >= tokenizer.vocab_size:
        return None
    try:
        return tokenizer.token_bytes(index).decode("utf-8") or None
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True)
class Occurrence:
    """A word in a text."""

    start: int
    """Its first character."""
    end: int
    """The character after its last one."""
    first: int
    """The position of its first token among the ids."""
    last: int
    """The position of its last token, where the whole word has been read."""


def decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, list[int]]:
    """The text of ids, and how many of its characters are complete after each. Special tokens add nothing."""
    stream = tokenizer.stream()
    pieces: list[str] = []
    ends: list[int] = []
    count = 0
    for index in ids:
        pieces.append(stream.push(index))
        count += len(pieces[-1])
        ends.append(count)
    return "".join(pieces), ends


def occurrences(tokenizer: Tokenizer, ids: Sequence[int], word: str) -> list[Occurrence]:
    """The occurrences of a word in the text of `ids`, from left to right, without overlap.

    It is found by its characters, so it may be one token in one place and several, or a part of one, in another.
    """
    text, ends = decoded(tokenizer, ids)
    opening = next((position for position, index in enumerate(ids) if index not in tokenizer.special_ids), 0)
    found: list[Occurrence] = []
    start = text.find(word) if word else -1
    while start >= 0:
        end = start + len(word)
        # The word's first token follows the one that completes the text before it, unless that token has both.
        before = _reaching(ends, start) if start else None
        first = opening if before is None else before + (ends[before] == start)
        found.append(Occurrence(start, end, first, _reaching(ends, end)))
        start = text.find(word, end)
    return found


def _reaching(ends: Sequence[int], count: int) -> int:
    """The position of the token that completes `count` characters."""
    return next(position for position, end in enumerate(ends) if end >= count)
