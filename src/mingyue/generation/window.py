"""The window that the model reads of a text longer than its context."""

from __future__ import annotations


def window_start(length: int, context: int) -> int:
    """First token that the model reads to continue a text of `length` tokens (BOS counts).

    Up to the context this is 0. Beyond it, the window restarts from the last half of the context whenever it is full:
    it begins at the smallest multiple of half a context that leaves at most `context` tokens. A pure function of the
    length, so the text is the same without a cache and with one, which is emptied only at a restart.
    """
    if length <= context:
        return 0
    half = max(1, context // 2)
    return -(-(length - context) // half) * half
