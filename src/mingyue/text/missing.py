"""Characters of a text that the vocabulary of a tokenizer lacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mingyue.text.char import count_characters
from mingyue.text.spec import FIRST_LEARNED
from mingyue.text.tokenizer import Tokenizer
from mingyue.words import tr

_EXAMPLES = 8


@dataclass(frozen=True)
class MissingCharacters:
    """Characters of a text that have no id of their own, where the tokenizer gives one to each character it knows."""

    distinct: int
    """Number of different ones."""
    occurrences: int
    """How often they occur, together."""
    characters: int
    """Characters of the whole text."""
    lost: bool
    """Whether they become the unknown token or nothing; otherwise byte fallback spells them."""
    examples: str
    """The most frequent ones."""

    def describe(self) -> str | None:
        """A sentence for the user; None if no character is missing."""
        if not self.distinct:
            return None
        share = self.occurrences / self.characters
        shown = " ".join(character if character.isprintable() else repr(character) for character in self.examples)
        if self.lost:
            return tr(
                "{occurrences:,} of {characters:,} characters ({share:.2%}; different ones: "
                "{distinct:,}, most often {shown}) are not in the vocabulary of the model: they are "
                "lost to it",
                self.occurrences,
                self.characters,
                share,
                self.distinct,
                shown,
            )
        return tr(
            "{occurrences:,} of {characters:,} characters ({share:.2%}; different ones: "
            "{distinct:,}, most often {shown}) are not in the vocabulary of the model: byte "
            "fallback spells them",
            self.occurrences,
            self.characters,
            share,
            self.distinct,
            shown,
        )


def missing_characters(tokenizer: Tokenizer, pieces: Iterable[str]) -> MissingCharacters:
    """The characters of a text, given in pieces, that the vocabulary lacks.

    A byte-level tokenizer (`byte`, `bpe`) lacks none.
    """
    counts = count_characters(pieces)
    codes = np.flatnonzero(counts)
    if tokenizer.kind in ("byte", "bpe"):
        codes = codes[:0]
    missing = np.array([code for code in codes.tolist() if _is_missing(tokenizer, chr(code))], dtype=np.int64)
    frequent = missing[np.argsort(-counts[missing], kind="stable")][:_EXAMPLES]
    return MissingCharacters(
        distinct=len(missing),
        occurrences=int(counts[missing].sum()),
        characters=int(counts.sum()),
        lost=tokenizer.kind == "given",
        examples="".join(map(chr, frequent.tolist())),
    )


def _is_missing(tokenizer: Tokenizer, character: str) -> bool:
    ids = tokenizer.encode(character)
    if tokenizer.kind == "char":
        return ids[0] < FIRST_LEARNED
    return character not in tokenizer.decode(ids)
