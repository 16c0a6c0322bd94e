"""Byte-level BPE of one long word in bounded memory and linear time, with the ids that the library gives for the whole.

BPE repeatedly merges the pair of lowest rank (of ties the leftmost). A pair of neighbouring tokens in the encoding of
some text is stable: encoding just these two returns these two, since no merge ever crossed between them. Conversely, a
sequence of tokens in which each pair of neighbours is stable is the encoding of the whole: the first merge to cross a
border between two neighbours would be the one of lowest rank of all merges possible in these two, and would have
crossed it in the two alone. (Berglund and van der Merwe 2023, "Formalizing BPE Tokenization", use the same fact to
tokenize without unbounded look-ahead.)

So overlapping windows may be encoded separately: where both have the same token at the same position, they are joined
there, every pair of neighbours comes from an actual encoding, and the whole is exact. A window begins at a token
border of the previous one, so they usually agree at once. If two never agree, windows grow until they do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tokenizers

from mingyue.text.spec import byte_letters

WINDOW = 1 << 15
"""Bytes of a window."""

Ids = npt.NDArray[np.int32]


class WordEncoder:
    """Encodes a word of any length. `lengths[id]` is the number of bytes of each token."""

    def __init__(self, model: tokenizers.models.Model, lengths: npt.NDArray[np.int64], window: int = WINDOW) -> None:
        self._merger = tokenizers.Tokenizer(model)
        self._lengths = lengths
        self._window = window
        self._letters = dict(enumerate(byte_letters()))

    def encode(self, word: str) -> Ids:
        """The ids of the word."""
        data = word.encode("utf-8")
        window = self._window
        while True:
            ids = self._in_windows(data, window)
            if ids is not None:
                return ids
            window *= 2

    def _in_windows(self, data: bytes, window: int) -> Ids | None:
        start = 0
        kept: list[Ids] = []
        ids, ends = self._encode(data, 0, window)
        while start + window < len(data):
            # the last border that leaves an overlap of an eighth of a window
            border = int(np.searchsorted(ends, start + window - window // 8)) - 1
            if border < 0:
                return None
            restart = int(ends[border])
            next_ids, next_ends = self._encode(data, restart, window)
            _, here, there = np.intersect1d(ends, next_ends, assume_unique=True, return_indices=True)
            same = np.flatnonzero(ids[here] == next_ids[there])
            if len(same) == 0:
                return None
            last, first = here[same[0]], there[same[0]]
            kept.append(ids[: last + 1])
            ids, ends, start = next_ids[first + 1 :], next_ends[first + 1 :], restart
        return np.concatenate([*kept, ids])

    def _encode(self, data: bytes, start: int, window: int) -> tuple[Ids, npt.NDArray[np.int64]]:
        letters = data[start : start + window].decode("latin-1").translate(self._letters)
        ids = np.array(self._merger.encode(letters, add_special_tokens=False).ids, dtype=np.int32)
        return ids, start + np.cumsum(self._lengths[ids])
