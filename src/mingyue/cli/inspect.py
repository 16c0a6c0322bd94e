"""`mingyue inspect`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from mingyue.cli.lines import check_output
from mingyue.cli.live import Live
from mingyue.cli.screen import language_of_system, remark, show, stderr, stdout, table, write, write_json
from mingyue.cli.texts import collect, without_final_newline
from mingyue.errors import SettingsError

if TYPE_CHECKING:
    from rich.table import Table

    from mingyue.api import Inspection
    from mingyue.inspection.view import View
    from mingyue.words import Language, TextTable

Name = Literal["attention", "lens", "surprise", "trace", "heads", "vectors", "neighbours", "film", "report"]
_MANY = 5_000
"""Tokens of a picture that takes long to draw."""
_SLACK = 24
"""Columns that a terminal may lack: names are then broken between words. Where it lacks more, columns are spared."""
_ANY_WIDTH = 10_000
_ENDINGS = (".html", ".png", ".svg", ".json")
_READS = ("attention", "lens", "surprise", "trace", "heads", "vectors", "film", "report")
_TAKEN_BY: dict[str, tuple[str, ...]] = {
    "text": _READS,
    "file": _READS,
    "source": ("attention", "lens", "surprise", "trace", "heads", "film", "report"),
    "target": ("attention", "lens", "surprise", "trace", "heads", "report"),
    "texts": ("vectors",),
    "word": ("vectors", "neighbours", "report"),
    "layer": ("attention",),
    "head": ("attention",),
    "top": ("lens", "surprise", "neighbours"),
    "step": tuple(name for name in (*_READS, "neighbours") if name != "film"),
    "seed": ("heads", "vectors", "report"),
    "json": tuple(name for name in (*_READS, "neighbours") if name != "report"),
}
"""Which views have a use for an option; what is not here, all have."""

_HERE = "A run folder, or a model folder."
_VIEW = "What to look at; the list is above."
_TEXT = (
    "The text that is read; `-` reads standard input. For a model of pairs the source. Several for heads and vectors."
)
_FILE = "The same from a UTF-8 file."
_SOURCE = "For a model of pairs: the text to translate (the same as --text)."
_TARGET = "For a model of pairs: the translation to look at; none = the model's own, by a beam of 4."
_TEXTS = "Texts that hold the word, one after the other (the same as --text, repeated)."
_WORD = "The word to follow through the layers, or whose neighbours are asked for."
_LAYER = "One layer, counted from 0; with --head the map of one head. Of pairs: of each of the three attentions."
_HEAD = "One head, counted from 0."
_TOP = (
    "How many words a place, or how many neighbours; none = 5, and 10 neighbours. Of lens the table shows one, "
    "with --top up to 3; a page shows more under the pointer, --json all."
)
_STEP = "The model of a run as it was after so many steps, where that checkpoint is kept; none = as it is used."
_SEED = "Of everything that is drawn: probe texts, pairs of tokens to compare with."
_OUT = "Write it to a file: .html (one page that needs no network), .png, .svg or .json."
_LANGUAGE = "Language of titles and sentences; none = Chinese where the system's language is, else English."
_JSON = "Print the named arrays as JSON instead of tables."
_DEVICE = "cpu, cuda, mps; none = the best that is there."
_THREADS = "CPU threads; none = all cores this process may use."


def inspect(
    model: Annotated[str, Parameter(help=_HERE)],
    view: Annotated[Name, Parameter(help=_VIEW)],
    /,
    *,
    text: Annotated[list[str] | None, Parameter(help=_TEXT, negative=())] = None,
    file: Annotated[list[str] | None, Parameter(help=_FILE, negative=())] = None,
    source: Annotated[str | None, Parameter(help=_SOURCE)] = None,
    target: Annotated[str | None, Parameter(help=_TARGET)] = None,
    texts: Annotated[list[str] | None, Parameter(help=_TEXTS, negative=(), consume_multiple=True)] = None,
    word: Annotated[str | None, Parameter(help=_WORD)] = None,
    layer: Annotated[int | None, Parameter(help=_LAYER)] = None,
    head: Annotated[int | None, Parameter(help=_HEAD)] = None,
    top: Annotated[int | None, Parameter(help=_TOP)] = None,
    step: Annotated[int | None, Parameter(help=_STEP)] = None,
    seed: Annotated[int | None, Parameter(help=_SEED)] = None,
    out: Annotated[str | None, Parameter(help=_OUT)] = None,
    language: Annotated[Literal["en", "zh"] | None, Parameter(help=_LANGUAGE)] = None,
    json: Annotated[bool, Parameter(help=_JSON, negative=())] = False,
    device: Annotated[str | None, Parameter(help=_DEVICE)] = None,
    threads: Annotated[int | None, Parameter(help=_THREADS)] = None,
) -> None:
    """Look inside a model. The views are listed, with an example each, in the help text (`cli/app.py`).

    mingyue inspect runs/poems attention --text 床前明月光
    """
    given = {
        "text": text, "file": file, "source": source, "target": target, "texts": texts, "word": word, "layer": layer,
        "head": head, "top": top, "step": step, "seed": seed, "json": json or None,
    }  # fmt: skip
    _refuse_unused(view, given)
    if view == "report" and out is None:
        out = f"{_name(model)}-report.html"
    _check_out(view, out, file or [])
    read = [without_final_newline(one).text for one in collect([*(text or []), *(texts or [])], file or [])]
    _check_texts(view, read, source, word)
    words: Language = language or language_of_system()

    from mingyue import api

    inspection = api.inspect(
        model,
        read[0] if read and view != "vectors" else None,
        source=source,
        target=target,
        step=step,
        device=device,
        threads=threads,
    )
    found: View | None = None
    notes: list[str] = []
    with Live(stderr()) as live:

        def progress(done: int, total: int) -> None:
            live.show(view, done, total, [f"{done:,} of {total:,}"])

        if view == "report":
            assert out is not None
            notes = inspection.report(out, language=words, word=word, seed=seed or 0, progress=progress)
        else:
            found = _look(inspection, view, given, read, progress)
    if found is not None and out is not None:
        _warn_of_time(found, out, words)
        notes = inspection.save(found, out, words)
    told = [] if view == "film" else [one.of(words) for one in inspection.remarks]  # a film names its steps itself
    for note in (*told, *notes):
        remark(note)
    if found is not None:
        _print(found, words, json=json)
    if out is not None:
        remark(f"Written: {out}.") if json else write(f"Written: {out}\n")


def _look(
    inspection: Inspection,
    view: Name,
    options: Mapping[str, object],
    texts: list[str],
    progress: Callable[[int, int], None],
) -> View:
    """The view of that name, with the options that were given: they are called what its arguments are called."""
    names = ("word", "layer", "head", "top", "seed")
    arguments: dict[str, Any] = {name: options[name] for name in names if options[name] is not None}
    if view == "vectors":
        arguments["texts"] = texts
    if view == "heads":
        arguments |= {"texts": texts[1:], "progress": progress}
    return getattr(inspection, view)(**arguments)


def _warn_of_time(view: View, out: str, language: Language) -> None:
    """Say that a picture of a long text takes its time, before it does."""
    count = len(getattr(view, "pieces_N", ()))  # only surprise takes a text of any length
    if count > _MANY and Path(out).suffix.lower() in (".png", ".svg"):
        english = f"A picture of {count:,} tokens takes its time; an .html page does not."
        chinese = f"{count:,} 个 token 的图片要画一阵子；.html 页面则很快。"
        remark(chinese if language == "zh" else english)


def _print(view: View, language: Language, *, json: bool) -> None:
    if json:
        write_json(view.to_dict())
        return
    for number, one in enumerate(view.tables(language)):
        write("\n" if number else "")
        _show_table(one, language)


def _refuse_unused(view: str, given: Mapping[str, object]) -> None:
    """What was asked for is never ignored. Raises `SettingsError` for an option that the view has no use for."""
    for name, value in given.items():
        if value is not None and view not in _TAKEN_BY[name]:
            raise SettingsError(
                f"the view {view} has no use for --{name}",
                advice=f"It is for: {', '.join(_TAKEN_BY[name])}.",
            )


def _check_out(view: str, out: str | None, files: Sequence[str]) -> None:
    """Raise `SettingsError`, before any work, for a file that could not be written."""
    check_output(out, *files, option="--out")
    endings = (".html",) if view == "report" else _ENDINGS
    if out is not None and Path(out).suffix.lower() not in endings:
        raise SettingsError(
            f"--out {out}: there is no picture of this kind for {view}",
            advice=f"Its name ends in {', '.join(endings)}.",
        )


def _check_texts(view: str, read: Sequence[str], source: str | None, word: str | None) -> None:
    """Raise `SettingsError` for a text or word that is missing, and for too many of them."""
    texts = [*read, *([] if source is None else [source])]
    if view in ("vectors", "neighbours") and word is None:
        raise SettingsError(f"{view} needs a word to look at", advice="Give it with --word.")
    if view == "vectors" and not texts:
        raise SettingsError("vectors needs texts that hold the word", advice="Give them with --texts.")
    if view in ("attention", "lens", "surprise", "trace", "report") and not texts:
        raise SettingsError(
            "there is no text to look at", advice="Give --text, --file, or `--text -` for standard input."
        )
    if view not in ("heads", "vectors") and len(texts) > 1:
        raise SettingsError(f"{view} looks at one text, and {len(texts)} are given", advice="Give one at a time.")


def _name(model: str) -> str:
    """A name for what is written about a model: that of its run."""
    place = Path(model).resolve()
    return (place.parent if place.name == "model" else place).name or "model"


def _show_table(one: TextTable, language: Language) -> None:
    """A table with its title above and its note below; in a narrow terminal without the columns that can be spared."""
    from rich.measure import Measurement

    console, spared = stdout(), one.spared
    rows = _rows(one)
    everything = console.options.update_width(_ANY_WIDTH)
    needed = Measurement.get(console, everything, rows).maximum - _SLACK
    if spared and console.width < needed:
        rows = _rows(one, without=spared)
    else:
        spared = ()
    write(f"{one.title}\n")
    show(rows)
    write(f"{one.note}\n" if one.note else "")
    if spared:
        english = f"Left out in {console.width} columns: {', '.join(spared)}. From {needed} columns on all are there."
        chinese = f"{console.width} 列放不下，略去：{'、'.join(spared)}。终端有 {needed} 列时会全部显示。"
        write(f"{chinese if language == 'zh' else english}\n")


def _rows(one: TextTable, without: Sequence[str] = ()) -> Table:
    columns = one.columns or [""] * max(map(len, one.rows), default=1)
    kept = [place for place, name in enumerate(columns) if name not in without]
    rows = table(*(columns[place] for place in kept), right=one.right)
    rows.show_header = bool(one.columns)
    for row in one.rows:
        rows.add_row(*(row[place] for place in kept))
    return rows
