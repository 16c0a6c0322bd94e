"""Steps beside nanoGPT: training tokens a second of both, the same sizes, in one run.

    python bench/steps_beside.py --nanogpt FOLDER [--rounds 5] [--steps 200] [--ours "preset=speed"]

Two sizes: 4 layers of width 128, 12 windows of 64 a step, 65 characters; and 4 layers of width 256, 16 windows of 128 a
step, 6,900 characters; 4 heads. Each program trains on the same made-up text by itself: nanoGPT's train.py by its
recipe for CPUs, ours `mingyue.train` with what --ours says (settings by name, as in `mingyue.train`). The time of a
step is that between two reports of a program, so all that it does in its loop counts: batch, forward, backward,
clipping, update. The two take turns in processes of their own; medians, and the median of the ratios of neighbours, are
printed, and for both the share of the matrix-multiply peak (fp32, measured before each run of ours) by one count of
FLOPs: 6 a weight of a matrix and a token, attention by the keys that a query sees.
Without a folder of nanoGPT only our side runs, briefly.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _beside import (
    LARGE,
    SMALL,
    PeerText,
    Recipe,
    Text,
    add_peer_arguments,
    iteration_seconds,
    machine,
    peer_folder,
    run,
    run_peer,
)

import mingyue
from mingyue.bundle import read_bundle_config
from mingyue.config import ModelConfig, ModelSettings
from mingyue.models import resolve_config
from mingyue.models.size import sizes
from mingyue.training import Observer, measure_peak

SIZES: dict[str, tuple[Recipe, int]] = {"small": (SMALL, 65), "large": (LARGE, 6900)}
_TEXT_CHARACTERS = 400_000


def made_up(characters: int, vocab_size: int) -> str:
    """A text in which every character occurs, by Zipf's law, and the last tenth has no new one."""
    draw = random.Random(1)
    alphabet = [chr(0x4E00 + number) for number in range(vocab_size)]
    weights = [1 / (rank + 1) for rank in range(vocab_size)]
    return "".join(alphabet) + "".join(draw.choices(alphabet, weights, k=characters - vocab_size))


class Watch(Observer):
    """Notes when each step was reported."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def on_step(self, report: object) -> None:
        self.moments.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return [end - start for start, end in zip(self.moments, self.moments[1:], strict=False)]


def settled(seconds: list[float]) -> float:
    """The median of the times of steps, without the first of them: they pay for memory and threads."""
    return statistics.median(seconds[len(seconds) // 5 :])


def train_ours(text: str, recipe: Recipe, asked: argparse.Namespace, settings: dict[str, Any]) -> dict[str, float]:
    """Our side, in the process that is for it alone."""
    peak = measure_peak("cpu")
    watch = Watch()
    with tempfile.TemporaryDirectory(prefix="steps-") as folder:
        given = {
            "sources": [text],
            "out": f"{folder}/run",
            "steps": asked.steps,
            "threads": asked.threads,
            "device": "cpu",
            "context": recipe.block,
            "batch_tokens": recipe.step_tokens,
            "n_layers": recipe.layers,
            "d_model": recipe.width,
            "n_heads": recipe.heads,
            "held_out": 0.0,
            "sample_every": 0,
        }
        mingyue.train(observer=watch, **(given | settings))
        config = read_bundle_config(Path(folder) / "run" / "model")
    assert isinstance(config, ModelConfig)
    return {
        "tokens_per_second": recipe.step_tokens / settled(watch.seconds()),
        "flops": sizes(config).training_flops(),
        "parameters": sizes(config).parameters,
        "peak": peak,
    }


def run_ours(text: Path, size: str, asked: argparse.Namespace) -> dict[str, float]:
    """Our side in a fresh process."""
    arguments = ["--worker", size, "--text", str(text), "--steps", str(asked.steps), "--threads", str(asked.threads)]
    command = [sys.executable, __file__, *arguments, "--ours", asked.ours]
    return json.loads(run(command, threads=asked.threads, show=False).output.splitlines()[-1])


def train_peer(data: Path, recipe: Recipe, asked: argparse.Namespace, peer: Path) -> float:
    """nanoGPT's tokens a second; it evaluates once, before its first iteration."""
    options = recipe.peer_options(
        data, data / "out", iterations=asked.steps, evaluate_every=asked.steps + 2, log_every=1
    )
    done = run_peer(peer, [*options, "--eval_iters=1"], threads=asked.threads)
    return recipe.step_tokens / settled(iteration_seconds(done.output)[1:])


def peer_flops(recipe: Recipe, vocab_size: int) -> float:
    """FLOPs a token of a model of nanoGPT's shape, counted as ours are."""
    settings = ModelSettings(preset="gpt2", d_model=recipe.width, n_layers=recipe.layers, n_heads=recipe.heads)
    config = resolve_config(settings, vocab_size=vocab_size, depth=recipe.layers, context=recipe.block)
    return sizes(config).training_flops()


def compare(size: str, asked: argparse.Namespace, peer: Path | None, place: Path) -> str:
    """One row of the table."""
    recipe, vocab_size = SIZES[size]
    text = place / f"{size}.txt"
    text.write_text(made_up(_TEXT_CHARACTERS, vocab_size), encoding="utf-8")
    data = place / size
    cut = PeerText(Text.read(text))
    cut.write(data)
    found = []
    for _ in range(asked.rounds):
        ours = run_ours(text, size, asked)
        theirs = None if peer is None else train_peer(data, recipe, asked, peer)
        print(json.dumps({"size": size, **ours, "nanogpt_tokens_per_second": theirs}), flush=True)
        found.append((ours, theirs))
    speed = statistics.median(ours["tokens_per_second"] for ours, _ in found)
    peak = statistics.median(ours["peak"] for ours, _ in found)
    name = f"{recipe.layers} × {recipe.width}, {recipe.batch} windows of {recipe.block}, {vocab_size:,} characters"
    row = f"| {name} | {speed:,.0f} | {speed * found[0][0]['flops'] / peak:.0%} |"
    if peer is None:
        return row
    speeds = [theirs for _, theirs in found if theirs is not None]
    other = statistics.median(speeds)
    ratios = [ours["tokens_per_second"] / theirs for ours, theirs in found if theirs is not None]
    share = other * peer_flops(recipe, cut.vocab_size) / peak
    between = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return f"{row} {other:,.0f} | {share:.0%} | {between} |"


def settings_of(text: str) -> dict[str, Any]:
    """`name=value …`: numbers, true and false as in JSON, anything else as a word."""
    found: dict[str, Any] = {}
    for pair in text.split():
        name, sign, value = pair.partition("=")
        if not sign:
            sys.exit(f"--ours: {pair!r} is not name=value")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add_peer_arguments(parser)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--ours", default="preset=speed", help="settings of ours: name=value …")
    parser.add_argument("--worker", choices=SIZES, help=argparse.SUPPRESS)
    parser.add_argument("--text", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    settings = settings_of(asked.ours)
    if asked.worker:
        print(json.dumps(train_ours(asked.text, SIZES[asked.worker][0], asked, settings)))
        return
    peer = peer_folder(asked.nanogpt)
    asked.rounds = asked.rounds or (1 if peer is None else 5)
    asked.steps = asked.steps or (40 if peer is None else 200)
    with tempfile.TemporaryDirectory(prefix="beside-") as folder:
        rows = [compare(size, asked, peer, Path(folder)) for size in asked.sizes]
    print(f"\n{machine(asked.threads)}; ours: {asked.ours}\n")
    head = "| a step | ours, tokens/s | share of peak |"
    if peer is not None:
        head += " nanoGPT, tokens/s | share of peak | ratio |"
    print(head, "|--" * (head.count("|") - 1) + "|", *rows, sep="\n")


if __name__ == "__main__":
    main()
