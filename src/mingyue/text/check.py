"""Encodes text as UTF-8 or UTF-32; text that cannot be encoded is a `TokenizerError`, not an error of the codec."""

from __future__ import annotations

from mingyue.errors import TokenizerError
from mingyue.words import tr


def utf8(text: str) -> bytes:
    """The text in UTF-8. Raises `TokenizerError` for half of a surrogate pair."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _lone_surrogate(error) from None


def utf32(text: str) -> bytes:
    """The code points of the text, four bytes each (little-endian). Raises `TokenizerError` as `utf8` does."""
    try:
        return text.encode("utf-32-le")
    except UnicodeEncodeError as error:
        raise _lone_surrogate(error) from None


def _lone_surrogate(error: UnicodeEncodeError) -> TokenizerError:
    code = ord(error.object[error.start])
    return TokenizerError(
        tr(
            "character {start} of {n_object} is U+{code:04X}, half of a surrogate pair: it is "
            "not a character and has no UTF-8",
            error.start,
            len(error.object),
            code,
        ),
        advice=tr(
            "Read the text with its actual encoding, or repair it with text.encode('utf-16', "
            "'surrogatepass').decode('utf-16', 'replace')."
        ),
    )
