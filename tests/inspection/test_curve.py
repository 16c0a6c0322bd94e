"""Training curves: read from the logs of runs in any state, drawn in one picture, printed as a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mingyue.charts import LineChart
from mingyue.errors import NothingToShowError, SettingsError
from mingyue.inspection.curve import CurveView, curve_view, has_log
from mingyue.printable import sparkline


def line(event: str, step: int, **values: object) -> str:
    return json.dumps({"event": event, "step": step, "tokens": 100 * step, "seconds": 0.5 * step, **values})


def a_log(steps: int = 40, *, held_out: bool = True, scale: float = 1.0, end: bool = True) -> list[str]:
    lines = [line("plan", 0)]
    for step in range(1, steps + 1):
        rates = {"learning_rate": 1e-3, "muon_learning_rate": 1e-2, "tokens_per_second": 5000.0}
        lines.append(line("train", step, train_loss=scale * (4 - step / steps), gradient_norm=1.0, **rates))
        if held_out and step % 4 == 0:
            lines.append(line("evaluate", step, heldout_loss=scale * (4.2 - step / steps), best=True))
    return [*lines, line("end", steps, reason="finished")] if end else lines


def a_run(folder: Path, lines: list[str], ending: str = "\n") -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("\n".join(lines) + ending, encoding="utf-8")
    return folder


def titles(view: CurveView) -> list[str]:
    return [chart.title for chart in view.charts()]


def test_losses_rates_and_speed_of_one_run(tmp_path: Path) -> None:
    view = curve_view([a_run(tmp_path / "r", a_log())])
    assert titles(view) == ["Loss by step", "Loss by time", "Learning rates", "Speed"]
    (run,) = view.runs
    assert run.training_loss.steps_N == tuple(range(1, 41))
    assert run.heldout_loss.values_N[-1] == pytest.approx(3.2)
    assert run.reason == "finished"
    (table,) = view.tables()
    assert [row[0] for row in table.rows] == [f"{step}" for step in range(4, 41, 4)]
    assert "Lowest held-out loss: 3.200 at step 40." in table.note


def test_several_runs_are_in_one_picture_with_their_names(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / name, a_log(scale=scale)) for name, scale in (("one", 1.0), ("two", 2.0))]
    view = curve_view(runs)
    assert "Loss by tokens seen" in titles(view)
    chart = view.charts()[0]
    assert isinstance(chart, LineChart)
    assert {row["of"] for row in chart.rows} == {"one · training", "one · held out", "two · training", "two · held out"}
    (summary,) = view.tables("zh")
    assert [row[0] for row in summary.rows] == ["one", "two"]
    assert [row[1] for row in summary.rows] == ["40", "40"]


def test_names_of_runs_differ(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / part / "poems", a_log()) for part in "ab"]
    assert [run.name for run in curve_view(runs).runs] == ["a/poems", "b/poems"]
    same = curve_view([runs[0], runs[0]]).runs
    assert len({run.name for run in same}) == 2


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    ("lines", "ending", "note"),
    [
        (a_log(held_out=False), "\n", "Lowest training loss"),
        (a_log(end=False), "\n", "The run has not ended."),
        ([*a_log(end=False), line("end", 40, reason="stopped")], "\n", "The run was stopped."),
        ([*a_log(end=False), line("end", 40, reason="failed", error="x")], "\n", "ended with an error"),
        ([*a_log(20, end=False), line("resume", 20, from_step=20, changes=[])], "\n", "Resumed from step 20."),
        ([*a_log(), '{"event": "train", "st'], "", "Lowest held-out loss"),
        (["nonsense", *a_log(), "[1, 2]", line("train", 41, train_loss=None)], "\n", "Lowest held-out loss"),
        ([line("train", 1, train_loss=3.0)], "\n", "Lowest training loss: 3.000 at step 1."),
        ([line("train", step, train_loss=3.0) for step in range(1, 50)], "\n", "Lowest training loss"),
    ],
)
def test_a_log_in_any_state_is_shown(tmp_path: Path, lines: list[str], ending: str, note: str, language: str) -> None:
    """No held-out text, in progress, stopped, failed, resumed, damaged lines, a single line, a flat course."""
    view = curve_view([a_run(tmp_path / "r", lines, ending)])
    assert note in view.tables("en")[0].note
    assert view.tables(language)[0].rows
    assert view.charts(language)
    json.dumps(view.to_dict(), allow_nan=False)
    for suffix in (".html", ".json", ".svg"):
        view.save(tmp_path / f"x{suffix}", language)
        assert (tmp_path / f"x{suffix}").stat().st_size


def test_a_log_without_a_loss_and_a_folder_without_a_log_are_errors(tmp_path: Path) -> None:
    with pytest.raises(NothingToShowError, match="no losses yet"):
        curve_view([a_run(tmp_path / "empty", [])])
    for folder, what in ((tmp_path / "nosuch", "does not exist"), (tmp_path, "holds no run with a log")):
        with pytest.raises(SettingsError, match=what):
            curve_view([folder])
    with pytest.raises(SettingsError, match="no run"):
        curve_view([])


def test_one_empty_log_among_others_does_not_matter(tmp_path: Path) -> None:
    view = curve_view([a_run(tmp_path / "empty", []), a_run(tmp_path / "full", a_log())])
    assert [row[1] for row in view.tables()[0].rows] == ["0", "40"]
    assert view.charts()


def test_the_model_folder_stands_for_its_run(tmp_path: Path) -> None:
    run = a_run(tmp_path / "r", a_log())
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}", encoding="utf-8")
    assert has_log(run / "model") and not has_log(tmp_path)
    assert curve_view([run / "model"]).runs[0].heldout_loss.values_N


def test_long_logs_are_thinned_and_keep_their_last_point(tmp_path: Path) -> None:
    view = curve_view([a_run(tmp_path / "r", a_log(5000))])
    chart = view.charts()[0]
    assert isinstance(chart, LineChart)
    for name in ("training", "held out"):
        points = [row for row in chart.rows if row["of"] == name]
        assert len(points) <= 600 and points[-1]["x"] == 5000
    assert len(view.tables()[0].rows) == 20


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([], 10, ""),
        ([1.0], 10, "▁"),
        ([2.0, 2.0, 2.0], 10, "▁▁▁"),
        ([0.0, 1.0], 10, "▁█"),
        ([7.0, 6, 5, 4, 3, 2, 1, 0], 10, "█▇▆▅▄▃▂▁"),
        ([0.0, 0.0, 7.0, 7.0], 2, "▁█"),
        ([float("nan"), 0.0, float("inf"), 1.0], 10, "▁█"),
    ],
)
def test_a_sparkline(values: list[float], width: int, line: str) -> None:
    assert sparkline(values, width) == line
