"""Training beside nanoGPT on one text: how long each takes to a held-out loss, or what each reaches in the same time.

    python bench/time_to_loss.py shakespeare.txt --nanogpt FOLDER [--rounds 3] [--ours "--preset speed --minutes 0.4"]
    python bench/time_to_loss.py tang.txt --nanogpt FOLDER --minutes 10 [--ours "--preset speed"]

Without --minutes: nanoGPT runs its README's recipe for CPUs (4 layers, width 128, windows of 64, 12 of them a step,
2,000 iterations). Its time is that from the start of its program to the end, its loss that of the checkpoint it leaves.
That loss is the target for `mingyue train` with the same context: its time runs from the start of the program to the
first evaluation on the whole held-out text in its log that is at the target or below.

With --minutes: both get the same time. nanoGPT's number of iterations comes from a short run before, which also tells
what starting and evaluating cost; 4 layers, width 256, windows of 128, 16 a step, the cosine of its rate to the end.

The two take turns; both losses are measured on what was saved by one function (bench/_held_out_loss.py).
Without a text and a folder of nanoGPT our side runs a few steps on a text that every Python carries.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
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
    run_ours,
    run_peer,
    text_path,
)

from mingyue.training import read_log

_EVALUATIONS = 2  # of nanoGPT in a run of so many minutes, besides the first: it saves at them alone
_PROBE = 60


def measured(text: Path, windows: int, threads: int, *model: str) -> dict[str, Any]:
    """What the common measure says of a saved model."""
    script = str(Path(__file__).with_name("_held_out_loss.py"))
    done = run([sys.executable, script, str(text), "--windows", str(windows), *model], threads=threads, show=False)
    return json.loads(done.output.splitlines()[-1])


class Comparison:
    """One text, both programs, and a folder for what they leave."""

    def __init__(self, asked: argparse.Namespace, text: Path, peer: Path, place: Path) -> None:
        self.asked, self.text, self.peer, self.place = asked, text, peer, place
        self.recipe: Recipe = LARGE if asked.minutes else SMALL
        self.data = place / "peer-data"
        self.cut = Text.read(text)
        PeerText(self.cut).write(self.data)
        self.iterations, self.evaluate_every = asked.iterations, asked.evaluate_every
        if asked.minutes:
            self.iterations, self.evaluate_every = self._fit(60 * asked.minutes)

    def _fit(self, seconds: float) -> tuple[int, int]:
        """Iterations of nanoGPT that fill so many seconds, and how often it evaluates."""
        options = self.recipe.peer_options(
            self.data, self.place / "probe", iterations=_PROBE, evaluate_every=_PROBE + 2, log_every=1
        )
        done = run_peer(self.peer, options, threads=self.asked.threads)
        times = iteration_seconds(done.output)
        iteration = statistics.median(times[10:])
        evaluation = times[0] - iteration
        starting = done.seconds - sum(times)
        left = seconds - starting - (_EVALUATIONS + 1) * evaluation
        every = int(left / iteration / _EVALUATIONS)
        if every < 1:
            sys.exit(f"{seconds:.0f} s are too few: nanoGPT needs {seconds - left:.0f} s besides its iterations")
        print(
            f"nanoGPT: {1000 * iteration:.1f} ms an iteration, {starting:.1f} s to start, {evaluation:.1f} s an "
            f"evaluation: {every * _EVALUATIONS:,} iterations in {seconds:.0f} s"
        )
        return every * _EVALUATIONS, every

    def run_peer(self, number: int) -> dict[str, Any]:
        """nanoGPT from its start to its end, and the loss of the checkpoint that it leaves."""
        out = self.place / f"peer-{number}"
        options = self.recipe.peer_options(
            self.data, out, iterations=self.iterations, evaluate_every=self.evaluate_every, log_every=10
        )
        done = run_peer(self.peer, options, threads=self.asked.threads)
        model = ("--nanogpt", str(self.peer), "--checkpoint", str(out / "ckpt.pt"))
        found = measured(self.text, self.recipe.block, self.asked.threads, *model)
        return {"seconds": done.seconds, "steps": self.iterations, **found}

    def run_ours(self, number: int, target: float) -> dict[str, Any]:
        """`mingyue train`, and when its log was at the target first."""
        out = self.place / f"ours-{number}"
        options = ["--context", str(self.recipe.block), "--seed", str(number + 1)]
        if self.asked.minutes:
            options += ["--minutes", f"{self.asked.minutes:g}"]
        else:  # evaluations that say something about the target read all that is held out
            options += ["--evaluate-tokens", str(len(self.cut.held_out))]
        done = run_ours(str(self.text), [*options, *shlex.split(self.asked.ours)], out=out, threads=self.asked.threads)
        log = read_log(out / "metrics.jsonl")
        whole = log[-1]["heldout_tokens"]
        evaluations = [line for line in log if line["event"] == "evaluate" and line["heldout_tokens"] == whole]
        reached = next((line["seconds"] for line in evaluations if line["heldout_loss"] <= target), None)
        found = measured(self.text, self.recipe.block, self.asked.threads, "--run", str(out))
        logged = {"steps": log[-1]["step"], "logged_loss": log[-1]["heldout_loss"]}
        return {"seconds": done.seconds, "seconds_to_target": reached, **logged, **found}


def spread(values: list[float], digits: int) -> str:
    """The median, and between what it lies where the values differ."""
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if min(values) == max(values) else f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def table(rounds: list[tuple[dict[str, Any], dict[str, Any]]], asked: argparse.Namespace) -> None:
    """What was found, as rows of Markdown."""
    print("\n" + machine(asked.threads) + "\n")
    theirs, ours = zip(*rounds, strict=True)
    reached = {"nanoGPT": [one["seconds"] for one in theirs], "ours": [one["seconds_to_target"] for one in ours]}
    head = "| | held-out loss, nats a character | steps | program, s |"
    print(head + ("" if asked.minutes else " to the target, s |"))
    print("|--|--|--|--|" + ("" if asked.minutes else "--|"))
    for name, side in (("nanoGPT", theirs), ("ours", ours)):
        losses, steps, times = ([one[key] for one in side] for key in ("loss", "steps", "seconds"))
        command = name if side is theirs else f"`mingyue train {asked.ours}`"
        row = f"| {command} | {spread(losses, 4)} | {spread(steps, 0)} | {spread(times, 1)} |"
        if not asked.minutes:
            row += f" {'not in every run' if None in reached[name] else spread(reached[name], 1)} |"
        print(row)
    if not asked.minutes and None not in reached["ours"]:
        shares = [peer / own for peer, own in zip(*reached.values(), strict=True)]
        print(f"\nnanoGPT's time / our time to its loss: {spread(shares, 2)}")
    print(f"\nour loss - nanoGPT's: {spread([own['loss'] - peer['loss'] for peer, own in rounds], 4)}")
    print(f"without the {ours[0]['unseen']} characters that only the held-out part has: ", end="")
    print(*(f"{name} {spread([one['loss_without_unseen'] for one in side], 4)}" for name, side in
            (("ours", ours), ("nanoGPT", theirs))), sep=", ")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("text", type=Path, nargs="?")
    add_peer_arguments(parser)
    parser.add_argument("--minutes", type=float, help="the same time for both")
    parser.add_argument("--ours", default=None, help="further options of mingyue train (default: --minutes 1)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=2000, help="of nanoGPT, without --minutes")
    parser.add_argument("--evaluate-every", type=int, default=250, help="iterations of nanoGPT, without --minutes")
    parser.add_argument("--keep", type=Path, help="folder for data, checkpoints and runs (default: a temporary one)")
    asked = parser.parse_args()
    if asked.iterations <= 100:
        parser.error("nanoGPT's rate rises for 100 iterations: give more --iterations than that")
    if asked.ours is None:
        asked.ours = "" if asked.minutes else "--minutes 1"
    text, peer = text_path(asked.text), peer_folder(asked.nanogpt)
    with tempfile.TemporaryDirectory(prefix="beside-") as folder:
        place = (asked.keep or Path(folder)).resolve()
        if peer is None:
            options = ["--context", "64", "--steps", "60", "--depth", "2", "--batch-tokens", "768"]
            done = run_ours(str(text), options, out=place / "ours-0", threads=asked.threads)
            found = measured(text, 64, asked.threads, "--run", str(place / "ours-0"))
            print(json.dumps({"seconds": round(done.seconds, 1), **found}))
            return
        comparison = Comparison(asked, text, peer, place)
        rounds = []
        for number in range(asked.rounds):
            theirs = comparison.run_peer(number)
            print("nanoGPT:", json.dumps(theirs), flush=True)
            ours = comparison.run_ours(number, theirs["loss"])
            print("ours:", json.dumps(ours), flush=True)
            rounds.append((theirs, ours))
        table(rounds, asked)


if __name__ == "__main__":
    main()
