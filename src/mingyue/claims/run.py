"""Runs claims in worker processes of one thread, longest first; a failure of one does not stop the others."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from mingyue.claims.claim import Trial
from mingyue.claims.registry import find, group_of
from mingyue.claims.result import Result, check_replaceable
from mingyue.config import Count, Workers, checked
from mingyue.errors import CheckpointError, MingyueError
from mingyue.files import explain_os_error
from mingyue.runtime import available_cores, derive_seed
from mingyue.words import tr

_LOOK_EVERY = 0.5


@dataclass(frozen=True)
class State:
    """Progress of a run of claims."""

    done: int
    total: int
    running: tuple[str, ...]
    """Names of the claims being tested."""
    finished: Result | None = None
    """The claim that finished since the last state, if one did."""


Progress = Callable[[State], None]


def run_claims(
    names: Sequence[str],
    trial: Trial,
    out: Path | None = None,
    workers: int = 2,
    progress: Progress | None = None,
    *,
    threads: int = 1,
) -> list[Result]:
    """Test claims, `workers` at a time of `threads` each; results in the order of `names`.

    With `out`, they are also written as `<out>/<name>.json`.
    A claim whose test fails has a `Result` with an error, and the others continue. Ctrl-C ends the workers and keeps
    the files of finished claims. Raises `SettingsError` for a name that does not exist and for no workers,
    `CheckpointError` for a folder that cannot be written to.
    """
    names = list(dict.fromkeys(names))
    for name in names:
        group_of(name)
    checked("workers", workers, Workers)
    checked("threads", threads, Workers)
    checked("seed", trial.seed, Count)  # claims multiply it
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            for name in names:
                check_replaceable(out / f"{name}.json")
        except OSError as error:
            message, advice = explain_os_error(tr("the results of claims"), out, error)
            raise CheckpointError(message, advice=advice) from None
    with tempfile.TemporaryDirectory(prefix="mingyue-claims-") as temporary:
        pool = _Pool(trial, Path(temporary) if out is None else out, threads)
        try:
            order = names if len(names) <= workers else sorted(names, key=_seconds, reverse=True)
            found = pool.run(order, min(workers, len(names)), progress or (lambda _: None))
        finally:
            pool.close()
    return [found[name] for name in names]


def run_claim(name: str, trial: Trial) -> Result:
    """Test one claim in this process, with its current number of threads. An error is returned in the result."""
    import torch

    began = time.perf_counter()
    machine = describe_machine(torch.__version__, torch.get_num_threads())
    try:
        claim = find(name)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(trial.seed, name))  # for what a claim forgot to seed
            measurement = claim.measure(trial)
        finding = claim.finding(measurement.numbers)
    except MingyueError as error:
        return Result(name, trial.size, trial.seed, time.perf_counter() - began, machine, error=str(error))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
        return Result(name, trial.size, trial.seed, time.perf_counter() - began, machine, error=text)
    return Result(name, trial.size, trial.seed, time.perf_counter() - began, machine, measurement, finding)


def describe_machine(torch_version: str, threads: int = 1) -> str:
    """Processor, cores and versions in one line."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        processor = models[0].partition(":")[2].strip() if models else processor
    python = platform.python_version()
    each = "one thread a claim" if threads == 1 else f"{threads} threads a claim"
    return f"{processor}, {available_cores()} cores, {each}; Python {python}, torch {torch_version}"


def _seconds(name: str) -> float:
    """How long a claim takes; 0 for one that cannot be imported, which is for its worker to report."""
    try:
        return find(name).seconds
    except Exception:
        return 0.0


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    name: str = ""
    """Name of the claim being tested; empty = idle."""
    since: float = 0.0


class _Pool:
    """Worker processes that test one claim after another, so that torch is loaded once per process."""

    def __init__(self, trial: Trial, folder: Path, threads: int) -> None:
        self._trial, self._folder, self._threads = trial, folder, threads
        self._workers: list[_Worker] = []

    def run(self, names: Sequence[str], count: int, progress: Progress) -> dict[str, Result]:
        waiting, found = list(names), dict[str, Result]()

        def report(finished: Result | None = None) -> None:
            running = tuple(worker.name for worker in self._workers if worker.name)
            progress(State(len(found), len(names), running, finished))

        while len(found) < len(names):
            while waiting and (idle := self._idle(count)):
                self._hand(idle, waiting.pop(0))
            report()
            for worker in self._ready():
                result = self._collect(worker)
                found[result.name] = result
                report(result)
        return found

    def close(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
        self._workers.clear()

    def _idle(self, count: int) -> _Worker | None:
        for worker in self._workers:
            if not worker.name:
                return worker
        return self._start() if len(self._workers) < count else None

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, str(self._folder), self._threads), daemon=True)
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def _hand(self, worker: _Worker, name: str) -> None:
        worker.name, worker.since = name, time.perf_counter()
        (self._folder / f"{name}.json").unlink(missing_ok=True)  # of an earlier run
        worker.pipe.send((name, self._trial.size, self._trial.seed))

    def _ready(self) -> list[_Worker]:
        there = wait([worker.pipe for worker in self._workers if worker.name], timeout=_LOOK_EVERY)
        return [worker for worker in self._workers if worker.pipe in there]

    def _collect(self, worker: _Worker) -> Result:
        name, worker.name = worker.name, ""
        try:
            worker.pipe.recv()
            return Result.load(self._folder / f"{name}.json")
        except (EOFError, OSError):
            worker.process.join()
            self._workers.remove(worker)
            text = f"its process ended with code {worker.process.exitcode}" + (
                ": killed (SIGKILL), probably out of memory" if worker.process.exitcode == -signal.SIGKILL else ""
            )
        except MingyueError as error:
            text = str(error)
        seconds = time.perf_counter() - worker.since
        return Result(name, self._trial.size, self._trial.seed, seconds, "", error=text)


def _work(pipe: Connection, folder: str, threads: int) -> None:
    """A worker: receives names of claims, writes results to files, and answers when one is written."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    while True:
        try:
            name, size, seed = pipe.recv()
        except (EOFError, OSError):
            return
        result = run_claim(name, Trial(size, seed))
        try:
            result.save(Path(folder) / f"{name}.json")
        except (OSError, TypeError, ValueError) as error:  # a full disk, or values that JSON cannot hold
            text = f"its result could not be written: {error}"
            failure = Result(name, size, seed, result.seconds, result.machine, error=text)
            failure.save(Path(folder) / f"{name}.json")
        pipe.send("done")
