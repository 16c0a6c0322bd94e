"""Bytes to text: finds the encoding of a file and decodes it; no byte is lost unreported.

UTF-8 unless a byte-order mark, the user, or detection says otherwise. Detection is trusted only if one encoding is
clearly the best; a file that is UTF-8 except for a few bytes is damaged, not "detected as something else".
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import BinaryIO

from mingyue.config import nearest
from mingyue.data import detect
from mingyue.errors import DataError, SettingsError
from mingyue.words import joined, tr

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
    (b"%PDF-", tr("a PDF document")),
    (b"PK\x03\x04", tr("a zip archive or an office document")),
    (b"\x1f\x8b", tr("compressed by gzip (give it a name that ends in .gz)")),
    (b"\x89PNG", tr("a PNG image")),
    (b"\xff\xd8\xff", tr("a JPEG image")),
    (b"GIF8", tr("a GIF image")),
    (b"\x28\xb5\x2f\xfd", tr("compressed by zstd")),
    (b"\xfd7zXZ", tr("compressed by xz")),
    (b"PAR1", tr("a Parquet file (give it a name that ends in .parquet)")),
)
_SAMPLE = 1 << 19
_SHOWN = 30  # characters on each side of the judged one in a message
_NOT_OF_FILES = {"undefined", "idna", "punycode", "unicode-escape", "raw-unicode-escape"}
_ESCAPED_NUL = "\udc00"
READ_AGAIN = tr("Read it when no program writes to it, or make a copy first.")
_DAMAGED = "utf-8 with bytes that do not fit"


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
    """Bytes that do not fit, and NUL, become lone surrogates, so that the records with them can be left out."""
    evidence: str = ""
    """If detected: the line that was judged, and how it reads."""


@dataclass(frozen=True)
class _Fault:
    kind: str  # "bytes" or "nul"
    offset: int
    line: int
    byte: int


def find_encoding(
    name: str,
    open_bytes: Opener,
    given: str | None = None,
    *,
    skip_bad: bool = False,
    offers_skipping: bool = True,
    keep_nul: bool = False,
) -> Encoding:
    """The encoding of a file, found by reading all of it. `offers_skipping`: errors may advise --skip-bad.

    `keep_nul`: a NUL character in a file that is otherwise text is part of it. Raises `NotTextError` for binary
    content, `UndecodableError` (file, line, byte, the option to use) if the encoding is uncertain, `SettingsError` if
    `given` is not an encoding.
    """
    finding = _Finding(name, open_bytes, skip_bad=skip_bad, offers_skipping=offers_skipping, keep_nul=keep_nul)
    with open_bytes() as file:
        head = file.read(8192)
    if given is not None:
        codec = known_encoding(given)
        return finding.checked(Encoding(codec, tr("{codec} as given", codec)))
    codec = marked_encoding(head)
    if codec is not None:
        return finding.checked(
            Encoding(codec, codec if codec == "utf-8" else tr("{codec} by its byte-order mark", codec))
        )
    for signature, what in _SIGNATURES:
        if head.startswith(signature):
            raise NotTextError(
                tr("{name} is {what}, not text", name, what),
                advice=tr("Convert it to text first, or leave it out."),
            )
    return finding.detected()


def marked_encoding(head: bytes) -> str | None:
    """The encoding that a byte-order mark at the beginning names."""
    return next((codec for mark, codec in _MARKS if head.startswith(mark)), None)


def known_encoding(given: str) -> str:
    """The codec of an encoding of text files. Raises `SettingsError` for other names."""
    codec = _text_codec(given)
    if codec is None:
        from encodings.aliases import aliases

        known = [name for name in {*aliases, *aliases.values()} if _text_codec(name) is not None]
        guess = nearest(given.lower(), [name.replace("_", "-") for name in known])
        hint = tr("Did you mean {guess}?", guess) if guess else tr("Use a name such as utf-8, gb18030, big5 or utf-16.")
        raise SettingsError(tr("there is no encoding {given!r} of text files", given), advice=hint)
    return codec


def _text_codec(name: str) -> str | None:
    try:
        with suppress(UnicodeError):
            b"a".decode(name)  # raises for unknown names, and for codecs that are not text encodings
        codec = codecs.lookup(name)
    except (LookupError, ValueError):
        return None
    usable = codec.incrementaldecoder is not None and codec.name.replace("_", "-") not in _NOT_OF_FILES
    return codec.name if usable else None


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
                text = text.replace("\r\n", "\n")
                yield text.replace("\x00", _ESCAPED_NUL) if encoding.escape else text
    except UnicodeError as error:  # all of it could be decoded when its encoding was found
        raise DataError(tr("{name} was changed while it was read ({error})", name, error), advice=READ_AGAIN) from None


@dataclass(frozen=True)
class _Finding:
    """What is needed to find the encoding of a file."""

    name: str
    open_bytes: Opener
    skip_bad: bool
    offers_skipping: bool
    keep_nul: bool

    def checked(self, encoding: Encoding) -> Encoding:
        """The encoding, after the whole file was decoded with it."""
        fault = _scan(self.open_bytes, encoding.codec, keep_nul=self.keep_nul)
        if fault is None:
            return encoding
        if self.skip_bad and _scan(self.open_bytes, encoding.codec, "surrogateescape", keep_nul=True) is None:
            return replace(encoding, escape=True)
        if fault.kind == "nul":
            raise self._not_text(fault)
        given = encoding.label.endswith("as given")
        other = tr("Give another encoding with --encoding, or omit --encoding to detect it.")
        raise UndecodableError(
            tr("{at} does not fit {label}", self._at(fault), encoding.label),
            advice=other if given else tr("Repair the file, or name its encoding with --encoding."),
        )

    def detected(self) -> Encoding:
        """UTF-8 if every byte fits, else what the bytes around the first fault are taken for."""
        fault = _scan(self.open_bytes, "utf-8")
        if fault is None:
            return Encoding("utf-8", "utf-8")
        sample, start = _sample(self.open_bytes, fault.offset)
        if b"\x00" in sample:
            for codec in detect.plausible_wide(sample):
                if _scan(self.open_bytes, codec) is None:
                    return Encoding(codec, tr("{codec} (detected)", codec), evidence=_evidence(sample, 0, 1, codec))
            if not (self.skip_bad or self.keep_nul) or detect.looks_binary(sample):
                raise self._not_text(fault)
            nul = fault
            fault = _scan(self.open_bytes, "utf-8", keep_nul=True)
            if self.keep_nul and fault is None:
                return Encoding("utf-8", "utf-8")
            if self.skip_bad:
                return self.checked(Encoding("utf-8", _DAMAGED))
            if fault is None:
                raise self._not_text(nul)
            sample, start = _sample(self.open_bytes, fault.offset)
        return self._judged(fault, sample, fault.offset - start)

    def _judged(self, fault: _Fault, sample: bytes, at: int) -> Encoding:
        """The encoding of bytes that are not UTF-8; the first that is not is number `at` of the sample."""
        message = tr("{at} is not UTF-8", self._at(fault))
        names, certain = detect.plausible(sample)
        if detect.is_damaged_utf8(sample) or (not names and detect.mostly_fits(sample)):
            if self.skip_bad:
                return self.checked(Encoding("utf-8", _DAMAGED))
            skipping = tr(", or leave out the documents that cannot be read with --skip-bad")
            advice = tr("Repair the file{skipping}.", skipping if self.offers_skipping else "")
            raise UndecodableError(tr("{message}, though the text around it is", message), advice=advice)
        if certain and _scan(self.open_bytes, names[0], keep_nul=self.keep_nul) is None:
            evidence = _evidence(sample, at, fault.line, names[0])
            return Encoding(names[0], tr("{codec} (detected)", names[0]), evidence=evidence)
        if not names and detect.looks_binary(sample):
            raise NotTextError(tr("{message}, nor any other text encoding", message), advice=tr("Leave the file out."))
        if self.skip_bad and detect.mostly_fits(sample):
            return self.checked(Encoding("utf-8", _DAMAGED))
        if names:
            reads = _evidence(sample, at, fault.line, names[0])
            message = message + tr(
                "; it could be {names} (as {example}, {reads})",
                joined(names[:3], en=" or ", zh=" 或 "),
                names[0],
                reads,
            )
        example = names[0] if names else "gb18030"
        raise UndecodableError(
            message, advice=tr("Name the encoding of the file, for example --encoding {example}.", example)
        )

    def _at(self, fault: _Fault) -> str:
        return tr("{name}, line {line}: byte {offset} (0x{byte:02x})", self.name, fault.line, fault.offset, fault.byte)

    def _not_text(self, fault: _Fault) -> NotTextError:
        return NotTextError(
            tr(
                "{name}, line {line}: byte {offset} is NUL: this is not text, or not in the encoding used",
                self.name,
                fault.line,
                fault.offset,
            ),
            advice=tr("Leave the file out; if it is text, give its encoding, for example --encoding utf-16."),
        )


def _evidence(sample: bytes, at: int, line: int, codec: str) -> str:
    """How the line of byte `at` reads in an encoding, with the characters around that byte: "line 3 is 'déjà vu'"."""
    if b"\x00" in sample:  # UTF-16 or UTF-32: bytes are no characters
        return tr("line {line} is {sample!r}", line, sample.decode(codec, "replace").split(chr(10))[0][: 2 * _SHOWN])
    before, after = sample[:at].rpartition(b"\n")[2], sample[at:].partition(b"\n")[0]
    left, right = before.decode(codec, "replace"), after.decode(codec, "replace").removesuffix("\r")
    shown = ("…" if len(left) > _SHOWN else "") + left[-_SHOWN:] + right[:_SHOWN] + ("…" if len(right) > _SHOWN else "")
    return tr("line {line} is {shown!r}", line, shown)


def _sample(open_bytes: Opener, offset: int) -> tuple[bytes, int]:
    """Bytes around an offset, in whole lines where possible, and where they begin."""
    with open_bytes() as file:
        before = max(0, offset - (1 << 15))
        before -= before % 4  # UTF-16 and UTF-32 stay aligned
        file.seek(before)
        data = file.read(_SAMPLE)
    if before and b"\x00" not in data:
        cut = data.find(b"\n", 0, offset - before) + 1
        data, before = data[cut:], before + cut
    if len(data) == _SAMPLE and b"\n" in data and b"\x00" not in data:
        data = data[: data.rfind(b"\n") + 1]
    return data, before


def _scan(open_bytes: Opener, codec: str, errors: str = "strict", *, keep_nul: bool = False) -> _Fault | None:
    """The first byte that does not fit, or (unless `keep_nul`) the first NUL character; None if all is text."""
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
        except UnicodeError:  # UTF-16 or UTF-32 by name, without its byte-order mark
            return _Fault("bytes", 0, 1, (pending + data)[0])
        nul = -1 if keep_nul else text.find("\x00")
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
