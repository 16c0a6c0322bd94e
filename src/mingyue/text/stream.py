"""Ids in, text out, one at a time, for showing text while it is written."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import SupportsIndex

from mingyue.text.spelling import Spelling


class StreamDecoder:
    """Turns ids into text as they come; what all pushes and `finish` return, joined, is the decoding of the whole.

    Bytes that may still become a character are held back, so an unfinished character never shows as U+FFFD; bytes that
    can no longer become one show as U+FFFD at once.
    """

    def __init__(self, spelling: Spelling, silent: frozenset[int], check: Callable[[SupportsIndex], int]) -> None:
        self._spelling = spelling
        self._silent = silent
        self._check = check
        self._reader = codecs.getincrementaldecoder("utf-8")("replace")
        self._previous: int | None = None

    def push(self, number: SupportsIndex) -> str:
        """The text that this id completes, maybe "". Raises `TokenizerError` for an id outside the vocabulary."""
        index = self._check(number)
        if index in self._silent:
            return ""
        spelled = self._spelling.after(self._previous, index)
        self._previous = index
        return self._reader.decode(spelled)

    def finish(self) -> str:
        """What is still held back (U+FFFD for a character that was cut off); the decoder then starts a new text."""
        rest = self._reader.decode(b"", final=True)
        self._reader.reset()
        self._previous = None
        return rest
