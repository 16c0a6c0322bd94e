"""What the model reads of a text that has outgrown its context."""

from __future__ import annotations


def window_start(length: int, context: int) -> int:
    """First token that the model reads when it continues a text of `length` tokens (BOS counts).

    All of it up to the context. Past it the window restarts from the last half of the context whenever it is full: it
    begins at the smallest multiple of half a context that leaves at most `context` tokens. A pure function of the
    length, so a text is the same with a cache, which is emptied only at a restart, and without one.
    """
    if length <= context:
        return 0
    half = max(1, context // 2)
    return -(-(length - context) // half) * half
