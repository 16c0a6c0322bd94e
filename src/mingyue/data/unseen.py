"""Token ids that the training text never uses, and their substitution for some of the inputs in training.

A row of the embedding whose id never occurs gets no gradient as an input; as a row of a tied output layer it is pushed
away from every hidden state, step after step. All such rows become similar, so after one unseen character (a digit in
a text without digits) the model predicts only more of them. Therefore a small share of the input tokens in training is
replaced by the ids of characters that the text does not have, while the targets stay unchanged: the model learns to
continue after an unknown token. Since each such id occurs too rarely, their rows start equal and share one gradient:
one vector for all unknown tokens. And since the probability that they keep after a rare token hardly matters to the
loss, the objective has a penalty on it (both: `training.step`). The replaced positions are a pure function of (seed,
step, row).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mingyue.runtime import derive_seed

if TYPE_CHECKING:
    from mingyue.text import Tokenizer

Int64s = npt.NDArray[np.int64]
_LONGEST = 4
"""Ids of a spelling, at most: a character has up to four bytes."""
_ENOUGH = 0.005
"""Share of the tokens that must end a line for a text to begin like a line."""
_SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？")
# Blocks from which unseen characters are drawn: what people type. (first, last + 1, characters taken)
_BLOCKS = (
    (0x20, 0x7F, 95),  # ASCII
    (0xA1, 0x180, 96),  # Latin-1 and Latin Extended-A
    (0x391, 0x3CA, 32),  # Greek
    (0x410, 0x450, 32),  # Cyrillic
    (0x2010, 0x2045, 24),  # dashes, quotation marks
    (0x20A0, 0x20C0, 8),  # currencies
    (0x2190, 0x2300, 24),  # arrows, mathematics
    (0x3001, 0x3100, 64),  # CJK punctuation, kana
    (0x4E00, 0xA000, 256),  # CJK ideographs
    (0xAC00, 0xD7A4, 64),  # Hangul
    (0xFF01, 0xFF5F, 48),  # full-width forms
    (0x1F300, 0x1F650, 96),  # pictographs
)


def unseen_ids(counts: npt.NDArray[np.integer], special: Iterable[int]) -> tuple[int, ...]:
    """Ids that occur 0 times in `counts` [V], without the special ones."""
    return tuple(np.setdiff1d(np.flatnonzero(np.asarray(counts) == 0), np.array(sorted(special))).tolist())


def to_ranges(ids: Sequence[int]) -> list[list[int]]:
    """Rising ids as [first, last] pairs, for JSON."""
    array = np.asarray(ids, dtype=np.int64)
    if not array.size:
        return []
    cuts = np.flatnonzero(np.diff(array) != 1)
    firsts, lasts = array[np.r_[0, cuts + 1]], array[np.r_[cuts, array.size - 1]]
    return np.stack([firsts, lasts], axis=1).tolist()


def from_ranges(ranges: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The ids of `to_ranges`."""
    return tuple(index for first, last in ranges for index in range(first, last + 1))


@dataclass(frozen=True)
class Substitution:
    """Replaces a share of the input tokens in training by the ids of unseen characters; see the module."""

    seed: int
    share: float
    """Of all tokens; 0 = none is replaced."""
    spellings: tuple[tuple[int, ...], ...]
    """Ids of each unseen character: one id, or several for byte fallback."""
    special: tuple[int, ...]
    """Ids that are never replaced: padding, BOS, EOS and the like."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, unseen: Sequence[int], *, share: float, seed: int) -> Substitution:
        """For a tokenizer and the ids that its training text never uses."""
        spellings = spellings_of(tokenizer, unseen) if share > 0 else ()
        return cls(seed, share, spellings, tuple(sorted(tokenizer.special_ids)))

    def __call__(self, ids: Int64s, padded: Int64s | None = None, *, step: int, rows: Int64s, of: int) -> Int64s:
        """A copy of `ids` [R, T] with tokens replaced. `padded` [R]: lengths of the rows, where they are padded.

        `rows` [R]: the number of each row within the step, which has `of` rows. The result for a row depends only on
        these, not on the other rows of the batch.
        """
        ids = ids.copy()
        n_rows, width = ids.shape
        lengths = np.full(n_rows, width, dtype=np.int64) if padded is None else padded
        if self.spellings:
            # Long rows are cut into slots of at most 1 / share tokens; in each, one spelling is placed by chance. How
            # wide padding makes a row changes nothing: rows of pairs are one slot.
            slots = max(1, int(np.ceil(self.share * width))) if padded is None else 1
            draws = self._draws("unseen", step, (of, slots, 3))[rows]
            for slot in range(slots):
                first, last = lengths * slot // slots, lengths * (slot + 1) // slots
                hit = draws[:, slot, 0] / 2.0**64 < self.share * (last - first)
                for row in np.flatnonzero(hit).tolist():
                    at = int(first[row]) + int(draws[row, slot, 1] % np.uint64(max(1, last[row] - first[row])))
                    self._place(ids[row, : int(lengths[row])], at, int(draws[row, slot, 2] % len(self.spellings)))
        return ids

    def _place(self, row: Int64s, at: int, number: int) -> None:
        spelling = self.spellings[number]
        part = row[at : at + len(spelling)]
        if not np.isin(part, self.special).any():
            part[:] = spelling[: len(part)]

    def _draws(self, name: str, step: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint64]:
        # The raw stream of PCG64 never changes between versions of numpy (NEP 19).
        raw = np.random.PCG64(derive_seed(self.seed, name, step)).random_raw(int(np.prod(shape)))
        return raw.reshape(shape)


def spellings_of(tokenizer: Tokenizer, unseen: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The replacements: unseen ids that decode to valid text, and characters of several ids.

    If there are both kinds, each is repeated so that it gets half of the draws. Ids that are not valid text (bytes that
    UTF-8 does not use) are excluded: no prompt contains them.
    """
    missing = set(unseen)
    alone = [(index,) for index in unseen if _is_text(tokenizer.token_bytes(index))]
    several: list[tuple[int, ...]] = []
    for first, end, taken in _BLOCKS:
        for code in range(first, end, max(1, (end - first) // taken)):
            ids = tuple(tokenizer.encode(chr(code)))
            if 1 < len(ids) <= _LONGEST and missing.intersection(ids):
                several.append(ids)
    if alone and several:
        n_alone, n_several = len(alone), len(several)
        alone *= max(1, round(n_several / n_alone))
        several *= max(1, round(n_alone / n_several))
    return (*alone, *several)


def begin_id(tokenizer: Tokenizer, tokens: npt.NDArray[np.integer]) -> int | None:
    """The id after which a text without a prompt begins: of those that end a line the most frequent in `tokens` [N].

    Where lines are rare, one that ends a sentence, or a word, or any. None without tokens.
    """
    counts = np.bincount(tokens, minlength=tokenizer.vocab_size)
    counts[sorted(tokenizer.special_ids)] = 0
    seen = np.flatnonzero(counts)
    texts = [tokenizer.token_bytes(index).decode("utf-8", "replace") for index in seen.tolist()]
    ends_line = [text.endswith("\n") for text in texts]
    ends_sentence = [text.rstrip().endswith(_SENTENCE_ENDS) for text in texts]
    ends_word = [text[-1:].isspace() for text in texts]
    for ends in (ends_line, ends_sentence, ends_word, [True] * len(texts)):
        found = seen[ends]
        if found.size and counts[found].sum() >= _ENOUGH * len(tokens):
            return int(found[counts[found].argmax()])
    return None


def _is_text(spelled: bytes) -> bool:
    try:
        return bool(spelled.decode("utf-8"))
    except UnicodeDecodeError:
        return False
