"""Guesses the encoding of a sample of bytes, for `encodings`."""

from __future__ import annotations

import unicodedata

from mingyue.data.latin import plausible_latin

_EVIDENCE = 16  # fewer bytes above 127 are too few to trust a guess
_STRAY = 4  # control characters that a short text may hold by mistake
_WIDE = ["utf_16_le", "utf_16_be", "utf_32_le", "utf_32_be"]
_COMMON = ("gb18030", "big5", "cp932", "cp949", "cp1251")  # named first where several are possible
_TRUSTED = {  # of other scripts than the Latin one, which `latin` is for; others are too rare to be guessed
    *("gb18030", "gbk", "gb2312", "big5", "big5hkscs", "cp932", "shift-jis", "euc-jp", "cp949", "euc-kr"),
    *("cp1251", "koi8-r", "koi8-u", "cp866", "cp1253", "iso8859-7", "cp1255", "iso8859-8", "cp1256", "cp874", "cp1258"),
}


def plausible(sample: bytes) -> tuple[list[str], bool]:
    """Encodings that the bytes could be in, and whether the first is certain enough to be used automatically."""
    latin = plausible_latin(sample)
    if latin is not None and latin.certain:
        return latin.names, True
    found = [name for name in _guesses(sample, None) if _is_clean(sample.decode(name, "ignore"))]
    trusted = [name for name in found if name in _TRUSTED]
    if len(found) == 1 and trusted and sum(byte > 127 for byte in sample) >= _EVIDENCE:
        return trusted, True
    ordered = [name for name in dict.fromkeys([*_COMMON, *trusted]) if name in trusted]
    return list(dict.fromkeys([*(latin.names if latin is not None else []), *ordered])), False


def plausible_wide(sample: bytes) -> list[str]:
    """The UTF-16 and UTF-32 encodings, without a byte-order mark, that the bytes could be in."""
    if sample.count(0) > 0.2 * len(sample):
        enough = len(sample) >= _EVIDENCE
    else:  # few zero bytes: Chinese in UTF-16, which is not valid UTF-8 (unlike UTF-8 with a stray NUL)
        enough = len(sample) >= 2 * _EVIDENCE and 0 in sample and "\ufffd" in sample.decode("utf-8", "replace")
    return [name for name in _guesses(sample, _WIDE) if _is_clean(sample.decode(name, "replace"))] if enough else []


def is_damaged_utf8(sample: bytes) -> bool:
    """Whether more characters beyond ASCII fit UTF-8 than not: then it is UTF-8 with some wrong bytes."""
    text = sample.decode("utf-8", "replace")
    wrong = text.count("\ufffd") - sample.count("\ufffd".encode())
    right = sum(1 for character in text if character > "\x7f") - text.count("\ufffd")
    return right > wrong


def looks_binary(sample: bytes) -> bool:
    """Whether there are control characters that text does not have."""
    controls = sum(sample.count(byte) for byte in range(32) if byte not in b"\t\n\x0b\x0c\r\x1b")
    return controls > 0.01 * len(sample) + _STRAY


def mostly_fits(sample: bytes) -> bool:
    """Whether most of the lines are UTF-8 without a NUL: then the others are damaged records of a UTF-8 file."""
    lines = sample.split(b"\n")
    bad = sum(b"\x00" in line or "\ufffd" in line.decode("utf-8", "replace") for line in lines)
    return 2 * bad <= len(lines)


def _guesses(sample: bytes, only: list[str] | None) -> list[str]:
    """The best guess, and every other that decodes to a different text and is nearly as good."""
    from charset_normalizer import from_bytes

    found = list(from_bytes(sample, cp_isolation=only))
    if not found:
        return []
    best = found[0]
    close = [
        match.encoding
        for match in found[1:]
        if match.chaos - best.chaos < 0.03 and best.coherence - match.coherence < 0.1 and str(match) != str(best)
    ]
    return [name.replace("_", "-") for name in (best.encoding, *close)]


def _is_clean(text: str) -> bool:
    strange = sum(1 for character in text if unicodedata.category(character) in {"Cn", "Co", "Cs", "Cc"})
    allowed = sum(text.count(character) for character in "\n\r\t\x0b\x0c")
    return strange == allowed and "\ufffd" not in text
