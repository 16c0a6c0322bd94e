"""Streams of lines, read and written in pieces: a file may be larger than memory."""

from __future__ import annotations

import codecs
import contextlib
import json
import sys
from collections.abc import Generator, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Self

from mingyue.cli.screen import print_note, write, write_json
from mingyue.errors import DataError, SettingsError
from mingyue.files import explain_os_error


def in_pieces(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of `size` lines; a list is read only when it is asked for."""
    lines = iter(lines)
    while piece := list(islice(lines, size)):
        yield piece


def typed_lines() -> Iterator[str]:
    """Lines typed by a user, until Ctrl-D."""
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
            print_note("The line is not text in the encoding of the terminal: it was not translated.")
            continue
        yield line


def piped_lines(encoding: str | None) -> Iterator[str]:
    r"""Lines of standard input as they arrive, as UTF-8 unless `encoding` or a byte-order mark says otherwise.

    They end at \n or \r\n only. Raises `DataError` for a line that cannot be decoded, `SettingsError` for an unknown
    encoding.
    """
    from mingyue.data.encodings import known_encoding, marked_encoding

    first = sys.stdin.buffer.readline()
    codec = known_encoding(encoding) if encoding else marked_encoding(first) or "utf-8"
    decoder = codecs.getincrementaldecoder(codec)()
    number, held = 1, ""
    for data in chain([first], iter(sys.stdin.buffer.readline, b"")):
        *lines, held = (held + _decoded(decoder, data, number, codec)).split("\n")
        for line in lines:
            yield _without_mark(line.removesuffix("\r"), number)
            number += 1
    held += _decoded(decoder, b"", number, codec)
    if held:
        yield _without_mark(held, number)


def _decoded(decoder: codecs.IncrementalDecoder, data: bytes, number: int, codec: str) -> str:
    try:
        return decoder.decode(data, final=not data)
    except UnicodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x}" if isinstance(error, UnicodeDecodeError) else "the first byte"
        raise DataError(
            f"standard input, line {number}: {byte} does not fit {codec}",
            advice="Name the encoding of the text with --encoding.",
        ) from error


def _without_mark(line: str, number: int) -> str:
    return line.removeprefix("\ufeff") if number == 1 else line


def check_output(output: str | None, *inputs: str | None, option: str = "--output") -> None:
    """Refuse an output that cannot be written or is also an input, before any work; `option` is its name.

    Raises `SettingsError` if `output` is a folder, is in a folder that does not exist, or is one of the inputs.
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
            raise SettingsError(f"{option} {output} is also an input: it would be lost", advice="Choose another file.")


class Screen:
    """Standard output; UTF-8 if it is a file or a pipe, whatever the encoding of the platform."""

    def __init__(self) -> None:
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None and not sys.stdout.isatty():
            reconfigure(encoding="utf-8", errors="replace", newline="\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def line(self, text: str) -> None:
        """Write one line and flush."""
        write(f"{text}\n")

    def json(self, value: object) -> None:
        """Write one line of JSON."""
        write_json(value, indent=None)


class LineFile:
    """A file that is renamed to its name when complete; until then, and after an error, its lines are in `.part`.

    A context manager. Raises `DataError` when the file cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._part = self._path.with_name(self._path.name + ".part")
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        with self._explained():
            self._file = self._part.open("w", encoding="utf-8", newline="\n")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._file is not None
        with self._explained():
            self._file.close()
            if kind is None:
                self._part.replace(self._path)
                return
        if self._part.stat().st_size:
            print_note(f"The translations so far are in {self._part}.")
        else:
            self._part.unlink()

    def line(self, text: str) -> None:
        """Write one line."""
        assert self._file is not None
        with self._explained():
            self._file.write(f"{text}\n")

    def json(self, value: object) -> None:
        """Write one line of JSON."""
        self.line(json.dumps(value, ensure_ascii=False, allow_nan=False))

    @contextlib.contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            message, _ = explain_os_error("the lines", self._part, error)
            raise DataError(message, advice="Free disk space, or choose another file with --output.") from error
