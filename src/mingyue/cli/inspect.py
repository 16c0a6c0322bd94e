"""`mingyue inspect VIEW`: one sub-command for each view."""

from __future__ import annotations

import inspect as signatures
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter

from mingyue.cli.invocation import ARGUMENTS
from mingyue.cli.live import Live
from mingyue.cli.main import main
from mingyue.cli.screen import print_note, show, stderr, stdout, table, write, write_json
from mingyue.cli.texts import collect, without_final_newline
from mingyue.config import Workers, nearest
from mingyue.errors import MingyueError, SettingsError
from mingyue.paths import check_output, path_of
from mingyue.words import interface_language, listed, stacked, stored, tr

if TYPE_CHECKING:
    from rich.table import Table

    from mingyue.inspection.command import Command, Option
    from mingyue.inspection.view import View
    from mingyue.words import Language, TextTable

_POEM = "--text 床前明月光"
VIEWS: dict[str, tuple[str, str]] = {
    "attention": ("Attention weights of every layer and head.", _POEM),
    "lens": ("What each layer would predict next, at each position.", _POEM),
    "surprise": ("How unlikely each token was, and which tokens were likelier.", _POEM),
    "trace": ("Every step from ids to loss: shapes, parameters, FLOPs, source line.", _POEM),
    "heads": ("What each head does, and the loss without it.", _POEM),
    "relations": ("Which head follows punctuation, lines and rhyme, with controls.", "--file poems.txt"),
    "vectors": ("The vectors of one word in several texts, layer by layer.", "--word 月 --texts 明月光 望明月"),
    "neighbours": ("Tokens with the nearest embeddings.", "--word 月"),
    "logits": ("The logit of a token, credited to every part of the model.", _POEM),
    "head": ("One head in numbers: scores, scale, mask, softmax, values.", f"{_POEM} --layer 1 --head 2"),
    "lines": ("Attention as lines from token to token, a colour for each head.", _POEM),
    "attended": ("The text coloured by what one position attends to.", _POEM),
    "contexts": ("Positions of the training text with the most similar vectors.", _POEM),
    "patch": (
        "Which vectors carry the difference between two texts (activation patching).",
        f"{_POEM} --other 窗前明月光",
    ),
    "film": ("Attention and predictions step by step, of a run trained with --watch.", "--out film.html"),
    "curve": ("Losses, learning rates and speed of one or more runs.", "runs/other --out curve.html"),
    "report": ("A page with the main views of a text.", _POEM),
}
"""The views: a line about each, and the options of an example. `mingyue.inspection` has a module for each."""

_MANY = 5_000
"""Tokens of a picture that takes long to draw."""
_SLACK = 24
"""Columns that a terminal may lack: names are then broken between words. Where it lacks more, columns are left out."""
_ANY_WIDTH = 10_000
_ENDINGS = (".html", ".png", ".svg", ".json")

_MODEL = "Run folder or model folder."
_RUNS = "Run folders; several are drawn in the same pictures."
_OUT = "File to write: .html (one offline page), .png, .svg or .json."
_PAGE = "File to write, .html. [default: named after the model]"
_JSON = "Print the arrays by name as JSON instead of tables."
_DEVICE = "cpu, cuda or mps. [default: best available]"
_THREADS = "CPU threads. [default: all cores this process may use]"

inspect = App(name="inspect", help_format="plaintext", usage="Usage: mingyue inspect VIEW [OPTIONS] MODEL")
_views = Group("Views")
for _order, (_view, (_line, _example)) in enumerate(VIEWS.items()):
    inspect.command(
        f"mingyue.cli.inspect:{_view}",
        name=_view,
        help=f"{_line}\n\nExample: mingyue inspect {_view} runs/poems {_example}",
        group=_views,
        sort_key=_order,
    )


def __getattr__(name: str) -> Callable[..., None]:
    """The sub-command of a view, made when it is asked for: only then is its module imported."""
    if name not in VIEWS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mingyue.api.inspecting import view_command

    command = view_command(name)

    def look(*folders: str, **given: object) -> None:
        _inspect(name, command, folders, given)

    hidden = {option.name: option for other in VIEWS for option in view_command(other).options}
    shown = {option.name: option for option in command.options}
    options = [_parameter(option) for option in command.options]
    options += [_parameter(option, show=False) for key, option in hidden.items() if key not in shown]
    look.__signature__ = signatures.Signature(  # type: ignore[attr-defined]
        [
            _positional(command),
            *options,
            _keyword("out", str | None, _PAGE if command.make is None else _OUT),
            _keyword("json", bool, _JSON, default=False, show=command.make is not None),
            _keyword("device", str | None, _DEVICE, show=command.texts != "runs"),
            _keyword("threads", Workers | None, _THREADS, show=command.texts != "runs"),
        ]
    )
    return look


def _positional(command: Command) -> signatures.Parameter:
    """The model, or (of the view of training curves) any number of runs."""
    if command.texts == "runs":
        annotation = Annotated[str, Parameter(help=_RUNS)]
        return signatures.Parameter("runs", signatures.Parameter.VAR_POSITIONAL, annotation=annotation)
    annotation = Annotated[str, Parameter(help=_MODEL)]
    return signatures.Parameter("model", signatures.Parameter.POSITIONAL_ONLY, annotation=annotation)


def _parameter(option: Option, *, show: bool = True) -> signatures.Parameter:
    words = option.help if option.default is None else tr("{help} [default: {default}]", option.help, option.default)
    if option.architecture is not None:
        words = tr("{words} ({architecture} models)", words, option.architecture)
    return _keyword(option.name, option.type | None, words, show=show, many=option.name == "texts")


def _keyword(
    name: str,
    kind: Any,  # noqa: ANN401
    words: str,
    *,
    default: object = None,
    show: bool = True,
    many: bool = False,
) -> signatures.Parameter:
    how = Parameter(help=words, negative=(), show=show, show_default=False, consume_multiple=many)
    return signatures.Parameter(
        name, signatures.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, how]
    )


@inspect.default
def _no_view(*tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Look inside a model: attention, vectors, what each layer would predict, every shape; or all in one page."""
    view = next((token for token in tokens[1:] if token in VIEWS), None)
    if view is not None:
        return _old_order(view)
    lines = [tr("  {name:<12}{line}", name, stored(line)) for name, (line, _) in VIEWS.items()]
    advice = tr("The views are:\n{lines}", stacked(lines))
    first = tokens[0] if tokens else "-"
    if first.startswith("-"):
        raise SettingsError(tr("mingyue inspect needs a view and a model: mingyue inspect VIEW MODEL"), advice=advice)
    folder = _exists(first)
    written = [token for token in tokens[1:] if not token.startswith("-")][:1] if folder else [first]
    if guess := next(filter(None, (nearest(word, VIEWS) for word in written)), None):
        advice = tr("Did you mean {guess}? {advice}", guess, advice)
    if folder:
        raise SettingsError(tr("the view is missing: mingyue inspect VIEW {first}", first), advice=advice)
    raise SettingsError(tr("{first!r} is not a view", first), advice=advice)


def _exists(path: str) -> bool:
    try:
        return path_of(path).exists()
    except (OSError, MingyueError):  # such as a name that is too long
        return False


def _old_order(view: str) -> int:
    """`mingyue inspect RUN VIEW`, the order of version 0.1, which works for one more version."""
    print_note(tr("`mingyue inspect RUN VIEW` is deprecated: use `mingyue inspect VIEW RUN`"))
    given = list(ARGUMENTS.get())
    verb = given.index("inspect")
    given.remove(view)
    return main([*given[: verb + 1], view, *given[verb + 1 :]])


def _inspect(view: str, command: Command, folders: Sequence[str], given: Mapping[str, Any]) -> None:
    """Make the view, print its tables, write it where that is asked for."""
    _refuse_unused(view, command, given)
    if command.texts == "runs":
        return _inspect_runs(view, command, folders, given)
    (model,) = folders
    out: str | None = given.get("out")
    files, json = given.get("file") or [], bool(given.get("json"))
    if command.make is None and out is None:
        out = f"{_name(model)}-report.html"
    texts = [*(given.get("text") or []), *(given.get("texts") or [])]
    _check_out(view, command, out, [*files, model, *(text for text in texts if text == "-")])
    read = [without_final_newline(one).text for one in collect(texts, files)]
    _check_texts(view, command, read, given)
    words: Language = interface_language()

    from mingyue import api

    inspection = api.inspect(
        model,
        read[0] if read and command.texts != "compared" else None,
        **{name: given.get(name) for name in ("source", "target", "step", "device", "threads")},
    )
    arguments = {name: given[name] for name in command.arguments if given.get(name) is not None}
    if command.texts in ("compared", "any number"):
        arguments["texts"] = read if command.texts == "compared" else read[1:]
    found: View | None = None
    notes: list[str] = []
    with Live(stderr()) as live:

        def progress(done: int, total: int) -> None:
            live.show(view, done, total, [tr("{done:,} of {total:,}", done, total)])

        if command.slow:
            arguments["progress"] = progress
        if command.make is None:
            assert out is not None
            notes = inspection.report(out, language=words, **arguments)
        else:
            found = inspection.view(view, **arguments)
    if found is not None and out is not None:
        _warn_of_time(found, out)
        notes = inspection.save(found, out, words)
    told = [] if view == "film" else [one.of(words) for one in inspection.remarks]  # a film names its steps itself
    for note in (*told, *notes):
        print_note(note)
    if found is not None:
        _print(found, words, json=json)
    _say_written(out, json=json)


def _inspect_runs(view: str, command: Command, runs: Sequence[str], given: Mapping[str, Any]) -> None:
    """The same for a view of runs, which loads no model."""
    from mingyue import api

    out: str | None = given.get("out")
    _check_out(view, command, out, runs)
    words = interface_language()
    found = api.curve(*runs)
    for note in [] if out is None else found.save(out, words):
        print_note(note)
    _print(found, words, json=bool(given.get("json")))
    _say_written(out, json=bool(given.get("json")))


def _say_written(out: str | None, *, json: bool) -> None:
    if out is not None:
        print_note(tr("Written: {out}.", out)) if json else write(tr("Written: {out}\n", out))


def _warn_of_time(view: View, out: str) -> None:
    """Say that a picture of a long text takes its time, before it does."""
    count = len(getattr(view, "pieces_N", ()))  # only surprise takes a text of any length
    if count > _MANY and Path(out).suffix.lower() in (".png", ".svg"):
        print_note(tr("A picture of {count:,} tokens takes its time; an .html page does not.", count))


def _print(view: View, language: Language, *, json: bool) -> None:
    if json:
        write_json(view.to_dict())
        return
    for number, one in enumerate(view.tables(language)):
        write("\n" if number else "")
        _show_table(one, language)


def _refuse_unused(view: str, command: Command, given: Mapping[str, Any]) -> None:
    """Raise `SettingsError` for an option of other views: what is asked for is never ignored."""
    from mingyue.api.inspecting import view_command

    own = {option.name for option in command.options} | {"out"}
    own |= {"device", "threads"} if command.texts != "runs" else set()
    own |= {"json"} if command.make is not None else set()
    for name in given:
        if name not in own:
            others = [
                other
                for other in VIEWS
                if name in ("json", "device", "threads")
                or name in {option.name for option in view_command(other).options}
            ]
            raise SettingsError(
                tr("the view {view} has no use for --{name}", view, name),
                advice=tr("It is an option of {others}.", ", ".join(other for other in others if other != view)),
            )


def _check_out(view: str, command: Command, out: str | None, inputs: Sequence[str]) -> None:
    """Raise `SettingsError`, before any work, for a file that could not be written, or is one of the inputs."""
    check_output(out, *inputs, option="--out")
    endings = (".html",) if command.make is None else _ENDINGS
    if out is not None and Path(out).suffix.lower() not in endings:
        raise SettingsError(
            tr("--out {out}: {view} is not written to this kind of file", out, view),
            advice=tr("Its name ends in {endings}.", ", ".join(endings)),
        )


def _check_texts(view: str, command: Command, read: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise `SettingsError` for a text or word that is missing, and for too many of them."""
    n_texts = len(read) + (given.get("source") is not None)
    if view in ("vectors", "neighbours") and given.get("word") is None:
        raise SettingsError(tr("{view} needs a word to look at", view), advice=tr("Give it with --word."))
    if view == "patch" and given.get("other") is None:
        raise SettingsError(tr("patch compares two texts"), advice=tr("Give the second text with --other."))
    if command.texts == "compared" and not n_texts:
        raise SettingsError(tr("{view} needs texts that hold the word", view), advice=tr("Give them with --texts."))
    if command.texts == "one" and not n_texts:
        raise SettingsError(
            tr("there is no text to inspect"), advice=tr("Give --text, --file, or `--text -` for standard input.")
        )
    if command.texts in ("one", "optional") and n_texts > 1:
        raise SettingsError(
            tr("{view} looks at one text, and {n_texts} are given with --text, --file and --source", view, n_texts),
            advice=tr("Give one at a time."),
        )


def _name(model: str) -> str:
    """A name for what is written about a model: that of its run."""
    place = path_of(model).resolve()
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
        left_out = listed(list(spared))
        text = tr(
            "Left out in {width} columns: {spared}. From {needed} columns on all are there.",
            console.width,
            left_out,
            needed,
        )
        write(text + "\n")


def _rows(one: TextTable, without: Sequence[str] = ()) -> Table:
    columns = one.columns or [""] * max(map(len, one.rows), default=1)
    kept = [place for place, name in enumerate(columns) if name not in without]
    rows = table(*(columns[place] for place in kept), right=one.right)
    rows.show_header = bool(one.columns)
    for row in one.rows:
        rows.add_row(*(row[place] for place in kept))
    return rows
