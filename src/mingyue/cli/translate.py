"""`mingyue translate`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from mingyue.cli.lines import LineFile, Screen, asked_lines, check_output, in_pieces, piped_lines
from mingyue.cli.live import Live
from mingyue.cli.options import COMMAND_LINE, takes
from mingyue.cli.screen import remark, stderr
from mingyue.cli.texts import collect
from mingyue.config import TranslateSettings
from mingyue.errors import SettingsError

if TYPE_CHECKING:
    from mingyue.generation import Translation

_PIECE = 16  # batches read ahead: lines of like length are translated side by side
_HERE = "A run folder, or a model folder."
_TEXT = "A line to translate; repeat it for several. None = standard input, answered line by line if it is a terminal."
_SOURCE = (
    "A file of lines, plain or .gz; `-` is standard input. Lines are read 16 batches ahead; with --batch-size 1 each "
    "is answered before the next is read."
)
_OUTPUT = (
    "A file for the translations, one a line, which appears when it is whole; none = standard output. With --n-best "
    "above 1 a line is `number ||| translation ||| score`, where the first line is number 0."
)
_ALIGN = (
    "Add where the model looked: ` ||| 0-0 1-2`, source and target token from 0, end marks left out; with --json the "
    "tokens and all weights."
)
_JSON = "Print one JSON object for each line."
_ENCODING = "Encoding of the lines; none = UTF-8, and a file that is not is looked at."
_DEVICE = "cpu, cuda, mps; none = the best that is there."
_THREADS = "CPU threads; none = all cores this process may use."


@takes(TranslateSettings)
def translate(
    model: Annotated[str, Parameter(help=_HERE)],
    /,
    *,
    text: Annotated[list[str] | None, Parameter(help=_TEXT, negative=())] = None,
    source: Annotated[str | None, Parameter(help=_SOURCE)] = None,
    output: Annotated[str | None, Parameter(help=_OUTPUT)] = None,
    json: Annotated[bool, Parameter(help=_JSON, negative=())] = False,
    align: Annotated[bool, Parameter(help=_ALIGN, negative=())] = False,
    encoding: Annotated[str | None, Parameter(help=_ENCODING)] = None,
    device: Annotated[str | None, Parameter(help=_DEVICE)] = None,
    threads: Annotated[int | None, Parameter(help=_THREADS)] = None,
    **given: Any,  # noqa: ANN401  (values of TranslateSettings, checked there)
) -> None:
    r"""Translate lines with a model that was trained on pairs.

    mingyue translate runs/en-de < input.txt > output.txt

    One line comes out for each line that goes in, in their order, as UTF-8; an empty line stays empty, and a line end
    inside a translation becomes a space. Lines end at \n or \r\n alone.
    """
    settings = TranslateSettings.read(given, source=COMMAND_LINE)
    check_output(output, source)
    lines, typed = _lines(text, source, encoding)

    from mingyue import api

    translator = api.load_translator(model, device=device, threads=threads)
    if typed:
        remark("Type a line to have it translated. Ctrl-D ends.")
    size = 1 if typed or settings.batch_size == 1 else _PIECE * settings.batch_size
    with Screen() if output is None else LineFile(output) as out, _Progress(typed) as progress:
        for piece in in_pieces(lines, size):
            found = translator.translate(piece, settings, align=align, first_line=progress.done, progress=progress.show)
            progress.clear()
            for note in translator.notes:
                remark(note)
            for number, (line, translations) in enumerate(zip(piece, found, strict=True), start=progress.done):
                if json:
                    out.json(_record(number + 1, line, translations, align=align))
                    continue
                for one in translations:
                    out.line(_plain(number if settings.n_best > 1 else None, one, align=align))
            progress.done += len(piece)


def _lines(text: list[str] | None, source: str | None, encoding: str | None) -> tuple[Iterator[str], bool]:
    """What is to be translated, and whether a person types it."""
    if text:
        if source is not None:
            raise SettingsError("--text and --source are both given", advice="Give the lines in one way.")
        texts = "\n".join(one.text.removesuffix("\n") for one in collect(text, []))
        return iter(texts.replace("\r\n", "\n").split("\n")), False
    if source not in (None, "-"):
        return _file_lines(source, encoding), False
    if sys.stdin.isatty():
        return asked_lines(), True
    return piped_lines(encoding), False


def _file_lines(source: str, encoding: str | None) -> Iterator[str]:
    from mingyue.data import ReadReport, read_lines

    report = ReadReport()
    for number, line in enumerate(read_lines(source, encoding, report, offers_skipping=False)):
        if not number:
            for note in report.notes:
                remark(note)
        yield line


def _plain(number: int | None, translation: Translation, *, align: bool) -> str:
    from mingyue import api

    fields = [api.one_line(translation.text)]
    if number is not None:
        fields = [str(number), *fields, f"{translation.score:.4f}"]
    if align:
        fields.append(" ".join(f"{i}-{j}" for i, j in _looks(translation)))
    return " ||| ".join(fields)


def _looks(translation: Translation) -> list[tuple[int, int]]:
    """(source, target) token numbers: for each target token the source token that it looked at most.

    End marks are no words: what looked at one most has no pair.
    """
    if translation.alignment is None:
        return []
    n_targets = len(translation.tokens) - translation.finished
    most = translation.alignment.argmax(dim=1).tolist()[:n_targets]
    return [(place, number) for number, place in enumerate(most) if place < len(translation.source_tokens) - 1]


def _record(line: int, source: str, translations: list[Translation], *, align: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"line": line, "source": source, "truncated": translations[0].truncated}
    if align:
        record["source_tokens"] = translations[0].source_tokens
    record["translations"] = [_values(one, align=align) for one in translations]
    return record


def _values(translation: Translation, *, align: bool) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(translation, name) for name in ("text", "score", "log_prob", "finished")}
    if align:
        looks = translation.alignment
        rows: list[list[float]] = [] if looks is None else looks.tolist()
        values |= {"tokens": translation.tokens, "alignment": [[round(weight, 6) for weight in row] for row in rows]}
    return values


class _Progress:
    """Lines done, on a terminal that shows neither the lines nor their translations. Use it as a context manager."""

    def __init__(self, typed: bool) -> None:
        self.done = 0
        self._live = Live(stderr()) if sys.stderr.isatty() and not sys.stdout.isatty() and not typed else None
        self._began = time.monotonic()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, done: int, _all: int) -> None:
        """`done` lines of this piece are translated."""
        if self._live is not None:
            done += self.done
            rate = done / max(time.monotonic() - self._began, 1e-9)
            self._live.show("translating", done, None, [f"{done:,} lines", f"{rate:,.1f} lines/s"])

    def clear(self) -> None:
        """Take the bar away."""
        if self._live is not None:
            self._live.clear()
