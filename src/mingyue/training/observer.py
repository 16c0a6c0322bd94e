"""What a run tells while it runs. `api` and `cli` watch by subclassing `Observer`; training itself prints nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mingyue.training.loss import Evaluation
from mingyue.training.plan import Plan

Reason = Literal["finished", "patience", "stopped"]


@dataclass(frozen=True)
class StepReport:
    """A step that was taken."""

    step: int
    """Steps taken so far, this one among them."""
    total_steps: int
    """As planned now; with a budget in minutes it follows the speed until it is fixed."""
    loss: float
    """Nats per token of this step, before its update."""
    learning_rate: float
    """Rate of AdamW."""
    gradient_norm: float
    """Global norm before clipping."""
    tokens_per_second: float
    """Of the latest steps, evaluations and the like left out."""
    seconds: float
    """Since the program started."""
    seconds_left: float
    """Until the end of the program, as far as can be told."""
    share_of_peak: float | None
    """Share of the machine's matrix-multiply peak that training uses, where both are known."""


@dataclass(frozen=True)
class EvaluationReport:
    """An evaluation on held-out text."""

    step: int
    seconds: float
    evaluation: Evaluation
    best: bool
    """It is the lowest so far."""
    final: bool = False
    """The last one, with the weights that the run hands over: on all held-out text, or (in a run of few minutes on much
    text) on more of it than the others."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """What else was measured, by name (BLEU of translations)."""


@dataclass(frozen=True)
class TrainResult:
    """How a run ended. The model holds the weights of `weights_step`, or the mean of those of `averaged`."""

    reason: Reason
    """finished: the plan is done; patience: no better evaluation for long; stopped: on request, and saved."""
    step: int
    """Steps taken."""
    weights_step: int
    """The step of the best single weights, by evaluation; when stopped, the last."""
    evaluation: Evaluation | None
    """Of those weights, the final one; when stopped, the latest evaluation; None without held-out text."""
    plan: Plan
    """The plan as it was at the end."""
    tokens: int
    """Targets seen in training."""
    seconds: float
    """Time of the run, without the time between stop and resume."""
    averaged: tuple[int, ...] = ()
    """Steps whose mean the model holds; none = the weights of `weights_step`."""


class Observer:
    """Every method may be overridden; none needs to be."""

    def on_progress(self, stage: str, done: int, total: int) -> None:
        """Work before the first step: reading, vocabulary, encoding, fetching. `total` 0 = not known."""

    def on_plan(self, plan: Plan) -> None:
        """The plan was made, or fixed."""

    def on_step(self, report: StepReport) -> None:
        """A step was taken."""

    def on_evaluate(self, report: EvaluationReport) -> None:
        """The held-out loss was measured."""

    def on_sample(self, step: int, text: str) -> None:
        """The model wrote something."""

    def on_checkpoint(self, path: Path, step: int, best: bool) -> None:
        """A checkpoint is on the disk."""

    def on_note(self, text: str) -> None:
        """Something that the user should know."""

    def on_end(self, result: TrainResult) -> None:
        """The run ended, or was stopped and saved."""
