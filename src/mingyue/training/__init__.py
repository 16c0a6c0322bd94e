"""Training: the loss, the optimisers, the plan, checkpoints, the log, and the trainer that joins them.

A `Trainer` trains a model on a `BatchSource` in a `RunFolder`. Its parts can be used alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mingyue.lazy import lazy_names

if TYPE_CHECKING:
    from mingyue.training.batches import BatchSource, CorpusBatches
    from mingyue.training.checkpoints import Checkpoint, Checkpoints, DamagedCheckpointError
    from mingyue.training.forward import hidden_and_targets
    from mingyue.training.log import Board, MetricsLog, read_log
    from mingyue.training.loss import Evaluation, Loss, evaluate, loss_of_hidden, loss_of_logits
    from mingyue.training.muon import Muon
    from mingyue.training.observer import Callbacks, EvaluationReport, Observer, StepReport, TrainResult
    from mingyue.training.optimisers import Optimisers, Rates, peak_rates
    from mingyue.training.pace import Clock, Pace
    from mingyue.training.plan import Plan, RunSizes, make_plan
    from mingyue.training.resume_rules import RULES, changed_settings
    from mingyue.training.run_folder import RunFolder
    from mingyue.training.signals import StopRequests
    from mingyue.training.speed import measure_peak, nominal_peak
    from mingyue.training.step import Stepper, StepResult
    from mingyue.training.trainer import Trainer

__all__ = [
    "RULES",
    "BatchSource",
    "Board",
    "Callbacks",
    "Checkpoint",
    "Checkpoints",
    "Clock",
    "CorpusBatches",
    "DamagedCheckpointError",
    "Evaluation",
    "EvaluationReport",
    "Loss",
    "MetricsLog",
    "Muon",
    "Observer",
    "Optimisers",
    "Pace",
    "Plan",
    "Rates",
    "RunFolder",
    "RunSizes",
    "StepReport",
    "StepResult",
    "Stepper",
    "StopRequests",
    "TrainResult",
    "Trainer",
    "changed_settings",
    "evaluate",
    "hidden_and_targets",
    "loss_of_hidden",
    "loss_of_logits",
    "make_plan",
    "measure_peak",
    "nominal_peak",
    "peak_rates",
    "read_log",
]

__getattr__ = lazy_names(
    __name__,
    {
        "batches": ("BatchSource", "CorpusBatches"),
        "checkpoints": ("Checkpoint", "Checkpoints", "DamagedCheckpointError"),
        "forward": ("hidden_and_targets",),
        "log": ("Board", "MetricsLog", "read_log"),
        "loss": ("Evaluation", "Loss", "evaluate", "loss_of_hidden", "loss_of_logits"),
        "muon": ("Muon",),
        "observer": ("Callbacks", "EvaluationReport", "Observer", "StepReport", "TrainResult"),
        "optimisers": ("Optimisers", "Rates", "peak_rates"),
        "pace": ("Clock", "Pace"),
        "plan": ("Plan", "RunSizes", "make_plan"),
        "resume_rules": ("RULES", "changed_settings"),
        "run_folder": ("RunFolder",),
        "signals": ("StopRequests",),
        "speed": ("measure_peak", "nominal_peak"),
        "step": ("Stepper", "StepResult"),
        "trainer": ("Trainer",),
    },
)
