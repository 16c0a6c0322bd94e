"""The folder of a run: everything that is needed to resume it, or to start it again.

run.toml        all settings; `mingyue train --config run.toml` replays it
plan.json       the plan, from the moment it is made or fixed
metrics.jsonl   what happened
checkpoints/    what it can be resumed from
data/           the text as token ids
model/          the trained model, which needs none of the rest
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import tomli_w

from mingyue.config import TrainSettings
from mingyue.errors import CheckpointError, FormatError, SettingsError
from mingyue.files import TEMPORARY, seal_holds, sealed, write_text_atomically
from mingyue.parsing import read_json_object, read_toml, take
from mingyue.paths import escape_names, restore_names
from mingyue.training.checkpoints import Checkpoints, DamagedCheckpointError
from mingyue.training.locking import lock_file, unlock_file
from mingyue.training.log import read_log
from mingyue.training.storage import disk_errors, free_name, remove_folder, set_aside, swept
from mingyue.words import tr

_SETTINGS, _PLAN, _LOCK = "run.toml", "plan.json", "run.lock"
_UNFINISHED = re.compile(rf"{TEMPORARY.pattern}|\..+\.\d+\.tmp|\.model-[a-z0-9_]{{8}}\.tmp")
"""Names of files and of a bundle that were being written when the program was killed."""
_HEADER = "# Settings of a run of Mingyue. `mingyue train --config run.toml` starts it again.\n\n"


class RunFolder:
    """Paths in a run folder, its settings, and the lock that prevents two programs from writing to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None
        self._replaced: Path | None = None
        """Where the run is now that was in this folder before; `remove` moves it back."""

    @property
    def settings_path(self) -> Path:
        """run.toml"""
        return self.path / _SETTINGS

    @property
    def metrics(self) -> Path:
        """metrics.jsonl"""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def data(self) -> Path:
        """Folder of the token files."""
        return self.path / "data"

    @property
    def model(self) -> Path:
        """Folder of the bundle."""
        return self.path / "model"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard events."""
        return self.path / "tensorboard"

    @property
    def watch(self) -> Path:
        """Folder of the frames of `--watch`: one file per checkpoint, `step-00001234.safetensors`."""
        return self.path / "watch"

    def cut_watch(self, step: int) -> None:
        """Remove frames after `step`, from which the run resumes: those steps are taken again."""
        for path in self.watch.glob("step-*.safetensors"):
            number = path.stem.removeprefix("step-")
            if number.isdigit() and int(number) > step:
                path.unlink(missing_ok=True)

    @property
    def begun(self) -> bool:
        """Whether there is anything to resume: a checkpoint, or a model."""
        return self.checkpoints.is_dir() or self.model.is_dir()

    @property
    def planned(self) -> bool:
        """Whether all work before the first step was done: only then is run.toml complete."""
        return (self.path / _PLAN).is_file()

    @classmethod
    def create(cls, path: Path, settings: TrainSettings) -> tuple[RunFolder, list[str]]:
        """Create the folder of a new run, locked, with its run.toml; returns it and sentences for the user.

        A run that is there already is moved aside with `overwrite`; `remove` moves it back. Raises `CheckpointError`
        for it without `overwrite`, for a folder with other content, for one in use, and when it cannot be written.
        """
        notes: list[str] = []
        aside: Path | None = None
        if path.is_file():
            raise CheckpointError(tr("{path} is a file, not a folder", path), advice=tr("Choose another --out."))
        _sweep_beside(path)
        if path.is_dir() and any(not _is_left_over(inside.name) for inside in path.iterdir()):
            if not (path / _SETTINGS).is_file():
                raise CheckpointError(
                    tr("{path} is not empty, and what is in it is not a run", path),
                    advice=tr("Choose another --out."),
                )
            begun = cls(path).begun
            if begun and not settings.run.overwrite:
                raise CheckpointError(
                    tr("{path} already holds a run", path),
                    advice=tr("`mingyue resume {path}` resumes it; --overwrite renames it and starts a new run.", path),
                )
            with cls(path) as old:  # fails while another program writes to it
                old.unlock()
                if begun:
                    aside = free_name(path)
                    with disk_errors(tr("the old run"), aside):
                        path.rename(aside)
                    notes.append(tr("The run that was in {path} is now in {aside}.", path, aside))
                else:
                    old.remove()  # stopped before its first checkpoint: nothing to resume
        folder = cls(path)
        folder._replaced = aside
        try:
            with disk_errors(tr("the run folder"), path):
                path.mkdir(parents=True, exist_ok=True)
            folder.lock()
            folder.sweep()
            folder.write_settings(settings)
        except BaseException:
            if aside is None:
                folder.unlock()
            else:
                folder.remove()
            raise
        return folder, notes

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that was started. Raises `CheckpointError` if there is no run in it."""
        folder = cls(path)
        if not folder.settings_path.is_file() and not Checkpoints(folder.checkpoints).steps():
            raise CheckpointError(
                tr("{path} holds no run: there is no {settings} in it", path, _SETTINGS),
                advice=tr("Start one with `mingyue train`."),
            )
        return folder

    def sweep(self) -> None:
        """Remove unfinished files of a killed program, outside of checkpoints/. The caller has locked the folder."""
        aside = self.path / ".model-old.tmp"  # where `save_bundle` keeps the old model between two renames
        if aside.is_dir() and not self.model.exists():
            aside.rename(self.model)
        shutil.rmtree(aside, ignore_errors=True)
        for folder in (self.path, self.data, self.watch, self.model):
            for left in folder.glob(".*.tmp"):
                if left.is_dir() and _UNFINISHED.fullmatch(left.name):
                    shutil.rmtree(left, ignore_errors=True)
                elif _UNFINISHED.fullmatch(left.name):
                    left.unlink(missing_ok=True)

    def write_settings(self, settings: TrainSettings) -> None:
        """Write run.toml, without settings that are None."""
        self.check_in_place()
        text = _HEADER + escape_names(tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True)))
        with disk_errors(tr("the settings"), self.settings_path):
            write_text_atomically(self.settings_path, text)

    def read_settings(self) -> TrainSettings:
        """Read run.toml; if it is missing, the settings are those of the latest checkpoint with a sound state.

        Raises `SettingsError` for an unknown key or an invalid value, and for what is not TOML.
        """
        if not self.settings_path.is_file():
            return self._settings_of_latest()[1]
        try:
            values = restore_names(read_toml(self.settings_path))
            if not values:
                raise ValueError("there is nothing in it")
        except (OSError, ValueError) as error:  # not TOML, or empty
            raise SettingsError(
                tr("{settings_path} cannot be read: {error}", self.settings_path, error),
                advice=tr(
                    "Correct it, or delete it: `mingyue resume` then takes the settings from the latest checkpoint."
                ),
            ) from error
        return TrainSettings.read(values, source=str(self.settings_path))

    def restore_settings(self) -> str | None:
        """Write a missing run.toml again; returns a sentence. Raises `CheckpointError` without a sound checkpoint."""
        if self.settings_path.is_file():
            return None
        step, settings = self._settings_of_latest()
        self.write_settings(settings)
        return tr(
            "{settings_path} was missing; the settings are those of the checkpoint of step {step:,}.",
            self.settings_path,
            step,
        )

    def _settings_of_latest(self) -> tuple[int, TrainSettings]:
        checkpoints = Checkpoints(self.checkpoints)
        for step in reversed(checkpoints.steps()):
            try:
                values = checkpoints.read_run(step)["settings"]
            except DamagedCheckpointError:
                continue
            return step, TrainSettings.read(values, source=str(checkpoints.path(step)))
        raise CheckpointError(
            tr("{settings_path} is missing, and no checkpoint is sound that could replace it", self.settings_path)
        )

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Write the plan; it is on the disk when this returns."""
        self.check_in_place()
        with disk_errors(tr("the plan"), self.path / _PLAN):
            write_text_atomically(self.path / _PLAN, json.dumps(sealed(plan), indent=1) + "\n")

    def read_plan(self, key: str, tell: Callable[[str], None]) -> dict[str, Any] | None:
        """The recorded plan, `{"key": …, "plan": …}`, if there is one.

        If plan.json is missing or damaged (it is then set aside), the latest plan in metrics.jsonl is used, with the
        key `key`; `tell` receives a sentence about it.
        """
        path = self.path / _PLAN
        damage = tr("is missing")
        if path.is_file():
            try:
                found = read_json_object(path)
                if seal_holds(found):
                    take(found, "key", str)
                    take(found, "plan", dict)
                    return found
                damage = tr("is damaged: its checksum does not fit its content")
            except PermissionError as error:
                raise CheckpointError(tr("{path} cannot be read: permission denied", path)) from error
            except (OSError, FormatError) as error:
                damage = tr("cannot be read: {error}", error)
            damage += tr(". It was set aside as {name}", set_aside(path).name)
        plans = [line for line in read_log(self.metrics) if line["event"] == "plan"]
        if not plans:
            if damage != "is missing":
                tell(tr("{path} {damage}; a new plan is made.", path, damage))
            return None
        tell(tr("{path} {damage}; the plan is taken from {name}.", path, damage, self.metrics.name))
        known = ("event", "step", "tokens", "seconds")
        return {"key": key, "plan": {name: value for name, value in plans[-1].items() if name not in known}}

    def remove(self) -> None:
        """Remove the folder of a run without a checkpoint, and move the run back that it replaced.

        Raises `CheckpointError` if the folder is another one by now.
        """
        self.check_in_place()
        self.unlock()
        with disk_errors(tr("the run folder"), self.path):
            if self.path.is_dir():
                remove_folder(self.path)
            if self._replaced is not None:
                self._replaced.rename(self.path)
                self._replaced = None

    def lock(self) -> None:
        """Lock the folder for this process. The system releases the lock when the process ends, however it ends.

        Raises `CheckpointError` when another program has locked it.
        """
        path = self.path / _LOCK
        with disk_errors(tr("the lock"), path):
            file = path.open("a+b")
        try:
            lock_file(file)
        except OSError:
            file.seek(0)
            holder = file.read(20).decode("ascii", "replace").strip()
            file.close()
            raise CheckpointError(
                tr("{path} is in use by another program", self.path)
                + (tr(" (process {holder})", holder) if holder else ""),
                advice=tr("Wait for it to end, or stop it with Ctrl-C: it saves first."),
            ) from None
        file.truncate(0)
        with suppress(OSError):  # the number is information only: a full disk must not prevent the lock
            os.write(file.fileno(), str(os.getpid()).encode("ascii"))
        self._lock = file
        self.check_in_place()  # it may have been replaced between the opening and the lock

    def check_in_place(self) -> None:
        """Raise `CheckpointError` if the folder was removed, renamed or replaced since this program locked it.

        What is at its path then belongs to nobody or to another run, so nothing may be written there. The lock tells:
        it must still be the same file. Without a lock (on ranks other than 0) nothing is checked.
        """
        if self._lock is None:
            return
        try:
            same = os.path.samestat((self.path / _LOCK).stat(), os.fstat(self._lock.fileno()))
        except OSError:
            same = False
        if not same:
            raise CheckpointError(
                tr(
                    "{path} was removed, renamed or replaced while this program wrote to it: nothing more is saved",
                    self.path,
                ),
                advice=tr(
                    "If it was renamed, resume it under its new name: its checkpoints are whole. If it "
                    "was removed, start again."
                ),
            )

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.truncate(0)
            unlock_file(self._lock)
            self._lock.close()
            self._lock = None

    def __enter__(self) -> RunFolder:
        if self._lock is None:
            self.lock()
        return self

    def __exit__(self, *_: object) -> None:
        self.unlock()


def _is_left_over(name: str) -> bool:
    return name == _LOCK or _UNFINISHED.fullmatch(name) is not None


def _sweep_beside(path: Path) -> None:
    """Remove what a killed `remove` left beside the folder of a run."""
    if path.parent.is_dir():
        for left in path.parent.glob("tmp-removed-*"):
            if swept(path.name).fullmatch(left.name):
                shutil.rmtree(left, ignore_errors=True)
