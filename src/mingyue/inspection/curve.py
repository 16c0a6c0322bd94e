"""The curves of runs: losses, learning rates and speed, by steps, time and tokens, from their metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mingyue.charts import Chart, LineChart
from mingyue.errors import NothingToShowError, SettingsError
from mingyue.inspection.command import Command
from mingyue.inspection.labels import decimals
from mingyue.inspection.view import View
from mingyue.paths import path_of
from mingyue.training import RunFolder
from mingyue.training.curves import RunCurves
from mingyue.words import Language, TextTable, Words, sentences, tr

_MOST_ROWS = 20
_SHORT = 120.0  # seconds of a run whose time is shown in seconds
_BAR = 20
_TRAIN, _HELD_OUT = tr("training"), tr("held out")
_LOSS = tr("nats per token")


@dataclass(frozen=True, eq=False)
class CurveView(View):
    """The curves of one or more runs, in the same pictures."""

    title = tr("Training curves")

    runs: tuple[RunCurves, ...]

    def charts(self, language: Language = "en") -> list[Chart]:
        """The losses by steps, time and (of several runs) tokens; learning rates and speed by steps."""
        steps, tokens = tr("step"), tr("tokens")
        short = max(run.shown.seconds_N[-1:] or (0.0,) for run in self.runs)[0] < _SHORT
        time = tr("seconds") if short else tr("minutes")
        loss = [("training_loss", _TRAIN), ("heldout_loss", _HELD_OUT)]
        rates = [("learning_rate", tr("AdamW")), ("muon_learning_rate", tr("Muon"))]
        found = [
            self._chart(tr("Loss by step"), loss, steps, _LOSS, language),
            self._chart(tr("Loss by time"), loss, time, _LOSS, language),
        ]
        if len(self.runs) > 1:
            found.append(self._chart(tr("Loss by tokens seen"), loss, tokens, _LOSS, language))
        rate = tr("learning rate")
        found.append(self._chart(tr("Learning rates"), rates, steps, rate, language))
        speed = tr("tokens per second")
        found.append(self._chart(tr("Speed"), [("tokens_per_second", Words("", ""))], steps, speed, language))
        return [chart for chart in found if chart is not None]

    def tables(self, language: Language = "en") -> list[TextTable]:
        """The course of one run, with a bar for its loss; of several runs a summary."""
        return [self._summary(language) if len(self.runs) > 1 else _table(self.runs[0], language)]

    def to_dict(self) -> dict[str, Any]:
        """The curves of each run."""
        return {"runs": [run.to_dict() for run in self.runs]}

    def _chart(
        self, title: Words, curves: Sequence[tuple[str, Words]], x: Words, y: Words, language: Language
    ) -> Chart | None:
        rows = [
            {
                "x": {"step": step, "tokens": tokens, "seconds": seconds}.get(x.en, seconds / 60),
                "y": value,
                "of": label,
            }
            for run in self.runs
            for key, name in curves
            if (label := self._label(run, name.of(language)), curve := getattr(run, key))
            for step, tokens, seconds, value in curve.thinned()
        ]
        if not rows:
            return None
        many = len({row["of"] for row in rows}) > 1
        return LineChart(
            title.of(language),
            rows,
            x="x",
            y="y",
            series="of" if many else None,
            x_title=x.of(language),
            y_title=y.of(language),
        )

    def _label(self, run: RunCurves, name: str) -> str:
        return " · ".join(filter(None, [run.name if len(self.runs) > 1 else "", name]))

    def _summary(self, language: Language) -> TextTable:
        columns = [
            tr("run").of(language),
            tr("steps").of(language),
            tr("time").of(language),
            tr("training loss").of(language),
            tr("best held-out loss").of(language),
            tr("tokens/s").of(language),
            "",
        ]
        rows = [
            [
                run.name,
                f"{max((*run.training_loss.steps_N, *run.heldout_loss.steps_N), default=0):,}",
                _time(max((*run.training_loss.seconds_N, *run.heldout_loss.seconds_N), default=0.0), language),
                decimals(run.training_loss.before(1 << 62)),
                decimals(min(run.heldout_loss.values_N, default=math.nan)),
                f"{speed:,.0f}" if math.isfinite(speed := run.tokens_per_second.before(1 << 62)) else "–",
                run.sparkline(20),
            ]
            for run in self.runs
        ]
        note = tr("One run alone is shown in full.").of(language)
        return TextTable(self.title.of(language), columns, rows, right=columns[1:6], note=note, spared=columns[5:6])


def curve_view(runs: Sequence[str | Path]) -> CurveView:
    """The curves of the runs in these folders, in this order.

    Raises `SettingsError` for a folder without the log of a run, and `NothingToShowError` for logs without any loss.
    """
    if not runs:
        raise SettingsError(
            tr("there is no run to draw"), advice=tr("Give the folder of a run (runs/poems), or of several.")
        )
    found = [RunCurves.read(name, _metrics(folder)) for name, folder in zip(_names(runs), runs, strict=True)]
    if not any(run.shown.values_N for run in found):
        raise NothingToShowError(
            tr("the log has no losses yet"),
            advice=tr("Wait for the first lines: a run logs its loss some ten times between two evaluations."),
        )
    return CurveView(tuple(found))


def has_log(folder: str | Path) -> bool:
    """Whether this is the folder of a run with a log, or the model folder inside one."""
    return _find_log(path_of(folder)) is not None


def _find_log(path: Path) -> Path | None:
    places = (path, path.parent if (path / "config.json").is_file() else path)
    return next((log for place in places if (log := RunFolder(place).metrics).is_file()), None)


def _metrics(folder: str | Path) -> Path:
    """The log of a run; a model folder inside a run stands for the run."""
    path = path_of(folder)
    if (log := _find_log(path)) is not None:
        return log
    what = tr("holds no run with a log") if path.exists() else tr("does not exist")
    raise SettingsError(
        tr("{folder} {what}: there is no metrics.jsonl", folder, what),
        advice=tr("Give the folder of a run (runs/poems)."),
    )


def _names(runs: Sequence[str | Path]) -> list[str]:
    """Short names that differ: the last parts of the paths, as many as that takes."""
    parts = [path_of(run).resolve().parts for run in runs]
    lengths = range(1, max(map(len, parts)) + 1)
    tried = (["/".join(one[-length:]) for one in parts] for length in lengths)
    names = next(names for names in tried if len(set(names)) == len(set(parts)))
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, start=1)]


def _table(run: RunCurves, language: Language) -> TextTable:
    """A line for each evaluation, or (without held-out text) for some lines of the log."""
    shown = run.shown
    points = list(zip(shown.steps_N, shown.tokens_N, shown.seconds_N, shown.values_N, strict=True))
    chosen = sorted(
        {round(number * (len(points) - 1) / (_MOST_ROWS - 1)) for number in range(_MOST_ROWS)}
        if len(points) > _MOST_ROWS
        else range(len(points))
    )
    lowest, highest = min(shown.values_N, default=0.0), max(shown.values_N, default=0.0)
    columns = [
        tr("step").of(language),
        tr("time").of(language),
        tr("training loss").of(language),
        tr("held-out loss").of(language),
        "",
        tr("learning rate").of(language),
        tr("tokens/s").of(language),
    ]
    has_heldout = bool(run.heldout_loss.values_N)
    rows = [
        [
            f"{step:,}",
            _time(seconds, language),
            decimals(run.training_loss.before(step)),
            decimals(value) if has_heldout else "–",
            "█" * round(_BAR * (value - lowest) / (highest - lowest)) if highest > lowest else "",
            f"{rate:.2g}" if math.isfinite(rate := run.learning_rate.before(step)) else "–",
            f"{speed:,.0f}" if math.isfinite(speed := run.tokens_per_second.before(step)) else "–",
        ]
        for step, _, seconds, value in (points[number] for number in chosen)
    ]
    right = [columns[number] for number in (0, 1, 2, 3, 5, 6)]
    return TextTable(run.name, columns, rows, right=right, note=_note(run, language), spared=columns[5:])


def _note(run: RunCurves, language: Language) -> str:
    notes = []
    if run.shown.values_N:
        best = min(run.shown.values_N)
        step = run.shown.steps_N[run.shown.values_N.index(best)]
        name = tr("held-out loss") if run.heldout_loss.values_N else tr("training loss")
        notes.append(tr("Lowest {name}: {best:.3f} at step {step:,}.", name, best, step))
    else:
        notes.append(tr("The log has no losses yet."))
    if run.resumed:
        steps = ", ".join(f"{step:,}" for step in run.resumed)
        notes.append(tr("Resumed from step {steps}.", steps))
    if run.reason is None:
        notes.append(tr("The run has not ended."))
    elif run.reason == "failed":
        notes.append(tr("The run ended with an error."))
    elif run.reason == "stopped":
        notes.append(tr("The run was stopped."))
    return sentences(notes, language)


def _time(seconds: float, language: Language) -> str:
    if seconds < 100:
        return tr("{seconds:.0f} s", seconds).of(language)
    return tr("{seconds:.1f} min", seconds / 60).of(language)


COMMAND = Command(curve_view, options=(), texts="runs")
