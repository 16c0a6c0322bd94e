"""A run that is put together: what its caller brings along, and its parts, ready for the next step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import Tensor

from mingyue.config import TrainSettings
from mingyue.models import Transformer
from mingyue.runtime import Runtime
from mingyue.training.batches import BatchSource
from mingyue.training.checkpoints import Checkpoints
from mingyue.training.distributed import Ranks
from mingyue.training.forward import AnyBatch
from mingyue.training.log import MetricsLog
from mingyue.training.observer import Observer
from mingyue.training.optimisers import Optimisers, peak_rates
from mingyue.training.pace import Clock, Pace
from mingyue.training.plan import Plan
from mingyue.training.run_folder import RunFolder
from mingyue.training.state import RunState, plan_key
from mingyue.training.step import Stepper


@dataclass
class Caller:
    """What the caller of training brings along, and how much time it needs afterwards."""

    clock: Clock = field(default_factory=Clock)
    """Time of this program; it should start where the user's waiting starts."""
    observer: Observer = field(default_factory=Observer)
    """Is told what happens."""
    sample: Callable[[], str] | None = None
    """Writes a text with the model as it is."""
    measure: Callable[[], dict[str, float]] | None = None
    """Measures the model as it is, besides its loss, at each evaluation: numbers by name."""
    watch: Callable[[int], None] | None = None
    """Looks at the model as it is after so many steps: at the start, and after each checkpoint."""
    select: str | None = None
    """The measure of these whose highest value marks the best step; none = the lowest loss."""
    ending: float = 0.0
    """Seconds that the caller needs after training: kept free of a budget in minutes."""
    flops_per_token: float | None = None
    """Forward and backward."""
    peak_flops: float | None = None
    """Per second, as `measure_peak` gives it."""


@dataclass
class Run:
    """All parts of a run, ready to take the next step. On ranks other than 0 nothing is written and nobody is told."""

    model: Transformer
    whole: Transformer
    """The caller's model. The same one, unless it is divided over ranks: then it is filled by `bring_home`."""
    batches: BatchSource
    settings: TrainSettings
    folder: RunFolder
    runtime: Runtime
    caller: Caller
    optimisers: Optimisers
    stepper: Stepper
    checkpoints: Checkpoints
    log: MetricsLog | None
    """Of rank 0."""
    pace: Pace
    plan: Plan
    state: RunState
    ranks: Ranks

    def write(self, event: str, **values: object) -> None:
        """Add a line to the log."""
        if self.log is not None:
            seconds = self.caller.clock.seconds()
            self.log.write(event, step=self.state.step, tokens=self.state.tokens, seconds=seconds, **values)

    def close(self) -> None:
        """Close the log."""
        if self.log is not None:
            self.log.close()

    def bring_home(self) -> None:
        """Put the weights as they are into the caller's model, on rank 0. Every rank has to call this."""
        if self.whole is not self.model:
            from mingyue.training.sharded_run import fill_whole

            fill_whole(self.whole, self.model)

    def held_out(self, tokens: int | None) -> Iterator[AnyBatch]:
        """This rank's part of the held-out text, as `BatchSource.held_out`."""
        own = self.batches.held_out(tokens, rank=self.ranks.rank, ranks=self.ranks.size)
        if self.whole is self.model:
            return own
        from mingyue.training.sharding import in_step

        return in_step(own, self.model, self.ranks)

    def load_together(self, load: Callable[[], dict[str, Tensor] | None]) -> dict[str, Tensor] | None:
        """What `load` reads from checkpoints, everywhere: read by rank 0, or by each rank its share."""
        return self.ranks.tensors(load) if self.whole is self.model else load()

    def adopt(self, plan: Plan) -> None:
        """Follow `plan` from here on."""
        self.plan = plan
        self.optimisers.rates = peak_rates(self.settings, self.model.config, plan.warmup_steps)

    def set_plan(self, plan: Plan) -> None:
        """Follow `plan` from here on, recorded before anything depends on it. On rank 0."""
        self.adopt(plan)
        self.folder.write_plan({"key": plan_key(self.settings), "plan": plan.to_json()})
        self.write("plan", **plan.to_json())
        self.caller.observer.on_plan(plan)
