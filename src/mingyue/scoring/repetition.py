"""How much generated texts repeat themselves, beside held-out text of the same length, and what helps.

Words are counted; a Chinese or Japanese character and a punctuation mark are words of their own, white space is none.
distinct-n is the number of different n-grams of a text, divided by the number of its n-grams (Li et al. 2016); the
share of repeated n-grams is the rest. Both depend on the length of a text, so held-out text is cut into pieces of as
many words as the generated texts have.

A loop is the end of a text that repeats one passage, three times or more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

N_GRAMS = (1, 2, 3, 4)
LOOP_TIMES = 3
_LOOP_LENGTH = 6  # characters of the whole loop: the three dots at the end of a sentence are none
_PIECES = 64  # of the held-out text
_ALONE = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_ALONE}]|(?:(?![{_ALONE}])\w)+|[^\w\s]")


@dataclass(frozen=True)
class Loop:
    """The end of a text that repeats one passage."""

    period: str
    """The shortest such passage, as it begins first; white space is one space."""
    times: int
    """Number of times that the whole passage comes."""


@dataclass(frozen=True)
class Repetition:
    """How much some texts repeat themselves."""

    texts: int
    words: int
    """Words in all texts."""
    distinct: tuple[float, float, float, float]
    """Distinct n-grams as a share of all n-grams of a text, for n = 1, 2, 3, 4; over all texts. 1 without any."""
    loops: tuple[Loop, ...]
    """The loops in which texts end, in the order of the texts."""
    same: int = 0
    """Texts that equal another one."""

    @property
    def repeated(self) -> tuple[float, float, float, float]:
        """Share of the n-grams that had occurred before in the same text, for n = 1, 2, 3, 4."""
        one, two, three, four = self.distinct
        return 1 - one, 1 - two, 1 - three, 1 - four


def repetition(texts: Sequence[str]) -> Repetition:
    """Measure how much each text repeats itself; a passage in two texts is no repetition."""
    words = [words_of(text) for text in texts]
    loops = [found for text in texts if (found := loop_at_end(text)) is not None]
    one, two, three, four = (_distinct(words, n) for n in N_GRAMS)
    counts = Counter(text.strip() for text in texts)
    same = sum(counts[text] for text in counts if counts[text] > 1)
    return Repetition(len(texts), sum(map(len, words)), (one, two, three, four), tuple(loops), same)


def repetition_of_pieces(text: str, lengths: Sequence[int]) -> Repetition | None:
    """The same of evenly spread pieces of `text`, of the mean of `lengths` in words; None where it is shorter."""
    starts = [found.start() for found in _WORD.finditer(text)]
    length = round(sum(lengths) / len(lengths)) if lengths else 0
    n_pieces = min(_PIECES, len(starts) // length) if length else 0
    if not n_pieces:
        return None
    firsts = [number * (len(starts) - length) // max(1, n_pieces - 1) for number in range(n_pieces)]
    ends = [*starts, len(text)]
    return repetition([text[ends[first] : ends[first + length]] for first in firsts])


def words_of(text: str) -> list[str]:
    """The words of a text, its punctuation marks and single characters."""
    return _WORD.findall(text)


def loop_at_end(text: str) -> Loop | None:
    """The loop in which a text ends: the shortest passage that its end repeats at least three times."""
    text = " ".join(text.split())
    for period, matching in enumerate(_matches(text[::-1])):  # the end of the text equals itself, `period` earlier
        length = period + matching
        if period and length >= max(LOOP_TIMES * period, _LOOP_LENGTH):
            start = len(text) - length
            return Loop(text[start : start + period], length // period)
    return None


def _matches(text: str) -> list[int]:
    """For each position, how many characters from there on equal the beginning of the text (the Z-algorithm)."""
    found = [0] * len(text)
    left = right = 0  # the match that reaches farthest
    for position in range(1, len(text)):
        length = min(right - position, found[position - left]) if position < right else 0
        while position + length < len(text) and text[length] == text[position + length]:
            length += 1
        found[position] = length
        if position + length > right:
            left, right = position, position + length
    return found


def _distinct(texts: Sequence[Sequence[str]], n: int) -> float:
    grams = [[tuple(words[start : start + n]) for start in range(len(words) - n + 1)] for words in texts]
    total = sum(map(len, grams))
    return sum(len(set(one)) for one in grams) / total if total else 1.0
