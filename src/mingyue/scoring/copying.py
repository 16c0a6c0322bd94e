"""How much a written text copies: what of it stands in the training text, character for character.

The training text passes by once, in pieces, so that its size costs time (about a second for 5 million characters) and
no memory. Runs are compared by a 64-bit polynomial hash, H(x₁ … x_l) = Σ x_j B^j mod 2⁶⁴, taken from running sums at
every place at once; what is reported has been compared character by character.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 19  # characters of training text looked at together
_BASE = 0x9E3779B97F4A7C15 | 1  # odd, so that it has an inverse
_BORDER = 0x110000  # a character that no text has: stands between written texts
_U64 = NDArray[np.uint64]


@dataclass(frozen=True)
class CopyReport:
    """What of the written texts was found in the training text."""

    longest: str
    """The longest run of characters that stands in both."""
    share_of_ngrams: float
    """Of all runs of `n` characters in the written texts, the share that the training text has too (0 if none)."""
    n: int
    written: int
    """Characters written."""
    compared: int
    """Characters of training text that were searched."""

    def describe(self) -> list[str]:
        """Two sentences."""
        return [
            f"Longest run copied from the training text: {len(self.longest)} characters, {self.longest!r}.",
            f"Of all runs of {self.n} characters that it wrote, {self.share_of_ngrams:.0%} stand in the training text.",
        ]


def copy_report(texts: Sequence[str], training_text: str | Iterable[str], *, n: int = 8) -> CopyReport:
    """Search the runs of `texts` in the training text, given whole or in pieces that follow each other.

    A run may cross from one piece into the next, but not from one written text into another.
    """
    wanted = _Wanted(texts, n)
    overlap = max([n, *map(len, texts)])
    compared = 0
    for stretch, n_new in _stretches([training_text] if isinstance(training_text, str) else training_text, overlap):
        wanted.look_in(stretch)
        compared += n_new
    share = float(wanted.copied.mean()) if len(wanted.copied) else 0.0
    return CopyReport(wanted.longest, share, n, sum(map(len, texts)), compared)


class _Wanted:
    """The written texts, and what of them was found so far."""

    def __init__(self, texts: Sequence[str], n: int) -> None:
        self._n = n
        self._characters = _codes(chr(0).join(texts))
        border = np.cumsum([len(text) + 1 for text in texts[:-1]], dtype=np.int64) - 1
        self._characters[border] = _BORDER
        self._sums = _Sums(self._characters)
        self._grams = self._starts(n)
        self._gram_hashes = self._sums.hashes(self._grams, n)
        self.copied = np.zeros(len(self._gram_hashes), dtype=bool)
        self._ordered = np.sort(self._gram_hashes)
        self._longest = (0, 0)  # start, length

    @property
    def longest(self) -> str:
        start, length = self._longest
        return _text(self._characters[start : start + length])

    def _starts(self, length: int) -> NDArray[np.int64]:
        """Where runs of so many characters begin that stay within one text."""
        n_starts = max(0, len(self._characters) - length + 1)
        borders = np.concatenate([[0], np.cumsum(self._characters == _BORDER)])
        return np.flatnonzero(borders[length : length + n_starts] == borders[:n_starts])

    def look_in(self, stretch: NDArray[np.uint32]) -> None:
        """Mark the n-grams that stand in a stretch of the training text, and look for a longer run there."""
        sums = _Sums(stretch)
        places = np.arange(max(0, len(stretch) - self._n + 1))
        hashes = sums.hashes(places, self._n)
        there = _is_in(hashes, self._ordered)
        places = places[there]
        self._mark(stretch, places, hashes[there])
        # A longer run is looked for only where an n-gram stands; shorter ones everywhere, until there is one.
        if len(places) or self._longest[1] < self._n - 1:
            self._lengthen(stretch, sums, places)

    def _mark(self, stretch: NDArray[np.uint32], places: NDArray[np.int64], hashes: _U64) -> None:
        found, first = np.unique(hashes, return_index=True)
        new = np.flatnonzero(_is_in(self._gram_hashes, found) & ~self.copied)
        there = places[first[np.searchsorted(found, self._gram_hashes[new])]]
        same = np.ones(len(new), dtype=bool)
        for k in range(self._n):
            same &= self._characters[self._grams[new] + k] == stretch[there + k]
        self.copied[new] = same

    def _lengthen(self, stretch: NDArray[np.uint32], sums: _Sums, places: NDArray[np.int64]) -> None:
        low, step = self._longest[1], 1
        best: tuple[int, int] | None = (0, 0)
        while best is not None:  # twice as far each time…
            best = self._find(stretch, sums, places, low + step)
            if best is not None:
                self._longest, low, step = best, low + step, 2 * step
        high = low + step  # …then between: every run of a length means one of each smaller length
        while high - low > 1:
            middle = (low + high) // 2
            best = self._find(stretch, sums, places, middle)
            if best is None:
                high = middle
            else:
                self._longest, low = best, middle

    def _find(
        self, stretch: NDArray[np.uint32], sums: _Sums, places: NDArray[np.int64], length: int
    ) -> tuple[int, int] | None:
        """A run of so many characters that both have: (start in the written texts, length)."""
        if length < self._n:
            places = np.arange(max(0, len(stretch) - length + 1))
        places = places[places <= len(stretch) - length]
        starts = self._starts(length)
        hashes = self._sums.hashes(starts, length)
        there = _is_in(sums.hashes(places, length), np.sort(hashes))
        for place in places[there]:
            same = hashes == sums.hashes(np.array([place]), length)[0]
            start = int(starts[int(np.argmax(same))])
            if np.array_equal(self._characters[start : start + length], stretch[place : place + length]):
                return start, length
        return None


class _Sums:
    """Running sums of x_j B^j, from which the hash of any run follows by one subtraction and one product."""

    def __init__(self, characters: NDArray[np.uint32]) -> None:
        powers, self._inverses = _powers(len(characters) + 1)
        mixed = characters.astype(np.uint64) + np.uint64(1)
        self._sums = np.zeros(len(characters) + 1, dtype=np.uint64)
        np.cumsum(mixed * powers[:-1], out=self._sums[1:])

    def hashes(self, starts: NDArray[np.int64], length: int) -> _U64:
        """Hash of the run of `length` characters at each start."""
        return (self._sums[starts + length] - self._sums[starts]) * self._inverses[starts]


def _powers(count: int) -> tuple[_U64, _U64]:
    """B^0 … B^(count−1) and their inverses mod 2⁶⁴ (products wrap)."""
    bases = np.full((2, count), 1, dtype=np.uint64)
    bases[0, 1:] = _BASE
    bases[1, 1:] = pow(_BASE, -1, 1 << 64)
    powers, inverses = np.cumprod(bases, axis=1, dtype=np.uint64)
    return powers, inverses


def _is_in(hashes: _U64, ordered: _U64) -> NDArray[np.bool_]:
    """Which of `hashes` are among `ordered`, which is sorted."""
    if not len(ordered):
        return np.zeros(len(hashes), dtype=bool)
    place = np.searchsorted(ordered, hashes)
    return ordered[np.minimum(place, len(ordered) - 1)] == hashes


def _stretches(pieces: Iterable[str], overlap: int) -> Iterator[tuple[NDArray[np.uint32], int]]:
    """The text in stretches, with the number of characters that are new in each.

    They overlap, so that every run of up to `overlap` characters lies within one.
    """
    waiting: list[NDArray[np.uint32]] = []
    count, kept = 0, 0
    for piece in pieces:
        for first in range(0, len(piece), _CHUNK):
            part = _codes(piece[first : first + _CHUNK])
            waiting.append(part)
            count += len(part)
            if count - kept >= _CHUNK:
                stretch = np.concatenate(waiting)
                yield stretch, count - kept
                waiting = [stretch[max(0, len(stretch) - overlap) :]]
                count = kept = len(waiting[0])
    if count > kept:
        yield np.concatenate(waiting), count - kept


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.dtype("<u4")).astype(np.uint32)


def _text(codes: NDArray[np.uint32]) -> str:
    return codes.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
