"""Learns the merges of byte-level BPE (Sennrich, Haddow and Birch 2016, section 3.2).

Exact greedy BPE, as the trainer of the tokenizers library computes it; ties go to the pair with the lower ids. That
trainer is not used because it needs about 90 bytes of memory for a byte of text, takes time quadratic in the length of
a word (Chinese without spaces or commas is one long word), reports no progress, and cannot be interrupted.

The text is one array of symbols with links to both neighbours. Counts are evaluated lazily: pairs (x, new) arise only
when `new` is made and only get fewer afterwards, so the count taken then is an upper bound, and a pair on top of the
heap whose true count equals its bound is the most frequent of all. Pairs rarer than a threshold are not stored: when
those above it are used up, the text is counted again with a lower one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from mingyue.text.spec import byte_letters

_BORDER, _GONE = -1, -2
_BORDER_BYTE = 0xFF  # does not occur in UTF-8
_LEAST = 2  # a pair seen once is not merged

Positions = npt.NDArray[np.int32]
Symbols = npt.NDArray[np.int32]
Pair = tuple[int, int]


def learn_merges(
    words: Mapping[str, int], count: int, progress: Callable[[int, int], None] | None = None
) -> list[tuple[str, str]]:
    """The first `count` merges (fewer if no pair is left that occurs twice), as pairs of tokens in byte letters.

    `words` maps each distinct word to its count; no merge crosses a word boundary.
    """
    order = sorted(range(256), key=byte_letters().__getitem__)
    tokens = [byte_letters()[byte] for byte in order]
    known = set(tokens)
    merges: list[tuple[str, str]] = []
    text = _Text(words, order)
    while len(merges) < count:
        pair = text.most_frequent()
        if pair is None:
            break
        left, right = tokens[pair[0]], tokens[pair[1]]
        if left + right in known:  # already made from other parts: each token has one merge
            text.forget(pair)
            continue
        merges.append((left, right))
        known.add(left + right)
        tokens.append(left + right)
        text.merge(pair, len(tokens) - 1)
        if progress is not None:
            progress(len(merges), count)
    return merges


class _Text:
    """Words as symbols, with a border before, between and after them. Positions are indices into the arrays."""

    def __init__(self, words: Mapping[str, int], order: list[int]) -> None:
        border = bytes([_BORDER_BYTE])
        encoded = [word.encode("utf-8") for word in words]
        data = np.frombuffer(border + b"".join(word + border for word in encoded), dtype=np.uint8)
        symbol_of = np.full(256, _BORDER, dtype=np.int32)
        symbol_of[order] = np.arange(256, dtype=np.int32)
        symbol_of[_BORDER_BYTE] = _BORDER
        self._symbol = symbol_of[data]
        counts = np.fromiter(words.values(), dtype=np.int32, count=len(words))
        lengths = np.fromiter((len(word) + 1 for word in encoded), dtype=np.int64, count=len(words))
        self._weight = np.concatenate([np.zeros(1, np.int32), np.repeat(counts, lengths)])
        self._before = self._after = np.empty(0, dtype=np.int32)
        self._positions: dict[Pair, Positions] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._forgotten: set[Pair] = set()
        self._threshold: int | None = None  # not counted yet

    def most_frequent(self) -> Pair | None:
        """The pair with the highest count, at least 2; of ties the one with the lowest symbols."""
        while True:
            while self._heap:
                bound, a, b = heapq.heappop(self._heap)
                positions = self._positions[a, b]
                positions = positions[(self._symbol[positions] == a) & (self._symbol[self._after[positions]] == b)]
                true = int(self._weight[positions].sum(dtype=np.int64))
                if true == -bound:
                    self._positions[a, b] = positions
                    return a, b
                if self._threshold is not None and true >= self._threshold:
                    self._positions[a, b] = positions
                    heapq.heappush(self._heap, (-true, a, b))
                else:
                    del self._positions[a, b]
            if self._threshold == _LEAST:
                return None
            self._count_again()

    def forget(self, pair: Pair) -> None:
        """Exclude this pair from now on."""
        self._forgotten.add(pair)
        del self._positions[pair]

    def merge(self, pair: Pair, new: int) -> None:
        """Replace every occurrence of the pair, which `most_frequent` has just returned, by `new`."""
        positions = self._positions.pop(pair)
        if pair[0] == pair[1]:
            positions = _every_other(positions, self._after)
        second = self._after[positions]
        after = self._after[second]
        self._symbol[positions] = new
        self._symbol[second] = _GONE
        self._after[positions] = after
        self._before[after] = positions
        before = self._before[positions]
        left, right = self._symbol[before], self._symbol[after]
        # (new, new) is added once, from the right
        chosen = (left >= 0) & (left != new)
        self._store(before[chosen], left[chosen], lambda symbol: (symbol, new))
        chosen = right >= 0
        self._store(positions[chosen], right[chosen], lambda symbol: (new, symbol))

    def _count_again(self) -> None:
        """Close the gaps, count all pairs, and store those above a threshold of a quarter of the last one."""
        alive = self._symbol != _GONE
        self._symbol, self._weight = self._symbol[alive], self._weight[alive]
        size = len(self._symbol)
        self._before = np.arange(-1, size - 1, dtype=np.int32)
        self._after = np.arange(1, size + 1, dtype=np.int32)
        positions = np.flatnonzero((self._symbol[:-1] >= 0) & (self._symbol[1:] >= 0)).astype(np.int32)
        left, right = self._symbol[positions], self._symbol[positions + 1]
        base = int(self._symbol.max()) + 1
        keys = _numbers(left, right, base)
        if self._threshold is None:
            highest = int(np.bincount(keys, weights=self._weight[positions]).max()) if len(keys) else 0
            self._threshold = max(_LEAST, highest // 16)
        else:
            self._threshold = max(_LEAST, self._threshold // 4)
        self._store(positions, keys, lambda key: (key // base, key % base))

    def _store(self, positions: Positions, keys: npt.NDArray[np.integer], pair_of: Callable[[int], Pair]) -> None:
        """Store the pairs at these positions (ascending) that reach the threshold; `keys` identifies the pairs."""
        by_key = np.argsort(keys, kind="stable")
        keys, positions = keys[by_key], positions[by_key]
        starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(keys)), dtype=bool), keys[1:] != keys[:-1]]))
        if len(starts) == 0:
            return
        counts = np.add.reduceat(self._weight[positions], starts, dtype=np.int64)
        ends = np.append(starts[1:], len(keys))
        for index in np.flatnonzero(counts >= (self._threshold or _LEAST)):
            pair = pair_of(int(keys[starts[index]]))
            if pair not in self._forgotten:
                self._positions[pair] = positions[starts[index] : ends[index]].copy()
                heapq.heappush(self._heap, (-int(counts[index]), *pair))


def _numbers(left: Symbols, right: Symbols, base: int) -> npt.NDArray[np.integer]:
    """left · base + right, in 16 bits where they suffice: these sort many times faster."""
    if base <= 256:
        return left.astype(np.uint16) * np.uint16(base) + right.astype(np.uint16)
    return left.astype(np.int64) * np.int64(base) + right.astype(np.int64)


def _every_other(positions: Positions, after: Positions) -> Positions:
    """Of each run of overlapping positions (each the neighbour of the previous one) the first, third, fifth, …"""
    begins = np.concatenate([[True], after[positions[:-1]] != positions[1:]])
    index = np.arange(len(positions))
    chosen: Positions = positions[(index - np.maximum.accumulate(np.where(begins, index, 0))) % 2 == 0]
    return chosen
