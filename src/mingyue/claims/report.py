"""The report of a run of claims: one offline page in two languages, and the same as Markdown with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from mingyue.charts import Chart, Folded, Labelled, Section, write_charts, write_page
from mingyue.claims.claim import Claim
from mingyue.claims.registry import GROUPS, NAMES, find, group_of
from mingyue.claims.result import Result
from mingyue.claims.summary import (
    caution,
    columns_of,
    command_of,
    correction_of,
    counts,
    machine_of,
    numbers_table,
    reason_of,
    text_of,
    verdict_of,
)
from mingyue.errors import CheckpointError, DataError, MissingExtraError, SettingsError
from mingyue.files import explain_os_error, write_text_atomically
from mingyue.words import LANGUAGES, Language, TextTable, Words, tr

PAGE, RESULTS, FIGURES = "index.html", "results", "figures"
_MARKDOWN: dict[Language, str] = {"en": "REPORT.md", "zh": "REPORT.zh.md"}


def check_drawing() -> None:
    """Raise `MissingExtraError` if figures cannot be drawn: called before minutes of measuring."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            tr("the figures of a report need the package {name}", error.name),
            advice=tr("Install it: pip install 'mingyue[plot]'"),
        ) from None


def load_results(folder: Path) -> list[Result]:
    """The results saved in a folder (or in its `results`), in the order of the claims.

    Raises `DataError` if there are none, or one cannot be read.
    """
    source = folder / RESULTS if (folder / RESULTS).is_dir() else folder
    found = [Result.load(source / f"{name}.json") for name in NAMES if (source / f"{name}.json").exists()]
    if not found:
        raise DataError(
            tr("there are no results of claims in {source}", source),
            advice=tr("Run `mingyue claims run all --report DIR` first."),
        )
    return found


def check_folder(folder: Path) -> None:
    """Raise `SettingsError` for a folder with a page or text that is not of a report: it would be lost."""
    for name in (PAGE, *_MARKDOWN.values()):
        if (folder / name).exists() and not (folder / FIGURES).is_dir():
            raise SettingsError(
                tr("{folder} is there, and {parent} is not the folder of a report", folder / name, folder),
                advice=tr("Choose another folder."),
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
            for language in LANGUAGES:
                notes += one.write_figure(folder, language)
        for language in LANGUAGES:
            write_text_atomically(folder / _MARKDOWN[language], _markdown(entries, language))
        write_page(
            folder / PAGE,
            title=text_of("title"),
            sections=[one.section() for one in entries],
            languages=LANGUAGES,
            intro={language: "\n\n".join(_intro(results, language)) for language in LANGUAGES},
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
            for language in LANGUAGES:
                self.figures[language] = list(self.claim.draw(result.measurement, language))
        except Exception as error:  # an error in one claim must not stop the report of the others
            self.figures = {"en": [], "zh": []}
            self.trouble = f"{result.name}: the figure could not be drawn ({type(error).__name__}: {error})"

    def title(self) -> Words:
        """The claim in words."""
        return (self.claim or find(self.result.name)).claim

    def figure_path(self, language: Language) -> str:
        return f"{FIGURES}/{self.result.name}.{language}.svg"

    def write_figure(self, folder: Path, language: Language) -> list[str]:
        if not self.figures[language]:
            return [self.trouble] if self.trouble else []
        path = folder / self.figure_path(language)
        return write_charts(path, self.figures[language], title=self.result.name, language=language)

    def first(self) -> list[tuple[Words, Words]]:
        """Verdict and correction, each with its label: what a reader wants to know before any figure."""
        parts = [(text_of("parts", "verdict"), _sentence(verdict_of(self.result), reason_of(self.result)))]
        correction = None if self.claim is None else correction_of(self.claim, self.result)
        if correction is not None:
            parts.append((text_of("parts", "correction"), correction))
        if self.trouble:
            parts.append((Words("", ""), Words(self.trouble, self.trouble)))
        return parts

    def details(self) -> list[tuple[Words, Words]]:
        """Prediction, method and command, each with its label."""
        result = self.result
        again = text_of(
            "again",
            command=command_of(result),
            size=text_of("sizes", result.size),
            seed=result.seed,
            seconds=result.seconds,
            machine=machine_of(result),
        )
        said = {"again": Words(again.en.rstrip(), again.zh.rstrip())}
        if self.claim is not None:
            said = {"prediction": self.claim.prediction, "method": self.claim.method} | said
        return [(text_of("parts", part), text) for part, text in said.items()]

    def numbers(self, language: Language) -> list[TextTable]:
        if self.claim is None or self.result.measurement is None:
            return []
        return [numbers_table(self.claim, self.result.measurement, language)]

    def section(self) -> Section:
        parts = {
            language: [
                *_labelled(self.first(), language),
                *self.figures[language],
                Folded(
                    text_of("details").of(language), [*_labelled(self.details(), language), *self.numbers(language)]
                ),
            ]
            for language in LANGUAGES
        }
        group = text_of("groups", group_of(self.result.name))
        return Section(self.title(), parts, anchor=self.result.name, tag=verdict_of(self.result), group=group)


def _sentence(verdict: Words, reason: Words) -> Words:
    said = text_of("verdict_and_reason", verdict=verdict, reason=reason)
    return Words(said.en[:1].upper() + said.en[1:], said.zh)


def _labelled(parts: Sequence[tuple[Words, Words]], language: Language) -> list[Labelled | str]:
    """Paragraphs for the page."""
    return [
        Labelled(text_of("label", part=label).of(language), text.of(language)) if label.en else text.of(language)
        for label, text in parts
    ]


def _verdicts(entries: Sequence[_Entry], language: Language) -> TextTable:
    headings = columns_of("verdicts", "claim", "verdict", "reason", "name")
    columns = [heading.of(language) for heading in headings]
    rows = [
        (
            one.title().of(language),
            verdict_of(one.result).of(language),
            reason_of(one.result).of(language),
            one.result.name,
        )
        for one in entries
    ]
    return TextTable("", columns, rows)


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
            lines += [f"### {one.title().of(language)}", "", *_markdown_paragraphs(one.first(), language)]
            if one.figures[language]:
                lines += [f"![{one.result.name}]({one.figure_path(language)})", ""]
            lines += _markdown_paragraphs(one.details(), language)
            for table in one.numbers(language):
                lines += [*_markdown_table(table), ""]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_paragraphs(parts: Sequence[tuple[Words, Words]], language: Language) -> list[str]:
    lines = list[str]()
    for label, text in parts:
        head = f"**{text_of('label', part=label).of(language)}** " if label.en else ""
        lines += [head + text.of(language), ""]
    return lines


def _markdown_table(table: TextTable) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_cell(cell) for cell in cells) + " |"

    rule = ["--:" if name in table.right else "--" for name in table.columns]
    return [line(table.columns), line(rule), *(line(row) for row in table.rows)]


def _cell(text: str) -> str:
    return escape(text, quote=False).replace("|", "\\|").replace("\n", " ")
