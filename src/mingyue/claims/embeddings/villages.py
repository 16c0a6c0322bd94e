"""A small language with known probabilities: sentences about a village, each with its probability.

Words of one kind (animals, numerals, seasons…) occur at the same positions, yet each has its own context: an animal
eats some things rather than others, a season has its weather, a numeral is more or less than another. So vectors of one
kind should be near one another, and a model that makes them all alike has a higher loss.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from mingyue.claims.grammar import Lexicon, Sentence, generator

ANIMALS = ("猫", "狗", "牛", "羊", "马", "兔", "鸡", "鸭", "鹅", "猪", "驴", "鹿")
NUMERALS = ("二", "三", "四", "五", "六", "七", "八", "九", "十")
SEASONS = ("春天", "夏天", "秋天", "冬天")
HEAVENS = ("宇宙", "星系", "太阳", "月亮", "彗星", "银河")
_FOODS = ("鱼", "骨头", "青草", "干草", "豆子", "萝卜", "米", "虫", "菜叶", "玉米", "麦子", "树叶")
_WEATHERS = ("下雨", "打雷", "刮风", "下雪", "放晴", "起雾")
_PLACES = ("院子里", "山坡上", "河边", "田里", "树林里", "桥头", "路旁", "村口")
_PEOPLE = ("他", "她", "我", "邻居", "老人", "孩子", "医生", "木匠", "渔夫", "农民")
_PLANTS = ("花", "叶子", "竹子", "松树", "柳树", "稻子")
_COLOURS = ("红", "黄", "蓝", "白", "黑", "绿")
_QUALITIES = ("远", "大", "古老", "安静", "明亮")
_DEEDS = ("看见", "赶走", "找到", "抱起", "牵来")

LEXICON = Lexicon(
    (
        "。", *ANIMALS, *NUMERALS, *SEASONS, *HEAVENS, *_FOODS, *_WEATHERS, *_PLACES, *_PEOPLE, *_PLANTS, *_COLOURS,
        *_QUALITIES, *_DEEDS, *"在只喜欢吃不，用喂的到了变比多少非常望着说很开追跑", "：",
    )
)  # fmt: skip
"""Every word of the language; 。 is the first, and begins each sentence, too."""

_LIKES = 0.3
"""Probability of each of the two words that a word prefers; all of the kind share the rest."""


@dataclass(frozen=True)
class _Liked:
    """A word of `kind`, by the preferences of the word at `position` of the sentence."""

    position: int
    kind: Sentence


@dataclass(frozen=True)
class _Other:
    """Another word of the same kind as the one at `position`."""

    position: int


@dataclass(frozen=True)
class _Again:
    """The word at `position` once more."""

    position: int


@dataclass(frozen=True)
class _MoreOrLess:
    """How the numeral at position 0 compares with the one at position 2."""


_Part = str | Sentence | _Liked | _Other | _Again | _MoreOrLess
# A string is that word, a tuple any of its words. Each shape has a word at a position that no other shape has there, so
# a sentence has one derivation, and its probability is the product of the probabilities of what was drawn.
_SHAPES: tuple[tuple[_Part, ...], ...] = (
    (_PEOPLE, "在", _PLACES, _DEEDS, NUMERALS, "只", ANIMALS, "。"),
    (ANIMALS, "喜", "欢", "吃", _Liked(0, _FOODS), "，", "不", "喜", "欢", _COLOURS, "。"),
    (_PEOPLE, "喂", ANIMALS, "用", _Liked(2, _FOODS), "。"),
    (SEASONS, "的", _PLACES, _Liked(0, _WEATHERS), "。"),
    ("到", "了", SEASONS, "，", _PLANTS, "变", _Liked(2, _COLOURS), "。"),
    (NUMERALS, "比", _Other(0), _MoreOrLess(), "。"),
    (HEAVENS, "非", "常", _Liked(0, _QUALITIES), "。"),
    (_PEOPLE, "望", "着", HEAVENS, "说", "：", _Again(3), "很", _Liked(3, _QUALITIES), "。"),
    (_PLANTS, "开", "着", _Liked(0, _COLOURS), "的", "花", "。"),
    (ANIMALS, "追", "着", _Other(0), "跑", "到", _PLACES, "。"),
)


@dataclass(frozen=True)
class KnownSentence:
    """A sentence, and the natural logarithm of its probability among all sentences."""

    words: Sentence
    log_probability: float


def villages(count: int, seed: int) -> list[KnownSentence]:
    """`count` sentences, each ending with 。, drawn independently. A pure function of the seed."""
    draw = generator(seed, "villages")
    return [_sentence(draw) for _ in range(count)]


def _sentence(draw: random.Random) -> KnownSentence:
    shape = draw.choice(_SHAPES)
    words, log_probability = list[str](), -math.log(len(_SHAPES))
    for part in shape:
        choices, probabilities = _choices(part, shape, words)
        number = draw.choices(range(len(choices)), probabilities)[0]
        log_probability += math.log(probabilities[number])
        words.append(choices[number])
    return KnownSentence(tuple(words), log_probability)


def _choices(part: _Part, shape: tuple[_Part, ...], words: list[str]) -> tuple[Sentence, list[float]]:
    """The words that may come next, and their probabilities."""
    match part:
        case str():
            choices: Sentence = (part,)
        case _Liked(position, kind):
            number = _kind(shape, position).index(words[position])
            probabilities = [(1 - 2 * _LIKES) / len(kind)] * len(kind)
            for liked in (number % len(kind), (2 * number + 3) % len(kind)):
                probabilities[liked] += _LIKES
            return kind, probabilities
        case _Other(position):
            choices = tuple(word for word in _kind(shape, position) if word != words[position])
        case _Again(position):
            choices = (words[position],)
        case _MoreOrLess():
            choices = ("多" if NUMERALS.index(words[0]) > NUMERALS.index(words[2]) else "少",)
        case kind:
            choices = kind
    return choices, [1 / len(choices)] * len(choices)


def _kind(shape: tuple[_Part, ...], position: int) -> Sentence:
    """The kind at a position of a shape."""
    kind = shape[position]
    assert isinstance(kind, tuple)
    return kind
