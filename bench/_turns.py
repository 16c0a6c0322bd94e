"""What the scripts that compare several programs share: each in a process of its own, taking turns; tables of ratios.

A process of its own keeps libraries apart that bring their own threads: what one leaves spinning would slow another.
While one has its turn, the others wait for their next task without using a core.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any


class Contestant:
    """A program in a process of its own. `make(*arguments)` is called there, and gives the function that does a task.

    `make` is a function of a module, since the process imports it by name. `missing` says why the program cannot take
    part: what `make` needs and cannot import.
    """

    def __init__(self, name: str, make: Callable[..., Callable[..., Any]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self.missing: str | None = None
        kind, found = self._receive()
        if kind == "missing":
            self.missing = found
            self.close()

    def __call__(self, *task: Any) -> tuple[float, Any]:
        """Do a task; returns its seconds, measured there, and its result."""
        self._pipe.send(task)
        return self._receive()[1]

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join()

    def _receive(self) -> tuple[str, Any]:
        try:
            kind, found = self._pipe.recv()
        except EOFError:
            sys.exit(f"{self.name} ended by itself")
        if kind == "failed":
            sys.exit(f"{self.name} failed:\n{found}")
        return kind, found


def _work(pipe, make, arguments) -> None:
    try:
        do = make(*arguments)
    except ImportError as error:
        pipe.send(("missing", str(error)))
        return
    except Exception:
        pipe.send(("failed", traceback.format_exc()))
        return
    pipe.send(("ready", None))
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            start = time.perf_counter()
            result = do(*task)
            pipe.send(("done", (time.perf_counter() - start, result)))
        except Exception:
            pipe.send(("failed", traceback.format_exc()))


def limit_threads(threads: int) -> None:
    """For libraries that read their number of threads when they are loaded; processes started later inherit it."""
    os.environ |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def present(contestants: Sequence[Contestant]) -> list[Contestant]:
    """Those that can take part, after a line about each of the others."""
    for one in contestants:
        if one.missing is not None:
            print(f"{one.name} is left out: {one.missing}", file=sys.stderr)
    return [one for one in contestants if one.missing is None]


def take_turns(
    contestants: Sequence[Contestant], tasks: Sequence[Sequence[Any]], rounds: int
) -> list[dict[str, list[float]]]:
    """For each task: the seconds of each round, by contestant. Each round begins with another contestant."""
    seconds = [{one.name: [] for one in contestants} for _ in tasks]
    for number in range(rounds):
        first = number % len(contestants)
        for task, found in zip(tasks, seconds, strict=True):
            for one in (*contestants[first:], *contestants[:first]):
                found[one.name].append(one(*task)[0])
    return seconds


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """How many times as fast ours is, in each round."""
    return [other / one for one, other in zip(ours, theirs, strict=True)]


def spread(values: Sequence[float], digits: int) -> str:
    """The median, with the lowest and the highest."""
    middle, low, high = (f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def table(seconds: dict[str, list[float]], amount: int, unit: str, ours: Sequence[str]) -> str:
    """A line for each: how much of `unit` it does in a second, and how many times as fast each of ours is."""
    heads = ["", f"{unit} per second", *(f"{name} is … times as fast" for name in ours)]
    lines = [
        [
            name,
            spread([amount / one for one in times], 0),
            *("" if name == mine else spread(ratios(seconds[mine], times), 2) for mine in ours),
        ]
        for name, times in seconds.items()
    ]
    widths = [max(len(line[column]) for line in (heads, *lines)) for column in range(len(heads))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in (heads, *lines))


def figures(seconds: dict[str, list[float]], amount: int, ours: Sequence[str]) -> dict[str, Any]:
    """The same for JSON."""
    return {
        name: {
            "per_second": round(amount / statistics.median(times), 1),
            "ratios": {mine: [round(one, 2) for one in ratios(seconds[mine], times)] for mine in ours if mine != name},
        }
        for name, times in seconds.items()
    }
