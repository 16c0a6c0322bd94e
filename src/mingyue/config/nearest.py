"""The known name that a mistyped one was meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePath

_LETTERS_PER_SLIP = 3
_PART = 4  # letters of a name that is only begun, such as `learn` for `learning_rate`


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that differs from `name` by a few slips of the keyboard, if there is one.

    A slip is a letter that is missing, added, wrong, or exchanged with the next; one is allowed for every three
    letters. A common ending such as .txt does not count: two files are not alike by it. A name that is only begun
    stands for the one name that begins so.
    """
    names = list(known)
    slips = {other: n for other in names if (n := _slips(name, other)) is not None}
    if slips:
        return min(names, key=lambda other: slips.get(other, len(name) + len(other)))
    begun = [other for other in names if len(name) >= _PART and other.lower().startswith(name.lower())]
    return begun[0] if len(begun) == 1 else None


def nearest_path(path: Path) -> Path | None:
    """The existing path that a mistyped one was meant to be: its first name that does not exist is replaced."""
    missing = [part for part in (path, *path.parents) if not part.exists()]
    if not missing:
        return None
    with suppress(OSError):
        first = missing[-1]
        found = nearest(first.name, sorted(entry.name for entry in first.parent.iterdir()))
        if found is not None:
            meant = first.parent / found / path.relative_to(first)
            return meant if meant.exists() else None
    return None


def _slips(name: str, other: str) -> int | None:
    """The slips between two names; None where they are too many for names of their length."""
    one, two = name.lower(), other.lower()
    ending = PurePath(one).suffix
    if ending == PurePath(two).suffix:
        one, two = one.removesuffix(ending), two.removesuffix(ending)
    allowed = max(len(one), len(two)) // _LETTERS_PER_SLIP
    if abs(len(one) - len(two)) > allowed:
        return None
    n_slips = _distance(one, two)
    return n_slips if n_slips <= allowed else None


def _distance(one: str, two: str) -> int:
    """The edit distance, an exchange of two neighbours counted once (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(two) + 1))
    for i, letter in enumerate(one):
        new = [i + 1]
        for j, other in enumerate(two):
            best = min(row[j] + (letter != other), row[j + 1] + 1, new[j] + 1)
            if i and j and letter == two[j - 1] and one[i - 1] == other:
                best = min(best, before[j - 1] + 1)
            new.append(best)
        before, row = row, new
    return row[-1]
