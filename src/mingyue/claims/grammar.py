"""Small languages that claims train on: sentences made by rules from a seed. A sentence is a tuple of words."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mingyue.runtime import derive_seed

Sentence = tuple[str, ...]

ANIMALS = ("猫", "狗", "牛", "羊", "马", "兔")
SEASONS = ("春天", "夏天", "秋天", "冬天")
NUMERALS = ("二", "三", "四", "五", "六", "七", "八", "九")
HEAVENS = ("宇宙", "星系", "太阳", "月亮")
_FOODS = ("草", "鱼", "米", "豆")
_PLACES = ("院子", "山坡", "河边")
_WEATHERS = ("下雨", "刮风", "下雪", "放晴")
_PLANTS = ("花", "叶", "树")
_FARNESS = ("远", "大", "古老", "安静")
_OWNERS = ("他", "她", "我", "邻居")


class Lexicon:
    """Words and their numbers, in the order in which `words` first has them."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(dict.fromkeys(words))
        self.numbers = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, word: str) -> int:
        return self.numbers[word]

    def ids(self, sentence: Sequence[str]) -> list[int]:
        """The numbers of a sentence. Raises `KeyError` for a word that is not there."""
        return [self.numbers[word] for word in sentence]

    def tensor(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """ids_BT of sentences of one length."""
        return torch.tensor([self.ids(sentence) for sentence in sentences], dtype=torch.long)

    def stream(self, sentences: Iterable[Sequence[str]]) -> Tensor:
        """ids_N of sentences one after another."""
        return torch.tensor([number for sentence in sentences for number in self.ids(sentence)], dtype=torch.long)


def generator(seed: int, purpose: str) -> random.Random:
    """Random numbers of one purpose."""
    return random.Random(derive_seed(seed, purpose))


def topics(count: int, seed: int) -> list[Sentence]:
    """Sentences about animals, seasons, numerals and the heavens. Words of one kind stand in the same places."""
    draw = generator(seed, "topics")
    pick = draw.choice
    sentences: list[Sentence] = []
    for _ in range(count):
        match draw.randrange(8):
            case 0:
                sentences.append((pick(_OWNERS), "的", pick(ANIMALS), "在", pick(_PLACES), "吃", pick(_FOODS), "。"))
            case 1:
                sentences.append((pick(_PLACES), "有", pick(NUMERALS), "只", pick(ANIMALS), "。"))
            case 2:
                sentences.append((pick(ANIMALS), "喜欢", pick(_FOODS), "，", "也", "喜欢", pick(ANIMALS), "。"))
            case 3:
                sentences.append((pick(SEASONS), "常常", pick(_WEATHERS), "。"))
            case 4:
                sentences.append(("到", "了", pick(SEASONS), "，", pick(_PLANTS), "就", "变", "了", "。"))
            case 5:
                first = pick(NUMERALS)
                sentences.append((first, "比", pick(NUMERALS), "多", "，", "不", "是", first, "。"))
            case 6:
                sentences.append((pick(HEAVENS), "非常", pick(_FARNESS), "。"))
            case _:
                sentences.append((pick(_OWNERS), "抬头", "望", pick(HEAVENS), "，", "想", "得", "很", "远", "。"))
    return sentences


_MONEY = (("money", "loan", "cash"), ("paid", "lent", "owed"))
_RIVER = (("river", "fish", "mud"), ("flowed", "swam", "rose"))


def banks(count: int, seed: int) -> list[tuple[Sentence, str]]:
    """English sentences with one `bank`, and its sense ("money" or "river"), seven words each.

    Of the words before `bank` some tell the sense, and the words after it follow from the sense.
    """
    draw = generator(seed, "banks")
    made: list[tuple[Sentence, str]] = []
    for _ in range(count):
        sense = draw.choice(("money", "river"))
        nouns, verbs = _MONEY if sense == "money" else _RIVER
        sentence = ("the", draw.choice(nouns), "by", "the", "bank", draw.choice(verbs), ".")
        made.append((sentence, sense))
    return made


STRIKES = {
    "play": (("篮球", "乒乓", "麻将"), ("得分", "获胜", "认输")),
    "buy": (("酱油", "米醋", "白酒"), ("炒菜", "拌面", "炖汤")),
    "ride": (("专车", "的士", "出租"), ("回家", "上班", "进城")),
}
"""What 打 goes with in each sense, and what follows from the sense. No two of these words share a character."""


def strikes(count: int, seed: int) -> list[tuple[Sentence, str]]:
    """Sentences of characters such as 他去打篮球，得分。, and the sense of 打 in each ("play", "buy" or "ride")."""
    draw = generator(seed, "strikes")
    made: list[tuple[Sentence, str]] = []
    for _ in range(count):
        sense = draw.choice(tuple(STRIKES))
        what, then = map(draw.choice, STRIKES[sense])
        made.append(((draw.choice("我你他她"), draw.choice("去要想"), "打", *what, "，", *then, "。"), sense))
    return made


TRAITS = {
    "猫": "聪明", "狗": "忠实", "马": "强壮", "羊": "温顺", "兔": "胆小", "鸟": "轻快",
    "牛": "勤劳", "猪": "贪吃", "猴": "机灵", "鹿": "警觉", "鹅": "骄傲", "象": "沉稳",
}  # fmt: skip
"""Each animal has a trait of its own: it tells whom 它 stands for."""
CHASING, FLEEING = ("追赶", "扑向", "盯上"), ("躲开", "逃离", "避开")
CHASER, CHASED = ("饿", "凶"), ("怕", "慌")
"""What is said of the animal that chases, and of the one that is chased."""


@dataclass(frozen=True)
class Reference:
    """A sentence that ends with 它, and which of its two animals 它 stands for."""

    words: Sentence
    """Up to and with 它, of one length for all."""
    noun: int
    """Position of the animal that 它 stands for."""
    other: int
    """Position of the other animal."""
    pronoun: int
    """Position of 它."""
    answer: str
    """What comes next: the trait of that animal."""


def references(count: int, seed: int) -> list[Reference]:
    """Sentences of two animals such as 猫追赶狗，饿的它… (the hungry one: 猫) and 猫躲开狗，饿的它… (狗).

    Which animal is meant follows from the verb and the word before 的 together, not from either alone or the position.
    """
    draw = generator(seed, "references")
    made: list[Reference] = []
    for _ in range(count):
        first, second = draw.sample(tuple(TRAITS), 2)
        chases, asked = draw.random() < 0.5, draw.random() < 0.5
        verb = draw.choice(CHASING if chases else FLEEING)
        words = (first, verb, second, "，", draw.choice(CHASER if asked else CHASED), "的", "它")
        noun, other = (0, 2) if chases == asked else (2, 0)
        made.append(Reference(words, noun, other, len(words) - 1, TRAITS[words[noun]]))
    return made
