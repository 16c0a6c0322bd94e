"""Where the weights of a run are: whole on every rank, or (`sharded_placement`) divided over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mingyue.config import TrainSettings
from mingyue.models import Transformer
from mingyue.runtime import Runtime
from mingyue.training.checkpoints import Checkpoints
from mingyue.training.distributed import Ranks
from mingyue.training.forward import AnyBatch
from mingyue.training.names import clean_state


class Placement:
    """A model that is whole on every rank. Rank 0 writes and reads its checkpoints for all."""

    model: Transformer
    """What is trained."""
    checkpoints: Checkpoints

    def __init__(self, model: Transformer, folder: Path, *, keep: int, ranks: Ranks) -> None:
        self.model = model
        self.checkpoints = Checkpoints(folder, keep=keep)
        self._ranks = ranks

    @torch.no_grad()
    def equalise_rows(self, rows: Sequence[int]) -> None:
        """Set these rows of the input table to the first of them; `Stepper` then keeps the rows of unseen ids equal."""
        self.model.input_table[list(rows)] = self.model.input_table[rows[0]].clone()

    def gather_weights(self) -> None:
        """Fill the model of the caller with the current weights. Here it is the one that is trained."""

    def held_out(self, batches: Iterable[AnyBatch]) -> Iterator[AnyBatch]:
        """The held-out batches that this rank computes; `batches` are its share."""
        return iter(batches)

    def save(self, write: Callable[[], None], step: int) -> None:
        """Write a checkpoint on rank 0. Raises `TrainingError` if the replicas differ."""
        self._ranks.check_replicas(clean_state(self.model), step)
        self._ranks.on_main(write)

    def load(self, read: Callable[[], dict[str, Tensor] | None]) -> dict[str, Tensor] | None:
        """The weights that `read` returns on rank 0, on every rank."""
        return self._ranks.tensors(read)


def place_model(model: Transformer, settings: TrainSettings, folder: Path, runtime: Runtime, ranks: Ranks) -> Placement:
    """Where the weights of a run with these settings are; checkpoints are kept in `folder`."""
    keep = max(settings.run.keep, settings.run.average_last)
    if settings.run.parallel == "sharded" and ranks.size > 1:
        from mingyue.training.sharded_placement import ShardedPlacement  # not at the top: it takes seconds

        return ShardedPlacement(model, settings, folder, runtime=runtime, keep=keep, ranks=ranks)
    return Placement(model, folder, keep=keep, ranks=ranks)
