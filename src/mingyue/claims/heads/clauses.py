"""Texts of three clauses, each with a relation between two words: subject and verb, name and pronoun, mood and verdict.

The relations are known, their places are not: clauses come in any order, and filler words stand anywhere in them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mingyue.claims.grammar import Lexicon, Sentence, generator

Relation = Literal["syntax", "pronoun", "sentiment"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)

_NOUNS = ("dog", "cat", "cow", "hen", "goat", "duck")
_MEN = {"tom": "sang", "jim": "swam", "bob": "cooked", "sam": "danced"}
_WOMEN = {"ann": "wrote", "eve": "ran", "sue": "painted", "liz": "slept"}
_GOOD, _BAD = ("lovely", "superb", "gentle", "witty"), ("awful", "dull", "cruel", "clumsy")
_COLOURS = ("red", "blue", "green", "grey")
_FILLERS = ("well", "oh", "indeed", "anyway")
_CLAUSE = 10
"""Words of a clause, fillers included."""
CHANCE: dict[Relation, float] = {"syntax": 1 / 2, "pronoun": 1 / (len(_MEN) + len(_WOMEN)), "sentiment": 1 / 2}
"""Share of right answers without any knowledge of the text."""


@dataclass(frozen=True)
class Link:
    """A relation in a text. Its places are indices of words."""

    query: int
    """The word after which the answer stands: often, the pronoun, or we."""
    right: int
    """The word that the answer follows from: the subject, the person meant, the word of praise or blame."""
    wrong: int
    """A word of the same kind that it does not follow from: another noun, the other person, a colour."""


@dataclass(frozen=True)
class Text:
    """Three clauses, with the relation in each."""

    words: Sentence
    links: dict[Relation, Link]


def texts(count: int, seed: int) -> list[Text]:
    """Texts by a seed, all with the same number of words."""
    draw = generator(seed, "clauses")
    return [_text(draw) for _ in range(count)]


def lexicon() -> Lexicon:
    """Every word of these texts."""
    nouns = [noun + ending for noun in _NOUNS for ending in ("", "s")]
    people = [*_MEN, *_WOMEN, *_MEN.values(), *_WOMEN.values()]
    small = [
        "the",
        "near",
        "often",
        "sleeps",
        "sleep",
        "met",
        "and",
        "he",
        "she",
        "a",
        "film",
        "we",
        "praised",
        "blamed",
    ]
    return Lexicon([*nouns, *people, *_GOOD, *_BAD, *_COLOURS, *_FILLERS, *small, "."])


def _text(draw: random.Random) -> Text:
    makers = {"syntax": _syntax, "pronoun": _pronoun, "sentiment": _sentiment}
    words: list[str] = []
    links: dict[Relation, Link] = {}
    for relation in draw.sample(RELATIONS, len(RELATIONS)):
        clause, right, wrong = makers[relation](draw)
        filled, places = _with_fillers(clause, draw)
        links[relation] = Link(*(len(words) + places[at] for at in (len(clause) - 3, right, wrong)))
        words += filled
    return Text(tuple(words), links)


def _syntax(draw: random.Random) -> tuple[list[str], int, int]:
    """(the dogs near the cat often sleep ., place of the subject, place of the other noun)."""
    subject, other = (noun + draw.choice(("", "s")) for noun in draw.sample(_NOUNS, 2))
    return ["the", subject, "near", "the", other, "often", "sleep" if subject.endswith("s") else "sleeps", "."], 1, 4


def _pronoun(draw: random.Random) -> tuple[list[str], int, int]:
    """(tom met ann and she wrote ., place of the person meant, place of the other)."""
    man, woman = draw.choice(tuple(_MEN)), draw.choice(tuple(_WOMEN))
    people = draw.sample((man, woman), 2)
    pronoun, meant = draw.choice((("he", man), ("she", woman)))
    right = 2 * people.index(meant)
    return [people[0], "met", people[1], "and", pronoun, (_MEN | _WOMEN)[meant], "."], right, 2 - right


def _sentiment(draw: random.Random) -> tuple[list[str], int, int]:
    """(a grey awful film we blamed ., place of the word of praise or blame, place of the colour)."""
    mood, verdict = draw.choice(((_GOOD, "praised"), (_BAD, "blamed")))
    pair = draw.sample((draw.choice(mood), draw.choice(_COLOURS)), 2)
    right = 1 + (pair[0] in _COLOURS)
    return ["a", *pair, "film", "we", verdict, "."], right, 3 - right


def _with_fillers(clause: Sequence[str], draw: random.Random) -> tuple[list[str], list[int]]:
    """The clause with fillers before words up to the query, and the place of each of its words."""
    before = [0] * len(clause)
    for _ in range(_CLAUSE - len(clause)):
        before[draw.randrange(len(clause) - 2)] += 1
    filled: list[str] = []
    places: list[int] = []
    for word, count in zip(clause, before, strict=True):
        filled += [draw.choice(_FILLERS) for _ in range(count)]
        places.append(len(filled))
        filled.append(word)
    return filled, places
