"""Threads on a machine that other programs use: steps on all cores beside steps on one, with and without load.

    python bench/busy_threads.py [--rounds 5] [--steps 40] [--policies passive spin default …] [--quiet]

The script makes the load itself: one process for each core that does nothing but count (none with --quiet). Under it,
runs of the same model on one thread and on all cores take turns, each in a process of its own, started as a user starts
it; a ratio is the time of a step on all cores, divided by that on one thread in the same round. Policies say how
OpenMP's threads wait: `ours` (nothing set: what the command line chooses), `active` and `passive` (OMP_WAIT_POLICY), or
a number (GOMP_SPINCOUNT). The last row lets the run choose the number of threads itself.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from _beside import machine

from mingyue.runtime import available_cores

TEXT = "".join(
    f"The mill {number % 9} turns by the river {number % 7}, and the miller sleeps.\n" for number in range(4000)
)


def count_for_ever() -> None:
    number = 0
    while True:
        number += 1


@contextmanager
def load(processes: int) -> Generator[None]:
    """So many processes that keep a core busy."""
    running = [multiprocessing.Process(target=count_for_ever, daemon=True) for _ in range(processes)]
    for process in running:
        process.start()
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.join()


def environment(policy: str) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    if policy in ("active", "passive"):
        return clean | {"OMP_WAIT_POLICY": policy.upper()}
    return clean if policy == "ours" else clean | {"GOMP_SPINCOUNT": policy}


def step_seconds(text: Path, threads: int | None, policy: str, asked: argparse.Namespace) -> tuple[float, int]:
    """(median seconds of a step, threads) of one run."""
    with tempfile.TemporaryDirectory(prefix="busy-") as folder:
        out = Path(folder) / "run"
        options = [
            "--steps", str(asked.steps), "--depth", str(asked.depth), "--context", "128", "--batch-tokens", "2048",
            "--held-out", "0", "--sample-every", "0", "--device", "cpu", "--out", str(out), "--evaluate-every", "10",
        ]  # fmt: skip
        given = [] if threads is None else ["--threads", str(threads)]
        command = [sys.executable, "-m", "mingyue", "train", str(text), *options, *given]
        done = subprocess.run(command, env=environment(policy), capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"it failed with {done.returncode}:\n{done.stderr[-2000:]}")
        log = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        latest = max((out / "checkpoints").glob("step-*"))
        state = json.loads((latest / "state.json").read_text(encoding="utf-8"))
    speeds = [line["tokens_per_second"] for line in log if line["event"] == "train"]
    return 2048 / statistics.median(speeds), state["run"]["runtime"]["threads"]


def compare(text: Path, policy: str, asked: argparse.Namespace) -> str:
    """One row of the table."""
    alone, ratios, all_cores = [], [], available_cores()
    for _ in range(asked.rounds):
        one, _ = step_seconds(text, 1, policy, asked)
        many, _ = step_seconds(text, all_cores, policy, asked)
        print(json.dumps({"policy": policy, "one": round(one, 4), "all": round(many, 4)}), flush=True)
        alone.append(one)
        ratios.append(many / one)
    between = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return f"| {policy} | {1000 * statistics.median(alone):.0f} ms | {between} |"


def choose(text: Path, asked: argparse.Namespace) -> str:
    """The last row: the run measures its number of threads."""
    ratios, numbers = [], []
    for _ in range(asked.rounds):
        one, _ = step_seconds(text, 1, "ours", asked)
        own, number = step_seconds(text, None, "ours", asked)
        ratios.append(own / one)
        numbers.append(number)
    between = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return f"| ours, threads as measured: {', '.join(map(str, numbers))} | | {between} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--policies", nargs="+", default=["ours", "active"])
    parser.add_argument("--quiet", action="store_true", help="without load")
    asked = parser.parse_args()
    cores = available_cores()
    with tempfile.TemporaryDirectory(prefix="busy-") as folder, load(0 if asked.quiet else cores):
        text = Path(folder) / "text.txt"
        text.write_text(TEXT, encoding="utf-8")
        rows = [*(compare(text, policy, asked) for policy in asked.policies), choose(text, asked)]
    beside = "nothing else" if asked.quiet else f"{cores} busy processes"
    print(f"\n{machine(cores)}; beside {beside}\n")
    print("| OpenMP waits | a step on 1 thread | ratio on all cores |", "|--|--|--|", *rows, sep="\n")


if __name__ == "__main__":
    main()
