"""`mingyue translate`."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import Parameter

from mingyue.cli.arguments import Backend, Device, Encoding, JsonLines, ModelFolder, Threads, Weights, repeatable
from mingyue.cli.lines import LineFile, Screen, in_pieces, piped_lines, typed_lines
from mingyue.cli.live import Live
from mingyue.cli.options import COMMAND_LINE, takes
from mingyue.cli.screen import print_note, stderr
from mingyue.cli.texts import collect
from mingyue.config import TranslateSettings
from mingyue.errors import SettingsError
from mingyue.paths import check_output
from mingyue.words import tr

if TYPE_CHECKING:
    from mingyue.generation import Translation

_BATCHES_AHEAD = 16  # lines of similar length are put into the same batch
_TEXT = "Line to translate; repeatable [default: standard input; in a terminal each line is translated at once]."
_SOURCE = (
    "File of lines, plain or .gz; `-` is standard input. Lines are read 16 batches ahead; with --batch-size 1 each "
    "is translated before the next is read."
)
_OUTPUT = (
    "File for the translations, one per line, written when complete [default: standard output]. With --n-best above 1 "
    "a line is `number ||| translation ||| score`; lines are numbered from 0."
)
_ALIGN = (
    "Add the alignment, ` ||| 0-0 1-2`: for each target token the source token of the largest cross-attention weight, "
    "numbered from 0, without EOS; with --json the tokens and all weights."
)


@takes(TranslateSettings)
def translate(
    model: ModelFolder,
    /,
    *,
    text: Annotated[list[str] | None, repeatable(_TEXT)] = None,
    source: Annotated[str | None, Parameter(help=_SOURCE)] = None,
    output: Annotated[str | None, Parameter(help=_OUTPUT)] = None,
    json: JsonLines = False,
    align: Annotated[bool, Parameter(help=_ALIGN, negative=())] = False,
    encoding: Encoding = None,
    device: Device = None,
    threads: Threads = None,
    backend: Backend = None,
    weights: Weights = "fp32",
    **given: Any,  # noqa: ANN401  (values of TranslateSettings, checked there)
) -> None:
    r"""Translate lines with an encoder-decoder model.

    mingyue translate runs/en-de < input.txt > output.txt

    The output has one line for each input line, in the same order, as UTF-8. An empty line stays empty, and a line
    break inside a translation becomes a space. Lines end at \n or \r\n only.
    """
    settings = TranslateSettings.read(given, source=COMMAND_LINE)
    check_output(output, "-" if "-" in (text or ["-"]) else None, source, model)
    lines, typed = _lines(text, source, encoding)

    from mingyue import api

    translator = api.load_translator(model, device=device, threads=threads, backend=backend, weights=weights)
    for note in translator.loading_notes:
        print_note(note)
    if typed:
        print_note(tr("Type a line to translate. Ctrl-D ends."))
    size = 1 if typed or settings.batch_size == 1 else _BATCHES_AHEAD * settings.batch_size
    with Screen() if output is None else LineFile(output) as out, _Progress(typed) as progress:
        for piece in in_pieces(lines, size):
            found = translator.translate(piece, settings, align=align, first_line=progress.done, progress=progress.show)
            progress.clear()
            for note in translator.notes:
                print_note(note)
            for number, (line, translations) in enumerate(zip(piece, found, strict=True), start=progress.done):
                if json:
                    out.json(_record(number + 1, line, translations, align=align))
                    continue
                for one in translations:
                    out.line(_plain(number if settings.n_best > 1 else None, one, align=align))
            progress.done += len(piece)


def _lines(text: list[str] | None, source: str | None, encoding: str | None) -> tuple[Iterator[str], bool]:
    """The lines to translate, and whether they are typed in a terminal."""
    if text:
        if source is not None:
            raise SettingsError(tr("--text and --source are both given"), advice=tr("Give the lines in one way."))
        if encoding is not None:
            raise SettingsError(tr("--encoding has no effect on --text"), advice=tr("Leave it out."))
        texts = "\n".join(one.text.removesuffix("\n") for one in collect(text, []))
        return iter(texts.replace("\r\n", "\n").split("\n")), False
    if source not in (None, "-"):
        return _file_lines(source, encoding), False
    if sys.stdin.isatty():
        return typed_lines(), True
    if _is_file(sys.stdin):  # `< input.txt`: all of it is there, so it is read as --source reads it
        return _file_lines("-", encoding), False
    return piped_lines(encoding), False


def _is_file(stream: TextIO) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # no file descriptor, or a closed one
        return False


def _file_lines(source: str, encoding: str | None) -> Iterator[str]:
    from mingyue.data import ReadReport, read_lines

    report = ReadReport()
    for number, line in enumerate(read_lines(source, encoding, report, offers_skipping=False)):
        if not number:
            for note in report.notes:
                print_note(note)
        yield line


def _plain(number: int | None, translation: Translation, *, align: bool) -> str:
    from mingyue import api

    fields = [api.one_line(translation.text)]
    if number is not None:
        fields = [str(number), *fields, f"{translation.score:.4f}"]
    if align:
        fields.append(" ".join(f"{i}-{j}" for i, j in _links(translation)))
    return " ||| ".join(fields)


def _links(translation: Translation) -> list[tuple[int, int]]:
    """(source, target) token numbers: for each target token the source token of the largest weight.

    EOS takes no part: a target token whose largest weight is on EOS has no link.
    """
    if translation.alignment is None:
        return []
    n_targets = len(translation.tokens) - translation.finished
    largest = translation.alignment.argmax(dim=1).tolist()[:n_targets]
    return [(source, target) for target, source in enumerate(largest) if source < len(translation.source_tokens) - 1]


def _record(line: int, source: str, translations: list[Translation], *, align: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"line": line, "source": source, "truncated": translations[0].truncated}
    if align:
        record["source_tokens"] = translations[0].source_tokens
    record["translations"] = [_values(one, align=align) for one in translations]
    return record


def _values(translation: Translation, *, align: bool) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(translation, name) for name in ("text", "score", "log_prob", "finished")}
    if align:
        weights = translation.alignment
        rows: list[list[float]] = [] if weights is None else weights.tolist()
        values |= {"tokens": translation.tokens, "alignment": [[round(weight, 6) for weight in row] for row in rows]}
    return values


class _Progress:
    """Progress bar, on a terminal that shows neither the lines nor their translations; a context manager."""

    def __init__(self, typed: bool) -> None:
        self.done = 0
        self._live = Live(stderr()) if sys.stderr.isatty() and not sys.stdout.isatty() and not typed else None
        self._started = time.monotonic()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, done: int, _total: int) -> None:
        """Show that `done` lines of this piece are translated."""
        if self._live is not None:
            done += self.done
            rate = done / max(time.monotonic() - self._started, 1e-9)
            self._live.show("translating", done, None, [tr("{done:,} lines", done), tr("{rate:,.1f} lines/s", rate)])

    def clear(self) -> None:
        """Remove the bar."""
        if self._live is not None:
            self._live.clear()
