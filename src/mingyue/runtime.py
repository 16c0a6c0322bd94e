"""What a program runs on: device, number format, threads, seeds.

Importing this module and choosing a runtime change nothing; `Runtime.applied` changes the process for the length of a
block.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from mingyue.errors import SettingsError
from mingyue.words import Words, joined, tr

if TYPE_CHECKING:
    import torch


LAUNCH_FOLDER = "MINGYUE_LAUNCH"
"""Environment variable that the launcher of `--nproc` sets for its processes: a folder for their exit codes."""

OWNS_PROCESS: ContextVar[bool] = ContextVar("OWNS_PROCESS", default=False)
"""Whether the process runs nothing but Mingyue, as on the command line; otherwise it belongs to the caller."""

_ACCELERATORS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, Windows' Linux
_DENORMAL = 5e-324  # compares as 0 while denormals are flushed
_SOFTLY = 1  # omp_pause_soft


@dataclass(frozen=True)
class Runtime:
    """The choices of one run. `notes` explain to the user each choice that differs from what was asked."""

    device: torch.device
    dtype: torch.dtype
    threads: int
    notes: tuple[str, ...] = ()
    rank: int = 0
    world_size: int = 1

    def autocast(self) -> AbstractContextManager[object]:
        """Mixed precision around a forward pass; a null context at fp32."""
        import torch

        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    @contextmanager
    def applied(self) -> Generator[None]:
        """The thread count of this runtime, and flushed denormals, within a block; afterwards what was set before.

        Numbers below 1e-38, through which the momentum of a weight without further gradients passes, are many times
        slower on CPUs; they are flushed to 0. Both are settings of the calling thread, so blocks in other threads do
        not interfere.
        """
        import torch

        threads, flushed = torch.get_num_threads(), not _DENORMAL > 0.0
        if threads != self.threads:
            torch.set_num_threads(self.threads)
        if not flushed:
            _end_workers()
            torch.set_flush_denormal(True)
        try:
            yield
        finally:
            if not flushed:
                torch.set_flush_denormal(False)
                _end_workers()
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)

    def describe(self, *, measured: bool = True) -> Words:
        """One line for the user: device, number format, threads, processes.

        Without `measured` the number of threads is still to be measured.
        """
        parts: list[str] = [str(self.device), str(self.dtype).removeprefix("torch.")]
        if not measured:
            parts.append(tr("threads to be measured"))
        elif self.device.type == "cpu":
            parts.append(tr("1 thread") if self.threads == 1 else tr("{threads} threads", self.threads))
        words = joined(parts, en=", ", zh="，")
        several = self.world_size > 1
        return tr("{words} in each of {world_size} processes", words, self.world_size) if several else words


@dataclass(frozen=True)
class Processes:
    """This process among those of one run, from the environment that torchrun sets; by default one process."""

    rank: int = 0
    """Rank of this process, from 0."""
    size: int = 1
    """Processes of the run, on all machines (the world size)."""
    local_rank: int = 0
    """Rank of this process on its machine, and the index of its GPU."""
    local_size: int = 1
    """Processes on this machine."""
    restarts: int = 0
    """How often the launcher restarted them after a failure."""
    launch: str | None = None
    """Id of the launch; None without a launcher."""


def processes() -> Processes:
    """This process, read from the environment. Raises `SettingsError` for numbers that contradict each other."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Processes()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    try:
        rank, size, local_rank, local_size, restarts = (
            int(os.environ.get(name, default)) for name, default in zip(names, "01010", strict=True)
        )
    except ValueError:
        rank, size, local_rank, local_size, restarts = -1, 0, 0, 0, 0
    if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
        given = ", ".join(f"{name}={os.environ.get(name)}" for name in names)
        raise SettingsError(
            tr("the environment describes processes that cannot be: {given}", given),
            advice=tr("Start the run with torchrun."),
        )
    return Processes(rank, size, local_rank, local_size, restarts, os.environ.get("TORCHELASTIC_RUN_ID", ""))


def _end_workers() -> None:
    """End the idle worker threads of the calling thread, which the next parallel operation of PyTorch starts again.

    A worker has the denormal mode that its creator had at that moment, for good. Does nothing on the command line,
    where the process ends with its work, and where PyTorch has no GNU OpenMP (there the workers keep the mode).
    """
    if not OWNS_PROCESS.get() and (openmp := _gnu_openmp()) is not None:
        openmp.omp_pause_resource_all(_SOFTLY)


@cache
def _gnu_openmp() -> ctypes.CDLL | None:
    """The OpenMP library that PyTorch has loaded into this process."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        path = next(line.split(maxsplit=5)[5] for line in mapped if "/libgomp" in line and "/torch" in line)
        found = ctypes.CDLL(path)
        return found if hasattr(found, "omp_pause_resource_all") else None
    except (OSError, StopIteration):
        return None


def available_cores() -> int:
    """CPU cores that this process may use, by its affinity where the system reports it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_threads(process: Processes) -> int:
    """The thread count where none is given: OMP_NUM_THREADS, or the share of this process of the available cores."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list is one number per level of nesting
    # torchrun sets it to 1 where the user has not set it: that is no choice of the user. Our launcher leaves it alone.
    by_torchrun = given == "1" and process.size > 1 and bool(process.launch) and LAUNCH_FOLDER not in os.environ
    if given.isdecimal() and int(given) and not by_torchrun:
        return int(given)
    return max(1, available_cores() // process.local_size)


def choose_runtime(device: str | None = None, dtype: str | None = None, threads: int | None = None) -> Runtime:
    """Choose device, number format and thread count; `Runtime.applied` applies them.

    `device` and `dtype` as in `RunSettings`; `default_threads` where no number is given. Raises `SettingsError` for an
    unavailable device and for less than one thread; a dtype that is slow on the device is replaced by fp32, with a
    note. One of several processes uses the GPU of its local rank, or its share of the cores.
    """
    import torch

    from mingyue.config import Workers, checked  # here, so that `mingyue --version` starts without pydantic

    checked("threads", threads, Workers | None)
    notes: list[str] = []
    process = processes()
    chosen = _choose_device(device)
    if process.size > 1:
        chosen = _device_of(process, chosen, asked=device)
    threads = threads or default_threads(process)
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
        notes.append(
            tr("{dtype} was asked for, but {chosen} is not fast in it: this run uses fp32 instead.", dtype, chosen)
        )
    return Runtime(chosen, number, threads, tuple(notes), process.rank, process.size)


def _device_of(process: Processes, chosen: torch.device, *, asked: str | None) -> torch.device:
    """The device of one of several processes."""
    import torch

    if chosen.type == "mps":
        if asked is not None:
            raise SettingsError(
                tr("several processes cannot train on mps"), advice=tr("Use --device cpu, or one process.")
            )
        return torch.device("cpu")
    if chosen.type != "cuda":
        return chosen
    if chosen.index is not None:
        raise SettingsError(
            tr("device {chosen} is one GPU, and this run has {size} processes", chosen, process.size),
            advice=tr("Give --device cuda: each process takes the GPU of its number."),
        )
    if process.local_size > torch.cuda.device_count():
        raise SettingsError(
            tr(
                "{local_size} processes on this machine need a GPU each, and it has {device_count}",
                process.local_size,
                torch.cuda.device_count(),
            ),
            advice=tr("Start as many processes as there are GPUs, or use --device cpu."),
        )
    device = torch.device("cuda", process.local_rank)
    torch.cuda.set_device(device)
    return device


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
        raise SettingsError(
            tr("device {asked!r} is not a device name", asked), advice=tr("Use cpu, cuda, cuda:1 or mps.")
        ) from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device.type, False):
        raise SettingsError(
            tr("device {asked!r} is not available here", asked), advice=tr("Leave --device out, or use cpu.")
        )
    return device


def has_only_cpu(asked: str | None) -> bool:
    """Whether a model runs on the CPU for sure, told without importing PyTorch (which takes a second)."""
    if asked is not None:
        return asked == "cpu"
    if sys.platform == "darwin":  # MPS
        return False
    try:
        if version("torch").endswith("+cpu"):
            return True
    except PackageNotFoundError:
        return False
    return sys.platform == "linux" and not any(Path(device).exists() for device in _ACCELERATORS)


@contextmanager
def random_state_kept(device: torch.device) -> Generator[None]:
    """Restore PyTorch's global random states after a block: dropout has no generator of its own, and seeds them."""
    import torch

    state = torch.get_rng_state()
    backend = {"cuda": torch.cuda, "mps": torch.mps}.get(device.type)
    on_device = None if backend is None else backend.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        if backend is not None and on_device is not None:
            backend.set_rng_state(on_device)


def derive_seed(seed: int, *parts: int | str) -> int:
    """A 63-bit seed, a pure function of `seed` and `parts` (a purpose, then step, rank, micro-batch…)."""
    text = ":".join([str(seed), *(str(part) for part in parts)])
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "little") >> 1


def seconds_since_process_start(process: int | None = None) -> float:
    """Seconds since the operating system started this process (imports included), or the process with the given id."""
    import psutil

    return max(0.0, time.time() - psutil.Process(process).create_time())
