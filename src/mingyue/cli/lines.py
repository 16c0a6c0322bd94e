"""Lines in and lines out, a piece at a time: a file may be larger than memory, and no line may shift another."""

from __future__ import annotations

import codecs
import contextlib
import json
import sys
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Self

from mingyue.cli.screen import remark, write, write_json
from mingyue.errors import DataError, SettingsError
from mingyue.files import explain_os_error


def in_pieces(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """`size` lines at a time; no line is read before the piece before it was taken and done with."""
    lines = iter(lines)
    while piece := list(islice(lines, size)):
        yield piece


def asked_lines() -> Iterator[str]:
    """Lines that a person types, until Ctrl-D."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (its import gives `input` a history)
    while True:
        try:
            line = input("> " if sys.stdout.isatty() else "")
        except EOFError:
            if sys.stdout.isatty():
                write("\n")
            return
        if any("\ud800" <= character <= "\udfff" for character in line):
            remark("This line is not text in the encoding of the terminal: nothing was translated.")
            continue
        yield line


def piped_lines(encoding: str | None) -> Iterator[str]:
    r"""Lines of standard input as they arrive; UTF-8 unless told. They end at \n or \r\n only.

    Raises `DataError` at a line that does not fit, `SettingsError` for an encoding that does not exist.
    """
    codec = encoding or "utf-8"
    try:
        decoder = codecs.getincrementaldecoder(codec)()
    except LookupError:
        raise SettingsError(
            f"there is no encoding {encoding!r}", advice="Use a name such as utf-8 or gb18030."
        ) from None
    number, held = 1, ""
    for data in iter(sys.stdin.buffer.readline, b""):
        *lines, held = (held + _decoded(decoder, data, number, codec)).split("\n")
        for line in lines:
            yield _bare(line, number)
            number += 1
    held += _decoded(decoder, b"", number, codec)
    if held:
        yield _bare(held, number)


def _decoded(decoder: codecs.IncrementalDecoder, data: bytes, number: int, codec: str) -> str:
    try:
        return decoder.decode(data, final=not data)
    except UnicodeDecodeError as error:
        raise DataError(
            f"standard input, line {number}: byte 0x{error.object[error.start]:02x} does not fit {codec}",
            advice="Name the encoding of the text with --encoding.",
        ) from error


def _bare(line: str, number: int) -> str:
    line = line.removeprefix("\ufeff") if number == 1 else line
    return line.removesuffix("\r")


def check_output(output: str | None, *inputs: str | None, option: str = "--output") -> None:
    """Refuse, before any work, an output that cannot be written or that is also read; `option` is what named it.

    Raises `SettingsError` where `output` is a folder, lies in a folder that does not exist, or is one of the inputs.
    """
    if output is None:
        return
    path = Path(output)
    if path.is_dir():
        raise SettingsError(f"{option} {output} is a folder", advice="Name a file.")
    if not path.parent.is_dir():
        raise SettingsError(f"{option} {output}: there is no folder {path.parent}", advice="Make it first.")
    for name in inputs:
        if name is not None and name != "-" and path.exists() and Path(name).exists() and path.samefile(name):
            raise SettingsError(
                f"{option} {output} is the file that is read: it would be lost", advice="Choose another place."
            )


class Screen:
    """Standard output; UTF-8 where it is a file or a pipe, whatever the platform says."""

    def __init__(self) -> None:
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None and not sys.stdout.isatty():
            reconfigure(encoding="utf-8", errors="replace", newline="\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def line(self, text: str) -> None:
        """One line, at once."""
        write(f"{text}\n")

    def json(self, value: object) -> None:
        """One line of JSON."""
        write_json(value, indent=None)


class LineFile:
    """A file that gets its name when it is whole; until then, and if something stops it, its lines are in `.part`.

    Use it as a context manager. Raises `DataError` when the disk refuses.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._part = self._path.with_name(self._path.name + ".part")
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        with self._told():
            self._file = self._part.open("w", encoding="utf-8", newline="\n")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._file is not None
        with self._told():
            self._file.close()
            if kind is None:
                self._part.replace(self._path)
                return
        if self._part.stat().st_size:
            remark(f"What was translated so far is in {self._part}.")
        else:
            self._part.unlink()

    def line(self, text: str) -> None:
        """One line."""
        assert self._file is not None
        with self._told():
            self._file.write(f"{text}\n")

    def json(self, value: object) -> None:
        """One line of JSON."""
        self.line(json.dumps(value, ensure_ascii=False, allow_nan=False))

    @contextlib.contextmanager
    def _told(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            message, _ = explain_os_error("the lines", self._part, error)
            raise DataError(message, advice="Make room, or choose another place with --output.") from error
