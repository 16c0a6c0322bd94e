"""Before the first step: put a run together, from nothing or from its latest checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from mingyue.config import DEFAULT_MINUTES, TrainSettings
from mingyue.errors import CheckpointError, SettingsError
from mingyue.models import Transformer
from mingyue.runtime import Runtime, derive_seed
from mingyue.training.batches import BatchSource
from mingyue.training.checkpoints import Checkpoint, Checkpoints
from mingyue.training.distributed import Ranks
from mingyue.training.log import Board, MetricsLog
from mingyue.training.names import load_clean_state
from mingyue.training.optimisers import Optimisers, peak_rates
from mingyue.training.pace import Clock, Pace
from mingyue.training.plan import Plan, make_plan
from mingyue.training.recompute import recompute_blocks
from mingyue.training.resume_rules import Change, changes_between, check_changes
from mingyue.training.run import Caller, Run
from mingyue.training.run_folder import RunFolder
from mingyue.training.signals import StopRequests
from mingyue.training.state import RunState, plan_key
from mingyue.training.step import Stepper

_LONG_MINUTES, _LONG_STEPS = 5.0, 2000


def weights_seed(settings: TrainSettings) -> int:
    """The seed of a run's first weights."""
    return derive_seed(settings.run.seed, "weights")


def start(
    model: Transformer,
    batches: BatchSource,
    settings: TrainSettings,
    *,
    folder: RunFolder,
    runtime: Runtime,
    caller: Caller,
    resume: bool,
    ranks: Ranks | None = None,
    stop: StopRequests | None = None,
) -> Run:
    """Put a run together. With `resume`, from the latest sound checkpoint of `folder`, or its start if it has none.

    Rank 0 reads the folder and chooses; the others are told. Raises `CheckpointError` or `SettingsError` when the run
    cannot go on as asked.
    """
    ranks = ranks or Ranks()
    if settings.run.patience is not None and not batches.sizes.heldout_tokens:
        raise SettingsError("patience needs held-out text, and nothing is held out", advice="Leave --patience out.")
    tell = caller.observer.on_note
    whole, keep = model, max(settings.run.keep, settings.run.average_last)
    if settings.run.parallel == "sharded" and ranks.size > 1:
        from mingyue.training.sharded_run import begin_sharded  # seconds of imports that others need not wait for

        model, checkpoints = begin_sharded(whole, settings, folder.checkpoints, runtime=runtime, ranks=ranks, keep=keep)
    else:
        checkpoints = Checkpoints(folder.checkpoints, keep=keep)
    found, changes = _find_together(checkpoints, settings, batches, tell, ranks) if resume else (None, [])
    if found is not None:
        runtime = _as_before(found, settings, runtime, tell)
    if model is whole:
        _make_ready(model, settings, runtime)
    optimisers = Optimisers(model, settings.optimiser, peak_rates(settings, model.config, 1), ranks=ranks)
    stepper = Stepper.of(model, optimisers, runtime, settings, ranks=ranks, stop=stop)
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
    old, replayed = None, False
    if resume:
        old, replayed = _read_plan(folder, settings if found is None else _settings_of(found), settings, tell, ranks)
    log = ranks.on_main(lambda: _open_log(folder, settings, state, tell))
    if _is_timed(settings, pace, old, replayed):
        pace.first_guess = _time_a_step(stepper, batches, caller.clock)
    chosen = ranks.share(
        lambda: _choose_plan(settings, old, replayed, batches=batches, state=state, pace=pace, caller=caller)
    )
    plan = Plan.from_json(chosen["plan"])
    if chosen["anew"]:
        state.best_loss = None
    parts = (model, whole, batches, settings, folder, runtime, caller, optimisers, stepper, checkpoints, log)
    run = Run(*parts, pace, plan, state, ranks)
    run.adopt(plan)

    def record() -> None:
        if resume:
            folder.cut_watch(state.step)
            run.write("resume", from_step=state.step, changes=[change.describe() for change in changes])
            if folder.read_settings() != settings:
                folder.write_settings(settings)
        run.set_plan(plan)

    ranks.on_main(record)
    return run


def compiles(settings: TrainSettings, runtime: Runtime) -> bool:
    """Whether blocks are compiled: as asked, or on a GPU where a run on text is long enough to pay for it."""
    if settings.run.compile is not None:
        return settings.run.compile
    budget = settings.budget
    if budget.steps is not None:
        long = budget.steps >= _LONG_STEPS
    else:
        long = budget.epochs is not None or (budget.minutes or DEFAULT_MINUTES) >= _LONG_MINUTES
    return runtime.device.type == "cuda" and long and not settings.pairs.given  # rows of pairs have many lengths


def _make_ready(model: Transformer, settings: TrainSettings, runtime: Runtime) -> None:
    model.to(runtime.device).train()
    if settings.batch.recompute:
        recompute_blocks(model)
    if compiles(settings, runtime):
        for block in model.every_block():
            block.compile()  # in place: names stay; the embedding's backward, which must not race, stays eager


def _open_log(folder: RunFolder, settings: TrainSettings, state: RunState, tell: Callable[[str], None]) -> MetricsLog:
    board = Board(folder.tensorboard, from_step=state.step) if settings.run.tensorboard else None
    log = MetricsLog(folder.metrics, board=board)
    log.cut(state.log_bytes)
    if (damage := log.mend()) is not None:
        tell(damage)
    return log


def _find_together(
    checkpoints: Checkpoints,
    settings: TrainSettings,
    batches: BatchSource,
    tell: Callable[[str], None],
    ranks: Ranks,
) -> tuple[Checkpoint | None, list[Change]]:
    """What `_find` finds on rank 0, on every rank."""
    if checkpoints.shared:
        return _find(checkpoints, settings, batches, tell)
    own = ranks.on_main(lambda: _find(checkpoints, settings, batches, tell))
    found, changes = own or (None, [])
    if ranks.size == 1:
        return found, changes
    step = ranks.share(lambda: None if found is None else found.step)
    content = ranks.share(lambda: None if found is None else found.state)
    if step is None or content is None:
        return None, []
    model = ranks.tensors(lambda: None if found is None else found.model) or {}
    optimiser = ranks.tensors(lambda: None if found is None else found.optimiser) or {}
    everywhere = Checkpoint(step, model, optimiser, content)
    return everywhere, changes_between(_settings_of(everywhere), settings)


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
    alike = before.get("ranks", 1) == runtime.world_size  # else a rank has another share of the cores
    if settings.run.threads is None and runtime.device.type == "cpu" and alike and before["threads"] != runtime.threads:
        tell(f"The run goes on with {before['threads']} threads, as it began (this machine offers {runtime.threads}).")
        torch.set_num_threads(before["threads"])
        runtime = replace(runtime, threads=before["threads"])
    if (before["device"], before["dtype"]) != (now["device"], now["dtype"]):
        tell(
            f"The run was on {before['device']} in {before['dtype']} and is now on {now['device']} in {now['dtype']}: "
            "no longer equal, bit for bit, to a run never stopped."
        )
    if not alike:
        tell(
            f"The run had {before.get('ranks', 1)} processes and has {runtime.world_size} from here on: sums are "
            "rounded otherwise, so it is no longer equal, bit for bit, to a run never stopped."
        )
    return runtime


def describe_runtime(runtime: Runtime) -> dict[str, Any]:
    """What bits depend on, as JSON."""
    return {
        "device": runtime.device.type,
        "dtype": str(runtime.dtype).removeprefix("torch."),
        "threads": runtime.threads,
        **({"ranks": runtime.world_size} if runtime.world_size > 1 else {}),
    }


def _settings_of(found: Checkpoint) -> TrainSettings:
    return TrainSettings.read(found.state["settings"], source=f"the checkpoint of step {found.step}")


def _read_plan(
    folder: RunFolder, before: TrainSettings, settings: TrainSettings, tell: Callable[[str], None], ranks: Ranks
) -> tuple[Plan | None, bool]:
    """The plan that was recorded under the settings `before`, and whether it is that of `settings`."""
    recorded = ranks.share(lambda: folder.read_plan(plan_key(before), tell))
    if recorded is None:
        return None, False
    return Plan.from_json(recorded["plan"]), recorded["key"] == plan_key(settings)


def _is_timed(settings: TrainSettings, pace: Pace, old: Plan | None, replayed: bool) -> bool:
    """Whether a step has to be timed before a plan can be made."""
    in_minutes = settings.budget.steps is None and settings.budget.epochs is None
    return in_minutes and not pace.first_guess and not (replayed and old is not None and old.fixed)


def _choose_plan(
    settings: TrainSettings,
    old: Plan | None,
    replayed: bool,
    *,
    batches: BatchSource,
    state: RunState,
    pace: Pace,
    caller: Caller,
) -> dict[str, Any]:
    """The old plan where it was made from the same settings; else a new one, and what that changes is told.

    As JSON: the plan, and whether the best step is counted anew.
    """
    if replayed and old is not None:
        _guess_evaluations(pace, old, batches)
        return {"plan": old.to_json(), "anew": False}
    plan = make_plan(
        settings,
        batches.sizes,
        pace=pace,
        seconds=caller.clock.seconds(),
        step=state.step,
        warmup=None if old is None else old.warmup_steps,
    )
    _guess_evaluations(pace, plan, batches)
    anew = False
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
            anew = True
    return {"plan": plan.to_json(), "anew": anew}


def _time_a_step(stepper: Stepper, batches: BatchSource, clock: Clock) -> float:
    """Seconds of a step, before the first: one forward and backward pass to warm up, then those of a whole step."""
    micro_batches = batches.step(0, rank=stepper.ranks.rank, ranks=stepper.ranks.size)
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
        pace.final_evaluation = 0.0 if whole else plan.final_seconds(sizes, a_token)
