"""What training reports and calls back. Callers subclass `Observer`; training itself prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torch import Tensor

from mingyue.training.comparing import Comparison
from mingyue.training.loss import Evaluation
from mingyue.training.pace import Clock
from mingyue.training.plan import Plan
from mingyue.training.threads import ThreadWatch
from mingyue.words import tr

Reason = Literal["finished", "patience", "stopped"]


@dataclass(frozen=True)
class StepReport:
    """A step that was taken."""

    step: int
    """Steps taken so far, this one included."""
    total_steps: int
    """As planned now. With a budget in minutes it follows the speed until it is fixed."""
    loss: float
    """Nats per token of this step, before its update."""
    learning_rate: float
    """Learning rate of AdamW."""
    gradient_norm: float
    """Global norm before clipping."""
    tokens_per_second: float
    """Of the latest steps, without evaluations and checkpoints."""
    seconds: float
    """Since the program started."""
    seconds_left: float
    """Estimated time until the end of the program."""
    share_of_peak: float | None
    """Share of the machine's matrix-multiply peak that training uses; None: not known."""


@dataclass(frozen=True)
class EvaluationReport:
    """An evaluation on held-out text."""

    step: int
    seconds: float
    evaluation: Evaluation
    best: bool
    """Whether it is the best so far."""
    final: bool = False
    """Whether it is the last one, with the final weights of the run: on all held-out text, or (in a run of few minutes
    on much text) on more of it than the others."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """Other measures by name (BLEU of translations)."""


@dataclass(frozen=True, repr=False)
class TrainResult:
    """How a run ended. The model has the weights of `weights_step`, or the mean of those of `averaged`."""

    reason: Reason
    """finished: the plan is done; patience: no better evaluation for too long; stopped: on request, and saved."""
    step: int
    """Steps taken."""
    weights_step: int
    """The step of the best evaluation; if stopped, the last step."""
    evaluation: Evaluation | None
    """The final evaluation of the weights; if stopped, the latest evaluation; None without held-out text."""
    plan: Plan
    """The plan at the end."""
    tokens: int
    """Targets seen in training."""
    seconds: float
    """Time of the run, without the time between stop and resume."""
    averaged: tuple[int, ...] = ()
    """Steps whose weights were averaged; empty: the model has the weights of `weights_step`."""

    def __repr__(self) -> str:
        loss = "" if self.evaluation is None else tr(", held-out loss {loss:.3f}", self.evaluation.loss)
        return f"<mingyue.TrainResult: {self.reason}, step {self.step:,} of {self.plan.total_steps:,}{loss}>"


class Observer:
    """Receives the events of a run. Every method does nothing by default."""

    def on_progress(self, stage: str, done: int, total: int) -> None:
        """Progress of work before the first step (reading, vocabulary, encoding, fetching) and after the last one
        (final evaluation, generating texts, comparing them with the training text, saving). `total` 0: not known."""

    def on_plan(self, plan: Plan) -> None:
        """A plan was made or fixed."""

    def on_step(self, report: StepReport) -> None:
        """A step was taken."""

    def on_evaluate(self, report: EvaluationReport) -> None:
        """The held-out loss was measured."""

    def on_sample(self, step: int, text: str) -> None:
        """A text was generated with the current model."""

    def on_checkpoint(self, path: Path, step: int, best: bool) -> None:
        """A checkpoint was saved."""

    def on_note(self, text: str) -> None:
        """A sentence for the user."""

    def on_end(self, result: TrainResult) -> None:
        """The run ended, or was stopped and saved."""


@dataclass(frozen=True)
class Former:
    """The model that a run had when it ended, before it was resumed with a larger budget."""

    step: int
    """The step of its weights."""
    weights: Callable[[], dict[str, Tensor]]


@dataclass
class Callbacks:
    """What training calls back, and what it has to know about the program around it."""

    clock: Clock = field(default_factory=Clock)
    """Time of this program; it should start when the user's waiting starts."""
    observer: Observer = field(default_factory=Observer)
    """Receives the events of the run."""
    sample: Callable[[], str] | None = None
    """Generates a text with the current model."""
    shows_last: bool = False
    """Whether the caller generates the same text after training, so that none is needed at the last step."""
    former: Former | None = None
    """The final weights of this run when it ended earlier, which are kept if they are better than the new ones."""
    measure: Callable[[], dict[str, float]] | None = None
    """Measures the current model at each evaluation, besides its loss: numbers by name."""
    watch: Callable[[int], None] | None = None
    """Receives the number of steps taken, at the start and after each checkpoint, and inspects the current model."""
    threads: ThreadWatch | None = None
    """Measures the number of threads again when steps become slow; None: the number was given."""
    compare: Comparison | None = None
    """For a run that starts from a trained model: held-out texts whose loss is measured before and after."""
    select: str | None = None
    """The measure whose highest value marks the best step; None: the lowest loss."""
    ending: float = 0.0
    """Seconds that the caller needs after training; a budget in minutes includes them."""
    flops_per_token: float | None = None
    """Forward and backward."""
    peak_flops: float | None = None
    """Per second, as measured by `measure_peak`."""

    def share_of_peak(self, tokens_per_second: float) -> float | None:
        """Share of the machine's matrix-multiply peak at this speed; None: not known."""
        if self.flops_per_token is None or not self.peak_flops:
            return None
        return self.flops_per_token * tokens_per_second / self.peak_flops
