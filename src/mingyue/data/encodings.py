"""Bytes to text: finds the encoding of a file and decodes it; no byte is lost unreported.

UTF-8 unless a byte-order mark, the user, or detection says otherwise. Detection is trusted only if one encoding is
clearly the best; a file that is UTF-8 except for a few bytes is damaged, not "detected as something else".
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import BinaryIO

from mingyue.config import nearest
from mingyue.data import detect
from mingyue.errors import DataError, SettingsError

CHUNK = 1 << 20
Opener = Callable[[], AbstractContextManager[BinaryIO]]

_MARKS = (  # the longer ones first: the mark of UTF-32 begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (b"\x84\x31\x95\x33", "gb18030"),
)
_SIGNATURES = (
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a zip archive or an office document"),
    (b"\x1f\x8b", "compressed by gzip (give it a name that ends in .gz)"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (b"\xfd7zXZ", "compressed by xz"),
    (b"PAR1", "a Parquet file (give it a name that ends in .parquet)"),
)
_SAMPLE = 1 << 19


class NotTextError(DataError):
    """The file holds something other than text."""


class UndecodableError(DataError):
    """The bytes do not fit the encoding, and no other one is certain."""


@dataclass(frozen=True)
class Encoding:
    """How a file is decoded: a Python codec, and how it was chosen (for the report)."""

    codec: str
    label: str
    escape: bool = False
    """Bytes that do not fit become lone surrogates, so that the records with them can be left out."""


@dataclass(frozen=True)
class _Fault:
    kind: str  # "bytes" or "nul"
    offset: int
    line: int
    byte: int


def find_encoding(
    name: str, open_bytes: Opener, given: str | None = None, *, skip_bad: bool = False, offers_skipping: bool = True
) -> Encoding:
    """The encoding of a file, found by reading all of it. `offers_skipping`: errors may advise --skip-bad.

    Raises `NotTextError` for binary content, `UndecodableError` (file, line, byte, the option to use) if the encoding
    is uncertain, `SettingsError` if `given` is not an encoding.
    """
    with open_bytes() as file:
        head = file.read(8192)
    if given is not None:
        codec = _known(given)
        return _checked(name, open_bytes, Encoding(codec, f"{codec} as given"), skip_bad=skip_bad)
    for mark, codec in _MARKS:
        if head.startswith(mark):
            label = codec if codec == "utf-8" else f"{codec} by its byte-order mark"
            return _checked(name, open_bytes, Encoding(codec, label), skip_bad=skip_bad)
    for signature, what in _SIGNATURES:
        if head.startswith(signature):
            raise NotTextError(f"{name} is {what}, not text", advice="Convert it to text first, or leave it out.")
    fault = _scan(open_bytes, "utf-8")
    if fault is None:
        return Encoding("utf-8", "utf-8")
    return _detected(name, open_bytes, fault, skip_bad=skip_bad, offers_skipping=offers_skipping)


def read_text(name: str, open_bytes: Opener, encoding: Encoding) -> Iterator[str]:
    r"""The text in chunks of about a megabyte, without a byte-order mark, with \n for \r\n. A lone \r stays."""
    decoder = codecs.getincrementaldecoder(encoding.codec)("surrogateescape" if encoding.escape else "strict")
    held, first = "", True
    try:
        for data in _chunks(open_bytes):
            text = held + decoder.decode(data, final=not data)
            held = ""
            if first and text:
                text, first = text.removeprefix("\ufeff"), False
            if data and text.endswith("\r"):
                held, text = "\r", text[:-1]
            if text:
                yield text.replace("\r\n", "\n")
    except UnicodeDecodeError as error:  # all of it could be decoded when its encoding was found
        raise UndecodableError(f"{name} changed while it was read ({error})") from None


def _known(given: str) -> str:
    try:
        with suppress(UnicodeError):
            b"a".decode(given)  # raises for unknown names, and for codecs that are not text encodings
        return codecs.lookup(given).name
    except LookupError:
        from encodings.aliases import aliases

        guess = nearest(given.lower(), [name.replace("_", "-") for name in {*aliases, *aliases.values()}])
        hint = f"Did you mean {guess}?" if guess else "Use a name such as utf-8, gb18030, big5 or utf-16."
        raise SettingsError(f"there is no encoding {given!r}", advice=hint) from None


def _checked(name: str, open_bytes: Opener, encoding: Encoding, *, skip_bad: bool) -> Encoding:
    fault = _scan(open_bytes, encoding.codec)
    if fault is None:
        return encoding
    if fault.kind == "nul":
        raise _not_text(name, fault)
    if skip_bad:
        escaping = Encoding(encoding.codec, encoding.label, escape=True)
        if _scan(open_bytes, encoding.codec, "surrogateescape") is None:
            return escaping
    given = encoding.label.endswith("as given")
    other = "Give another encoding with --encoding, or omit --encoding to detect it."
    raise UndecodableError(
        f"{name}, line {fault.line}: byte {fault.offset} (0x{fault.byte:02x}) does not fit {encoding.label}",
        advice=other if given else "Repair the file, or name its encoding with --encoding.",
    )


def _detected(name: str, open_bytes: Opener, fault: _Fault, *, skip_bad: bool, offers_skipping: bool) -> Encoding:
    sample = _sample(open_bytes, fault.offset)
    if b"\x00" in sample or fault.kind == "nul":
        for codec in detect.plausible_wide(sample):
            if _scan(open_bytes, codec) is None:
                return Encoding(codec, f"{codec} (detected)")
        raise _not_text(name, fault)
    message = f"{name}, line {fault.line}: byte {fault.offset} (0x{fault.byte:02x}) is not UTF-8"
    if detect.is_damaged_utf8(sample):
        if skip_bad:
            return _checked(name, open_bytes, Encoding("utf-8", "utf-8 with bytes that do not fit"), skip_bad=True)
        skipping = ", or leave out the documents that cannot be read with --skip-bad" if offers_skipping else ""
        raise UndecodableError(f"{message}, though the text around it is", advice=f"Repair the file{skipping}.")
    names, certain = detect.plausible(sample)
    if certain and _scan(open_bytes, names[0]) is None:
        return Encoding(names[0], f"{names[0]} (detected)")
    if not names and detect.looks_binary(sample):
        raise NotTextError(f"{message}, nor any other text encoding", advice="Leave the file out.")
    if names:
        message += f"; it could be {' or '.join(names[:3])}"
    example = names[0] if names else "gb18030"
    raise UndecodableError(message, advice=f"Name the encoding of the file, for example --encoding {example}.")


def _sample(open_bytes: Opener, offset: int) -> bytes:
    """Bytes around an offset, in whole lines where possible."""
    with open_bytes() as file:
        before = max(0, offset - (1 << 15))
        before -= before % 4  # UTF-16 and UTF-32 stay aligned
        file.seek(before)
        data = file.read(_SAMPLE)
    if before:
        data = data[data.find(b"\n") + 1 :] if b"\x00" not in data else data
    if len(data) == _SAMPLE and b"\n" in data and b"\x00" not in data:
        data = data[: data.rfind(b"\n") + 1]
    return data


def _scan(open_bytes: Opener, codec: str, errors: str = "strict") -> _Fault | None:
    """The first byte that does not fit, or the first NUL character; None if all is text."""
    decoder = codecs.getincrementaldecoder(codec)(errors)
    offset, line = 0, 1
    for data in _chunks(open_bytes):
        pending = decoder.getstate()[0]
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            good = error.object[: error.start].decode(codec, "replace")
            at = offset - len(pending) + error.start
            return _Fault("bytes", at, line + good.count("\n"), error.object[error.start])
        nul = text.find("\x00")
        if nul >= 0:
            before = text[:nul]
            at = offset - len(pending) + len(before.encode(codec, "surrogateescape"))
            return _Fault("nul", at, line + before.count("\n"), 0)
        line += text.count("\n")
        offset += len(data)
    return None


def _chunks(open_bytes: Opener) -> Iterator[bytes]:
    """The chunks of the file, then an empty one."""
    with open_bytes() as file:
        while data := file.read(CHUNK):
            yield data
    yield b""


def _not_text(name: str, fault: _Fault) -> NotTextError:
    return NotTextError(
        f"{name}, line {fault.line}: byte {fault.offset} is NUL: this is not text, or not in the encoding used",
        advice="Leave the file out; if it is text, give its encoding, for example --encoding utf-16.",
    )
