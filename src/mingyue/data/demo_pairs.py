"""Pairs for a first translation model: dates and numbers in English and Chinese words, and the same in digits.

    the third of March, 1987  →  1987-03-03        twelve thousand three hundred and five  →  12305
    一九八七年三月三日        →  1987-03-03        三千零五                                →  3005

Dates are from 1900 to 2099; numbers up to 999,999 in English and 99,999 in Chinese. The draws use `Random.random`
alone, the only method whose sequence Python guarantees across versions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import date
from random import Random
from typing import TypeVar

from mingyue.errors import DataError
from mingyue.words import tr

_T = TypeVar("_T")

_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DIGITS = "零一二三四五六七八九"
_UNITS = ((1000, "千"), (100, "百"), (10, "十"))
_CHINESE_WEEKDAYS = "一二三四五六日"

_ENGLISH_DATES = (
    "{day} {month} {year}",
    "{day} {short_month} {year}",
    "{short_month} {day}, {year}",
    "{month} {day}, {year}",
    "{month} {day_th}, {year}",
    "{day_th} of {month} {year}",
    "{weekday}, {day} {month} {year}",
    "{weekday}, {month} {day_th}, {year}",
    "the {day_words} of {month}, {year}",
    "the {day_words} of {month}, {year_words}",
    "{month} the {day_words}, {year_words}",
    "{weekday}, the {day_words} of {month}, {year}",
)
_CHINESE_DATES = (
    "{year}年{month}月{day}日",
    "{year}年{month}月{day}号",
    "{year}年{month}月{day}日星期{weekday}",
    "{year_words}年{month_words}月{day_words}日",
    "{year_words}年{month_words}月{day_words}号",
    "{year_words}年{month_words}月{day_words}日星期{weekday}",
    "{year_words_ling}年{month_words}月{day_words}日",
)
_FIRST_DAY, _LAST_DAY = date(1900, 1, 1).toordinal(), date(2099, 12, 31).toordinal()
_PATIENCE = 10_000  # draws in a row without a new source after which there are taken to be no more


def demo_pairs(count: int, *, seed: int, avoid: Collection[str] = ()) -> list[tuple[str, str]]:
    """`count` pairs (source, target), a pure function of the arguments.

    No two sources are equal, and none is in `avoid`, ignoring case: with the training sources as `avoid`, all pairs are
    unseen. There are well over a million; sources have at most 72 characters, targets at most 10. Raises `DataError`
    for a negative count, or when no new source is found any more.
    """
    if count < 0:
        raise DataError(tr("{count} demo pairs cannot be made", count), advice=tr("Ask for 0 or more."))
    draw = _Draw(seed)
    taken = {source.casefold() for source in avoid}
    pairs: list[tuple[str, str]] = []
    misses = 0
    while len(pairs) < count:
        source, target = draw.weighted(_KINDS)(draw)
        if source.casefold() not in taken:
            taken.add(source.casefold())
            pairs.append((source, target))
            misses = 0
            continue
        misses += 1
        if misses == _PATIENCE:
            raise DataError(
                tr(
                    "only {found:,} of {count:,} demo pairs were found: the last {draws:,} draws gave no new one",
                    len(pairs),
                    count,
                    _PATIENCE,
                ),
                advice=tr("Ask for fewer, or avoid fewer."),
            )
    return pairs


def english_number(n: int, *, with_and: bool = True) -> str:
    """0 ≤ n < 1,000,000,000 in words: 12,305 → "twelve thousand three hundred and five" (American: without "and").

    Raises `DataError` for other numbers.
    """
    _check(n, 1_000_000_000)
    if n == 0:
        return _ONES[0]
    words: list[str] = []
    for size, name in ((1_000_000, " million"), (1000, " thousand"), (1, "")):
        group = n // size % 1000
        if group:
            # "one thousand and five": a last group below one hundred is preceded by "and".
            lead = "and " if with_and and words and size == 1 and group < 100 else ""
            words.append(lead + _below_thousand(group, with_and) + name)
    return " ".join(words)


def english_ordinal(n: int, *, with_and: bool = True) -> str:
    """The ordinal in words: 21 → "twenty-first", 100 → "one hundredth". Range and errors as for `english_number`."""
    words = english_number(n, with_and=with_and)
    start = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[start:]
    if last.endswith("y"):
        return words[:-1] + "ieth"
    return words[:start] + _ORDINALS.get(last, last + "th")


def english_year(year: int) -> str:
    """A year from 1900 to 2099 as it is said: "nineteen hundred", "nineteen oh five", "two thousand and five"."""
    century, rest = divmod(year, 100)
    if century == 20 and rest < 10:
        return english_number(year)
    if rest == 0:
        return f"{_ONES[century]} hundred"
    tail = f"oh {_ONES[rest]}" if rest < 10 else english_number(rest)
    return f"{english_number(century)} {tail}"


def chinese_number(n: int, *, liang: bool = True) -> str:
    """0 ≤ n < 100,000,000 in characters: 3,005 → 三千零五, 12,345 → 一万二千三百四十五, 12 → 十二, 110 → 一百一十.

    Any run of zeros between other digits is one 零, also where it begins the last four digits (一万零五); zeros
    that end four digits are silent (一百万三千 for 1,003,000). With `liang` 2 is 两 before 百, 千 and 万 (两百), as in
    speech; without, 二 (二百).
    Raises `DataError` for other numbers.
    """
    _check(n, 100_000_000)
    if n == 0:
        return _DIGITS[0]
    high, low = divmod(n, 10_000)
    words = ""
    if high:
        words = ("两" if liang and high == 2 else _four_digits(high, liang)) + "万"
        if 0 < low < 1000:
            words += "零"
    words += _four_digits(low, liang)
    return words.removeprefix("一") if words.startswith("一十") else words


def _check(n: int, end: int) -> None:
    if not 0 <= n < end:
        raise DataError(
            tr("{n:,} cannot be written in words here", n), advice=tr("Use a number from 0 to {most:,}.", end - 1)
        )


def _below_thousand(n: int, with_and: bool) -> str:
    hundreds, rest = divmod(n, 100)
    words = [f"{_ONES[hundreds]} hundred"] if hundreds else []
    if rest:
        tens, ones = divmod(rest, 10)
        small = _ONES[rest] if rest < 20 else _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")
        words.append(f"and {small}" if hundreds and with_and else small)
    return " ".join(words)


def _four_digits(n: int, liang: bool) -> str:
    """0 < n < 10,000, with 一十 for ten; nothing for 0."""
    words = ""
    gap = False
    for size, unit in _UNITS:
        digit = n // size % 10
        if digit:
            two = liang and digit == 2 and size >= 100
            words += ("零" if gap else "") + ("两" if two else _DIGITS[digit]) + unit
        gap = bool(words) and not digit
    if n % 10:
        words += ("零" if gap else "") + _DIGITS[n % 10]
    return words


class _Draw:
    """Choices made from `Random.random` alone."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed).random

    def below(self, n: int) -> int:
        return int(self._random() * n)

    def pick(self, choices: Sequence[_T]) -> _T:
        return choices[self.below(len(choices))]

    def weighted(self, choices: Sequence[tuple[float, _T]]) -> _T:
        """One of the choices, given with their probabilities, which sum to 1."""
        point = self._random()
        for share, choice in choices:
            point -= share
            if point < 0:
                return choice
        return choices[-1][1]

    def number(self, most_digits: int) -> int:
        """A number of any length with equal chance, and with more zeros than by chance: they are the hard part."""
        digits = str(1 + self.below(9))
        for _ in range(self.below(most_digits)):
            digits += "0" if self._random() < 0.25 else str(self.below(10))
        return int(digits) if len(digits) > 1 else self.below(10)

    def day(self) -> date:
        return date.fromordinal(_FIRST_DAY + self.below(_LAST_DAY - _FIRST_DAY + 1))


def _english_date(draw: _Draw) -> tuple[str, str]:
    day = draw.day()
    month = _MONTHS[day.month - 1]
    ending = "th" if 11 <= day.day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    source = draw.pick(_ENGLISH_DATES).format(
        day=day.day,
        day_th=f"{day.day}{ending}",
        day_words=english_ordinal(day.day),
        month=month,
        short_month=month[:3],
        year=day.year,
        year_words=english_year(day.year),
        weekday=_WEEKDAYS[day.weekday()],
    )
    return _cased(draw, source), day.isoformat()


def _chinese_date(draw: _Draw) -> tuple[str, str]:
    day = draw.day()
    year_ling = "".join(_DIGITS[int(digit)] for digit in str(day.year))
    source = draw.pick(_CHINESE_DATES).format(
        day=day.day,
        day_words=chinese_number(day.day),
        month=day.month,
        month_words=chinese_number(day.month),
        year=day.year,
        year_words=year_ling.replace("零", "〇"),
        year_words_ling=year_ling,
        weekday=_CHINESE_WEEKDAYS[day.weekday()],
    )
    return source, day.isoformat()


def _english_count(draw: _Draw) -> tuple[str, str]:
    n = draw.number(6)
    return _cased(draw, english_number(n, with_and=draw.pick((True, False)))), str(n)


def _english_rank(draw: _Draw) -> tuple[str, str]:
    n = 1 + draw.number(3)
    return _cased(draw, english_ordinal(n, with_and=draw.pick((True, False)))), str(n)


def _chinese_count(draw: _Draw) -> tuple[str, str]:
    n = draw.number(5)
    return chinese_number(n, liang=draw.pick((True, False))), str(n)


def _chinese_rank(draw: _Draw) -> tuple[str, str]:
    n = 1 + draw.number(3)
    return "第" + chinese_number(n, liang=False), str(n)


def _cased(draw: _Draw, source: str) -> str:
    return draw.weighted(_CASES)(source)


def _capitalised(source: str) -> str:
    return source[0].upper() + source[1:]


# Probabilities of the draws. Of kinds with few members (ordinals, short numbers) a long list has them all; the other
# kinds fill the rest.
_KINDS: tuple[tuple[float, Callable[[_Draw], tuple[str, str]]], ...] = (
    (0.28, _english_date),
    (0.17, _chinese_date),
    (0.3, _english_count),
    (0.18, _chinese_count),
    (0.04, _english_rank),
    (0.03, _chinese_rank),
)
_CASES: tuple[tuple[float, Callable[[str], str]], ...] = (
    (0.75, str),
    (0.1, str.lower),
    (0.1, _capitalised),
    (0.05, str.upper),
)
