"""Characters: counts them in a text, and encodes them by a table lookup."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from mingyue.errors import TokenizerError
from mingyue.text.check import utf8, utf32
from mingyue.text.spec import FIRST_BYTE, FIRST_LEARNED
from mingyue.words import tr

_BLOCK = 1 << 20
RARE_SHARE = 0.005
"""The largest share of a text with many distinct characters that is left to byte fallback."""
ENOUGH = 2048
"""This many characters always have an id of their own, however rare they are."""


def count_characters(pieces: Iterable[str]) -> npt.NDArray[np.int64]:
    """How often each code point occurs: [0x110000]. Raises `TokenizerError` for half of a surrogate pair."""
    counts = np.zeros(sys.maxunicode + 1, dtype=np.int64)
    waiting: list[str] = []
    size = 0
    for piece in pieces:  # small pieces are counted together, since each count takes a pass over the table
        waiting.append(piece)
        size += len(piece)
        if size >= _BLOCK:
            _count(waiting, counts)
            waiting.clear()
            size = 0
    _count(waiting, counts)
    return counts


def fitting_min_count(counts: npt.NDArray[np.int64]) -> int:
    """The default `min_count` for a text whose characters occur `counts` times.

    1 for up to `ENOUGH` distinct characters. Of more, the rarest, at most `RARE_SHARE` of the text together, use byte
    fallback: half of the characters of Chinese poems are half a percent of their text, and each would cost a row of
    the output layer, which is most of the computation of a small model.
    """
    rising = np.sort(counts[counts > 0])
    if len(rising) <= ENOUGH:
        return 1
    # the number of characters that may be left out
    below = np.searchsorted(np.cumsum(rising), RARE_SHARE * rising.sum(), side="right")
    return int(rising[min(below, len(rising) - ENOUGH)])  # those as frequent as the first one kept are kept too


def choose_characters(counts: npt.NDArray[np.int64], min_count: int) -> list[str]:
    """Characters seen at least `min_count` times, the most frequent first, ties by code point.

    Raises `TokenizerError` if there is no text, or nothing but white space.
    """
    seen = np.flatnonzero(counts)
    if all(chr(code).isspace() for code in seen):
        raise no_text(int(counts.sum()))
    kept = seen[counts[seen] >= max(1, min_count)]
    order = np.lexsort((kept, -counts[kept]))
    return [chr(code) for code in kept[order]]


def no_text(characters: int) -> TokenizerError:
    """The error for a text from which no vocabulary can be learnt."""
    what = tr("only white space ({characters} characters)", characters) if characters else tr("empty")
    return TokenizerError(
        tr("the training text is {what}: there is nothing to learn a vocabulary from", what),
        advice=tr("Check the files, and the field or column that was named."),
    )


class CharTable:
    """Ids of characters by code point; a character without one becomes the ids of its UTF-8 bytes."""

    def __init__(self, vocab: Mapping[str, int]) -> None:
        known = {ord(token): index for token, index in vocab.items() if index >= FIRST_LEARNED}
        # one entry beyond the highest code point stands for all that are higher
        self._table = np.full(max(known, default=-1) + 2, -1, dtype=np.int32)
        self._table[list(known)] = list(known.values())

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Ids of the text, [characters + further bytes of unknown ones]."""
        codes = np.frombuffer(utf32(text), dtype="<u4")
        ids = self._table.take(codes, mode="clip")
        unknown = ids < 0
        if not unknown.any():
            return ids
        fallback = codes[unknown].astype("<u4").tobytes().decode("utf-32-le").encode("utf-8")
        widths = np.ones(len(ids), dtype=np.int64)
        widths[unknown] += sum((codes[unknown] >= first).astype(np.int64) for first in (0x80, 0x800, 0x10000))
        in_bytes = np.repeat(unknown, widths)
        out = np.empty(len(in_bytes), dtype=np.int32)
        out[~in_bytes] = ids[~unknown]
        out[in_bytes] = np.frombuffer(fallback, dtype=np.uint8).astype(np.int32) + FIRST_BYTE
        return out


def encode_bytes(text: str) -> npt.NDArray[np.int32]:
    """Ids of a text in the byte tokenizer, [UTF-8 bytes]."""
    return np.frombuffer(utf8(text), dtype=np.uint8).astype(np.int32) + np.int32(FIRST_BYTE)


def _count(waiting: list[str], counts: npt.NDArray[np.int64]) -> None:
    try:
        data = utf32("".join(waiting))
    except TokenizerError:
        for piece in waiting:
            utf32(piece)  # the same error, with the position in its own piece
        raise
    codes = np.frombuffer(data, dtype="<u4")
    if len(codes):
        found = np.bincount(codes)
        counts[: len(found)] += found
