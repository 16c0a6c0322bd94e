"""`mingyue claims list`, `mingyue claims run` and `mingyue claims report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from mingyue.cli.invocation import FAULT, OK
from mingyue.cli.screen import print_note, show, stdout, table, write, write_json
from mingyue.config import Count, Workers
from mingyue.errors import SettingsError
from mingyue.paths import path_of
from mingyue.words import Language, interface_language, tr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mingyue.claims.result import Result
    from mingyue.claims.run import State
    from mingyue.cli.live import Live

claims = App(name="claims", help_format="plaintext")

_NAMES = "Names of claims or groups, as in `mingyue claims list`; all = every claim."
_FULL = "Larger models and more seeds: minutes per claim."
_SMALL = "Smaller models and fewer seeds: seconds per claim. Too short for some effects, so verdicts may differ."
_SEED = "Base of every seed: the same seed gives the same numbers, except for measured times."
_OUT = "Folder for the results, one JSON file per claim."
_REPORT = "Folder for a report: index.html, REPORT.md, REPORT.zh.md, figures, and the results in results."
_WORKERS = "Number of claims tested in parallel, each in a process of its own."
_THREADS = "Number of CPU threads of each process. Another number may change the last digits of results."
_FOLDER = "Folder written by `mingyue claims run --report` or `--out`."
_STYLES = {"supported": "green", "supported with a correction": "yellow", "not supported": "red"}


@claims.command(name="list")
def list_(
    *,
    json: Annotated[bool, Parameter(negative=(), help="Print JSON instead of a table.")] = False,
) -> None:
    """List the claims by group."""
    from mingyue.claims.registry import find, written
    from mingyue.claims.summary import columns_of, text_of

    spoken = interface_language()
    known = [find(name) for name in written()]
    if json:
        write_json([{"name": one.name, "group": one.group, "claim": one.claim.of(spoken)} for one in known])
        return
    rows = table(*(heading.of(spoken) for heading in columns_of("claims", "group", "name", "claim")))
    before = ""
    for one in known:
        group = text_of("groups", one.group).of(spoken)
        rows.add_row("" if group == before else group, one.name, one.claim.of(spoken))
        before = group
    show(rows)
    write(f"\n{text_of('how_to_test', count=len(known)).of(spoken)}\n")


@claims.command
def run(
    *names: Annotated[str, Parameter(help=_NAMES)],
    full: Annotated[bool, Parameter(help=_FULL, negative=())] = False,
    small: Annotated[bool, Parameter(help=_SMALL, negative=())] = False,
    seed: Annotated[Count, Parameter(help=_SEED)] = 0,
    out: Annotated[str | None, Parameter(help=_OUT)] = None,
    report: Annotated[str | None, Parameter(help=_REPORT)] = None,
    workers: Annotated[Workers, Parameter(help=_WORKERS)] = 2,
    threads: Annotated[Workers, Parameter(help=_THREADS)] = 1,
) -> int:
    """Test claims: print the prediction, the measurement, and the verdict computed from its numbers.

    mingyue claims run variance

    mingyue claims run all --report report
    """
    wanted = _expand(names)
    if full and small:
        raise SettingsError(tr("--full and --small cannot be used together"), advice=tr("Leave out one of them."))
    if out is not None and report is not None:
        raise SettingsError(
            tr("--out and --report cannot be used together"),
            advice=tr("Leave out --out: --report saves the results in its folder results."),
        )

    from mingyue.claims.claim import Trial
    from mingyue.claims.report import PAGE, RESULTS, check_drawing, check_folder, write_report
    from mingyue.claims.run import run_claims
    from mingyue.claims.summary import caution, counts, saved_before_interruption

    spoken = interface_language()
    page = None if report is None else path_of(report)
    kept = folder = page if out is None else path_of(out)
    if page is not None:
        check_drawing()
        check_folder(page)
        folder = page / RESULTS
    trial = Trial("full" if full else "small" if small else "report", seed)
    screen = _Screen(spoken, lines=len(wanted) > 1)
    try:
        with screen:
            results = run_claims(wanted, trial, folder, workers, screen.state, threads=threads)
        if len(results) == 1:
            _show_whole(results[0], spoken)
        else:
            write(f"\n{counts(results).of(spoken)}\n")
        if (words := caution(results)) is not None:
            write(f"{words.of(spoken)}\n")
        if page is not None:
            for note in write_report(page, results):
                print_note(note)
            write(f"{page / PAGE}\n")
    except KeyboardInterrupt:
        if kept is not None and screen.finished:
            print_note(saved_before_interruption(screen.finished, kept).of(spoken))
        raise
    return FAULT if any(result.failed for result in results) else OK


@claims.command(name="report")
def report_(folder: Annotated[str, Parameter(help=_FOLDER)], /) -> None:
    """Write a report from saved results, without testing again."""
    from mingyue.claims.report import PAGE, load_results, write_report

    path = path_of(folder)
    for note in write_report(path, load_results(path)):
        print_note(note)
    write(f"{path / PAGE}\n")


def _expand(names: Sequence[str]) -> list[str]:
    """Names of claims for names, groups and `all`."""
    from mingyue.claims.registry import GROUPS, NAMES

    if not names:
        raise SettingsError(
            tr("no claim is named"), advice=tr("Give names, or `all`. `mingyue claims list` lists them.")
        )
    found: list[str] = []
    for name in names:
        found += NAMES if name == "all" else GROUPS.get(name, (name,))
    return found


class _Screen:
    """A progress bar while claims are tested, and a line for each finished claim where there are several."""

    def __init__(self, language: Language, *, lines: bool) -> None:
        self._language: Language = language
        self._lines = lines
        self._live: Live
        self.finished = 0
        """Number of claims with a result."""

    def __enter__(self) -> _Screen:
        from mingyue.cli.live import Live
        from mingyue.cli.screen import stderr

        self._live = Live(stderr())
        return self

    def __exit__(self, *_: object) -> None:
        self._live.clear()

    def state(self, state: State) -> None:
        """Show the progress."""
        self.finished = state.done
        if state.finished is not None and self._lines:
            self._live.clear()
            _show_line(state.finished, self._language)
        self._live.show(tr("claims"), state.done, state.total, [f"{state.done}/{state.total}", *state.running])


def _show_line(result: Result, language: Language) -> None:
    from rich.text import Text

    from mingyue.claims.summary import line_of, verdict_of

    style = "red" if result.finding is None else _STYLES[result.finding.verdict]
    line, verdict = Text(line_of(result).of(language)), verdict_of(result).of(language)
    line.stylize("bold", 0, len(result.name))
    start = line.plain.index(verdict, len(result.name))
    line.stylize(style, start, start + len(verdict))
    stdout().print(line)


def _show_whole(result: Result, language: Language) -> None:
    """The claim, its numbers, its verdict and its correction."""
    from mingyue.claims.registry import find
    from mingyue.claims.summary import correction_of, numbers_table

    claim = None if result.measurement is None else find(result.name)
    if claim is not None and result.measurement is not None:
        write(f"{claim.claim.of(language)}\n\n{claim.prediction.of(language)}\n\n{claim.method.of(language)}\n\n")
        numbers = numbers_table(claim, result.measurement, language)
        rows = table(*numbers.columns)
        for row in numbers.rows:
            rows.add_row(*row)
        show(rows)
        write("\n")
    _show_line(result, language)
    correction = None if claim is None else correction_of(claim, result)
    if correction is not None:
        write(f"{correction.of(language)}\n")
