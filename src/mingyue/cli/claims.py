"""`mingyue claims list`, `mingyue claims run` and `mingyue claims report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from mingyue.cli.main import FAULT, OK
from mingyue.cli.screen import language_of_system, remark, show, stdout, table, write, write_json
from mingyue.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mingyue.claims.result import Result
    from mingyue.claims.run import State
    from mingyue.cli.live import Live

claims = App(name="claims", help_format="plaintext")

_NAMES = "Names of claims or of groups, as `mingyue claims list` shows them; all = every claim."
_FULL = "The full form: larger models and more seeds, minutes a claim."
_SMALL = "The small form: seconds a claim; too short for some effects, so a verdict can be another than without it."
_SEED = "Base of every seed: the same seed gives the same numbers, measured times apart."
_OUT = "Folder for the results, one JSON file a claim."
_REPORT = "Folder for a report: index.html, REPORT.md, REPORT.zh.md, figures, and the results in results."
_WORKERS = "Claims tested at a time, each in a process of one thread."
_LANGUAGE = "Language of what is printed; none = Chinese where the system's language is, else English."
_FOLDER = "A folder that `mingyue claims run --report` or `--out` has written to."
_STYLES = {"supported": "green", "supported with a correction": "yellow", "not supported": "red"}


@claims.command(name="list")
def list_(
    *,
    json: Annotated[bool, Parameter(negative=(), help="Print JSON instead of a table.")] = False,
    language: Annotated[Literal["en", "zh"] | None, Parameter(help=_LANGUAGE)] = None,
) -> None:
    """List the claims by group, each with what it says."""
    from mingyue.claims.registry import find, written
    from mingyue.claims.summary import GROUP_TITLES, how_to_test

    spoken = language or language_of_system()
    known = [find(name) for name in written()]
    if json:
        write_json([{"name": one.name, "group": one.group, "claim": one.claim.of(spoken)} for one in known])
        return
    rows = table(*(("组", "名称", "论断") if spoken == "zh" else ("group", "name", "claim")))
    before = ""
    for one in known:
        group = GROUP_TITLES[one.group].of(spoken)
        rows.add_row("" if group == before else group, one.name, one.claim.of(spoken))
        before = group
    show(rows)
    write(f"\n{how_to_test(len(known)).of(spoken)}\n")


@claims.command
def run(
    *names: Annotated[str, Parameter(help=_NAMES)],
    full: Annotated[bool, Parameter(help=_FULL, negative=())] = False,
    small: Annotated[bool, Parameter(help=_SMALL, negative=())] = False,
    seed: Annotated[int, Parameter(help=_SEED)] = 0,
    out: Annotated[Path | None, Parameter(help=_OUT)] = None,
    report: Annotated[Path | None, Parameter(help=_REPORT)] = None,
    workers: Annotated[int, Parameter(help=_WORKERS)] = 2,
    language: Annotated[Literal["en", "zh"] | None, Parameter(help=_LANGUAGE)] = None,
) -> int:
    """Test claims: what was predicted, what was measured, and the verdict that follows from the numbers.

    mingyue claims run variance

    mingyue claims run all --report report
    """
    wanted = _expand(names)
    if full and small:
        raise SettingsError("--full and --small are two sizes: leave one out")
    if out is not None and report is not None:
        raise SettingsError("--report keeps the results too, in its folder results: leave --out out")

    from mingyue.claims.claim import Trial
    from mingyue.claims.report import PAGE, RESULTS, check_drawing, write_report
    from mingyue.claims.run import run_claims
    from mingyue.claims.summary import caution, counts, left_behind

    spoken, kept = language or language_of_system(), report or out
    if report is not None:
        check_drawing()
        out = report / RESULTS
    trial = Trial("full" if full else "small" if small else "report", seed)
    screen = _Screen(spoken, lines=len(wanted) > 1)
    try:
        with screen:
            results = run_claims(wanted, trial, out, workers, screen.state)
        if len(results) == 1:
            _show_whole(results[0], spoken)
        else:
            write(f"\n{counts(results).of(spoken)}\n")
        if (words := caution(results)) is not None:
            write(f"{words.of(spoken)}\n")
        if report is not None:
            for note in write_report(report, results):
                remark(note)
            write(f"{report / PAGE}\n")
    except KeyboardInterrupt:
        if kept is not None and screen.finished:
            remark(left_behind(screen.finished, kept).of(spoken))
        raise
    return FAULT if any(result.failed for result in results) else OK


@claims.command(name="report")
def report_(folder: Annotated[Path, Parameter(help=_FOLDER)], /) -> None:
    """Write the report again from saved results, without testing anything."""
    from mingyue.claims.report import PAGE, load_results, write_report

    for note in write_report(folder, load_results(folder)):
        remark(note)
    write(f"{folder / PAGE}\n")


def _expand(names: Sequence[str]) -> list[str]:
    """Names of claims for names, groups and `all`."""
    from mingyue.claims.registry import GROUPS, NAMES

    if not names:
        raise SettingsError("no claim is named", advice="Name some, or `all`. `mingyue claims list` shows them.")
    found: list[str] = []
    for name in names:
        found += NAMES if name == "all" else GROUPS.get(name, (name,))
    return found


class _Screen:
    """A bar while claims are tested, and, of several, a line for each that is finished."""

    def __init__(self, language: Literal["en", "zh"], *, lines: bool) -> None:
        self._language: Literal["en", "zh"] = language
        self._lines = lines
        self._live: Live
        self.finished = 0
        """Claims of which there is a result."""

    def __enter__(self) -> _Screen:
        from mingyue.cli.live import Live
        from mingyue.cli.screen import stderr

        self._live = Live(stderr())
        return self

    def __exit__(self, *_: object) -> None:
        self._live.clear()

    def state(self, state: State) -> None:
        """Show how far it is."""
        self.finished = state.done
        if state.finished is not None and self._lines:
            self._live.clear()
            _show_line(state.finished, self._language)
        self._live.show("claims", state.done, state.total, [f"{state.done}/{state.total}", *state.running])


def _show_line(result: Result, language: Literal["en", "zh"]) -> None:
    from rich.text import Text

    from mingyue.claims.summary import reason_of, size_of, verdict_of

    style = "red" if result.finding is None else _STYLES[result.finding.verdict]
    size, reason = size_of(result).of(language), reason_of(result).of(language)
    how = f"（规模：{size}，{result.seconds:.0f} 秒）。" if language == "zh" else f" ({size}, {result.seconds:.0f} s). "
    line = Text.assemble((result.name, "bold"), ": ", (verdict_of(result).of(language), style), how, reason)
    stdout().print(line)


def _show_whole(result: Result, language: Literal["en", "zh"]) -> None:
    """All about one claim."""
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
