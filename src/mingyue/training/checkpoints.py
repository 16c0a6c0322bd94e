"""Checkpoints of a run: `checkpoints/step-00001234/`, each whole or absent.

    model.safetensors       the weights, under the model's own names
    optimiser.safetensors   the state of the optimisers, by weight
    state.json              the state of the run, and the SHA-256 of all three

A sharded run writes a few files for each rank instead of the first two (`sharded_checkpoints`); both are read here.

A checkpoint is written under a temporary name, flushed to the disk and renamed. It is tensors and JSON: reading it
executes nothing. A damaged one is detected by its checksums, and the one before is used; a run that is resumed sets the
damaged one aside, a program that only reads changes nothing.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from mingyue.errors import CheckpointError, DivergedError, FormatError
from mingyue.files import checksum_of, reason_of, sha256_of, share_as_folder, sync_folder
from mingyue.models import first_not_finite, read_weights_file
from mingyue.parsing import read_json_object, take
from mingyue.paths import utf8_name
from mingyue.training.sharded_files import read_whole
from mingyue.training.storage import SET_ASIDE, TEMPORARY, disk_errors, remove_folder, set_aside, sync_file
from mingyue.words import stacked, tr

FORMAT = 1
_MODEL, _OPTIMISER, _STATE = "model.safetensors", "optimiser.safetensors", "state.json"
_PREFIX = "step-"
_LOST = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO, getattr(errno, "EUCLEAN", errno.EIO)}
"""Errors of reading that mean damage. After any other (permission denied, too many open files) the file is intact."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is damaged."""


@dataclass
class Checkpoint:
    """One checkpoint in memory."""

    step: int
    """Steps taken."""
    model: dict[str, torch.Tensor]
    optimiser: dict[str, torch.Tensor]
    state: dict[str, Any]
    """Everything else, as JSON."""


class Checkpoints:
    """The checkpoints in one folder: the latest `keep`, and the best."""

    shared = False
    """Whether every rank writes and reads its share; else rank 0 does it for all."""

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """Steps of all checkpoints in ascending order, sound or not."""
        try:
            found = [path.name for path in self.folder.iterdir() if path.name.startswith(_PREFIX) and path.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _unreadable(self.folder, error) from error
        numbers = (name.removeprefix(_PREFIX) for name in found)
        return sorted(int(number) for number in numbers if number.isdigit())

    def path(self, step: int) -> Path:
        """Folder of the checkpoint after `step` steps."""
        return self.folder / f"{_PREFIX}{step:08d}"

    def save(self, checkpoint: Checkpoint, *, best: int | None = None) -> Path:
        """Write a checkpoint; then remove those that are neither among the latest `keep` nor the `best` step.

        Raises `CheckpointError` when it cannot be written (the earlier ones are still whole), and `DivergedError` for a
        weight that is not finite, from which no run could be resumed.
        """
        check_finite(checkpoint.model, checkpoint.step)
        final = self.path(checkpoint.step)
        fresh = self.folder / f"{TEMPORARY}{final.name}-{os.getpid()}"
        with disk_errors(tr("the checkpoint"), final):
            try:
                fresh.mkdir(parents=True)
                self.publish(fresh, checkpoint.step, _write(fresh, checkpoint), checkpoint.state)
            except BaseException:
                shutil.rmtree(fresh, ignore_errors=True)
                raise
        self.prune(just_saved=checkpoint.step, best=best)
        return final

    def publish(self, fresh: Path, step: int, checksums: Mapping[str, str], run: Mapping[str, Any]) -> None:
        """Complete a folder whose tensors are on the disk: write its state.json, and rename it."""
        _write_state(fresh, checksums, run)
        final = self.path(step)
        if final.exists():  # saved before, damaged or from a run that was cut back: the new one replaces it
            remove_folder(final)
        fresh.rename(final)
        sync_folder(self.folder)

    @property
    def failed(self) -> bool:
        """Whether a save in the background has failed; `wait` raises its error."""
        return False

    def wait(self) -> None:
        """Wait until saves are on the disk, as they are here when `save` returns."""

    def load(self, step: int) -> Checkpoint:
        """Read a checkpoint. Raises `CheckpointError` that names the file that is missing or damaged."""
        (model, optimiser), run = self._read(step, _MODEL, _OPTIMISER)
        return Checkpoint(step, model, optimiser, run)

    def load_weights(self, step: int) -> dict[str, torch.Tensor]:
        """The weights of a checkpoint, without the state of the optimisers. Raises as `load`."""
        return self._read(step, _MODEL)[0][0]

    def _read(self, step: int, *names: str) -> tuple[list[dict[str, torch.Tensor]], dict[str, Any]]:
        """The tensors of each file and the state of the run; a sharded checkpoint is always read whole."""
        state = self.read_state(step)
        checksums = state["checksums"]
        whole = _MODEL not in checksums
        for name in checksums if whole else names:
            self.check_file(step, name, checksums[name])
        found = list(read_whole(self.path(step))) if whole else [self._tensors(step, name) for name in names]
        if (name := first_not_finite(found[0])) is not None:
            raise DamagedCheckpointError(
                tr("{path} is damaged: the weight {name} is not finite", self.path(step), name)
            )
        return found, state["run"]

    def _tensors(self, step: int, name: str) -> dict[str, torch.Tensor]:
        path = self.path(step) / name
        try:
            return read_weights_file(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        except SafetensorError as error:
            raise DamagedCheckpointError(tr("{path} is damaged: {error}", path, error)) from error

    def read_state(self, step: int) -> dict[str, Any]:
        """The content of state.json. Raises `CheckpointError` as `load`."""
        try:
            return _read_state(self.path(step))
        except DamagedCheckpointError as error:
            if isinstance(error.__cause__, OSError):
                raise _unreadable(self.path(step) / _STATE, error.__cause__) from error.__cause__
            raise

    def check_file(self, step: int, name: str, expected: str) -> None:
        """Raise `DamagedCheckpointError` if a file of a checkpoint is missing, or its SHA-256 is not `expected`."""
        path = self.path(step) / name
        try:
            found = sha256_of(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        if found != expected:
            raise DamagedCheckpointError(
                tr(
                    "{path} is damaged: its SHA-256 is {found}…, {state} says {expected}…",
                    path,
                    found[:12],
                    _STATE,
                    expected[:12],
                ),
                advice=tr("Copy it again, or resume from an earlier checkpoint."),
            )

    def read_run(self, step: int) -> dict[str, Any]:
        """The state of the run in a checkpoint, without its tensors. Raises `CheckpointError` as `load`."""
        run: dict[str, Any] = self.read_state(step)["run"]
        return run

    def load_best(self) -> tuple[int, dict[str, torch.Tensor], list[str]]:
        """(step, weights, a sentence about each damaged one) of the best checkpoint, or of the latest sound one.

        For programs that only read: nothing on the disk is changed, and a run may save and prune meanwhile. Raises
        `CheckpointError` as `load_latest`.
        """
        steps = self.steps()
        notes: list[str] = []
        for latest in reversed(steps):
            try:
                best = self.read_run(latest)["counters"]["best_step"]
            except DamagedCheckpointError as error:
                notes.append(tr("{message}. The checkpoint before it is used.", error.message))
                continue
            for step in dict.fromkeys([latest if best is None else best, latest]):
                try:
                    return step, self.load_weights(step), notes
                except DamagedCheckpointError as error:
                    notes.append(tr("{message}. Another checkpoint is used.", error.message))
        if self.steps() != steps:  # pruned while they were read
            return self.load_best()
        raise self._none_sound(notes)

    def load_latest(self) -> tuple[Checkpoint, list[str]]:
        """The latest sound checkpoint, and a sentence about each damaged one that was set aside.

        Raises `CheckpointError` when none is sound, or when the latest has a format that this version does not know.
        """
        notes: list[str] = []
        for step in reversed(self.steps()):
            try:
                return self.load(step), notes
            except DamagedCheckpointError as error:
                notes.append(
                    tr(
                        "{message}. It was set aside as {set_aside}; the checkpoint before it is used.",
                        error.message,
                        self._set_aside(step),
                    )
                )
        raise self._none_sound(notes)

    def _none_sound(self, notes: list[str]) -> CheckpointError:
        message = tr("{folder} holds no sound checkpoint", self.folder)
        advice = tr("Start the run again with `mingyue train` and --overwrite.")
        return CheckpointError(stacked([message, *notes]), advice=advice)

    def check_none_was_damaged(self) -> None:
        """Raise `CheckpointError` if checkpoints were set aside: a run that began again would replace its model."""
        if aside := sorted(path.name for path in self.folder.glob(f"{SET_ASIDE}*")):
            raise self._none_sound([tr("{name} was damaged and set aside.", name) for name in aside])

    def sweep(self) -> list[str]:
        """Remove the remains of an interrupted save or removal; returns their names."""
        left = sorted(path for path in self.folder.glob(f"{TEMPORARY}*") if path.is_dir())
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        return [path.name for path in left]

    def _set_aside(self, step: int) -> str:
        return set_aside(self.path(step)).name

    def prune(self, *, just_saved: int, best: int | None) -> None:
        """Remove the checkpoints that are neither among the latest `keep` nor the `best` step."""
        # The one just written is sound, so at least one sound checkpoint is kept, whatever the others are.
        stays = {*self.steps()[-self.keep :], just_saved, best}
        for step in self.steps():
            if step not in stays:
                with suppress(OSError):  # in use by another program: the next save tries again
                    remove_folder(self.path(step))


def check_finite(weights: Mapping[str, torch.Tensor], step: int) -> None:
    """Raise `DivergedError` that names the first weight that is not finite."""
    if (name := first_not_finite(weights)) is not None:
        raise DivergedError(tr("the weight {name} is not finite after step {step}: it is not saved", name, step))


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    """The error for a file of a checkpoint that cannot be read: a `DamagedCheckpointError` only if it is lost."""
    if isinstance(error, FileNotFoundError):
        return DamagedCheckpointError(tr("{path} is missing", path))
    message = tr("{path} cannot be read: {reason}", path, reason_of(error))
    if error.errno in _LOST:
        return DamagedCheckpointError(message)
    advice = tr("Ask its owner for permission to read it.") if isinstance(error, PermissionError) else tr("Try again.")
    return CheckpointError(message, advice=advice)


def _write(folder: Path, checkpoint: Checkpoint) -> dict[str, str]:
    """Write the tensors and flush them to the disk; returns the checksums of the files."""
    with utf8_name(folder / _MODEL, new=True) as name:
        save_file(_plain(checkpoint.model), name, metadata={"format": "pt"})
    with utf8_name(folder / _OPTIMISER, new=True) as name:
        save_file(_plain(checkpoint.optimiser), name)
    for name in (_MODEL, _OPTIMISER):
        share_as_folder(folder / name)
        sync_file(folder / name)
    return {name: sha256_of(folder / name) for name in (_MODEL, _OPTIMISER)}


def _write_state(folder: Path, checksums: Mapping[str, str], run: Mapping[str, Any]) -> None:
    state: dict[str, Any] = {
        "format": FORMAT,
        "checksums": dict(checksums),
        "run": dict(run),
    }
    state["checksum"] = checksum_of(state)
    with (folder / _STATE).open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        file.write(json.dumps(state, ensure_ascii=False, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def _plain(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}


def _read_state(folder: Path) -> dict[str, Any]:
    path = folder / _STATE
    try:
        state = read_json_object(path)
    except (OSError, FormatError) as error:
        raise DamagedCheckpointError(tr("{path} cannot be read: {error}", path, error)) from error
    if not isinstance(state.get("format"), int):
        raise DamagedCheckpointError(tr("{path} is not the state of a checkpoint", path))
    if state["format"] > FORMAT:
        raise CheckpointError(
            tr(
                "{path} is of format version {state}; this program knows versions up to {format}",
                path,
                state["format"],
                FORMAT,
            ),
            advice=tr("Install a newer mingyue."),
        )
    if state.get("checksum") != checksum_of(state):
        raise DamagedCheckpointError(tr("{path} is damaged: its checksum does not fit its content", path))
    try:
        take(state, "run", dict)
        for name in take(state, "checksums", dict):
            take(state["checksums"], name, str)
    except FormatError as error:
        raise DamagedCheckpointError(tr("{path} is damaged: {message}", path, error.message)) from None
    return state
