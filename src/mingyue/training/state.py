"""The state of a run besides weights and optimisers: the counters that a resumed run starts from."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from mingyue import __version__
from mingyue.config import TrainSettings
from mingyue.parsing import as_record
from mingyue.runtime import Runtime
from mingyue.training.pace import Pace
from mingyue.training.step import StepResult


@dataclass
class RunState:
    """Counters of a run. All of them are saved in every checkpoint."""

    step: int = 0
    """Steps taken."""
    tokens: int = 0
    """Targets seen in training."""
    seconds: float = 0.0
    """Time of the run so far, without the time between stop and resume."""
    best_loss: float | None = None
    """Lowest held-out loss of an evaluation, or lowest negative of the measure that selects the best step."""
    best_step: int | None = None
    """Step of that evaluation."""
    best_heldout: float | None = None
    """Held-out loss of that evaluation: of two steps with the same measure, the one with the lower loss is better."""
    without_better: int = 0
    """Evaluations since that one."""
    evaluations: int = 0
    """Evaluations so far."""
    evaluated_step: int | None = None
    """Step of the latest evaluation."""
    log_bytes: int = 0
    """Size of metrics.jsonl when the checkpoint was saved."""
    since_log: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("nats", "tokens", "seconds"), 0.0))
    """Sums over the steps since the last line of the log."""

    def add(self, result: StepResult, seconds: float) -> None:
        """Count a step."""
        self.step += 1
        self.tokens += result.tokens
        self.since_log["nats"] += result.nats
        self.since_log["tokens"] += result.tokens
        self.since_log["seconds"] += seconds

    def take_since_log(self) -> tuple[float, float]:
        """(nats per token, tokens per second) of the steps since the last call."""
        sums = self.since_log
        self.since_log = dict.fromkeys(sums, 0.0)
        return sums["nats"] / max(1.0, sums["tokens"]), sums["tokens"] / max(1e-9, sums["seconds"])

    def judge(self, value: float, heldout: float) -> bool:
        """Count an evaluation after the current step; returns whether it is the best so far.

        `value` is the held-out loss or the negative of another measure: lower is better. The loss `heldout` decides
        between equal values.
        """
        self.evaluations += 1
        self.evaluated_step = self.step
        tied = value == self.best_loss and (self.best_heldout is None or heldout < self.best_heldout)
        best = self.best_loss is None or value < self.best_loss or tied
        if best:
            self.best_loss, self.best_heldout, self.best_step, self.without_better = value, heldout, self.step, 0
        else:
            self.without_better += 1
        return best

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RunState:
        """The state of such an object. Raises `FormatError` for a value that is of another type."""
        return as_record(cls, value)


def plan_key(settings: TrainSettings) -> str:
    """The settings that a plan is made from, as one string: a recorded plan is followed only under the same ones."""
    run = settings.run
    parts = [settings.budget.model_dump(), settings.schedule.model_dump(), run.evaluate_every, run.evaluate_tokens]
    return json.dumps(parts, sort_keys=True)


def describe_runtime(runtime: Runtime) -> dict[str, Any]:
    """What the bits of a run depend on, as JSON."""
    return {
        "device": runtime.device.type,
        "dtype": str(runtime.dtype).removeprefix("torch."),
        "threads": runtime.threads,
        **({"ranks": runtime.world_size} if runtime.world_size > 1 else {}),
    }


def checkpoint_content(state: RunState, pace: Pace, settings: TrainSettings, runtime: Runtime) -> dict[str, Any]:
    """What a checkpoint stores besides tensors, loss scaler and the identity of the data, as JSON."""
    return {
        "counters": state.to_json(),
        "pace": pace.to_json(),
        "settings": settings.model_dump(mode="json"),
        "runtime": describe_runtime(runtime),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    """The versions that a checkpoint was written with."""
    return {"mingyue": __version__, "torch": torch.__version__, "python": platform.python_version()}
