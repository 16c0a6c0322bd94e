"""The report: one page without a network in two languages, Markdown with figures, and nothing kept silent."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape

import pytest

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

from mingyue.claims import report as reporting
from mingyue.claims.claim import Trial
from mingyue.claims.figures import Matrices, Matrix
from mingyue.claims.registry import NAMES, find
from mingyue.claims.report import load_results, write_report
from mingyue.claims.result import Result
from mingyue.claims.run import run_claim
from mingyue.errors import DataError


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    results = [
        Result("logs", "report", 0, 1.0, "a machine", error="RuntimeError: <script>|broke"),
        run_claim("variance", Trial("small", 5)),
    ]
    write_report(folder, results)
    return folder


def test_the_page_needs_no_network_and_holds_both_languages(written):
    page = (written / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page)
    for words in (
        "<b>Prediction:</b>",
        "<b>预测：</b>",
        "mingyue claims run variance --small --seed 5",
        "could not be tested",
    ):
        assert words in page
    assert "<script>|broke" not in page
    assert page.index('id="en-variance"') < page.index('id="en-logs"')


def test_markdown_has_a_table_of_verdicts_and_its_figures_lie_beside_it(written):
    for name, word in (("REPORT.md", "supported"), ("REPORT.zh.md", "成立")):
        text = (written / name).read_text(encoding="utf-8")
        row = next(line for line in text.splitlines() if line.startswith("|") and "| variance |" in line)
        assert word in row
        figures = re.findall(r"!\[\w+\]\(([^)]+)\)", text)
        assert len(figures) == 1
        assert (written / figures[0]).read_text(encoding="utf-8").lstrip().startswith("<svg")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_claim_verdict_and_correction_come_before_figures_and_numbers(written, language):
    """V9: a reader finds the claim in words in the contents and as the heading, then the verdict; numbers come last."""
    claim = reporting.find("variance")
    page = (written / "index.html").read_text(encoding="utf-8")
    body = page[page.index(f'<main lang="{"zh-Hans" if language == "zh" else "en"}"') :]
    contents, _, sections = body.partition("</nav>")
    words = escape(claim.claim.of(language), quote=False)
    assert words in contents and words in sections
    section = sections[: sections.index("</section>")]
    order = ["<h2", "<b>Verdict:</b>", "<figcaption", "<details>", "<b>Prediction:</b>", '<figure class="table">']
    if language == "zh":
        order = ["<h2", "<b>结论：</b>", "<figcaption", "<details>", "<b>预测：</b>", '<figure class="table">']
    places = [section.index(part) for part in order]
    assert places == sorted(places)
    headings = re.findall(r"<h2.*?</h2>|<li>.*?</a>", sections + contents)
    assert headings and not [one for one in headings if "variance<" in one or "logs<" in one], "names of commands"
    markdown = (written / {"en": "REPORT.md", "zh": "REPORT.zh.md"}[language]).read_text(encoding="utf-8")
    label, numbers = ("**Verdict:**", "| quantity |") if language == "en" else ("**结论：**", "| 量 |")
    places = [markdown.index(part) for part in (f"### {claim.claim.of(language)}", label, "![variance]", numbers)]
    assert places == sorted(places)


def test_a_correction_stands_before_the_figures():
    claim = reporting.find("mask")
    entry = reporting._Entry(run_claim("mask", Trial("small")))
    assert entry.result.finding is not None and entry.result.finding.verdict == "supported with a correction"
    assert [label.en for label, _ in entry.first()] == ["Verdict", "Correction"]
    assert entry.first()[1][1] == claim.correction


def test_the_report_says_which_results_are_of_the_small_size_and_that_they_do_not_decide(written, tmp_path):
    said = {"REPORT.md": "1 of 2 results use the small size", "REPORT.zh.md": "2 条结果中有 1 条用的是小型"}
    for name, words in said.items():
        assert words in (written / name).read_text(encoding="utf-8")
        assert words in (written / "index.html").read_text(encoding="utf-8")
    assert "| claim | verdict | reason | name |" in (written / "REPORT.md").read_text(encoding="utf-8")
    write_report(tmp_path, [Result("logs", "report", 0, 1.0, "a machine", error="broke")])
    assert "small size" not in (tmp_path / "REPORT.md").read_text(encoding="utf-8")


def test_a_failed_claim_is_named_in_the_counts_and_breaks_no_table(written):
    text = (written / "REPORT.md").read_text(encoding="utf-8")
    assert "could not be tested: 1" in text
    rows = [line for line in text.splitlines() if line.startswith("|") and "| logs |" in line]
    assert len(rows) == 1 and rows[0].count("|") - rows[0].count("\\|") == 5


def test_a_figure_that_cannot_be_drawn_is_told_of_and_the_report_is_there(tmp_path, monkeypatch):
    claim = reporting.find("variance")

    def fails(measurement):
        raise KeyError("d_k")

    figures = [replace(figure, rows=fails) for figure in claim.figures]
    monkeypatch.setattr(reporting, "find", lambda name: replace(claim, figures=figures))
    notes = write_report(tmp_path, [run_claim("variance", Trial("small"))])
    assert notes == ["variance: the figure could not be drawn (KeyError: 'd_k')"]
    assert "could not be drawn" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_results_are_read_again_in_the_order_of_the_claims(tmp_path):
    (tmp_path / "results").mkdir()
    for name in ("logs", "variance"):
        Result(name, "full", 1, 2.0, "", error="x").save(tmp_path / "results" / f"{name}.json")
    assert [one.name for one in load_results(tmp_path)] == ["variance", "logs"]
    assert [one.name for one in load_results(tmp_path / "results")] == ["variance", "logs"]


def test_a_folder_without_results_says_how_to_make_them(tmp_path):
    with pytest.raises(DataError, match="claims run all --report"):
        load_results(tmp_path)


def test_matrices_of_weights_are_on_a_scale_from_0_to_1_and_signed_ones_on_a_symmetric_one():
    """V3: colours of two claims can be compared."""
    found = [figure for name in NAMES for figure in find(name).figures if isinstance(figure, Matrix | Matrices)]
    assert len(found) > 4
    for figure in found:
        if "weights" in (figure.name, figure.table):
            assert (figure.low, figure.high) == (0.0, 1.0), figure
        if isinstance(figure, Matrix) and figure.diverging:
            assert figure.low is figure.high is None or figure.low == -figure.high, figure
