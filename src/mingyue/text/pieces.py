r"""Byte-level BPE of long texts in bounded pieces, with the ids of the whole text.

The time of the tokenizers library per character grows with the length of the string, and each character takes about
300 bytes of memory. So a long text is cut, but only where the pre-tokenizer itself always cuts, whatever the context:

- between a letter and a non-letter: in the patterns of `KNOWN_SPLITS` and of GPT-2 no match continues from a letter to
  a non-letter, none looks behind, and the only look-ahead follows white space;
- else after a match of the pre-tokenizer, run on a window, that ends before the last non-space of the window: the
  character that ended it is in the window. It must not end in white space, whose last character may belong to the next
  match: that depends on what follows.

What remains is encoded word by word: words that all end in white space, and a word longer than a window (Chinese
without a comma); see `words.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from mingyue.text.spec import KNOWN_SPLITS, byte_letters

PIECE = 1 << 14
"""Characters of a piece (about where the library is fastest; it needs about 5 MB)."""

# Letters and non-letters in every version of Unicode; a missing one costs only speed.
_LETTERS = "A-Za-zÀ-ÖØ-öø-ÿА-яぁ-ゖァ-ヺ一-龥가-힣"
_OTHERS = r"\t\n\r -@\[-`{-~，。、；：？！（）「」『』《》〈〉【】“”‘’…—·　"
_ALWAYS_CUT = re.compile(f"(?<=[{_LETTERS}])(?=[{_OTHERS}])")


def always_cuts(spec: Mapping[str, Any]) -> bool:
    """Whether the rules above apply to a tokenizer.json: byte-level BPE after a known split."""
    model, before = spec["model"], spec.get("pre_tokenizer") or {}
    if model.get("type") != "BPE" or not set(byte_letters()) <= model["vocab"].keys():
        return False
    if any(model.get(part) for part in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")):
        return False
    if (spec.get("normalizer") or {"type": "NFC"}) != {"type": "NFC"}:
        return False
    steps = before.get("pretokenizers", []) if before.get("type") == "Sequence" else [before]
    *splits, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True):
        return False
    if not splits:
        return bool(last.get("use_regex", True))
    (split, *more) = splits
    return (
        not more
        and not last.get("use_regex", True)
        and (split.get("type"), split.get("behavior"), split.get("invert")) == ("Split", "Isolated", False)
        and split["pattern"].get("Regex") in KNOWN_SPLITS
    )


class Cutter:
    """Cuts a text into pieces of about `size` characters."""

    def __init__(self, before: tokenizers.pre_tokenizers.PreTokenizer, size: int = PIECE) -> None:
        self._before = before
        self._size = size

    def cut(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield (piece, whether it is a word: a match of the pre-tokenizer). The pieces joined are the text."""
        start = 0
        while start < len(text):
            ends, are_words = self._next(text, start)
            for end in ends:
                yield text[start:end], are_words
                start = end

    def _next(self, text: str, start: int) -> tuple[list[int], bool]:
        """Ends of the next piece, or of the next words."""
        size = self._size
        if start + size >= len(text):
            return [len(text)], False
        window = text[start : start + size]
        for tail in (size - 1024, 0):
            cuts = [found.start() for found in _ALWAYS_CUT.finditer(window, max(0, tail))]
            if cuts:
                return [start + cuts[-1]], False
        while start + size < len(text):
            ends = self._ends(window)
            last = len(window.rstrip()) - 1
            if last >= 0:
                settled = [end for end in ends if end <= last]
                cuts = [end for end in settled if not window[end - 1].isspace()]
                if cuts:
                    return [start + cuts[-1]], False
                if settled or ends[0] < len(window):
                    return [start + end for end in settled or ends[:1]], True
                end = self._word_end(text, start + len(window))
                if end is not None:
                    return [end], True
            size *= 2  # a run of white space: how it is cut depends on its end
            window = text[start : start + size]
        return [len(text)], False

    def _word_end(self, text: str, end: int) -> int | None:
        """End of a word that reaches at least to `end`; None if only the whole word determines it.

        From its last four characters on, a word of letters (or of signs) continues as from its beginning: with four,
        no contraction and no "sign before a word" can begin there. That does not apply to white space.
        """
        while end < len(text):
            begin = end - 4
            if any(character.isspace() for character in text[begin:end]):
                return None
            window = text[begin : begin + self._size]
            more = self._ends(window)[0]
            end = begin + more
            if more < len(window):
                break
        return end

    def _ends(self, window: str) -> list[int]:
        return [end for _, (_, end) in self._before.pre_tokenize_str(window)]
