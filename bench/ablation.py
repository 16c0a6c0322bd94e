"""What each choice of the `speed` preset is worth: it, and runs that differ from it in one thing.

    python bench/ablation.py shakespeare.txt [--steps 400] [--seeds 3] [--ours "--n-layers 2 --d-model 64"]
    python bench/ablation.py shakespeare.txt --only "rotary positions" "muon"

Each run is one `mingyue train` command, which is printed. Same text, sizes, steps and tokens a step for all; the
held-out loss is that of the end, on all held-out text (nats a token, here a character): mean and standard deviation
over the seeds. Rates are the defaults of each optimiser. The time of a step is the median of what the log says between
evaluations; it depends on what else the machine does, the losses do not. Without a text: 30 steps of a small model, one
seed, on a text that every Python carries, to see that it works.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from _beside import machine, run_ours, text_path

from mingyue.runtime import available_cores
from mingyue.training import read_log

BASE = ["--preset", "speed"]
ROWS: dict[str, tuple[str, list[str]]] = {
    # What is taken away, what stands in its place, and the options that do it.
    "rotary positions": ("a learned table", ["--positions", "learned"]),
    "squared ReLU": ("GELU", ["--feedforward", "gelu"]),
    "LayerNorm": ("RMSNorm", ["--norm", "rms"]),
    "QK-norm": ("none", ["--no-qk-norm"]),
    "an output layer of its own": ("tied to the embedding", ["--tied-output"]),
    "random first weights": ("blocks that start as the identity", ["--initialisation", "zero-output"]),
    "heads of 16": ("heads of 32", ["--d-head", "32", "--n-heads", "2"]),
    "a rotary base of 100": ("10,000", ["--rotary-base", "10000"]),
    "muon": ("AdamW for everything", ["--optimiser", "adamw"]),
    "momentum 0.85": ("0.95", ["--muon-momentum", "0.95"]),
    "wsd schedule": ("cosine", ["--schedule", "cosine"]),
    "decay over half of the run": ("over the last fifth", ["--decay-share", "0.2"]),
    "weight decay": ("none", ["--weight-decay", "0"]),
}


@dataclass(frozen=True)
class Row:
    """What the runs of one choice came to."""

    losses: list[float]
    step_ms: float

    def cells(self, base: float) -> str:
        """Loss, its distance from that of the preset, time of a step."""
        mean = statistics.mean(self.losses)
        sd = f" ± {statistics.stdev(self.losses):.4f}" if len(self.losses) > 1 else ""
        return f"{mean:.4f}{sd} | {mean - base:+.4f} | {self.step_ms:.1f}"


def measure(text: Path, changed: list[str], asked: argparse.Namespace, place: Path) -> Row:
    """Train once a seed."""
    losses, speeds = [], []
    for seed in range(1, asked.seeds + 1):
        budget = ["--steps", str(asked.steps), "--context", str(asked.context), "--batch-tokens", str(asked.batch)]
        options = [*budget, "--seed", str(seed), "--sample-every", "0", *shlex.split(asked.ours), *changed]
        run_ours(str(text), [*options, "--overwrite"], out=place / "run", threads=asked.threads)
        log = read_log(place / "run" / "metrics.jsonl")
        losses.append(log[-1]["heldout_loss"])
        speeds += [line["tokens_per_second"] for line in log if line["event"] == "train"]
    return Row(losses, 1000 * asked.batch / statistics.median(speeds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1024, help="tokens of a step")
    parser.add_argument("--ours", default=None, help="options of every run (default: 2 layers, width 64)")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--threads", type=int, default=available_cores())
    asked = parser.parse_args()
    brief = asked.text is None
    asked.steps = asked.steps or (30 if brief else 400)
    asked.seeds = asked.seeds or (1 if brief else 3)
    if asked.ours is None:
        asked.ours = "--n-layers 2 --d-model 64"
    if asked.batch % asked.context:
        sys.exit(f"a step of {asked.batch} tokens is not made of windows of {asked.context}: change --batch")
    text = text_path(asked.text)
    with tempfile.TemporaryDirectory(prefix="ablation-") as folder:
        base = measure(text, BASE, asked, Path(folder))
        mean = statistics.mean(base.losses)
        rows = [f"| nothing: `speed` | | {base.cells(mean)} |"]
        print(rows[-1], flush=True)
        for name in asked.only:
            instead, changed = ROWS[name]
            row = measure(text, [*BASE, *changed], asked, Path(folder))
            rows.append(f"| {name} | {instead} | {row.cells(mean)} |")
            print(rows[-1], flush=True)  # at once: the runs take minutes, and one that fails must not cost the others
    seeds = "1 seed" if asked.seeds == 1 else f"{asked.seeds} seeds"
    print(f"\n{machine(asked.threads)}; {text.name}, {asked.steps:,} steps of {asked.batch:,} tokens, {seeds}\n")
    print("| without | in its place | held-out loss | difference | ms a step |\n|--|--|--|--|--|", *rows, sep="\n")


if __name__ == "__main__":
    main()
