"""What the Python prompt and a notebook show of each object: one short line, and HTML without scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mingyue
from mingyue.reprs import curve_html, facts_html, shortened, text_html

LINES = [f"number {number} <b>" for number in range(80)]
TINY: dict[str, Any] = {"d_model": 32, "context": 48, "batch_tokens": 128, "threads": 1, "observer": mingyue.Observer()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("reprs")
    (place / "a.txt").write_text("\n".join(LINES * 3), encoding="utf-8")
    (place / "b.txt").write_text("\n".join(LINES * 3), encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def run(place: Path) -> mingyue.RunResult:
    return mingyue.train(sources=place / "a.txt", out=place / "run", steps=12, depth=1, **TINY)


@pytest.fixture(scope="module")
def pair_run(place: Path) -> mingyue.RunResult:
    given = {"n_layers": 1, "tokenizer": "char", "keep_duplicates": True, "bleu_lines": 0}
    return mingyue.train(source=place / "a.txt", target=place / "b.txt", out=place / "pairs", steps=6, **given, **TINY)


TEXT_OBJECTS: dict[str, Callable[[mingyue.RunResult], object]] = {
    "RunResult": lambda run: run,
    "TrainResult": lambda run: run.training,
    "Outcome": lambda run: run.outcome,
    "Model": lambda run: mingyue.load(run.folder),
    "Generation": lambda run: mingyue.load(run.folder).generate("<b>" * 9, max_new_tokens=90)[0],
    "Score": lambda run: mingyue.load(run.folder).score("number 3 <b>"),
    "Inspection": lambda run: mingyue.inspect(run.folder, "number 3 <b>"),
    "SurpriseView": lambda run: mingyue.inspect(run.folder, "number 3 <b>").surprise(),
    "AttentionView": lambda run: mingyue.inspect(run.folder, "number 3 <b>").attention(),
    "CurveView": lambda run: mingyue.curve(run.folder),
}
PAIR_OBJECTS: dict[str, Callable[[mingyue.RunResult], object]] = {
    "RunResult": lambda run: run,
    "Translator": lambda run: mingyue.load_translator(run.folder),
    "Translation": lambda run: mingyue.load_translator(run.folder).translate("number 3")[0][0],
    "TranslationReport": lambda run: mingyue.load_translator(run.folder).evaluate(LINES[:9], LINES[:9]),
}


def check(name: str, found: Any) -> None:
    shown = repr(found)
    assert shown.startswith(f"<mingyue.{name}") and shown.endswith(">")
    assert len(shown) < 300 and "\n" not in shown
    if name in ("TrainResult", "Outcome") or name.endswith("View"):  # a part of another; an iframe with its scripts
        return
    html = found._repr_html_()
    assert "<script" not in html and "<b>9" not in html and "<b> " not in html
    assert html.count("<div") == html.count("</div")
    assert len(html) < 20_000


@pytest.mark.parametrize("name", TEXT_OBJECTS)
def test_objects_of_text_are_short(run: mingyue.RunResult, name: str) -> None:
    check(name, TEXT_OBJECTS[name](run))


@pytest.mark.parametrize("name", PAIR_OBJECTS)
def test_objects_of_pairs_are_short(pair_run: mingyue.RunResult, name: str) -> None:
    pytest.importorskip("sacrebleu")
    check(name, PAIR_OBJECTS[name](pair_run))


def test_a_result_shows_its_curve_its_verdict_and_a_text(run: mingyue.RunResult) -> None:
    html = run._repr_html_()
    assert html.count("<polyline") == 2
    assert run.outcome.verdict in html
    assert "generated text" in html
    course = run.describe_course()
    assert course is not None and course.startswith("Held-out loss ") and "█" in course


def test_a_result_whose_folder_is_gone_is_still_shown(run: mingyue.RunResult, tmp_path: Path) -> None:
    from dataclasses import replace

    gone = replace(run, folder=tmp_path / "gone")
    assert "<polyline" not in gone._repr_html_()
    assert gone.describe_course() is None


def test_texts_are_shortened_and_escaped() -> None:
    assert shortened("abc") == "'abc'"
    assert shortened("a" * 100, 10) == "'aaaaaaaaaa'…"
    assert "&lt;i&gt;" in facts_html("<i>", {}) and "&lt;i&gt;" in text_html("<i>", "<i>")
    assert curve_html({"one": [(1.0, 2.0)]}, x="x", y="y") == ""
    assert "nan" not in curve_html({"<i>": [(1.0, 2.0), (1.0, 2.0)]}, x="x", y="y")
