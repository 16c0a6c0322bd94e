"""What a program runs on: device, number format, threads, seeds. Chosen once and told; nothing happens at import."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mingyue.errors import SettingsError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Runtime:
    """The choices of one run. `notes` are sentences for the user about every choice that was not the asked one."""

    device: torch.device
    dtype: torch.dtype
    threads: int
    notes: tuple[str, ...] = ()
    rank: int = 0
    world_size: int = 1

    def autocast(self) -> AbstractContextManager[object]:
        """Mixed precision around a forward pass; nothing at fp32."""
        import torch

        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def describe(self) -> str:
        """One line for the user: device, number format, threads."""
        name = str(self.dtype).removeprefix("torch.")
        plural = "" if self.threads == 1 else "s"
        threads = f", {self.threads} thread{plural}" if self.device.type == "cpu" else ""
        return f"{self.device}, {name}{threads}"


def available_cores() -> int:
    """CPU cores that this process may use (affinity respected where the system tells it)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_runtime(device: str | None = None, dtype: str | None = None, threads: int | None = None) -> Runtime:
    """Choose and apply device, number format and thread count.

    `device` and `dtype` as in `RunSettings`. Raises `SettingsError` for a device that is not there; a number format
    that the device does not serve falls back to fp32 and leaves a note.
    """
    import torch

    notes: list[str] = []
    chosen = _choose_device(device)
    threads = threads or available_cores()
    torch.set_num_threads(threads)
    # What fades (a momentum of a weight that gets no gradient any more) passes through numbers below 1e-38, in which
    # CPUs compute many times slower: they count as 0 here. Threads inherit it from the one that starts them.
    torch.set_flush_denormal(True)
    fast_bf16 = chosen.type == "cuda" and torch.cuda.is_bf16_supported()
    if dtype is None:
        number = torch.bfloat16 if fast_bf16 else torch.float32
    elif dtype == "fp32":
        number = torch.float32
    elif dtype == "bf16" and fast_bf16:
        number = torch.bfloat16
    elif dtype == "fp16" and chosen.type == "cuda":
        number = torch.float16
    else:
        number = torch.float32
        notes.append(f"{dtype} was asked for, but {chosen} is not fast in it: this run uses fp32 instead.")
    return Runtime(chosen, number, threads, tuple(notes))


def _choose_device(asked: str | None) -> torch.device:
    import torch

    if asked is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise SettingsError(f"device {asked!r} is not a device name", advice="Use cpu, cuda, cuda:1 or mps.") from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device.type, False):
        raise SettingsError(f"device {asked!r} is not available here", advice="Leave --device out, or use cpu.")
    return device


def derive_seed(seed: int, *parts: int | str) -> int:
    """A 63-bit seed that is a pure function of `seed` and `parts` (a purpose, then step, rank, micro-batch…)."""
    text = ":".join([str(seed), *(str(part) for part in parts)])
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "little") >> 1


def seconds_since_process_start() -> float:
    """Seconds since the operating system started this process (imports included)."""
    import psutil

    return max(0.0, time.time() - psutil.Process().create_time())
