"""Training: the loss, the optimisers, the plan, checkpoints, the log, and the loop that joins them.

`train` runs a model over a `BatchSource` in a `RunFolder`; everything else is a part of that and can be used alone.
"""

from mingyue.training.batches import BatchSource, CorpusBatches
from mingyue.training.checkpoints import Checkpoint, Checkpoints, DamagedCheckpointError
from mingyue.training.log import Board, MetricsLog, read_log
from mingyue.training.loop import train
from mingyue.training.loss import Evaluation, Loss, batch_loss, evaluate, loss_of_logits
from mingyue.training.muon import Muon
from mingyue.training.observer import EvaluationReport, Observer, StepReport, TrainResult
from mingyue.training.optimisers import Optimisers, Rates, peak_rates
from mingyue.training.pace import Clock, Pace
from mingyue.training.plan import Plan, RunSizes, make_plan
from mingyue.training.resume_rules import RULES, changed_settings
from mingyue.training.run import Caller
from mingyue.training.run_folder import RunFolder
from mingyue.training.signals import StopRequests
from mingyue.training.speed import measure_peak
from mingyue.training.step import Stepper, StepResult

__all__ = [
    "RULES",
    "BatchSource",
    "Board",
    "Caller",
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
    "batch_loss",
    "changed_settings",
    "evaluate",
    "loss_of_logits",
    "make_plan",
    "measure_peak",
    "peak_rates",
    "read_log",
    "train",
]
