"""What a resumed run starts from: its latest checkpoint, the threads it had, its recorded plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from mingyue.config import TrainSettings
from mingyue.errors import CheckpointError, FormatError
from mingyue.runtime import Runtime
from mingyue.training.checkpoints import Checkpoint, Checkpoints
from mingyue.training.distributed import Ranks
from mingyue.training.names import load_clean_state
from mingyue.training.pace import Pace
from mingyue.training.plan import Plan
from mingyue.training.resume_rules import Change, changes_between, check_changes
from mingyue.training.run_folder import RunFolder
from mingyue.training.state import RunState, describe_runtime, plan_key
from mingyue.training.step import Stepper
from mingyue.words import tr

Tell = Callable[[str], None]
"""Receives a sentence for the user."""


def find_checkpoint(
    checkpoints: Checkpoints, settings: TrainSettings, identity: Mapping[str, Any], ranks: Ranks, tell: Tell
) -> tuple[Checkpoint | None, list[Change]]:
    """(latest sound checkpoint, settings that have changed since it), on every rank; (None, []) without a checkpoint.

    `identity` is that of the batches. Raises `SettingsError` for a change that a resumed run cannot follow, and
    `CheckpointError` for other data or if no checkpoint is sound.
    """
    if checkpoints.shared:
        return _find(checkpoints, settings, identity, tell)
    found, changes = ranks.on_main(lambda: _find(checkpoints, settings, identity, tell)) or (None, [])
    if ranks.size == 1:
        return found, changes
    step = ranks.share(lambda: None if found is None else found.step)
    state = ranks.share(lambda: None if found is None else found.state)
    if step is None or state is None:
        return None, []
    model = ranks.tensors(lambda: None if found is None else found.model) or {}
    optimiser = ranks.tensors(lambda: None if found is None else found.optimiser) or {}
    found = Checkpoint(step, model, optimiser, state)
    return found, changes_between(settings_of(found), settings)


def _find(
    checkpoints: Checkpoints, settings: TrainSettings, identity: Mapping[str, Any], tell: Tell
) -> tuple[Checkpoint | None, list[Change]]:
    if checkpoints.sweep():
        tell(tr("Files of an interrupted save were removed."))
    if not checkpoints.steps():
        checkpoints.check_none_was_damaged()
        tell(tr("There is no checkpoint yet: the run starts from the beginning."))
        return None, []
    found, notes = checkpoints.load_latest()
    changes = changes_between(settings_of(found), settings)
    check_changes(changes)
    for note in (*notes, *(change.describe() for change in changes)):
        tell(note)
    for key, value in identity.items():
        if found.state["data"].get(key, value) != value:  # earlier versions recorded fewer keys
            raise CheckpointError(
                tr(
                    "the run was started with {key} {started_with}, and now it is {value}",
                    key,
                    found.state["data"].get(key),
                    value,
                ),
                advice=tr("The text or the tokenizer has changed: restore the old one, or start a new run."),
            )
    return found, changes


def settings_of(checkpoint: Checkpoint) -> TrainSettings:
    """The settings that a checkpoint was saved with."""
    return TrainSettings.read(checkpoint.state["settings"], source=tr("the checkpoint of step {step}", checkpoint.step))


def restore(
    found: Checkpoint, stepper: Stepper, changes: list[Change], settings: TrainSettings, *, ending: float, tell: Tell
) -> tuple[RunState, Pace]:
    """Load a checkpoint into the model, the optimisers and the scaler of `stepper`; returns its counters and pace."""
    state = RunState.from_json(found.state["counters"])
    load_clean_state(stepper.model, found.model)
    stepper.optimisers.load_named_state(found.optimiser)
    if stepper.scaler is not None and found.state["scaler"] is not None:
        stepper.scaler.load_state_dict(found.state["scaler"])
    if changes_measure(changes, settings) and state.best_loss is not None:
        state.best_loss = None
        tell(tr("Evaluations use another measure from here on: the best step is selected again."))
    return state, Pace(ending=ending, **found.state["pace"])


def changes_measure(changes: list[Change], settings: TrainSettings) -> bool:
    """Whether evaluations before and after `changes` select the best step by different measures."""
    names = {change.name for change in changes}
    return "select" in names or (settings.pairs.select == "bleu" and "bleu_lines" in names)


def match_runtime(checkpoint: Checkpoint, settings: TrainSettings, runtime: Runtime, tell: Tell) -> Runtime:
    """`runtime` with the number of threads that the run had, since sums are rounded differently with another number.

    Tells which differences between the runtimes end the bit-for-bit equality with an uninterrupted run.
    """
    before, now = checkpoint.state["runtime"], describe_runtime(runtime)
    same_ranks = before.get("ranks", 1) == runtime.world_size  # else a rank has another share of the cores
    on_cpu = runtime.device.type == "cpu"
    if settings.run.threads is None and on_cpu and same_ranks and before["threads"] != runtime.threads:
        tell(
            tr(
                "The run keeps its {before} threads (this machine offers {threads}).",
                before["threads"],
                runtime.threads,
            )
        )
        torch.set_num_threads(before["threads"])
        runtime = replace(runtime, threads=before["threads"])
    if (before["device"], before["dtype"]) != (now["device"], now["dtype"]):
        tell(
            tr(
                "The run was on {before} in {before_dtype} and is now on {now} in {now_dtype}: it is no "
                "longer bit-for-bit equal to an uninterrupted run.",
                before["device"],
                before["dtype"],
                now["device"],
                now["dtype"],
            )
        )
    if not same_ranks:
        tell(
            tr(
                "The run had {ranks} processes and has {world_size} from here on: sums are rounded "
                "differently, so it is no longer bit-for-bit equal to an uninterrupted run.",
                before.get("ranks", 1),
                runtime.world_size,
            )
        )
    return runtime


def recorded_plan(
    folder: RunFolder, before: TrainSettings, settings: TrainSettings, ranks: Ranks, tell: Tell
) -> tuple[Plan | None, bool]:
    """(the plan that was recorded under the settings `before`, whether it was made from the same as `settings`)."""
    recorded = ranks.share(lambda: folder.read_plan(plan_key(before), tell))
    if recorded is None:
        return None, False
    try:
        return Plan.from_json(recorded["plan"]), recorded["key"] == plan_key(settings)
    except FormatError as error:
        tell(tr("The recorded plan is damaged: {message}. A new plan is made.", error.message))
        return None, False
