"""How much a written text copies: what of it stands in the training text, character for character."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint32]
Hashes = npt.NDArray[np.uint64]

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse modulo 2⁶⁴
_INVERSE = np.uint64(pow(int(_BASE), -1, 1 << 64))
_CHUNK = 1 << 20  # characters of the training text looked at together: memory stays bounded


@dataclass(frozen=True)
class CopyReport:
    """What of the written texts was found in the training text."""

    longest: str
    """The longest run of characters that stands in both."""
    share_of_ngrams: float
    """Of all runs of `n` characters in the written texts, the share that the training text has too."""
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


def copy_report(texts: Sequence[str], training_text: str, *, n: int = 8) -> CopyReport:
    """Search the runs of `texts` in `training_text`.

    Runs are compared by 64-bit hashes over the training text in chunks, the length of the longest found by bisection
    (what holds for a run holds for every shorter one), and the result is checked against the text itself.
    """
    written = [_codes(text) for text in texts]
    training = _codes(training_text)
    found = [part for part in _found(written, training, n) if part.size]
    total = sum(part.size for part in found)
    share = sum(int(part.sum()) for part in found) / total if total else 0.0
    longest = _longest(texts, written, training_text, training)
    return CopyReport(longest, share, n, sum(map(len, texts)), len(training_text))


def _longest(texts: Sequence[str], written: Sequence[Codes], training_text: str, training: Codes) -> str:
    known, too_long = 0, min(max(map(len, texts), default=0), len(training_text)) + 1
    best = ""
    while too_long - known > 1:
        length = (known + too_long) // 2
        run = _a_run(texts, _found(written, training, length), length)
        if run is not None and run in training_text:  # the hashes agree; the text has the last word
            known, best = length, run
        else:
            too_long = length
    return best


def _a_run(texts: Sequence[str], found: Sequence[npt.NDArray[np.bool_]], length: int) -> str | None:
    for text, places in zip(texts, found, strict=True):
        if places.any():
            at = int(places.argmax())
            return text[at : at + length]
    return None


def _found(written: Sequence[Codes], training: Codes, length: int) -> list[npt.NDArray[np.bool_]]:
    """For each text, whether the run of `length` characters at each place stands in the training text."""
    hashes = [_hashes(codes, length) for codes in written]
    wanted = np.unique(np.concatenate([*hashes, np.empty(0, np.uint64)]))
    if not wanted.size or len(training) < length:
        return [np.zeros(len(one), dtype=np.bool_) for one in hashes]
    seen = np.zeros(len(wanted), dtype=np.bool_)
    for start in range(0, len(training) - length + 1, _CHUNK):
        chunk = _hashes(training[start : start + _CHUNK + length - 1], length)
        place = np.minimum(np.searchsorted(wanted, chunk), len(wanted) - 1)
        seen[place[wanted[place] == chunk]] = True
    return [seen[np.searchsorted(wanted, one)] for one in hashes]


def _hashes(codes: Codes, length: int) -> Hashes:
    """Hash of each run of `length` characters: Σ code · base^place, modulo 2⁶⁴, moved to place 0."""
    if len(codes) < length:
        return np.empty(0, np.uint64)
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum((codes.astype(np.uint64) + np.uint64(1)) * _powers(_BASE, len(codes)), out=sums[1:])
    return (sums[length:] - sums[:-length]) * _powers(_INVERSE, len(codes))[: len(codes) - length + 1]


@lru_cache(maxsize=8)  # every chunk needs the same ones
def _powers(base: np.uint64, count: int) -> Hashes:
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    return np.multiply.accumulate(powers)


def _codes(text: str) -> Codes:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
