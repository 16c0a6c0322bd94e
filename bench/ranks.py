"""Two processes of one thread against one process of two threads: tokens per second of the same run.

    python bench/ranks.py [--batch-tokens 4096] [--steps 30] [--repeats 3] [--depth 3] [--vocabulary 4000]

Each run is one `mingyue train` command on a made-up text, in turn with the other kind; what is compared is the rate of
the steps alone, from the log, without the first third of them. Prints every run, the medians and their ratio.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

KINDS = {"one process, two threads": ("--nproc", "1", "--threads", "2"),
         "two processes, one thread": ("--nproc", "2", "--threads", "1")}  # fmt: skip


def write_text(path: Path, vocabulary: int) -> None:
    """A text of so many different characters, long enough for an epoch of the benchmark."""
    draw = random.Random(1)
    letters = [chr(0x4E00 + number) for number in range(vocabulary)]
    path.write_text("".join(draw.choices(letters, k=300_000)), encoding="utf-8")


def rate_of(text: Path, out: Path, asked: argparse.Namespace, options: tuple[str, ...]) -> float:
    """Tokens per second of the later two thirds of a run's steps."""
    fixed = f"--context 256 --batch-tokens {asked.batch_tokens} --depth {asked.depth} --steps {asked.steps} "
    fixed += f"--evaluate-every {asked.steps} --evaluate-tokens 256 --sample-every 0 --checkpoint-every {asked.steps}"
    command = [sys.executable, "-m", "mingyue", "train", str(text), "--out", str(out), *fixed.split(), *options]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if line["event"] == "train"]
    kept = [line for line in steps if line["step"] > asked.steps // 3]
    # A line covers the steps since the one before: a mean of rates weighs by time, so it is taken of their inverses.
    return statistics.harmonic_mean([line["tokens_per_second"] for line in kept])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=4000)
    asked = parser.parse_args()
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        write_text(text, asked.vocabulary)
        for repeat in range(asked.repeats):
            for number, (kind, options) in enumerate(KINDS.items()):
                rate = rate_of(text, Path(folder) / f"run{repeat}-{number}", asked, options)
                rates[kind].append(rate)
                print(f"{kind}: {rate:,.0f} tokens/s", flush=True)
    one, two = (statistics.median(found) for found in rates.values())
    print(f"medians: {one:,.0f} and {two:,.0f} tokens/s; two processes to one: {two / one:.3f}")


if __name__ == "__main__":
    main()
