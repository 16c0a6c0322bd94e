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
    GROUP_TITLES,
    caution,
    command_of,
    correction_of,
    counts,
    numbers_table,
    reason_of,
    size_of,
    verdict_of,
)
from mingyue.errors import CheckpointError, DataError, MissingExtraError
from mingyue.files import explain_os_error, write_text_atomically
from mingyue.words import Language, TextTable, Words

PAGE, RESULTS, FIGURES = "index.html", "results", "figures"
_LANGUAGES: tuple[Language, Language] = ("en", "zh")
_MARKDOWN: dict[Language, str] = {"en": "REPORT.md", "zh": "REPORT.zh.md"}
_TITLE = Words("Claims about Transformers, tested", "关于 Transformer 的论断：逐条检验")
_INTRO = Words(
    "Each claim was turned into an experiment: what must be measured if the claim is right was written down, with a "
    "tolerance, before the measurement; the verdict is computed from the numbers. The models are small, and the "
    "verdicts are about what was measured here, on this machine. Intervals are 95 % over seeds unless a line says "
    "otherwise. “Supported with a correction” means that the idea is right and the usual wording is not.",
    "每条论断都做成一个实验：先写下“若论断正确，应当测到什么”以及容差，再去测；结论由数字算出，不由人填写。"
    "模型都很小，结论只针对这里、这台机器上测到的东西。除另有说明外，区间都是多个随机种子给出的 95 % 区间。"
    "“修正后成立”是说：意思对，但通常的说法不准确。",
)
_PARTS = {
    "claim": Words("Claim", "论断"),
    "prediction": Words("Prediction", "预测"),
    "method": Words("How it was tested", "检验方法"),
    "verdict": Words("Verdict", "结论"),
    "correction": Words("Correction", "修正"),
    "again": Words("Run it again", "重新运行"),
}
_COLUMNS = (
    Words("group", "组"),
    Words("claim", "论断"),
    Words("verdict", "结论"),
    Words("why", "理由"),
    Words("seconds", "秒"),
)
"""Of the table of verdicts."""


def check_drawing() -> None:
    """Raise `MissingExtraError` now, and not after minutes of measuring, if figures could not be drawn."""
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
    place = folder / RESULTS if (folder / RESULTS).is_dir() else folder
    found = [Result.load(place / f"{name}.json") for name in NAMES if (place / f"{name}.json").exists()]
    if not found:
        raise DataError(
            f"{place} holds no results of claims", advice="`mingyue claims run all --report DIR` makes them."
        )
    return found


def write_report(folder: Path, results: Sequence[Result]) -> list[str]:
    """Write index.html, REPORT.md, REPORT.zh.md and figures/*.svg. Returns what the user should know.

    Raises `MissingExtraError` without the extra `plot`, and `CheckpointError` for a folder that cannot be written to.
    """
    check_drawing()
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
            title=_TITLE,
            sections=[_summary(entries), *(one.section() for one in entries)],
            languages=_LANGUAGES,
            intro={language: " ".join(_before_all(results, language)) for language in _LANGUAGES},
        )
    except OSError as error:
        message, advice = explain_os_error("the report", folder, error)
        raise CheckpointError(message, advice=advice) from None
    return list(dict.fromkeys(notes))


def _before_all(results: Sequence[Result], language: Language) -> list[str]:
    """The paragraphs before all claims: counts of verdicts, how they were tested, a caution about small forms."""
    said = [counts(results), caution(results), _INTRO]
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
        except Exception as error:  # the other claims' figures do not depend on this one
            self.figures = {"en": [], "zh": []}
            self.trouble = f"{result.name}: the figure could not be drawn ({type(error).__name__}: {error})"

    def title(self) -> Words:
        group = GROUP_TITLES[group_of(self.result.name)]
        verdict = verdict_of(self.result)
        return Words(f"{group.en} · {self.result.name}: {verdict.en}", f"{group.zh} · {self.result.name}：{verdict.zh}")

    def figure_path(self, language: Language) -> str:
        return f"{FIGURES}/{self.result.name}.{language}.svg"

    def write_figure(self, folder: Path, language: Language) -> list[str]:
        if not self.figures[language]:
            return [self.trouble] if self.trouble else []
        path = folder / self.figure_path(language)
        return write_charts(path, self.figures[language], title=self.result.name, language=language)

    def words(self, part: str, text: str, language: Language) -> str:
        return f"{_PARTS[part].of(language)}{'：' if language == 'zh' else ': '}{text}"

    def before(self, language: Language) -> list[str]:
        """Paragraphs that stand before the figure."""
        if self.claim is None:
            return []
        parts = {"claim": self.claim.claim, "prediction": self.claim.prediction, "method": self.claim.method}
        return [self.words(part, text.of(language), language) for part, text in parts.items()]

    def after(self, language: Language) -> list[str]:
        """Paragraphs that stand after it."""
        reason = f"{verdict_of(self.result).of(language)}{'。' if language == 'zh' else '. '}"
        paragraphs = [self.words("verdict", reason + reason_of(self.result).of(language), language)]
        correction = None if self.claim is None else correction_of(self.claim, self.result)
        if correction is not None:
            paragraphs.append(self.words("correction", correction.of(language), language))
        if self.trouble:
            paragraphs.append(self.trouble)
        result = self.result
        seconds, size = f"{result.seconds:.1f}", size_of(result).of(language)
        where = f" {result.machine}" if result.machine else ""
        how = (
            f"`{command_of(result)}`（规模：{size}，种子 {result.seed}，{seconds} 秒）{where}"
            if language == "zh"
            else f"`{command_of(result)}` (size: {size}, seed {result.seed}, {seconds} s){where}"
        )
        return [*paragraphs, self.words("again", how, language)]

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


def _summary(entries: Sequence[_Entry]) -> Section:
    title = Words("Verdicts", "结论一览")
    return Section(title, {language: [_verdicts(entries, language)] for language in _LANGUAGES}, anchor="verdicts")


def _verdicts(entries: Sequence[_Entry], language: Language) -> TextTable:
    columns = [words.of(language) for words in _COLUMNS]
    rows = [
        (
            GROUP_TITLES[group_of(one.result.name)].of(language),
            one.result.name,
            verdict_of(one.result).of(language),
            reason_of(one.result).of(language),
            f"{one.result.seconds:.0f}",
        )
        for one in entries
    ]
    return TextTable("", columns, rows, right=columns[-1:])


def _markdown(entries: Sequence[_Entry], language: Language) -> str:
    lines = [f"# {_TITLE.of(language)}", ""]
    for paragraph in _before_all([one.result for one in entries], language):
        lines += [paragraph, ""]
    lines += [*_markdown_table(_verdicts(entries, language)), ""]
    for group in GROUPS:
        members = [one for one in entries if group_of(one.result.name) == group]
        if members:
            lines += [f"## {GROUP_TITLES[group].of(language)}", ""]
        for one in members:
            separator = "：" if language == "zh" else ": "
            lines += [f"### {one.result.name}{separator}{verdict_of(one.result).of(language)}", ""]
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
