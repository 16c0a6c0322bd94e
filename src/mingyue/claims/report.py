"""The report of a run of claims: one offline page in two languages, and the same as Markdown with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from mingyue.charts import Chart, Section, write_charts, write_page
from mingyue.claims.claim import Claim
from mingyue.claims.registry import GROUPS, NAMES, find, group_of
from mingyue.claims.result import Result
from mingyue.claims.summary import (
    caution,
    columns_of,
    command_of,
    correction_of,
    counts,
    numbers_table,
    reason_of,
    text_of,
    verdict_of,
)
from mingyue.errors import CheckpointError, DataError, MissingExtraError, SettingsError
from mingyue.files import explain_os_error, write_text_atomically
from mingyue.words import Language, TextTable, Words

PAGE, RESULTS, FIGURES = "index.html", "results", "figures"
_LANGUAGES: tuple[Language, Language] = ("en", "zh")
_MARKDOWN: dict[Language, str] = {"en": "REPORT.md", "zh": "REPORT.zh.md"}


def check_drawing() -> None:
    """Raise `MissingExtraError` if figures cannot be drawn: called before minutes of measuring."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"the figures of a report need the package {error.name}", advice="pip install 'mingyue[plot]'"
        ) from None


def load_results(folder: Path) -> list[Result]:
    """The results saved in a folder (or in its `results`), in the order of the claims.

    Raises `DataError` if there are none, or one cannot be read.
    """
    source = folder / RESULTS if (folder / RESULTS).is_dir() else folder
    found = [Result.load(source / f"{name}.json") for name in NAMES if (source / f"{name}.json").exists()]
    if not found:
        raise DataError(
            f"there are no results of claims in {source}", advice="Run `mingyue claims run all --report DIR` first."
        )
    return found


def check_folder(folder: Path) -> None:
    """Raise `SettingsError` for a folder with a page or text that is not of a report: it would be lost."""
    for name in (PAGE, *_MARKDOWN.values()):
        if (folder / name).exists() and not (folder / FIGURES).is_dir():
            raise SettingsError(
                f"{folder / name} is there, and {folder} is not the folder of a report", advice="Choose another folder."
            )


def write_report(folder: Path, results: Sequence[Result]) -> list[str]:
    """Write index.html, REPORT.md, REPORT.zh.md and figures/*.svg. Returns notes for the user.

    Raises `MissingExtraError` without the extra `plot`, and `CheckpointError` for a folder that cannot be written to.
    """
    check_drawing()
    check_folder(folder)
    results = sorted(results, key=lambda result: NAMES.index(result.name))
    try:
        (folder / FIGURES).mkdir(parents=True, exist_ok=True)
        entries = [_Entry(result) for result in results]
        notes: list[str] = []
        for one in entries:
            for language in _LANGUAGES:
                notes += one.write_figure(folder, language)
        for language in _LANGUAGES:
            write_text_atomically(folder / _MARKDOWN[language], _markdown(entries, language))
        write_page(
            folder / PAGE,
            title=text_of("title"),
            sections=[_summary(entries), *(one.section() for one in entries)],
            languages=_LANGUAGES,
            intro={language: "\n\n".join(_intro(results, language)) for language in _LANGUAGES},
        )
    except OSError as error:
        message, advice = explain_os_error("the report", folder, error)
        raise CheckpointError(message, advice=advice) from None
    return list(dict.fromkeys(notes))


def _intro(results: Sequence[Result], language: Language) -> list[str]:
    """The first paragraphs: counts of verdicts, a caution about results of the small size, how claims are tested."""
    said = [counts(results), caution(results), text_of("intro")]
    return [words.of(language) for words in said if words is not None]


class _Entry:
    """A result with its claim and its figures."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.claim: Claim | None = None
        self.figures: dict[Language, list[Chart]] = {"en": [], "zh": []}
        self.trouble = ""
        if result.measurement is None:
            return
        self.claim = find(result.name)
        try:
            for language in _LANGUAGES:
                self.figures[language] = list(self.claim.draw(result.measurement, language))
        except Exception as error:  # an error in one claim must not stop the report of the others
            self.figures = {"en": [], "zh": []}
            self.trouble = f"{result.name}: the figure could not be drawn ({type(error).__name__}: {error})"

    def title(self) -> Words:
        result = self.result
        group = text_of("groups", group_of(result.name))
        return text_of("section", group=group, name=result.name, verdict=verdict_of(result))

    def figure_path(self, language: Language) -> str:
        return f"{FIGURES}/{self.result.name}.{language}.svg"

    def write_figure(self, folder: Path, language: Language) -> list[str]:
        if not self.figures[language]:
            return [self.trouble] if self.trouble else []
        path = folder / self.figure_path(language)
        return write_charts(path, self.figures[language], title=self.result.name, language=language)

    def before(self, language: Language) -> list[str]:
        """Paragraphs before the figures."""
        if self.claim is None:
            return []
        parts = {"claim": self.claim.claim, "prediction": self.claim.prediction, "method": self.claim.method}
        return [_paragraph(part, text).of(language) for part, text in parts.items()]

    def after(self, language: Language) -> list[str]:
        """Paragraphs after the figures."""
        result = self.result
        verdict = text_of("verdict_and_reason", verdict=verdict_of(result), reason=reason_of(result))
        paragraphs = [_paragraph("verdict", verdict)]
        correction = None if self.claim is None else correction_of(self.claim, result)
        if correction is not None:
            paragraphs.append(_paragraph("correction", correction))
        if self.trouble:
            paragraphs.append(Words(self.trouble, self.trouble))
        again = text_of(
            "again",
            command=command_of(result),
            size=text_of("sizes", result.size),
            seed=result.seed,
            seconds=result.seconds,
            machine=result.machine,
        )
        paragraphs.append(_paragraph("again", again))
        return [paragraph.of(language).rstrip() for paragraph in paragraphs]

    def numbers(self, language: Language) -> list[TextTable]:
        if self.claim is None or self.result.measurement is None:
            return []
        return [numbers_table(self.claim, self.result.measurement, language)]

    def section(self) -> Section:
        parts = {
            language: [
                *self.before(language),
                *self.figures[language],
                *self.numbers(language),
                *self.after(language),
            ]
            for language in _LANGUAGES
        }
        return Section(self.title(), parts, anchor=self.result.name)


def _paragraph(part: str, text: Words) -> Words:
    return text_of("paragraph", part=text_of("parts", part), text=text)


def _summary(entries: Sequence[_Entry]) -> Section:
    parts = {language: [_verdicts(entries, language)] for language in _LANGUAGES}
    return Section(text_of("tables", "verdicts", "title"), parts, anchor="verdicts")


def _verdicts(entries: Sequence[_Entry], language: Language) -> TextTable:
    headings = columns_of("verdicts", "group", "claim", "verdict", "reason", "seconds")
    columns = [heading.of(language) for heading in headings]
    rows = [
        (
            text_of("groups", group_of(one.result.name)).of(language),
            one.result.name,
            verdict_of(one.result).of(language),
            reason_of(one.result).of(language),
            f"{one.result.seconds:.0f}",
        )
        for one in entries
    ]
    return TextTable("", columns, rows, right=columns[-1:])


def _markdown(entries: Sequence[_Entry], language: Language) -> str:
    lines = [f"# {text_of('title').of(language)}", ""]
    for paragraph in _intro([one.result for one in entries], language):
        lines += [paragraph, ""]
    lines += [*_markdown_table(_verdicts(entries, language)), ""]
    for group in GROUPS:
        members = [one for one in entries if group_of(one.result.name) == group]
        if members:
            lines += [f"## {text_of('groups', group).of(language)}", ""]
        for one in members:
            heading = text_of("heading", name=one.result.name, verdict=verdict_of(one.result))
            lines += [f"### {heading.of(language)}", ""]
            for paragraph in one.before(language):
                lines += [paragraph, ""]
            if one.figures[language]:
                lines += [f"![{one.result.name}]({one.figure_path(language)})", ""]
            for table in one.numbers(language):
                lines += [*_markdown_table(table), ""]
            for paragraph in one.after(language):
                lines += [paragraph, ""]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(table: TextTable) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_cell(cell) for cell in cells) + " |"

    rule = ["--:" if name in table.right else "--" for name in table.columns]
    return [line(table.columns), line(rule), *(line(row) for row in table.rows)]


def _cell(text: str) -> str:
    return escape(text, quote=False).replace("|", "\\|").replace("\n", " ")
