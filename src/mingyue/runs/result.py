"""The result of a run, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mingyue.reprs import curve_html, facts_html, text_html
from mingyue.runs.verdict import Outcome
from mingyue.training import RunFolder, TrainResult
from mingyue.training.curves import Curve, RunCurves
from mingyue.words import stacked, tr

_SHOWN = 2
"""Number of generated texts shown."""


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of a run."""

    folder: Path
    """The run folder."""
    model_folder: Path
    """The model folder."""
    training: TrainResult
    """Steps, tokens, the final evaluation."""
    outcome: Outcome
    """The verdict, in words, and the copy report."""
    of_pairs: bool = False
    """Whether the model is an encoder-decoder model, trained on pairs."""

    def curves(self) -> RunCurves:
        """The curves of the run, as its log has them now."""
        return RunCurves.read(self.folder.name, RunFolder(self.folder).metrics)

    def describe_course(self) -> str | None:
        """The course of the held-out loss (without held-out text of the training loss) as a line of blocks."""
        curves = self.curves()
        line, values = curves.sparkline(), curves.shown.values_N
        if not line:
            return None
        if curves.heldout_loss.values_N:
            return tr("Held-out loss {first:.3f} {line} {last:.3f}", values[0], line, values[-1])
        return tr("Training loss {first:.3f} {line} {last:.3f}", values[0], line, values[-1])

    def __repr__(self) -> str:
        evaluation, training = self.training.evaluation, self.training
        loss = "" if evaluation is None else tr(", held-out loss {loss:.3f}", evaluation.loss)
        verdict = "stopped" if training.reason == "stopped" else self.outcome.verdict
        return f"<mingyue.RunResult {str(self.folder)!r}: {verdict}{loss}, step {training.step:,}>"

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, the curve, and texts of the model."""
        training, outcome = self.training, self.outcome
        facts: dict[str, object] = {"steps": f"{training.step:,}", "tokens": f"{training.tokens:,}"}
        if training.evaluation is not None:
            facts["held-out loss"] = tr("{loss:.4f} nats per token", training.evaluation.loss)
        facts["time"] = f"{training.seconds:,.0f} s"
        curves = self.curves()
        picture = curve_html(
            {"training": _points(curves.training_loss), "held out": _points(curves.heldout_loss)},
            x="step",
            y=tr("nats per token"),
        )
        verdict = tr("stopped, and saved") if training.reason == "stopped" else outcome.verdict_words
        texts = [text_html(text.strip("\n"), tr("generated text")) for text in outcome.texts[:_SHOWN]]
        told = text_html(stacked(outcome.sentences), tr("verdict: {verdict}", verdict))
        return facts_html(tr("Run {folder}", self.folder), facts, picture, told, *texts)


def _points(curve: Curve) -> list[tuple[float, float]]:
    return [(step, value) for step, _, _, value in curve.thinned()]
