r"""Text that can be shown: characters that a terminal obeys, or that a picture cannot hold, as symbols or escapes."""

from __future__ import annotations

import re
import unicodedata

from mingyue.words import Words, tr

# Control characters but line ends and tabs, controls of the direction of text, line and paragraph separators, lone
# surrogates, and the two characters that XML does not allow.
_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_MOST_SHOWN = 80
"""Characters of a value in a message."""

_BLANKS = str.maketrans({" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥"})


def printable(text: str) -> str:
    r"""`text` with a symbol for each control character (␇) and an escape for others that cannot be shown (`\u202e`).

    Line ends and tabs are kept. A byte of a file name that is not UTF-8, a lone surrogate in Python, becomes `\xe9`.
    A text in two languages stays one.
    """
    if isinstance(text, Words):
        return text.mapped(printable)
    return _UNSHOWABLE.sub(_symbol, text)


def token_symbols(text: str) -> str:
    """The text of a token on one line, with nothing blank: ␣ a space, ⏎ a line end, ⇥ a tab, ␇ a control character."""
    return standing_alone(printable(text.translate(_BLANKS)))


def standing_alone(text: str) -> str:
    """`text` with a dotted circle before a combining mark at its start, which would join what stands before it."""
    return f"◌{text}" if text and unicodedata.category(text[0]) in ("Mn", "Me") else text


def shown(value: object) -> str:
    """A value in a message: its representation, shortened in the middle."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return tr("a number of thousands of digits")
    return text if len(text) <= _MOST_SHOWN else f"{text[:40]}…{text[-20:]}"


def _symbol(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if 0xDC80 <= code <= 0xDCFF:  # a byte that Python could not decode (PEP 383)
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
