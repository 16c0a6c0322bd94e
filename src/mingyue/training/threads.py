"""The number of CPU threads of a run: chosen by measuring, looked at again when steps become slow.

More threads are faster on cores of their own, and slower on cores that other programs use: a step waits for its slowest
thread. The number changes how sums are rounded, so a resumed run keeps the number of its checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

from mingyue.config import TrainSettings
from mingyue.models import Transformer
from mingyue.runtime import Runtime, available_cores
from mingyue.training.forward import AnyBatch, hidden_and_targets
from mingyue.training.loss import loss_of_hidden
from mingyue.training.pace import Pace
from mingyue.training.prepare import compiles
from mingyue.words import listed, tr

_REPEATS = 3
_LONG = 2.0  # seconds of a pass that is not repeated
_HOPELESS = 2.0  # ratio to the fastest number from which larger ones are not measured
_NEARLY = 1.1  # ratio to the fastest number up to which a smaller one is preferred
_SLOW = 2.0  # ratio to the planned time of a step from which threads are measured again
_STEPS = 12  # from which a speed is known
_PAUSE = 30.0  # seconds between two measurements during a run, at least


@dataclass(frozen=True)
class Measured:
    """Seconds of the forward and backward pass of a micro-batch by number of threads, and the number to use."""

    threads: int
    seconds: dict[int, float]

    def describe(self) -> str:
        """A sentence for the user."""
        times = listed(
            [
                tr("{milliseconds:.3g} ms on {threads}", 1000 * seconds, threads)
                for threads, seconds in self.seconds.items()
            ]
        )
        return tr(
            "threads: {threads}, measured: a pass takes {times} (of {available_cores} cores; "
            "--threads sets the number, which changes how sums are rounded)",
            self.threads,
            times,
            available_cores(),
        )


def are_chosen(settings: TrainSettings, runtime: Runtime) -> bool:
    """Whether the number of threads is chosen by measuring: nobody gave one, and there is a choice."""
    given = settings.run.threads is not None or "OMP_NUM_THREADS" in os.environ
    alone = runtime.device.type == "cpu" and runtime.world_size == 1 and available_cores() > 1
    return alone and not given and not compiles(settings, runtime)  # compiled code is made for one number


def candidates(cores: int) -> list[int]:
    """Numbers of threads to measure: the powers of two, and all cores."""
    return sorted({*(1 << power for power in range(cores.bit_length()) if 1 << power <= cores), cores})


def measure_threads(work: Callable[[], object], numbers: Sequence[int]) -> Measured:
    """Time `work` on these numbers of threads; the fewest that are nearly the fastest are used from here on."""
    seconds: dict[int, float] = {}
    for number in numbers:
        torch.set_num_threads(number)
        times = [_time(work)]  # the first one starts the threads
        while len(times) <= _REPEATS and times[-1] < _LONG:
            times.append(_time(work))
        seconds[number] = median(times[1:] or times)
        if seconds[number] > _HOPELESS * min(seconds.values()):
            break
    fastest = min(seconds.values())
    threads = next(number for number in seconds if seconds[number] <= _NEARLY * fastest)
    torch.set_num_threads(threads)
    return Measured(threads, seconds)


def choose_threads(model: Transformer, batch: AnyBatch, settings: TrainSettings, runtime: Runtime) -> Measured:
    """Measure the forward and backward pass of `batch` on 1 to all cores, and use the best number from here on.

    Neither weights nor random states change.
    """
    model.train()
    smoothing, chunked = settings.optimiser.label_smoothing, settings.batch.chunked_loss

    def work() -> None:
        hidden = hidden_and_targets(model, batch, runtime.device)
        loss_of_hidden(model, *hidden, label_smoothing=smoothing, chunked=chunked).objective.backward()

    kept = [(weight, weight.grad) for weight in model.parameters()]
    for weight, _ in kept:
        weight.grad = None  # else the passes add to it
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global state
        found = measure_threads(work, candidates(available_cores()))
    for weight, gradient in kept:
        weight.grad = gradient
    return found


class ThreadWatch:
    """Notices that steps take more than twice as long as they did, and measures the threads again."""

    def __init__(self, threads: int, measure: Callable[[], Measured]) -> None:
        self.threads = threads
        self._measure = measure
        self._planned = 0.0
        self._steps = 0
        self._measured_at = float("-inf")

    def look(self, pace: Pace, seconds: float) -> Measured | None:
        """What was measured, `seconds` into the run after a step, if steps became slow; None otherwise."""
        self._steps += 1
        if self._steps < _STEPS:
            return None
        latest = pace.seconds_of_last(_STEPS)
        if not self._planned:
            self._planned = latest
        if latest < _SLOW * self._planned or seconds - self._measured_at < _PAUSE:
            return None
        found = self._measure()
        self.threads, self._measured_at = found.threads, seconds
        self._planned, self._steps = 0.0, 0  # by the new number, or by what this machine has left for this run
        return found


def _time(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start
