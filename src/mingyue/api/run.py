"""A training run from its settings to its verdict: what `mingyue train` and `mingyue resume` do."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from mingyue.api.base_run import Place, Run, RunResult, run_path
from mingyue.api.pair_run import PairRun
from mingyue.api.run_ranks import check_processes, fitting_threads, note_launch, was_begun_here
from mingyue.api.text_run import TextRun
from mingyue.bundle import read_training
from mingyue.config import RunSettings, TrainSettings, refuse_other_kind
from mingyue.errors import CheckpointError, DataError, MingyueError, SettingsError, TrainingError
from mingyue.runtime import choose_runtime, processes
from mingyue.training import Clock, Observer, RunFolder, changed_settings, read_log
from mingyue.training.distributed import Ranks, join
from mingyue.training.recipes import with_recipe
from mingyue.training.resume_rules import changes_between, check_changes
from mingyue.training.storage import set_aside


def train(
    settings: TrainSettings | None = None, *, observer: Observer | None = None, waited: float = 0.0, **given: object
) -> RunResult:
    """Train a model. `given` are fields of `TrainSettings` by name, whatever group they are in; they win.

    `observer` is told what happens; `waited` are seconds that the user has already waited (a budget in minutes counts
    them). Under torchrun every process calls this alike and has the same result; the observer of rank 0 alone is told.
    Raises `MingyueError` of every kind; what was saved before stays whole.
    """
    clock = Clock(waited)
    settings = with_recipe((settings or TrainSettings()).with_flat(**given))
    if not settings.data.sources and not settings.pairs.given:
        raise TrainingError(
            "there is no text to train on", advice="Give a file, a folder, or a corpus such as python-docs."
        )
    if settings.data.sources and settings.pairs.given:
        raise SettingsError(
            f"there is text to train on ({settings.data.sources[0]}) and there are pairs: a run has one of the two",
            advice="Leave out the one or the other.",
        )
    refuse_other_kind(settings)
    check_processes(settings)
    path = run_path(settings)
    with join() as ranks:
        observer = (observer if ranks.is_main else None) or Observer()
        restarts = max(ranks.collect(processes().restarts))  # each launcher counts the deaths on its own machine
        if restarts > 0:
            observer.on_note(f"A process died; all were started again (restart {restarts}).")
        if ranks.share(lambda: restarts > 0 and was_begun_here(path)):
            return _resume(path, {}, observer, clock, ranks)
        runtime = choose_runtime(settings.run.device, settings.run.dtype, settings.run.threads)
        folder, notes = ranks.on_main(lambda: RunFolder.create(path, settings)) or (RunFolder(path), [])
        with folder if ranks.is_main else nullcontext():
            place = Place(folder=folder, runtime=runtime, clock=clock, observer=observer, ranks=ranks)
            return _begin(settings, place, notes).go(resume=False)


def resume(
    folder: str | Path,
    *,
    changes: dict[str, object] | None = None,
    observer: Observer | None = None,
    waited: float = 0.0,
    **given: object,
) -> RunResult:
    """Go on with a run from its latest checkpoint. `changes` (or keyword arguments) are settings that differ from here.

    A change takes effect and is told, or is refused with `SettingsError`. Raises `CheckpointError` for a folder that
    holds no run, or no sound checkpoint.
    """
    clock = Clock(waited)
    with join() as ranks:
        observer = (observer if ranks.is_main else None) or Observer()
        return _resume(Path(folder), {**(changes or {}), **given}, observer, clock, ranks)


def _begin(settings: TrainSettings, place: Place, notes: Sequence[str]) -> Run:
    """A new run before its first step: rank 0 prepares the text and chooses, the others read what it left."""
    folder, ranks = place.folder, place.ranks

    def prepare() -> Run:
        try:
            note_launch(folder)
            for note in (*notes, *place.runtime.notes):
                place.observer.on_note(note)
            place.measure()
            run = _kind(settings).of(settings, place)
            run.introduce()
        except BaseException:
            folder.remove()  # nothing was trained: the same command, corrected, must not find a run in its way
            raise
        return run

    run = ranks.on_main(prepare)
    complete = _everywhere(None if run is None else run.settings, ranks)
    return ranks.together(lambda: run or _kind(complete).again(complete, place))


def _resume(path: Path, changes: dict[str, object], observer: Observer, clock: Clock, ranks: Ranks) -> RunResult:
    folder = ranks.on_main(lambda: _open(path)) or RunFolder(path)
    with folder if ranks.is_main else nullcontext():
        old, changed = ranks.on_main(lambda: _changed(folder, changes, observer)) or (None, None)
        settings = _everywhere(changed, ranks)
        runtime = choose_runtime(settings.run.device, settings.run.dtype, settings.run.threads)
        place = Place(folder=folder, runtime=runtime, clock=clock, observer=observer, ranks=ranks)
        run = ranks.on_main(lambda: _again(settings, place))
        result = ranks.together(lambda: run or _kind(settings).again(settings, place)).go(resume=True)
        ranks.on_main(lambda: None if settings == old else folder.write_settings(settings))
        return result


def _open(path: Path) -> RunFolder:
    """The folder of a run, locked."""
    folder = RunFolder.open(path)
    folder.lock()
    return folder


def _changed(folder: RunFolder, changes: dict[str, object], observer: Observer) -> tuple[TrainSettings, TrainSettings]:
    """The settings of a run that is resumed, before and after the changes. Raises what a resume refuses."""
    folder.sweep()
    if (restored := folder.restore_settings()) is not None:
        observer.on_note(restored)
    old = folder.read_settings()
    settings = changed_settings(old, changes)
    if "threads" not in changes:
        settings = fitting_threads(old, settings)
    check_changes(changes_between(old, settings))
    refuse_other_kind(settings)
    check_processes(settings)
    if not folder.begun and not folder.planned:  # run.toml holds what was asked for, not yet what was chosen
        raise _nothing_trained(folder)
    _refuse_if_done(folder, old, settings, observer)
    return old, settings


def _again(settings: TrainSettings, place: Place) -> Run:
    """The parts of a run that is resumed, on rank 0."""
    for note in place.runtime.notes:
        place.observer.on_note(note)
    place.measure()
    try:
        return _kind(settings).again(settings, place)
    except DataError as error:
        if not place.folder.begun:
            raise _nothing_trained(place.folder) from error
        return _prepare_again(settings, place, error)


def _everywhere(settings: TrainSettings | None, ranks: Ranks) -> TrainSettings:
    """The settings of rank 0."""
    if settings is not None and ranks.size == 1:
        return settings
    told = ranks.share(lambda: None if settings is None else settings.model_dump(mode="json"))
    return settings or TrainSettings.read(told or {}, source="rank 0")


def processes_of_run(folder: str | Path, changes: dict[str, object]) -> RunSettings:
    """What run.toml of a run says of its processes, after `changes`. Raises `MingyueError` where there is no run."""
    return changed_settings(RunFolder.open(Path(folder)).read_settings(), changes).run


def _kind(settings: TrainSettings) -> type[TextRun] | type[PairRun]:
    return PairRun if settings.pairs.given else TextRun


def _nothing_trained(folder: RunFolder) -> CheckpointError:
    return CheckpointError(
        f"{folder.path} was stopped before anything was trained",
        advice=f"Start it again: mingyue train --config {shlex.quote(str(folder.settings_path))}",
    )


def _prepare_again(settings: TrainSettings, place: Place, damage: DataError) -> Run:
    """A run whose prepared text is damaged: made anew from its sources, where they are still there.

    Whether it is the same text is checked against the checkpoint. Raises `DataError`; the damaged one is then back.
    """
    folder = place.folder
    aside = set_aside(folder.data) if folder.data.exists() else None
    kept = "" if aside is None else f" What was there is now in {aside.name}."
    place.observer.on_note(f"{damage.message}. The text is prepared again from its sources.{kept}")
    try:
        return _kind(settings).of(settings, place)
    except MingyueError as error:
        if aside is not None:
            shutil.rmtree(folder.data, ignore_errors=True)
            aside.rename(folder.data)
        raise DataError(
            f"{damage.message}; and it cannot be prepared again: {error.message}",
            advice="Put the sources of the run back where they were, then `mingyue resume` again.",
        ) from error


def _refuse_if_done(folder: RunFolder, old: TrainSettings, new: TrainSettings, observer: Observer) -> None:
    """A finished run goes on only with more to do. Raises `TrainingError` that says what was done."""
    log = read_log(folder.metrics)
    if not log or log[-1]["event"] != "end" or log[-1]["reason"] not in ("finished", "patience"):
        return
    last, budget = log[-1], new.budget
    more = (
        (budget.steps is not None and budget.steps > last["step"])
        or (budget.minutes is not None and 60 * budget.minutes > last["seconds"] and budget != old.budget)
        or (budget.epochs is not None and budget.epochs > (old.budget.epochs or 0))
        or new.run.patience != old.run.patience
    )
    if not more and _has_model_of(folder, last, observer):
        raise TrainingError(
            f"nothing is left to do: {last['step']:,} steps were taken in {last['seconds'] / 60:.1f} min",
            advice="Give a larger budget to go on, counted from the start of the run: --steps, --minutes or --epochs.",
        )


def _has_model_of(folder: RunFolder, end: dict[str, Any], observer: Observer) -> bool:
    """Whether the bundle is whole, and of the end that the log tells of; a damaged one is set aside."""
    if not folder.model.is_dir():
        return False
    try:
        card = read_training(folder.model)
    except MingyueError as error:
        aside = set_aside(folder.model)
        observer.on_note(f"{error.message}. The model was set aside as {aside.name}, and is made anew.")
        return False
    # After a longer budget and a kill just before the new bundle, the one of the earlier end is still there.
    return (card.get("steps"), card.get("tokens")) == (end.get("weights_step"), end["tokens"])
