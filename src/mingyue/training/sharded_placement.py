"""The model of a sharded run: divided over the ranks, and gathered for the caller of training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mingyue.config import TrainSettings
from mingyue.models import Transformer
from mingyue.runtime import Runtime
from mingyue.training.distributed import Ranks
from mingyue.training.forward import AnyBatch
from mingyue.training.names import clean_state
from mingyue.training.placement import Placement
from mingyue.training.prepare import compiles, weights_seed
from mingyue.training.sharded_checkpoints import ShardedCheckpoints
from mingyue.training.sharding import (
    as_shards,
    build_sharded,
    in_step,
    make_buffers,
    put,
    set_rows,
    sum_of_rows,
    whole_weights,
)


class ShardedPlacement(Placement):
    """A model that is divided over `ranks`, trained in place of `whole`, the caller's.

    `whole` may be on the meta device: then the initial weights are those of the run's seed, and no rank has them all.
    """

    def __init__(
        self, whole: Transformer, settings: TrainSettings, folder: Path, *, runtime: Runtime, keep: int, ranks: Ranks
    ) -> None:
        self._whole, self._ranks = whole, ranks
        self.model = build_sharded(
            whole.config,
            seed=weights_seed(settings),
            runtime=runtime,
            recompute=settings.batch.recompute,
            compiled=compiles(settings, runtime),
        )
        if not _is_meta(whole):
            own = clean_state(self.model)
            with torch.no_grad():
                for name, weight in clean_state(whole).items():
                    put(own[name], weight)
        self.checkpoints = ShardedCheckpoints(folder, keep=keep, ranks=ranks, model=self.model)

    @torch.no_grad()
    def equalise_rows(self, rows: Sequence[int]) -> None:
        """Set these rows of the input table to the first of them. Every rank has to call this."""
        table = as_shards(self.model.input_table)
        rows_R = torch.tensor(rows, device=table.device)
        set_rows(table, rows_R, sum_of_rows(table, rows_R[:1]))

    def gather_weights(self) -> None:
        """Fill `whole` with the current weights, on the CPU of rank 0. Every rank has to call this."""
        weights = whole_weights(self.model)
        if weights:
            if _is_meta(self._whole):
                make_buffers(self._whole, torch.device("cpu"))
            self._whole.load_state_dict(weights, assign=True)

    def held_out(self, batches: Iterable[AnyBatch]) -> Iterator[AnyBatch]:
        """The held-out batches that this rank computes: `batches`, and empty ones until every rank has as many."""
        return in_step(batches, self.model, self._ranks)

    def save(self, write: Callable[[], None], step: int) -> None:
        """Write a checkpoint, of which every rank writes its share."""
        write()

    def load(self, read: Callable[[], dict[str, Tensor] | None]) -> dict[str, Tensor] | None:
        """The weights that `read` returns: every rank reads its share."""
        return read()


def _is_meta(model: Transformer) -> bool:
    return next(model.parameters()).is_meta
