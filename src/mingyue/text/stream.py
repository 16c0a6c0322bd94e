"""Decodes ids one at a time, to show text while it is generated."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import SupportsIndex

from mingyue.text.token_bytes import TokenBytes


class StreamDecoder:
    """Decodes ids one by one; the results of all pushes and `finish`, joined, are the text of all ids.

    Bytes of an incomplete character are held back, so it never appears as U+FFFD; bytes that cannot become a character
    appear as U+FFFD at once.
    """

    def __init__(
        self, token_bytes: TokenBytes, special_ids: frozenset[int], check: Callable[[SupportsIndex], int]
    ) -> None:
        self._bytes = token_bytes
        self._special_ids = special_ids
        self._check = check
        self._reader = codecs.getincrementaldecoder("utf-8")("replace")
        self._previous: int | None = None

    def push(self, number: SupportsIndex) -> str:
        """The text that this id completes, possibly "". Raises `TokenizerError` for an id outside the vocabulary."""
        index = self._check(number)
        if index in self._special_ids:
            return ""
        data = self._bytes.after(self._previous, index)
        self._previous = index
        return self._reader.decode(data)

    def finish(self) -> str:
        """The text still held back (U+FFFD for an incomplete character); the decoder then starts a new text."""
        rest = self._reader.decode(b"", final=True)
        self._reader.reset()
        self._previous = None
        return rest
