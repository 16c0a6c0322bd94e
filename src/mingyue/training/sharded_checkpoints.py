"""Checkpoints of a sharded run: every rank writes its share, in the background.

A folder is named, guarded and pruned as those of `checkpoints`, with a few safetensors files for each rank instead of
two (`sharded_files`). A save copies the share of the rank into memory, and a thread on each rank writes it from there.
The threads communicate over a process group of their own, and rank 0 renames the folder when every file is on the disk,
so a kill at any moment leaves the checkpoint before it whole. All ranks must see the run folder.

A checkpoint does not depend on the number of ranks that wrote it: each rank reads the rows that it needs, from these
files or from those of a plain checkpoint.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.tensor import DTensor

from mingyue.errors import CheckpointError, MingyueError, TrainingError
from mingyue.files import sha256_of, sync_folder
from mingyue.training.checkpoints import Checkpoint, Checkpoints, DamagedCheckpointError, check_finite
from mingyue.training.distributed import Ranks
from mingyue.training.names import clean_state
from mingyue.training.sharded_files import file_numbers, is_optimiser_state, shapes_in
from mingyue.training.storage import TEMPORARY, disk_errors, sync_file
from mingyue.words import tr

T = TypeVar("T")

_PATIENCE = timedelta(hours=2)
"""Timeout for the files of other ranks."""


class ShardedCheckpoints(Checkpoints):
    """As `Checkpoints`, for a `model` that is divided over `ranks`; every rank calls every method.

    `save` returns as soon as training may continue. A later error is raised by the next `wait`, `save` or `load`, on
    every rank; `failed` tells whether there is one.
    """

    shared = True

    def __init__(self, folder: Path, *, keep: int = 2, ranks: Ranks, model: nn.Module) -> None:
        super().__init__(folder, keep=keep)
        self._on_disk = Checkpoints(folder, keep=keep)
        self._ranks = ranks
        self._model = model
        self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=next(model.parameters()).device.type == "cuda",
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=False,
            )
        )
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None

    # --- writing ------------------------------------------------------------------------------------------------------

    @property
    def failed(self) -> bool:
        """Whether the latest save has failed, as far as this rank knows."""
        return self._error is not None

    def wait(self) -> None:
        """Wait for the save in the background. Raises its `CheckpointError`, the same on every rank."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def save(self, checkpoint: Checkpoint, *, best: int | None = None) -> Path:
        """Start to write a checkpoint; the folder has its name when it is whole. `checkpoint.state` is that of rank 0.

        Waits for the previous save. Raises `CheckpointError` if that one failed, and `TrainingError` for a weight that
        is not finite, from which no run could be resumed.
        """
        self.wait()
        self._check_finite(checkpoint)
        staged = self._stager.stage({**checkpoint.model, **checkpoint.optimiser})
        assert isinstance(staged, dict)
        # A daemon: after an error elsewhere the program must be able to end; an unfinished folder does no harm.
        self._thread = threading.Thread(
            target=self._write, args=(staged, checkpoint.step, checkpoint.state, best), name="checkpoint", daemon=True
        )
        self._thread.start()
        return self.path(checkpoint.step)

    def _check_finite(self, checkpoint: Checkpoint) -> None:
        own: list[str | None] | None = None
        shares = {
            name: weight.to_local() if isinstance(weight, DTensor) else weight
            for name, weight in checkpoint.model.items()
        }
        try:
            check_finite(shares, checkpoint.step)
        except TrainingError as error:
            own = [error.message, error.advice]
        for found in self._ranks.collect(own):
            if found is not None:
                raise TrainingError(found[0] or "", advice=found[1])

    def _write(self, staged: dict[str, Any], step: int, run: dict[str, Any], best: int | None) -> None:
        final = self.path(step)
        fresh = self.folder / f"{TEMPORARY}{final.name}-shards"
        try:
            self._together(final, lambda: _make_empty(fresh) if self._ranks.is_main else None)
            self._together(final, lambda: self._write_share(staged, fresh))
            found = self._together(final, lambda: self._checksums(fresh))
            checksums = {name: checksum for own in found for name, checksum in own.items()}
            self._together(final, lambda: self._publish(fresh, step, checksums, run, best))
        except CheckpointError as error:
            self._error = error
        except BaseException as error:  # a lost process group or a bug: reported by the next call
            self._error = CheckpointError(
                tr("the checkpoint {final} was not written: {kind}: {error}", final, type(error).__name__, error)
            )
        if self._error is not None and self._ranks.is_main:
            shutil.rmtree(fresh, ignore_errors=True)

    def _write_share(self, staged: dict[str, Any], fresh: Path) -> None:
        writer = dcp.HuggingFaceStorageWriter(
            str(fresh), fqn_to_index_mapping=file_numbers(staged), save_distributed=True
        )
        try:
            dcp.save(staged, storage_writer=writer, process_group=self._group)
        except dcp.CheckpointException as error:
            own = error.failures.get(self._ranks.rank)
            if own is not None:  # else another rank raises it
                raise own[0] from error

    def _checksums(self, fresh: Path) -> dict[str, str]:
        """Flush the files of this rank to the disk; returns their checksums by name."""
        own = sorted(fresh.glob(f"shard-{self._ranks.rank + 1:05d}-*"))
        for path in own:
            sync_file(path)
        return {path.name: sha256_of(path) for path in own}

    def _publish(
        self, fresh: Path, step: int, checksums: Mapping[str, str], run: dict[str, Any], best: int | None
    ) -> None:
        if self._ranks.is_main:
            self._on_disk.publish(fresh, step, checksums, run)
            self._on_disk.prune(just_saved=step, best=best)

    def _together(self, final: Path, work: Callable[[], T]) -> list[T]:
        """Run `work` on every rank; returns the results of all. Raises the first error on all of them."""
        try:
            with disk_errors(tr("the checkpoint"), final):
                mine: tuple[T | None, str | None, str | None] = (work(), None, None)
        except MingyueError as error:
            mine = (None, error.message, error.advice)
        except Exception as error:
            mine = (
                None,
                tr("the checkpoint {final} was not written: {kind}: {error}", final, type(error).__name__, error),
                None,
            )
        found: list[Any] = [None] * self._ranks.size
        dist.all_gather_object(found, mine, group=self._group)
        for rank, (_, message, advice) in enumerate(found):
            if message is not None:
                raise CheckpointError(
                    tr("{message} (rank {rank} of {size})", message, rank, self._ranks.size),
                    advice=advice,
                )
        return [result for result, _, _ in found]

    # --- reading ------------------------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Steps of the checkpoints, as rank 0 sees them. Waits for the save in the background."""
        self.wait()
        return self._ranks.share(self._on_disk.steps)

    def sweep(self) -> list[str]:
        """Remove the remains of an interrupted save; returns their names."""
        return self._ranks.share(self._on_disk.sweep)

    def read_run(self, step: int) -> dict[str, Any]:
        """The state of the run in a checkpoint, without its tensors."""
        return self._ranks.share(lambda: self._on_disk.read_run(step))

    def load(self, step: int) -> Checkpoint:
        """Read a checkpoint, sharded or plain: the rows of each tensor that this rank holds, as DTensors.

        Raises `DamagedCheckpointError`, on every rank, that names the file that is missing or damaged, and
        `CheckpointError` that names the first tensor that does not fit the model.
        """
        self.wait()
        folder = self.path(step)
        state = self._ranks.share(lambda: self._on_disk.read_state(step))
        self._check_files(step, state["checksums"])
        weights = clean_state(self._model)
        tensors = _room_for(weights, shapes_in(folder))
        try:
            dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), process_group=self._group)
        except dcp.CheckpointException as error:
            rank, (cause, _) = min(error.failures.items(), key=lambda item: item[0])
            raise CheckpointError(tr("{folder} cannot be read by rank {rank}: {cause}", folder, rank, cause)) from error
        optimiser = {name: tensor for name, tensor in tensors.items() if is_optimiser_state(name)}
        return Checkpoint(step, {name: tensors[name] for name in weights}, optimiser, state["run"])

    def _check_files(self, step: int, checksums: Mapping[str, str]) -> None:
        """Compare all files with their checksums, each rank its share of them."""
        complaint: list[str | None] | None = None
        for name in sorted(checksums)[self._ranks.rank :: self._ranks.size]:
            try:
                self._on_disk.check_file(step, name, checksums[name])
            except DamagedCheckpointError as error:
                complaint = [error.message, error.advice]
                break
        for found in self._ranks.collect(complaint):
            if found is not None:
                raise DamagedCheckpointError(found[0] or "", advice=found[1])

    def _set_aside(self, step: int) -> str:
        return self._ranks.share(lambda: self._on_disk._set_aside(step))


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sync_folder(folder.parent)


def _room_for(weights: Mapping[str, Tensor], found: Mapping[str, tuple[torch.Size, torch.dtype]]) -> dict[str, Tensor]:
    """An empty tensor for each tensor in a checkpoint, divided as the weight that it is, or that it belongs to."""
    for name, weight in weights.items():
        if name not in found:
            raise CheckpointError(tr("tensor {name} {shape} is missing", name, list(weight.shape)))
    room: dict[str, Tensor] = {}
    for name, (size, dtype) in found.items():
        owner = name if not is_optimiser_state(name) else name.partition(".")[2].rpartition(".")[0]
        weight = weights.get(owner)
        if weight is None:
            raise CheckpointError(tr("tensor {name} does not belong to this model", name))
        if not size and weight.ndim:
            room[name] = torch.empty(size, dtype=dtype)  # a count of steps, the same on every rank
        elif size != weight.shape:
            raise CheckpointError(
                tr("tensor {name} is {size}, the model asks for {shape}", name, list(size), list(weight.shape))
            )
        else:
            room[name] = torch.empty_like(weight, dtype=dtype)
    return room
