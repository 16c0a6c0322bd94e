"""Before the first step: put a run together, from nothing or from its latest checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mingyue.config import TrainSettings
from mingyue.errors import CheckpointError, SettingsError
from mingyue.models import Transformer
from mingyue.runtime import Runtime
from mingyue.training.batches import BatchSource
from mingyue.training.checkpoints import Checkpoint, Checkpoints
from mingyue.training.log import Board, MetricsLog
from mingyue.training.names import load_clean_state
from mingyue.training.observer import Observer
from mingyue.training.optimisers import Optimisers, peak_rates
from mingyue.training.pace import Clock, Pace
from mingyue.training.plan import Plan, make_plan
from mingyue.training.recompute import recompute_blocks
from mingyue.training.resume_rules import Change, changes_between, check_changes
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
    """All parts of a run, ready to take the next step."""

    model: Transformer
    batches: BatchSource
    settings: TrainSettings
    folder: RunFolder
    runtime: Runtime
    caller: Caller
    optimisers: Optimisers
    stepper: Stepper
    checkpoints: Checkpoints
    log: MetricsLog
    pace: Pace
    plan: Plan
    state: RunState

    def write(self, event: str, **values: object) -> None:
        """Add a line to the log."""
        seconds = self.caller.clock.seconds()
        self.log.write(event, step=self.state.step, tokens=self.state.tokens, seconds=seconds, **values)

    def set_plan(self, plan: Plan) -> None:
        """Follow `plan` from here on, recorded before anything depends on it."""
        self.plan = plan
        self.optimisers.rates = peak_rates(self.settings, self.model.config, plan.warmup_steps)
        self.folder.write_plan({"key": plan_key(self.settings), "plan": plan.to_json()})
        self.write("plan", **plan.to_json())
        self.caller.observer.on_plan(plan)


def start(
    model: Transformer,
    batches: BatchSource,
    settings: TrainSettings,
    *,
    folder: RunFolder,
    runtime: Runtime,
    caller: Caller,
    resume: bool,
) -> Run:
    """Put a run together. With `resume`, from the latest sound checkpoint of `folder`, or its start if it has none.

    Raises `CheckpointError` or `SettingsError` when the run cannot go on as asked.
    """
    if settings.run.patience is not None and not batches.sizes.heldout_tokens:
        raise SettingsError("patience needs held-out text, and nothing is held out", advice="Leave --patience out.")
    tell = caller.observer.on_note
    checkpoints = Checkpoints(folder.checkpoints, keep=max(settings.run.keep, settings.run.average_last))
    found, changes = _find(checkpoints, settings, batches, tell) if resume else (None, [])
    if found is not None:
        runtime = _as_before(found, settings, runtime, tell)
    model.to(runtime.device).train()
    if settings.batch.recompute:
        recompute_blocks(model)
    if settings.run.compile:
        for block in model.every_block():
            block.compile()  # in place: names stay; the embedding's backward, which must not race, stays eager
    optimisers = Optimisers(model, settings.optimiser, peak_rates(settings, model.config, 1))
    stepper = Stepper.of(model, optimisers, runtime, settings)
    state, pace = RunState(), Pace(ending=caller.ending)
    if found is not None:
        state, pace = RunState.from_json(found.state["counters"]), Pace(ending=caller.ending, **found.state["pace"])
        load_clean_state(model, found.model)
        optimisers.load_named_state(found.optimiser)
        if stepper.scaler is not None and found.state["scaler"] is not None:
            stepper.scaler.load_state_dict(found.state["scaler"])
        caller.clock.add(state.seconds)
        if _judged_otherwise(changes, settings) and state.best_loss is not None:
            state.best_loss = None  # two measures cannot be compared
            tell("Evaluations are judged by another measure from here on: the best step is counted anew.")
    log = MetricsLog(
        folder.metrics, board=Board(folder.tensorboard, from_step=state.step) if settings.run.tensorboard else None
    )
    recorded = _read_plan(folder, settings if found is None else _settings_of(found), tell) if resume else None
    log.cut(state.log_bytes)
    if (damage := log.mend()) is not None:
        tell(damage)
    plan = _choose_plan(settings, recorded, stepper=stepper, batches=batches, state=state, pace=pace, caller=caller)
    run = Run(
        model, batches, settings, folder, runtime, caller, optimisers, stepper, checkpoints, log, pace, plan, state
    )
    if resume:
        run.write("resume", from_step=state.step, changes=[change.describe() for change in changes])
        if folder.read_settings() != settings:
            folder.write_settings(settings)
    run.set_plan(plan)
    return run


def _find(
    checkpoints: Checkpoints, settings: TrainSettings, batches: BatchSource, tell: Callable[[str], None]
) -> tuple[Checkpoint | None, list[Change]]:
    """The checkpoint to go on from, and the changes since it that are allowed, each of them told."""
    if checkpoints.sweep():
        tell("A save that was interrupted left a part behind; it was removed.")
    if not checkpoints.steps():
        tell("There is no checkpoint yet: the run begins at its start.")
        return None, []
    found, notes = checkpoints.load_latest()
    changes = changes_between(_settings_of(found), settings)
    check_changes(changes)
    for note in (*notes, *(change.describe() for change in changes)):
        tell(note)
    for key, value in batches.identity.items():
        if found.state["data"].get(key, value) != value:  # what an earlier version did not know is believed
            raise CheckpointError(
                f"the run was made with {key} {found.state['data'].get(key)}, and now it is {value}",
                advice="The text or the tokenizer has changed: put the old one back, or start a new run.",
            )
    return found, changes


def _judged_otherwise(changes: list[Change], settings: TrainSettings) -> bool:
    """Whether an evaluation before the changes says nothing about one after them."""
    names = {change.name for change in changes}
    return "select" in names or (settings.pairs.select == "bleu" and "bleu_lines" in names)


def _as_before(found: Checkpoint, settings: TrainSettings, runtime: Runtime, tell: Callable[[str], None]) -> Runtime:
    """The runtime with as many threads as the run had: sums are rounded otherwise with more or fewer."""
    before = found.state["runtime"]
    now = describe_runtime(runtime)
    if settings.run.threads is None and runtime.device.type == "cpu" and before["threads"] != runtime.threads:
        tell(f"The run goes on with {before['threads']} threads, as it began (this machine offers {runtime.threads}).")
        torch.set_num_threads(before["threads"])
        runtime = replace(runtime, threads=before["threads"])
    if (before["device"], before["dtype"]) != (now["device"], now["dtype"]):
        tell(
            f"The run was on {before['device']} in {before['dtype']} and is now on {now['device']} in {now['dtype']}: "
            "no longer equal, bit for bit, to a run never stopped."
        )
    return runtime


def describe_runtime(runtime: Runtime) -> dict[str, Any]:
    """What bits depend on, as JSON."""
    return {
        "device": runtime.device.type,
        "dtype": str(runtime.dtype).removeprefix("torch."),
        "threads": runtime.threads,
    }


def _settings_of(found: Checkpoint) -> TrainSettings:
    return TrainSettings.read(found.state["settings"], source=f"the checkpoint of step {found.step}")


def _read_plan(folder: RunFolder, settings: TrainSettings, tell: Callable[[str], None]) -> tuple[str, Plan] | None:
    recorded = folder.read_plan(plan_key(settings), tell)
    return None if recorded is None else (recorded["key"], Plan.from_json(recorded["plan"]))


def _choose_plan(
    settings: TrainSettings,
    recorded: tuple[str, Plan] | None,
    *,
    stepper: Stepper,
    batches: BatchSource,
    state: RunState,
    pace: Pace,
    caller: Caller,
) -> Plan:
    """The recorded plan where it was made from the same settings; else a new one, and what that changes is told."""
    old = None if recorded is None else recorded[1]
    replayed = recorded is not None and recorded[0] == plan_key(settings)
    in_minutes = settings.budget.steps is None and settings.budget.epochs is None
    if in_minutes and not pace.first_guess and not (replayed and old is not None and old.fixed):
        pace.first_guess = _time_a_step(stepper, batches, caller.clock)
    if replayed and old is not None:
        _guess_evaluations(pace, old, batches)
        return old
    plan = make_plan(
        settings,
        batches.sizes,
        pace=pace,
        seconds=caller.clock.seconds(),
        step=state.step,
        warmup=None if old is None else old.warmup_steps,
    )
    _guess_evaluations(pace, plan, batches)
    if old is not None:
        caller.observer.on_note(
            f"The plan is {plan.total_steps:,} steps instead of {old.total_steps:,}; {state.step:,} are taken. The "
            f"schedule is that of a run of this length from the start: at the next step the rate is "
            f"{plan.multiplier(state.step):.3f} of its peak, by the old plan it was {old.multiplier(state.step):.3f}."
        )
        if plan.evaluate_tokens != old.evaluate_tokens and state.best_loss is not None:
            caller.observer.on_note(
                "Evaluations read another part of the held-out text from here on: the best step is counted anew."
            )
            state.best_loss = None
    return plan


def _time_a_step(stepper: Stepper, batches: BatchSource, clock: Clock) -> float:
    """Seconds of a step, before the first: one forward and backward pass to warm up, then those of a whole step."""
    micro_batches = batches.step(0)
    stepper.rehearse(micro_batches[:1])
    start = clock.seconds()
    stepper.rehearse(micro_batches)
    return 1.1 * (clock.seconds() - start)  # and the update, roughly


def _guess_evaluations(pace: Pace, plan: Plan, batches: BatchSource) -> None:
    """Fill in what evaluations will take as long as none was measured: forward is a third of a step."""
    sizes = batches.sizes
    a_token = pace.step_seconds / 3 / sizes.step_tokens
    if not pace.evaluation:
        whole = plan.evaluate_tokens is None
        pace.evaluation = a_token * (sizes.heldout_tokens if whole else plan.evaluate_tokens or 0)
        pace.final_evaluation = 0.0 if whole else a_token * sizes.heldout_tokens
