"""Text that cannot be encoded is refused by name, not by a traceback of the codec."""

from __future__ import annotations

from mingyue.errors import TokenizerError


def utf8(text: str) -> bytes:
    """The text in UTF-8. Raises `TokenizerError` for half of a surrogate pair."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _lone_surrogate(error) from None


def utf32(text: str) -> bytes:
    """The code points of the text, four bytes each (little end first). Raises `TokenizerError` as `utf8` does."""
    try:
        return text.encode("utf-32-le")
    except UnicodeEncodeError as error:
        raise _lone_surrogate(error) from None


def _lone_surrogate(error: UnicodeEncodeError) -> TokenizerError:
    code = ord(error.object[error.start])
    return TokenizerError(
        f"character {error.start} of {len(error.object)} is U+{code:04X}, half of a surrogate pair: "
        "it stands for no character and has no UTF-8",
        advice="Read the text with the encoding that it has, or repair it with "
        "text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace').",
    )
