"""From settings to a `Run`: a new one, or one that is resumed. Refuses what cannot be trained before time is spent."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from mingyue.bundle import read_training
from mingyue.config import TrainSettings, refuse_other_kind, refuse_unused
from mingyue.errors import CheckpointError, DataError, MingyueError, SettingsError, TrainingError
from mingyue.models import UnreadableModelError, preset_parts
from mingyue.runs.initial import adopt_initial, check_init_path
from mingyue.runs.pair_run import BATCH_TOKENS, PairRun
from mingyue.runs.paths import run_path
from mingyue.runs.processes import check_processes, fitting_threads, note_launch, was_started_by_this_launch
from mingyue.runs.run import RunContext
from mingyue.runs.text_run import TextRun
from mingyue.runtime import Runtime, choose_runtime, processes, random_state_kept
from mingyue.training import Clock, Observer, RunFolder, changed_settings, read_log
from mingyue.training.distributed import Ranks, join
from mingyue.training.recipes import with_recipe
from mingyue.training.resume_rules import changes_between, check_changes
from mingyue.training.storage import set_aside
from mingyue.words import tr


@contextmanager
def new_run(settings: TrainSettings, observer: Observer | None, clock: Clock) -> Generator[TextRun | PairRun]:
    """A run with these settings, ready to train; inside, its folder is locked and its ranks are connected.

    If the processes of the run were restarted after a failure, this is the run to resume. Every process
    calls this with the same arguments; only the observer of rank 0 is used. Raises `MingyueError` of every kind.
    """
    settings = with_recipe(settings)
    if not settings.data.sources and not settings.pairs.given:
        raise TrainingError(
            tr("there is no text to train on"), advice=tr("Give a file, a folder, or a corpus such as python-docs.")
        )
    if settings.data.sources and settings.pairs.given:
        raise SettingsError(
            tr("a run is on text or on pairs, and both are given (text: {sources})", settings.data.sources[0]),
            advice=tr("Leave out one of the two."),
        )
    refuse_other_kind(settings)
    refuse_unused(settings, _resolved(settings))
    check_processes(settings)
    path = run_path(settings)
    check_init_path(settings, path)
    with join() as ranks:
        observer = (observer if ranks.is_main else None) or Observer()
        restarts = max(ranks.collect(processes().restarts))  # each launcher counts those of its own machine
        if restarts > 0:
            observer.on_note(tr("A process failed; all were restarted (restart {restarts}).", restarts))
        if ranks.share(lambda: restarts > 0 and was_started_by_this_launch(path)):
            with resumed_run(path, {}, observer, clock) as run:
                yield run
            return
        runtime = choose_runtime(settings.run.device, settings.run.dtype, settings.run.threads)
        folder, notes = ranks.on_main(lambda: RunFolder.create(path, settings)) or (RunFolder(path), [])
        with folder if ranks.is_main else nullcontext(), _within(runtime):
            context = RunContext(folder=folder, runtime=runtime, clock=clock, observer=observer, ranks=ranks)
            prepared = ranks.on_main(lambda: _prepare(settings, context, notes))
            complete = _share_settings(None if prepared is None else prepared.settings, ranks)
            yield ranks.together(lambda: prepared or _kind(complete).load(complete, context))


@contextmanager
def resumed_run(
    path: Path, changes: dict[str, object], observer: Observer | None, clock: Clock
) -> Generator[TextRun | PairRun]:
    """The run in a folder, with changed settings, ready to resume; its folder is locked inside.

    Raises `SettingsError` for a change that it cannot follow, and `CheckpointError` for a folder without a run.
    """
    with join() as ranks:
        observer = (observer if ranks.is_main else None) or Observer()
        folder = ranks.on_main(lambda: _open(path)) or RunFolder(path)
        with folder if ranks.is_main else nullcontext():
            changed = ranks.on_main(lambda: _changed(folder, changes, observer))
            settings = _share_settings(None if changed is None else changed[1], ranks)
            runtime = choose_runtime(settings.run.device, settings.run.dtype, settings.run.threads)
            context = RunContext(
                folder=folder, runtime=runtime, clock=clock, observer=observer, ranks=ranks, resume=True
            )
            with _within(runtime):
                loaded = ranks.on_main(lambda: _load(settings, context))
                run = ranks.together(lambda: loaded or _kind(settings).load(settings, context))
                if (epochs := settings.budget.epochs) is not None:
                    steps = run.batches.sizes.steps_of(epochs)
                    ranks.on_main(lambda: changed and _refuse_if_done(folder, *changed, observer, steps=steps))
                ranks.together(run.check)
                yield run


@contextmanager
def _within(runtime: Runtime) -> Generator[None]:
    """The process as a run needs it; afterwards as the caller had it."""
    with runtime.applied(), random_state_kept(runtime.device), torch.inference_mode(False), torch.enable_grad():
        yield


def _resolved(settings: TrainSettings) -> dict[str, object]:
    """Values of settings as they will be: parts of the preset, processes that torchrun has started, size of a batch."""
    parts = preset_parts(settings.model, of_pairs=settings.pairs.given)
    batch_tokens = settings.batch.batch_tokens or (BATCH_TOKENS if settings.pairs.given else None)
    return {**parts, "nproc": max(settings.run.nproc, processes().size), "batch_tokens": batch_tokens}


def _kind(settings: TrainSettings) -> type[TextRun] | type[PairRun]:
    return PairRun if settings.pairs.given else TextRun


def _share_settings(settings: TrainSettings | None, ranks: Ranks) -> TrainSettings:
    """The settings of rank 0, on every rank."""
    if settings is not None and ranks.size == 1:
        return settings
    received = ranks.share(lambda: None if settings is None else settings.model_dump(mode="json"))
    return settings or TrainSettings.read(received or {}, source="rank 0")


# --- a new run, on rank 0 ---------------------------------------------------------------------------------------------


def _prepare(settings: TrainSettings, context: RunContext, notes: Sequence[str]) -> TextRun | PairRun:
    """Prepare the data of a new run, and tell what will be trained.

    If that fails, its folder is removed, and a run that it replaced is back in its place.
    """
    tell = context.observer.on_note
    try:
        note_launch(context.folder)
        for note in context.runtime.notes:
            tell(note)
        if settings.run.init is not None:
            settings, adopted = adopt_initial(settings, context.folder)
            for note in adopted:
                tell(note)
        context.measure_peak()
        run = _kind(settings).prepare(settings, context)
        for line in run.describe():
            tell(line)
        run.check()
        for note in notes:  # only now is it true for good that an old run was moved aside
            tell(note)
    except BaseException:
        context.folder.remove()  # nothing was trained: the corrected command must not find a run in its folder
        raise
    return run


# --- a resumed run, on rank 0 -----------------------------------------------------------------------------------------


def _open(path: Path) -> RunFolder:
    folder = RunFolder.open(path)
    folder.lock()
    return folder


def _changed(folder: RunFolder, changes: dict[str, object], observer: Observer) -> tuple[TrainSettings, TrainSettings]:
    """The settings of a resumed run before and after the changes. Raises `SettingsError` for what a resume refuses."""
    folder.sweep()
    if (restored := folder.restore_settings()) is not None:
        observer.on_note(restored)
    old = folder.read_settings()
    settings = changed_settings(old, changes)
    if "threads" not in changes:
        settings = fitting_threads(old, settings)
    check_changes(changes_between(old, settings))
    refuse_other_kind(settings)
    refuse_unused(settings, _resolved(settings), given=changes)
    check_processes(settings)
    if not folder.begun and not folder.planned:  # run.toml does not yet have the settings that are chosen
        raise _nothing_trained(folder)
    if settings.budget.epochs is None:  # else the number of steps follows from the data
        _refuse_if_done(folder, old, settings, observer, steps=settings.budget.steps)
    return old, settings


def _load(settings: TrainSettings, context: RunContext) -> TextRun | PairRun:
    for note in context.runtime.notes:
        context.observer.on_note(note)
    context.measure_peak()
    try:
        return _kind(settings).load(settings, context)
    except DataError as error:
        if not context.folder.begun:
            raise _nothing_trained(context.folder) from error
        return _prepare_again(settings, context, error)


def _prepare_again(settings: TrainSettings, context: RunContext, damage: DataError) -> TextRun | PairRun:
    """A run whose prepared data are damaged: prepared again from its sources, if they still exist.

    The trainer checks that they are the data of the checkpoint. Raises `DataError`; the damaged data are then back.
    """
    folder = context.folder
    aside = set_aside(folder.data) if folder.data.exists() else None
    kept = "" if aside is None else tr(" The damaged data are now in {name}.", aside.name)
    context.observer.on_note(tr("{message}. The text is prepared again from its sources.{kept}", damage.message, kept))
    try:
        return _kind(settings).prepare(settings, context)
    except MingyueError as error:
        if aside is not None:
            shutil.rmtree(folder.data, ignore_errors=True)
            aside.rename(folder.data)
        raise DataError(
            tr("{message}; and it cannot be prepared again: {reason}", damage.message, error.message),
            advice=tr("Put the sources of the run back where they were, then run `mingyue resume` again."),
        ) from error


def _nothing_trained(folder: RunFolder) -> CheckpointError:
    return CheckpointError(
        tr("{path} was stopped before anything was trained", folder.path),
        advice=tr("Start it again: mingyue train --config {settings_path}", shlex.quote(str(folder.settings_path))),
    )


def _refuse_if_done(
    folder: RunFolder, old: TrainSettings, new: TrainSettings, observer: Observer, *, steps: int | None
) -> None:
    """Raise `TrainingError` for a finished run whose budget is not larger now. `steps`: those of the new budget."""
    log = read_log(folder.metrics)
    if not log or log[-1]["event"] != "end" or log[-1].get("reason") not in ("finished", "patience"):
        return
    last, budget = log[-1], new.budget
    more = (
        (steps is not None and steps > last["step"])
        or (budget.minutes is not None and 60 * budget.minutes > last["seconds"] and budget != old.budget)
        or new.run.patience != old.run.patience
    )
    if not more and _has_model_of(folder, last, observer):
        raise TrainingError(
            tr(
                "nothing is left to do: {last:,} steps were taken in {minutes:.1f} min",
                last["step"],
                last["seconds"] / 60,
            ),
            advice=tr("Give a larger budget, counted from the start of the run: --steps, --minutes or --epochs."),
        )


def _has_model_of(folder: RunFolder, end: dict[str, Any], observer: Observer) -> bool:
    """Whether the bundle is whole and belongs to this last line of the log; a damaged one is set aside."""
    if not folder.model.is_dir():
        return False
    try:
        card = read_training(folder.model)
    except UnreadableModelError:
        raise  # not damaged: it must not be renamed
    except MingyueError as error:
        aside = set_aside(folder.model)
        observer.on_note(
            tr("{message}. The model was set aside as {name}, and is written again.", error.message, aside.name)
        )
        return False
    # After a longer budget and a kill just before the new bundle, the one of the earlier end is still there.
    return (card.get("steps"), card.get("tokens")) == (end.get("weights_step"), end["tokens"])
