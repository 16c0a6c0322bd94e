"""A training run from its settings to its verdict: what `mingyue train` and `mingyue resume` do."""

from __future__ import annotations

import shlex
from pathlib import Path

from mingyue.api.base_run import Place, Run, RunResult, run_path
from mingyue.api.pair_run import PairRun
from mingyue.api.text_run import TextRun
from mingyue.config import PairSettings, TrainSettings
from mingyue.errors import CheckpointError, DataError, SettingsError, TrainingError
from mingyue.runtime import Runtime, choose_runtime
from mingyue.training import Clock, Observer, RunFolder, changed_settings, measure_peak, read_log
from mingyue.training.recipes import with_recipe
from mingyue.training.resume_rules import changes_between, check_changes

_FOR_TEXT = ("separator", "field", "attend_across_documents", "window", "sample_prompt")
_FOR_PAIRS = ("n_encoder_layers", *PairSettings.model_fields)


def train(
    settings: TrainSettings | None = None, *, observer: Observer | None = None, waited: float = 0.0, **given: object
) -> RunResult:
    """Train a model. `given` are fields of `TrainSettings` by name, whatever group they are in; they win.

    `observer` is told what happens; `waited` are seconds that the user has already waited (a budget in minutes counts
    them). Raises `MingyueError` of every kind; what was saved before stays whole.
    """
    clock = Clock(waited)
    observer = observer or Observer()
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
    _refuse_other_kind(settings)
    runtime = choose_runtime(settings.run.device, settings.run.dtype, settings.run.threads)
    folder, notes = RunFolder.create(run_path(settings), settings)
    with folder:
        try:
            for note in (*notes, *runtime.notes):
                observer.on_note(note)
            run = _kind(settings).of(settings, _place(folder, runtime, clock, observer))
            run.introduce()
        except BaseException:
            folder.remove()  # nothing was trained: the same command, corrected, must not find a run in its way
            raise
        return run.go(resume=False)


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
    observer = observer or Observer()
    with RunFolder.open(Path(folder)) as opened:
        old = opened.read_settings()
        settings = changed_settings(old, {**(changes or {}), **given})
        check_changes(changes_between(old, settings))
        _refuse_other_kind(settings)
        _refuse_if_done(opened, old, settings)
        runtime = choose_runtime(settings.run.device, settings.run.dtype, settings.run.threads)
        for note in runtime.notes:
            observer.on_note(note)
        try:
            run: Run = _kind(settings).again(settings, _place(opened, runtime, clock, observer))
        except DataError as error:
            if opened.begun:
                raise
            raise CheckpointError(
                f"{folder} was stopped before anything was trained",
                advice=f"Start it again: mingyue train --config {shlex.quote(str(opened.settings_path))}",
            ) from error
        result = run.go(resume=True)
        if settings != old:
            opened.write_settings(settings)
        return result


def _kind(settings: TrainSettings) -> type[TextRun] | type[PairRun]:
    return PairRun if settings.pairs.given else TextRun


def _refuse_other_kind(settings: TrainSettings) -> None:
    """What was asked for is never ignored. Raises `SettingsError` for settings that this kind of run has no use for."""
    kind, other, names = ("pairs", "text", _FOR_TEXT) if settings.pairs.given else ("text", "pairs", _FOR_PAIRS)
    changed = [
        name
        for group in type(settings).model_fields
        for name, field in type(getattr(settings, group)).model_fields.items()
        if name in names and getattr(getattr(settings, group), name) != field.default
    ]
    if changed:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise SettingsError(f"a run on {kind} has no use for what is for {other}: leave {options} out")


def _place(folder: RunFolder, runtime: Runtime, clock: Clock, observer: Observer) -> Place:
    peak = measure_peak(runtime.device, dtype=runtime.dtype)
    return Place(folder=folder, runtime=runtime, clock=clock, observer=observer, peak=peak)


def _refuse_if_done(folder: RunFolder, old: TrainSettings, new: TrainSettings) -> None:
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
    if folder.model.is_dir() and not more:
        raise TrainingError(
            f"nothing is left to do: {last['step']:,} steps were taken in {last['seconds'] / 60:.1f} min",
            advice="Give a larger budget to go on, counted from the start of the run: --steps, --minutes or --epochs.",
        )
