"""How a sharded run begins, and how its weights come home: into the model that the caller of training has."""

from __future__ import annotations

from pathlib import Path

import torch

from mingyue.config import TrainSettings
from mingyue.models import Transformer
from mingyue.runtime import Runtime
from mingyue.training.distributed import Ranks
from mingyue.training.names import clean_state
from mingyue.training.sharded_checkpoints import ShardedCheckpoints
from mingyue.training.sharding import build_sharded, make_buffers, put, whole_weights
from mingyue.training.start import compiles, weights_seed


def begin_sharded(
    whole: Transformer, settings: TrainSettings, folder: Path, *, runtime: Runtime, ranks: Ranks, keep: int
) -> tuple[Transformer, ShardedCheckpoints]:
    """The sharded model to train in place of `whole`, and where it is saved.

    `whole` may be on the meta device: then the first weights are those of the run's seed, and no rank makes them all.
    """
    model = build_sharded(
        whole.config,
        seed=weights_seed(settings),
        runtime=runtime,
        recompute=settings.batch.recompute,
        compiled=compiles(settings, runtime),
    )
    if not _is_empty(whole):
        own = clean_state(model)
        with torch.no_grad():
            for name, weight in clean_state(whole).items():
                put(own[name], weight)
    return model, ShardedCheckpoints(folder, keep=keep, ranks=ranks, model=model)


def fill_whole(whole: Transformer, model: Transformer) -> None:
    """Put the weights of a sharded model into `whole`, in the memory of rank 0's CPU. Every rank has to call this."""
    weights = whole_weights(model)
    if weights:
        if _is_empty(whole):
            make_buffers(whole, torch.device("cpu"))
        whole.load_state_dict(weights, assign=True)


def _is_empty(model: Transformer) -> bool:
    return next(model.parameters()).is_meta
