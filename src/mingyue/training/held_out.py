"""The held-out loss of the model that is trained, on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mingyue.config import TrainSettings
from mingyue.runtime import Runtime
from mingyue.training.batches import BatchSource
from mingyue.training.distributed import Ranks
from mingyue.training.forward import AnyBatch
from mingyue.training.loss import Evaluation, evaluate
from mingyue.training.placement import Placement

Progress = Callable[[int, int], None]
"""Receives the number of tokens done and of all."""


class HeldOutLoss:
    """Measures the held-out loss of the current weights. Every rank has to call it with the same arguments."""

    def __init__(
        self, placement: Placement, batches: BatchSource, settings: TrainSettings, runtime: Runtime, ranks: Ranks
    ) -> None:
        self._placement, self._batches, self._runtime, self._ranks = placement, batches, runtime, ranks
        self._chunked = settings.batch.chunked_loss

    def __call__(
        self, tokens: int | None = None, source: BatchSource | None = None, *, progress: Progress | None = None
    ) -> Evaluation:
        """The loss on about `tokens` held-out tokens of the run's own text, or of `source`; None: on all."""
        source, ranks = source or self._batches, self._ranks
        batches: Iterable[AnyBatch] = source.held_out(tokens, rank=ranks.rank, ranks=ranks.size)
        if progress is not None:
            batches = _counted(batches, (tokens or source.sizes.heldout_tokens) // ranks.size, progress)
        return evaluate(
            self._placement.model,
            self._placement.held_out(batches),
            self._runtime,
            bytes_per_token=source.bytes_per_token,
            ranks=ranks,
            chunked=self._chunked,
        )


def _counted(batches: Iterable[AnyBatch], total: int, progress: Progress) -> Iterator[AnyBatch]:
    done = 0
    for batch in batches:
        progress(min(done, total), total)
        yield batch
        done += batch.tokens
    progress(total, total)
