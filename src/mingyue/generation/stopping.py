"""Stop texts: found across the borders of tokens, never shown, not even their beginning."""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Lets text through up to the first stop text, holding back what may turn out to be the beginning of one.

    The first is the one that ends first (of several that end together, the longest), so where the pieces are cut
    changes nothing.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, piece: str, *, counts: bool = True) -> str:
        """The text that is now safe to show. A stop text that is completed while `counts` is false is plain text."""
        if not self._stops:
            return piece
        old, text = len(self._held), self._held + piece
        if counts and (cut := self._first(text, old)) is not None:
            self.found, self._held = True, ""
            return text[:cut]
        n_held = self._n_unsure(text)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def release(self) -> str:
        """The writing is over: what was held back, which is now plain text."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str, old: int) -> int | None:
        """Where the stop text begins that ends first, after the first `old` characters."""
        places: list[tuple[int, int]] = []
        for stop in self._stops:
            start = text.find(stop, max(0, old - len(stop) + 1))
            if start >= 0:
                places.append((start + len(stop), start))
        return min(places)[1] if places else None

    def _n_unsure(self, text: str) -> int:
        """Length of the longest end of `text` that is the beginning of a stop text."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if stop.startswith(text[len(text) - length :]):
                    longest = length
                    break
        return longest
