"""Training: start a run, or resume one."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from mingyue.api.caller import speaks_python
from mingyue.config import NonNegative, RunSettings, TrainSettings, checked
from mingyue.display.default import default_display
from mingyue.errors import SettingsError
from mingyue.paths import path_of
from mingyue.printable import shown as shown_value
from mingyue.runs import RunResult, new_run, resumed_run
from mingyue.runtime import processes
from mingyue.training import Clock, Observer, RunFolder, changed_settings
from mingyue.words import tr

_SEVERAL = ("sources", "source", "target", "pairs", "valid_source", "valid_target", "valid_pairs")
"""Settings that are lists of names."""


@speaks_python()
def train(
    settings: TrainSettings | str | Path | None = None,
    *,
    observer: Observer | None = None,
    waited: float = 0.0,
    **given: object,
) -> RunResult:
    """Train a model. `given` are fields of `TrainSettings` by name, of any group; they override `settings`.

    A file, folder or known corpus may stand for `settings`: `train("poems.txt")` is `train(sources="poems.txt")`.
    Where a setting is a name of a file or folder, a `Path` is one too; a single name stands for a list of one.

    `observer` receives the events of the run. None: the run is shown, in a notebook below the cell, else on standard
    error (a bar on a terminal, plain lines elsewhere); `mingyue.Observer()` shows nothing. `waited` are seconds that
    the user has already waited (a budget in minutes includes them). Under torchrun every process calls this with the
    same arguments and has the same result; only the observer of rank 0 is used. Raises `MingyueError` of every kind;
    what was saved before stays intact.
    """
    clock = Clock(checked("waited", waited, NonNegative))
    if isinstance(settings, str | Path):
        settings, given = None, {"sources": settings, **given}
    elif not isinstance(settings, TrainSettings | None):
        raise SettingsError(
            tr("{value} is neither settings nor the name of a text", shown_value(settings)),
            advice=tr('Give a file name, TrainSettings, or settings by name: train(sources="poems.txt", minutes=5).'),
        )
    named = {name: _names(name, value) for name, value in given.items()}
    with shown(observer) as display, new_run((settings or TrainSettings()).with_flat(**named), display, clock) as run:
        return run.train()


@speaks_python()
def resume(
    folder: str | Path,
    *,
    changes: dict[str, object] | None = None,
    observer: Observer | None = None,
    waited: float = 0.0,
    **given: object,
) -> RunResult:
    """Resume a run from its latest checkpoint. `changes` (or keyword arguments) are settings that differ from here on.

    A change takes effect, with a note, or is refused with `SettingsError`. `observer` is as for `train`. Raises
    `CheckpointError` for a folder without a run, or without an intact checkpoint.
    """
    clock = Clock(checked("waited", waited, NonNegative))
    with shown(observer) as display, resumed_run(path_of(folder), {**(changes or {}), **given}, display, clock) as run:
        return run.train()


@contextmanager
def shown(observer: Observer | None) -> Generator[Observer]:
    """`observer`, or the default display if it is None, which is then removed at the end."""
    if observer is not None or processes().rank:
        yield observer or Observer()
        return
    with default_display() as display:
        yield display


def processes_of_run(folder: str | Path, changes: dict[str, object]) -> RunSettings:
    """The settings of a run's processes in its run.toml, after `changes`. Raises `MingyueError` without a run."""
    return changed_settings(RunFolder.open(path_of(folder)).read_settings(), changes).run


def _names(setting: str, value: object) -> object:
    """`value` with each path in it as text; a single path or text as a list, where the setting takes several."""
    if isinstance(value, Path):
        value = str(value)
    if setting not in _SEVERAL:
        return value
    several = [value] if isinstance(value, str) else value
    return [str(one) if isinstance(one, Path) else one for one in several] if isinstance(several, Iterable) else several
