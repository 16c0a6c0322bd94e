"""Streams of lines, read and written in pieces: a file may be larger than memory."""

from __future__ import annotations

import codecs
import contextlib
import json
import sys
from collections.abc import Generator, Iterable, Iterator
from itertools import chain, islice
from typing import Self

from mingyue.cli.screen import print_note, write, write_json
from mingyue.errors import DataError
from mingyue.files import OutputFile, explain_os_error
from mingyue.paths import path_of
from mingyue.words import tr


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
            print_note(tr("The line is not text in the encoding of the terminal: it was not translated."))
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
        byte = (
            tr("byte 0x{value:02x}", error.object[error.start])
            if isinstance(error, UnicodeDecodeError)
            else tr("the first byte")
        )
        raise DataError(
            tr("standard input, line {number}: {byte} does not fit {codec}", number, byte, codec),
            advice=tr("Name the encoding of the text with --encoding."),
        ) from error


def _without_mark(line: str, number: int) -> str:
    return line.removeprefix("\ufeff") if number == 1 else line


class Screen:
    """Standard output; lines end as those of a file do, whatever the platform."""

    def __init__(self) -> None:
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None and not sys.stdout.isatty():
            reconfigure(newline="\n")

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
    """A file that takes the place of another when complete (see `OutputFile`); after an error its lines are in `.part`.

    A context manager. Raises `DataError` when the file cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = path_of(path)
        self._output: OutputFile | None = None

    def __enter__(self) -> Self:
        with self._explained():
            self._output = OutputFile(self._path)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._output is not None
        with self._explained():
            if kind is None:
                self._output.complete()
            elif (part := self._output.keep_part()) is not None:
                print_note(tr("The translations so far are in {part}.", part))

    def line(self, text: str) -> None:
        """Write one line."""
        assert self._output is not None
        with self._explained():
            self._output.file.write(f"{text}\n".encode())

    def json(self, value: object) -> None:
        """Write one line of JSON."""
        self.line(json.dumps(value, ensure_ascii=False, allow_nan=False))

    @contextlib.contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            message, _ = explain_os_error(tr("the lines"), self._path, error)
            raise DataError(message, advice=tr("Choose another file, or free space if the disk is full.")) from error
