"""A training run as it is shown: a live bar, a line for each evaluation, samples, notes."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from mingyue.display.live import Live, duration
from mingyue.printable import printable
from mingyue.training import EvaluationReport, Observer, Plan, StepReport, TrainResult
from mingyue.words import tr

_SAMPLE_LINES = 8
_SMOOTHING = 0.95
_LINES, _FEW = 20, 8  # lines of a run without held-out text and in minutes; steps between two of them, at least
_NAMES = {"bleu": "BLEU"}
_CUT = "cut_translations"
_LARGE = 1e7  # a perplexity of a run that diverged has hundreds of digits


class RunDisplay(Observer):
    """Shows a run: a live bar (rate, time left, losses) and a line for each evaluation. Use it as a context manager."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._plan: Plan | None = None
        self._unsaid: StepReport | None = None
        self._smooth: float | None = None
        self._sum, self._count = 0.0, 0
        self._held_out: float | None = None
        self._ending = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._live.clear()

    @property
    def lost(self) -> Exception | None:
        """Why the output could no longer be written; None if it could."""
        return self._live.lost

    def on_progress(self, stage: str, done: int, total: int) -> None:
        """Show the work before the first step and after the last one (`total` 0 = unknown)."""
        if self._smooth is not None and stage != self._ending and not self._live.has_bar:
            self._live.say(tr("{stage}…", stage))  # without a bar there would be silence until the stage is over
            self._ending = stage
        self._live.show_stage(stage, done, total)

    def on_plan(self, plan: Plan) -> None:
        """Remember when evaluations are due."""
        self._plan = plan

    def on_step(self, report: StepReport) -> None:
        """Update the bar. It counts time, not steps: a budget in minutes changes the number of steps on the way."""
        self._say_training_loss()
        self._unsaid = report if self._is_due(report) else None
        self._sum, self._count = self._sum + report.loss, self._count + 1
        smooth = report.loss if self._smooth is None else self._smooth
        self._smooth = _SMOOTHING * smooth + (1 - _SMOOTHING) * report.loss
        what = tr("step {step:,}/{total_steps:,}", report.step, report.total_steps)
        end = report.seconds + max(report.seconds_left, 0.0)
        self._live.show(what, report.seconds, end, self._numbers(report))

    def on_evaluate(self, report: EvaluationReport) -> None:
        """Print a line for each evaluation."""
        result, self._unsaid = report.evaluation, None
        self._held_out = result.loss
        parts = [(0, tr("final") if report.final else tr("step {step:,}", report.step))]
        if self._count and not report.final:
            parts.append((2, tr("train {loss:.4f}", self._sum / self._count)))
        parts += [
            (1, tr("held out {loss:.4f} nats/token", result.loss)),
            (5, tr("{bits:.4f} bits/byte", result.bits_per_byte)),
            (6, tr("perplexity {perplexity}", _perplexity(result.perplexity))),
            *((3, _measure(name, value)) for name, value in report.measures.items() if value or name != _CUT),
            (7, tr("after {duration}", duration(report.seconds))),
        ]
        if report.best and not report.final:
            parts.append((4, tr("best")))
        self._sum, self._count = 0.0, 0
        self._live.say_parts(parts)

    def on_sample(self, step: int, text: str) -> None:
        """Print the first lines of a text that the model generated."""
        lines = printable(text).strip("\n").split("\n")
        self._live.say(tr("sample at step {step:,}:", step))
        for line in lines[:_SAMPLE_LINES] + (["…"] if len(lines) > _SAMPLE_LINES else []):
            self._live.say("    " + line, style="dim")

    def on_checkpoint(self, path: Path, step: int, best: bool) -> None:
        """Nothing: checkpoints are frequent, and the end of the run says where they are."""

    def on_note(self, text: str) -> None:
        """Print a note."""
        self._live.say(text)

    def on_end(self, result: TrainResult) -> None:
        """Remove the bar; the caller shows the result."""
        self._say_training_loss()
        self._live.clear()

    def _is_due(self, report: StepReport) -> bool:
        """Whether a line about the losses is due after this step."""
        if self._plan is not None and self._plan.fixed:
            return self._plan.evaluates_after(report.step - 1)
        return self._held_out is None and report.step % max(_FEW, -(-report.total_steps // _LINES)) == 0

    def _say_training_loss(self) -> None:
        """A line where an evaluation was due and did not come, because nothing is held out."""
        report, self._unsaid = self._unsaid, None
        if report is not None and self._count:
            self._live.say_parts(
                [
                    (0, tr("step {step:,}", report.step)),
                    (1, tr("train {loss:.4f} nats/token", self._sum / self._count)),
                    (2, tr("after {duration}", duration(report.seconds))),
                ]
            )
            self._sum, self._count = 0.0, 0

    def _numbers(self, report: StepReport) -> list[str]:
        """Numbers beside the bar, the most important first."""
        numbers: list[str] = [tr("loss {loss:.4f}", self._smooth)]
        if self._held_out is not None:
            numbers.append(tr("held out {loss:.4f}", self._held_out))
        numbers.append(tr("{duration} left", duration(report.seconds_left)))
        numbers.append(tr("{speed:,.0f} tokens/s", report.tokens_per_second))
        if report.share_of_peak is not None:
            numbers.append(tr("{share:.0%} of peak", report.share_of_peak))
        return numbers


def _perplexity(value: float) -> str:
    return f"{value:,.2f}" if value < _LARGE else f"{value:.2e}"


def _measure(name: str, value: float) -> str:
    return tr("{n:.0f} cut", value) if name == _CUT else f"{_NAMES.get(name, name)} {value:.2f}"
