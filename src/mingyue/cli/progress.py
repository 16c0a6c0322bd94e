"""Progress of a training run in the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from mingyue.cli.live import Live, duration, show_stage
from mingyue.cli.screen import stdout
from mingyue.printable import printable
from mingyue.training import EvaluationReport, Observer, Plan, StepReport, TrainResult

_SAMPLE_LINES = 8
_SMOOTHING = 0.95
_NAMES = {"bleu": "BLEU"}
_CUT = "cut_translations"
_LARGE = 1e7  # a perplexity of a run that diverged has hundreds of digits


class RunScreen(Observer):
    """Shows a run: a live bar (rate, time left, losses) and a line for each evaluation. Use it as a context manager."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._live = Live(stdout(), clock=clock)
        self._smooth: float | None = None
        self._sum, self._count = 0.0, 0
        self._held_out: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._live.clear()

    def on_progress(self, stage: str, done: int, total: int) -> None:
        """Show the work before the first step: download, reading, tokenizer, encoding (`total` 0 = unknown)."""
        show_stage(self._live, stage, done, total)

    def on_plan(self, plan: Plan) -> None:
        """Nothing: every step reports the plan's number of steps."""

    def on_step(self, report: StepReport) -> None:
        """Update the bar. It counts time, not steps: a budget in minutes changes the number of steps on the way."""
        self._sum, self._count = self._sum + report.loss, self._count + 1
        smooth = report.loss if self._smooth is None else self._smooth
        self._smooth = _SMOOTHING * smooth + (1 - _SMOOTHING) * report.loss
        what = f"step {report.step:,}/{report.total_steps:,}"
        end = report.seconds + max(report.seconds_left, 0.0)
        self._live.show(what, report.seconds, end, self._numbers(report))

    def on_evaluate(self, report: EvaluationReport) -> None:
        """Print a line for each evaluation."""
        result = report.evaluation
        self._held_out = result.loss
        parts = [(0, "final" if report.final else f"step {report.step:,}")]
        if self._count and not report.final:
            parts.append((2, f"train {self._sum / self._count:.4f}"))
        parts += [
            (1, f"held out {result.loss:.4f} nats/token"),
            (5, f"{result.bits_per_byte:.4f} bits/byte"),
            (6, f"perplexity {_perplexity(result.perplexity)}"),
            *((3, _measure(name, value)) for name, value in report.measures.items() if value or name != _CUT),
            (7, f"after {duration(report.seconds)}"),
        ]
        if report.best and not report.final:
            parts.append((4, "best"))
        self._sum, self._count = 0.0, 0
        self._live.say_parts(parts)

    def on_sample(self, step: int, text: str) -> None:
        """Print the first lines of a text that the model generated."""
        lines = printable(text).strip("\n").split("\n")
        self._live.say(f"sample at step {step:,}:")
        for line in lines[:_SAMPLE_LINES] + (["…"] if len(lines) > _SAMPLE_LINES else []):
            self._live.say(f"    {line}", style="dim")

    def on_checkpoint(self, path: Path, step: int, best: bool) -> None:
        """Nothing: checkpoints are frequent, and the end of the run says where they are."""

    def on_note(self, text: str) -> None:
        """Print a note."""
        self._live.say(text)

    def on_end(self, result: TrainResult) -> None:
        """Remove the bar; the verb prints the result."""
        self._live.clear()

    def _numbers(self, report: StepReport) -> list[str]:
        """Numbers beside the bar, the most important first."""
        numbers = [f"loss {self._smooth:.4f}"]
        if self._held_out is not None:
            numbers.append(f"held out {self._held_out:.4f}")
        numbers += [f"{duration(report.seconds_left)} left", f"{report.tokens_per_second:,.0f} tokens/s"]
        if report.share_of_peak is not None:
            numbers.append(f"{report.share_of_peak:.0%} of peak")
        return numbers


def _perplexity(value: float) -> str:
    return f"{value:,.2f}" if value < _LARGE else f"{value:.2e}"


def _measure(name: str, value: float) -> str:
    return f"{value:.0f} cut" if name == _CUT else f"{_NAMES.get(name, name)} {value:.2f}"
