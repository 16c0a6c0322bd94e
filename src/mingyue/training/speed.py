"""The peak speed of this machine, of which a run reports its share."""

from __future__ import annotations

import time

import torch

_SHORT_ROWS = 128
_SHARED = 0.8  # what several threads reach together, as a share of that many alone


def measure_peak(
    device: torch.device | str = "cpu",
    *,
    dtype: torch.dtype = torch.float32,
    rows: int = 2048,
    width: int = 512,
    seconds: float = 0.2,
) -> float:
    """FLOPs per second of matrix products of a size that is usual in training: the best measured in about `seconds`."""
    device = torch.device(device)
    left = torch.ones(rows, width, device=device, dtype=dtype)
    right = torch.ones(width, 4 * width, device=device, dtype=dtype)
    flops = 2 * rows * width * 4 * width
    best = float("inf")
    end = time.perf_counter() + seconds
    for repeat in range(1_000):
        start = time.perf_counter()
        left @ right
        _wait(device)
        if repeat:  # the first starts threads and loads libraries
            best = min(best, time.perf_counter() - start)
        if repeat >= 3 and time.perf_counter() > end:
            break
    return flops / best


def nominal_peak(peak: float, threads: int) -> float:
    """`peak` of all threads, or what one thread reaches in its best moments times their number, if that is more.

    The products of one thread take milliseconds, so one of them is not interrupted on a machine that other programs
    use too: the size of a model chosen by this number does not depend on what else runs. `peak` was measured by
    `measure_peak`.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = measure_peak("cpu", rows=_SHORT_ROWS)
    finally:
        torch.set_num_threads(before)
    return max(peak, _SHARED * threads * alone)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
