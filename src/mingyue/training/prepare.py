"""A model made ready for training on one device: moved, recomputed and compiled as the settings say."""

from __future__ import annotations

from mingyue.config import DEFAULT_MINUTES, TrainSettings
from mingyue.models import Transformer
from mingyue.runtime import Runtime, derive_seed
from mingyue.training.recompute import recompute_blocks

_LONG_MINUTES, _LONG_STEPS = 5.0, 2000


def weights_seed(settings: TrainSettings) -> int:
    """The seed of a run's initial weights."""
    return derive_seed(settings.run.seed, "weights")


def compiles(settings: TrainSettings, runtime: Runtime) -> bool:
    """Whether blocks are compiled: as set; default: on a GPU, in a run on text that is long enough for it to pay."""
    if settings.run.compile is not None:
        return settings.run.compile
    budget = settings.budget
    if budget.steps is not None:
        long = budget.steps >= _LONG_STEPS
    else:
        long = budget.epochs is not None or (budget.minutes or DEFAULT_MINUTES) >= _LONG_MINUTES
    return runtime.device.type == "cuda" and long and not settings.pairs.given  # batches of pairs have many lengths


def prepare_model(model: Transformer, settings: TrainSettings, runtime: Runtime) -> None:
    """Move `model` to the device, set it to training mode, and set up recomputing and compiling of its blocks."""
    model.to(runtime.device).train()
    if settings.batch.recompute:
        recompute_blocks(model)
    if compiles(settings, runtime):
        for block in model.every_block():
            block.compile()  # in place: names stay; the embedding stays eager, since its backward must not race
