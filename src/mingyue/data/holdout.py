"""Which part of a text is held out, and how much of it is also in the training part.

One file: its end. Several files: the end of each, so that the held-out part is like the whole text (the end of a folder
with en.txt and zh.txt is Chinese alone). Of many short files, some are held out as a whole, spread evenly over all:
a cut in each would leave no document with its end in the training part.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from mingyue.words import joined, listed, tr

_SHORT = 1000  # characters: a file whose held-out end would be shorter is short
_NAMED = 5  # files that a note names


@dataclass(frozen=True)
class FileSplit:
    """A file as characters start … end − 1 of the text; from `cut` on they are held out (cut = end: none)."""

    name: str
    start: int
    cut: int
    end: int

    @property
    def characters(self) -> int:
        """Characters of the file."""
        return self.end - self.start

    @property
    def held_out(self) -> int:
        """Characters of it that are held out."""
        return self.end - self.cut


def spread_over_files(files: Sequence[FileSplit], share: float) -> list[FileSplit]:
    """The files, each cut at the end of its share as given, except for many short ones, which are kept whole.

    A short file is held out if so far less than the share of the characters of short files is, by half of it or more.
    If their lengths differ too much for that (half or twice the share would be held out), all files stay cut.
    """
    exact = Fraction(str(share))
    short = {number for number, file in enumerate(files) if exact * file.characters < _SHORT}
    if not exact or len(short) * exact < 1 or len(files) == 1:
        return list(files)
    whole = list(files)
    wanted, held, total = Fraction(0), 0, 0
    for number in sorted(short):
        file = files[number]
        total += file.characters
        wanted += exact * file.characters
        chosen = wanted - held >= Fraction(file.characters, 2)
        held += file.characters * chosen
        whole[number] = replace(file, cut=file.start if chosen else file.end)
    return whole if wanted <= 2 * held and held <= 2 * wanted and held < total else list(files)


def last_pairs(counts: Sequence[int], share: float) -> bytearray:
    """Which pairs are held out (1), of files with these numbers of pairs: the last of each, `share` of all in total."""
    exact, before = Fraction(str(share)), 0
    held = bytearray()
    for count in counts:
        of_file = int(exact * (before + count)) - int(exact * before)
        held += bytes(count - of_file) + b"\x01" * of_file
        before += count
    return held


def describe_split(files: Sequence[FileSplit]) -> str | None:
    """What is held out of which file, as a sentence; None for one file, or if nothing is held out."""
    held = [file for file in files if file.held_out]
    if len(files) < 2 or not held:
        return None
    ends = [file for file in held if file.cut > file.start]
    whole = [file for file in held if file.cut == file.start]
    parts = []
    if ends:
        shown = _listed(
            [
                tr("{name}: {held_out:,} of {characters:,} characters", file.name, file.held_out, file.characters)
                for file in ends
            ]
        )
        parts.append(tr("the end of {n_ends:,} ({shown})", len(ends), shown))
    if whole:
        parts.append(tr("{n_whole:,} short ones whole ({listed})", len(whole), _listed([file.name for file in whole])))
    return tr("held out of {n_files:,} files: {parts}", len(files), joined(parts, en=" and ", zh="，"))


class Repeats:
    """Counts the held-out documents that are in the training part as well, by 8 bytes of their SHA-256."""

    def __init__(self) -> None:
        self._trained, self._held, self._lengths = array("Q"), array("Q"), array("Q")
        self._sha, self._length = hashlib.sha256(), 0

    def add(self, text: str) -> None:
        """Add text to the current document."""
        self._sha.update(text.encode("utf-8"))
        self._length += len(text)

    def end(self, *, trained: bool, held_out: bool) -> None:
        """End the document. One that is cut in two is in neither part as a whole."""
        digest = int.from_bytes(self._sha.digest()[:8], "little")
        if trained:
            self._trained.append(digest)
        elif held_out:
            self._held.append(digest)
            self._lengths.append(self._length)
        self._sha, self._length = hashlib.sha256(), 0

    def count(self) -> tuple[int, int, int]:
        """(held-out documents, those that are trained on as well, the characters of these)."""
        held, trained = (np.frombuffer(part, np.uint64) for part in (self._held, self._trained))
        again = np.isin(held, trained)
        return len(held), int(again.sum()), int(np.frombuffer(self._lengths, np.uint64)[again].sum())


def _listed(names: Sequence[str]) -> str:
    shown, more = listed(names[:_NAMED]), len(names) - _NAMED
    return shown + tr(" and {n_names:,} more", more) if more > 0 else shown
