"""Stop texts: matched across token boundaries and never shown, not even in part."""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Passes text on up to the first stop text, and holds back what may be the beginning of one.

    The first is the one that ends first (of several that end together, the longest), so the result does not depend on
    how the text is divided into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, piece: str, *, counts: bool = True) -> str:
        """The text that can be shown after `piece`. A stop text completed while `counts` is false is plain text."""
        if not self._stops:
            return piece
        old, text = len(self._held), self._held + piece
        if counts and (cut := self._first(text, old)) is not None:
            self.found, self._held = True, ""
            return text[:cut]
        n_held = self._n_held_back(text)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def release(self) -> str:
        """The text held back, at the end of generation: it is plain text now."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str, old: int) -> int | None:
        """Start of the stop text that ends first, after the first `old` characters."""
        matches: list[tuple[int, int]] = []  # (end, start)
        for stop in self._stops:
            start = text.find(stop, max(0, old - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start))
        return min(matches)[1] if matches else None

    def _n_held_back(self, text: str) -> int:
        """Length of the longest suffix of `text` that is a proper prefix of a stop text."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if stop.startswith(text[len(text) - length :]):
                    longest = length
                    break
        return longest
