"""Tells apart the single-byte encodings of languages that use the Latin script, by how often each letter occurs.

A byte above 127 is é in one encoding and a letter that the language does not have in another. So the decoded letters
are compared with the letter frequencies of each language; encodings that give the same text are no rivals.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import NamedTuple

# Letters beyond ASCII with their frequency (per 10,000 letters), by language.
_WESTERN = {
    "French": "é150 à49 è27 ê22 ç9 û6 ù6 î5 â5 ô2 œ2 ï1 ë1 ü1",
    "German": "ü100 ä58 ö44 ß31",
    "Spanish": "ó83 í73 á50 é43 ñ31 ú17 ¿5 ¡2 ü1 º1 ª1",
    "Portuguese": "ã73 ç53 ô64 â56 ê45 é34 ó30 ú21 í13 á60 à7 õ20 º1 ª1",
    "Italian": "à63 è40 ù17 ò15 ì10 é10",
    "Catalan": "à60 ó50 è45 é40 í40 ò20 ú15 ç12 ï4 ·3 ü2",
    "Swedish": "ä180 å134 ö131 é1",
    "Danish": "å130 ø94 æ80 é2 ò1 ô1",
    "Finnish": "ä358 ö44 å1 š1 ž1",
    "Icelandic": "ð439 á180 í157 þ145 ó99 æ87 ö78 é65 ú61 ý23",
    "English": "é50 è6 ï5 ö5 ü5 ñ5 ê4 ç4 á4 à4 ó4 ä3 í3 ô3 ø2 å2 æ2 â2 ú2 ë2 î2",
}
_CENTRAL = {
    "Polish": "ł182 ę111 ą99 ó85 ż83 ś66 ć40 ń20 ź6",
    "Czech": "í164 ě122 ý100 á87 ž72 š69 é63 č46 ř38 ů20 ú5 ó2 ď2 ň1 ť1",
    "Slovak": "á150 é90 í90 ý85 č80 š80 ž80 ú70 ť40 ľ40 ň15 ď15 ô12 ä8 ó5 ĺ1 ŕ1",
    "Hungarian": "á370 é320 ó110 ő87 ö80 í70 ú40 ü40 ű30",
    "Romanian": "ă250 ş120 ţ110 î100 â60",
    "Croatian": "č120 š100 ž60 ć60 đ25",
}
_TURKISH = {"Turkish": "ı510 ü190 ş180 ç120 ğ110 ö80 â5 î1 û1"}
_BALTIC = {
    "Lithuanian": "ė160 ų130 š120 ž80 ą70 į60 ū50 č40 ę20",
    "Latvian": "ā430 ī210 ē180 š100 ņ60 ū45 ļ35 ķ20 ž20 ģ15 č10",
    "Estonian": "ä105 õ100 ü65 ö25 š1 ž1",
}
_CODECS = {  # in the order in which they are preferred
    "cp1252": _WESTERN,
    "cp1250": _CENTRAL,
    "iso8859-2": _CENTRAL,
    "cp1254": _TURKISH,
    "cp1257": _BALTIC,
    "mac-roman": _WESTERN,
    "cp850": _WESTERN,
}
_QUOTES, _BETWEEN_WORDS = "“”„‚«»‹›", "’‘–—…· "  # quotation marks do not stand between two letters, the others may
_SIGNS = "§©®™°€£½¼¾×±²³µ•†"
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_FLOOR, _SIGN = 1e-4, 0.02  # probabilities of a letter that the language does not have, and of punctuation
_FEWEST = 4  # fewer bytes above 127 are too few to be certain
_MOST = 1.0  # bytes above 127 per ASCII letter: with more it is another script
_EXPLAINED, _POSSIBLE = 0.95, 0.7  # shares of them that must be plausible: to be certain, to be named at all
_MARGIN = 7.0  # nats by which the best encoding must exceed another one
_PREFERENCE = 2.0  # nats in favour of cp1252, which is by far the most frequent


class Latin(NamedTuple):
    """Encodings in which the bytes may be text in the Latin script, the best first, and whether it is certain."""

    names: list[str]
    certain: bool


class _Fit(NamedTuple):
    codec: str
    text: str
    likelihood: float
    explained: float


def plausible_latin(sample: bytes) -> Latin | None:
    """Encodings of a sample that is mostly ASCII letters; None if it is not, or no language explains its letters."""
    letters = sum(sample.count(byte) for byte in b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    beyond = len(sample) - len(sample.decode("ascii", "ignore"))
    if beyond > _MOST * letters:
        return None
    fits = [fit for codec, languages in _CODECS.items() if (fit := _fit(sample, codec, languages)) is not None]
    if not fits:
        return None
    best = max(fits, key=lambda fit: fit.likelihood + _PREFERENCE * (fit.codec == "cp1252"))
    if best.explained < _POSSIBLE:
        return None
    rivals = [fit for fit in fits if fit.text != best.text]
    certain = (
        beyond >= _FEWEST
        and best.explained >= _EXPLAINED
        and all(best.likelihood + _PREFERENCE * (best.codec == "cp1252") - _MARGIN > fit.likelihood for fit in rivals)
    )
    rivals.sort(key=lambda fit: -fit.likelihood)
    names = [best.codec, *(fit.codec for fit in rivals if fit.explained >= _POSSIBLE)]
    if not certain and any(fit.codec == "cp1252" for fit in fits):
        names = list(dict.fromkeys(["cp1252", *names]))
    return Latin(names, certain)


def _fit(sample: bytes, codec: str, languages: dict[str, str]) -> _Fit | None:
    """How well the language that fits best explains the letters; None if the bytes are not valid."""
    try:
        text = sample.decode(codec)
    except UnicodeDecodeError:
        return None
    letters, signs, strange = _counted(text)
    total = max(1, sum(letters.values()) + signs + strange)
    likelihood, known = max(_likelihood(letters, _frequencies(table)) for table in languages.values())
    likelihood += signs * math.log(_SIGN) + strange * math.log(_FLOOR)
    return _Fit(codec, text, likelihood, (known + signs) / total)


def _counted(text: str) -> tuple[Counter[str], int, int]:
    """Characters beyond ASCII: letters in lower case, plausible signs, and others (also letters where none can be)."""
    letters: Counter[str] = Counter()
    signs = strange = 0
    for match in _BEYOND_ASCII.finditer(text):
        character, at = match[0], match.start()
        before, after = text[at - 1 : at], text[at + 1 : at + 2]
        inside = before.isalpha() and after.isalpha()
        if character in _QUOTES:
            signs, strange = (signs, strange + 1) if inside else (signs + 1, strange)
        elif character in _BETWEEN_WORDS or (character in _SIGNS and not inside):
            signs += 1
        elif before.isalpha() if character in "¿¡" else character.isupper() and before.islower():
            strange += 1
        else:
            letters[character.lower()] += 1
    return letters, signs, strange


def _frequencies(table: str) -> dict[str, float]:
    counts = {entry[0]: int(entry[1:]) for entry in table.split()}
    total = sum(counts.values())
    return {letter: count / total for letter, count in counts.items()}


def _likelihood(letters: Counter[str], frequencies: dict[str, float]) -> tuple[float, int]:
    """Log-likelihood of the letters in nats, and how many of them the language has."""
    likelihood = sum(count * math.log(frequencies.get(letter, _FLOOR)) for letter, count in letters.items())
    return likelihood, sum(count for letter, count in letters.items() if letter in frequencies)
