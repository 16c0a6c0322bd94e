"""Checkpoints of a run: `checkpoints/step-00001234/`, each whole or absent.

    model.safetensors       the weights, under the model's own names
    optimiser.safetensors   the state of the optimisers, by weight
    state.json              the state of the run, and the SHA-256 of all three

A sharded run writes a few files for each rank instead of the first two (`sharded_checkpoints`); both are read here.

A checkpoint is written under a temporary name, flushed to the disk and renamed. It is tensors and JSON: reading it
executes nothing. A damaged one is detected by its checksums and set aside, and the one before is used.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mingyue.errors import CheckpointError, DivergedError
from mingyue.files import checksum_of, sha256_of, sync_folder
from mingyue.training.sharded_files import read_whole
from mingyue.training.storage import TEMPORARY, disk_errors, remove_folder, set_aside, sync_file

FORMAT = 1
_MODEL, _OPTIMISER, _STATE = "model.safetensors", "optimiser.safetensors", "state.json"
_PREFIX = "step-"


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
        if not self.folder.is_dir():
            return []
        numbers = (path.name.removeprefix(_PREFIX) for path in self.folder.glob(f"{_PREFIX}*") if path.is_dir())
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
        with disk_errors("the checkpoint", final):
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
        folder = self.path(step)
        state = self.read_state(step)
        for name, expected in state["checksums"].items():
            self.check_file(step, name, expected)
        if _MODEL in state["checksums"]:
            return Checkpoint(step, load_file(folder / _MODEL), load_file(folder / _OPTIMISER), state["run"])
        return Checkpoint(step, *read_whole(folder), state["run"])

    def read_state(self, step: int) -> dict[str, Any]:
        """The content of state.json. Raises `CheckpointError` as `load`."""
        return _read_state(self.path(step))

    def check_file(self, step: int, name: str, expected: str) -> None:
        """Raise `DamagedCheckpointError` if a file of a checkpoint is missing, or its SHA-256 is not `expected`."""
        path = self.path(step) / name
        if not path.is_file():
            raise DamagedCheckpointError(f"{path} is missing")
        try:
            found = sha256_of(path)
        except OSError as error:  # an unreadable sector
            raise DamagedCheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
        if found != expected:
            raise DamagedCheckpointError(
                f"{path} is damaged: its SHA-256 is {found[:12]}…, {_STATE} says {expected[:12]}…",
                advice="Copy it again, or resume from an earlier checkpoint.",
            )

    def read_run(self, step: int) -> dict[str, Any]:
        """The state of the run in a checkpoint, without its tensors. Raises `CheckpointError` as `load`."""
        run: dict[str, Any] = _read_state(self.path(step))["run"]
        return run

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
                    f"{error.message}. It was set aside as {self._set_aside(step)}; the checkpoint before it is used."
                )
        message = f"{self.folder} holds no sound checkpoint"
        raise CheckpointError("\n".join([message, *notes]), advice="Start the run again with `mingyue train`.")

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
    for name, weight in weights.items():
        if not bool(torch.isfinite(weight).all()):
            raise DivergedError(f"the weight {name} is not finite after step {step}: it is not saved")


def _write(folder: Path, checkpoint: Checkpoint) -> dict[str, str]:
    """Write the tensors and flush them to the disk; returns the checksums of the files."""
    save_file(_plain(checkpoint.model), folder / _MODEL, metadata={"format": "pt"})
    save_file(_plain(checkpoint.optimiser), folder / _OPTIMISER)
    for name in (_MODEL, _OPTIMISER):
        sync_file(folder / name)
    return {name: sha256_of(folder / name) for name in (_MODEL, _OPTIMISER)}


def _write_state(folder: Path, checksums: Mapping[str, str], run: Mapping[str, Any]) -> None:
    state: dict[str, Any] = {
        "format": FORMAT,
        "checksums": dict(checksums),
        "run": dict(run),
    }
    state["checksum"] = checksum_of(state)
    with (folder / _STATE).open("w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(state, ensure_ascii=False, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def _plain(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}


def _read_state(folder: Path) -> dict[str, Any]:
    path = folder / _STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DamagedCheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(state, dict) or not isinstance(state.get("format"), int):
        raise DamagedCheckpointError(f"{path} is not the state of a checkpoint")
    if state["format"] > FORMAT:
        raise CheckpointError(
            f"{path} is of format version {state['format']}; this program knows versions up to {FORMAT}",
            advice="Install a newer mingyue.",
        )
    if state.get("checksum") != checksum_of(state):
        raise DamagedCheckpointError(f"{path} is damaged: its checksum does not fit its content")
    return state
