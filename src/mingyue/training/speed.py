"""The peak speed of this machine, of which a run reports its share."""

from __future__ import annotations

import time

import torch


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


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
