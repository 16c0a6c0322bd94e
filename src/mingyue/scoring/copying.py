"""How much of a generated text is copied from the training text, character for character.

The training text is read once, in pieces, so that its size costs time (about a second for 5 million characters) and no
memory. Substrings are compared by a 64-bit polynomial hash, H(x₁ … x_l) = Σ x_j B^j mod 2⁶⁴, computed from running sums
at all positions at once; what is reported has also been compared character by character.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mingyue.words import tr

_CHUNK = 1 << 19  # characters of training text searched at once
_BASE = 0x9E3779B97F4A7C15 | 1  # odd, so that it has an inverse
_BORDER = 0x110000  # a code that no text has, put between the generated texts
_U64 = NDArray[np.uint64]


@dataclass(frozen=True)
class CopyReport:
    """What was found of the generated texts in the training text."""

    longest: str
    """The longest substring of both."""
    share_of_ngrams: float
    """Share of the substrings of `n` characters of the generated texts that occur in the training text (0 if none)."""
    n: int
    written: int
    """Number of generated characters."""
    compared: int
    """Number of characters of training text searched."""

    def describe(self) -> list[str]:
        """The result in two sentences."""
        return [
            tr(
                "Longest passage copied from the training text: {n_longest} characters, {longest!r}.",
                len(self.longest),
                self.longest,
            ),
            tr(
                "Of its passages of {n} characters, {share_of_ngrams:.0%} occur in the training text.",
                self.n,
                self.share_of_ngrams,
            ),
        ]


def copy_report(texts: Sequence[str], training_text: str | Iterable[str], *, n: int = 8) -> CopyReport:
    """Search the substrings of `texts` in the training text, given whole or in consecutive pieces.

    A substring may cross from one piece into the next, but not from one generated text into another.
    """
    search = _Search(texts, n)
    overlap = max([n, *map(len, texts)])
    compared = 0
    for stretch, n_new in _stretches([training_text] if isinstance(training_text, str) else training_text, overlap):
        search.search_in(stretch)
        compared += n_new
    share = float(search.copied.mean()) if len(search.copied) else 0.0
    return CopyReport(search.longest, share, n, sum(map(len, texts)), compared)


class _Search:
    """The generated texts, and what has been found of them so far."""

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
        """Starts of all substrings of `length` characters that lie within one text."""
        n_starts = max(0, len(self._characters) - length + 1)
        borders = np.concatenate([[0], np.cumsum(self._characters == _BORDER)])
        return np.flatnonzero(borders[length : length + n_starts] == borders[:n_starts])

    def search_in(self, stretch: NDArray[np.uint32]) -> None:
        """Mark the n-grams that occur in a piece of the training text, and look for a longer common substring in it."""
        sums = _Sums(stretch)
        positions = np.arange(max(0, len(stretch) - self._n + 1))
        hashes = sums.hashes(positions, self._n)
        known = _is_in(hashes, self._ordered)
        positions = positions[known]
        self._mark(stretch, positions, hashes[known])
        # Longer substrings are searched only where an n-gram matches; shorter ones everywhere, until one is found.
        if len(positions) or self._longest[1] < self._n - 1:
            self._lengthen(stretch, sums, positions)

    def _mark(self, stretch: NDArray[np.uint32], positions: NDArray[np.int64], hashes: _U64) -> None:
        found, first = np.unique(hashes, return_index=True)
        new = np.flatnonzero(_is_in(self._gram_hashes, found) & ~self.copied)
        found_at = positions[first[np.searchsorted(found, self._gram_hashes[new])]]
        same = np.ones(len(new), dtype=bool)
        for k in range(self._n):
            same &= self._characters[self._grams[new] + k] == stretch[found_at + k]
        self.copied[new] = same

    def _lengthen(self, stretch: NDArray[np.uint32], sums: _Sums, positions: NDArray[np.int64]) -> None:
        low, step = self._longest[1], 1
        best: tuple[int, int] | None = (0, 0)
        while best is not None:  # doubling steps…
            best = self._find(stretch, sums, positions, low + step)
            if best is not None:
                self._longest, low, step = best, low + step, 2 * step
        high = low + step  # …then bisection: a common substring of one length implies one of every smaller length
        while high - low > 1:
            middle = (low + high) // 2
            best = self._find(stretch, sums, positions, middle)
            if best is None:
                high = middle
            else:
                self._longest, low = best, middle

    def _find(
        self, stretch: NDArray[np.uint32], sums: _Sums, positions: NDArray[np.int64], length: int
    ) -> tuple[int, int] | None:
        """A common substring of `length` characters: (start in the generated texts, length)."""
        if length < self._n:
            positions = np.arange(max(0, len(stretch) - length + 1))
        positions = positions[positions <= len(stretch) - length]
        starts = self._starts(length)
        hashes = self._sums.hashes(starts, length)
        known = _is_in(sums.hashes(positions, length), np.sort(hashes))
        for position in positions[known]:
            same = hashes == sums.hashes(np.array([position]), length)[0]
            start = int(starts[int(np.argmax(same))])
            if np.array_equal(self._characters[start : start + length], stretch[position : position + length]):
                return start, length
        return None


class _Sums:
    """Running sums of x_j B^j: the hash of any substring is one subtraction and one product."""

    def __init__(self, characters: NDArray[np.uint32]) -> None:
        powers, self._inverses = _powers(len(characters) + 1)
        mixed = characters.astype(np.uint64) + np.uint64(1)
        self._sums = np.zeros(len(characters) + 1, dtype=np.uint64)
        np.cumsum(mixed * powers[:-1], out=self._sums[1:])

    def hashes(self, starts: NDArray[np.int64], length: int) -> _U64:
        """Hash of the substring of `length` characters at each start."""
        return (self._sums[starts + length] - self._sums[starts]) * self._inverses[starts]


def _powers(count: int) -> tuple[_U64, _U64]:
    """B^0 … B^(count−1) and their inverses mod 2⁶⁴ (products wrap)."""
    bases = np.full((2, count), 1, dtype=np.uint64)
    bases[0, 1:] = _BASE
    bases[1, 1:] = pow(_BASE, -1, 1 << 64)
    powers, inverses = np.cumprod(bases, axis=1, dtype=np.uint64)
    return powers, inverses


def _is_in(hashes: _U64, ordered: _U64) -> NDArray[np.bool_]:
    """Which of `hashes` are in `ordered`, which is sorted."""
    if not len(ordered):
        return np.zeros(len(hashes), dtype=bool)
    index = np.searchsorted(ordered, hashes)
    return ordered[np.minimum(index, len(ordered) - 1)] == hashes


def _stretches(pieces: Iterable[str], overlap: int) -> Iterator[tuple[NDArray[np.uint32], int]]:
    """The text in overlapping pieces, each with the number of its characters that were not in the piece before.

    Every substring of up to `overlap` characters lies within one piece.
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
