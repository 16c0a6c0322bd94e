"""Kill −9 at random moments: one run again and again, and young runs in their first seconds."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter

import pytest

_SAVING = ("--steps", "240", "--checkpoint-every", "1", "--evaluate-every", "8", "--keep", "2")
"""Saves after every step, so that many kills fall into a save."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "kills", "options"),
    [("text", 40, ()), ("text", 15, ("--optimiser", "adamw")), ("pairs", 20, ())],
    ids=["text", "text-adamw", "pairs"],
)
def test_one_run_killed_again_and_again(program, trial, tell, place, kind, kills, options):
    """Killed shortly after a line of its log, resumed each time, and at the end the same to the last bit."""
    trial = trial(kind, *_SAVING, *options)
    out = program.folder / "storm"
    shutil.rmtree(out, ignore_errors=True)
    draw, seen = random.Random(f"storm {kind} {options}"), Counter()
    command = [*trial.command, "--out", str(out)]
    for _ in range(kills):
        ended = program.run(*command, after=[draw.randint(3, 12), draw.uniform(0.0, 0.04)])
        assert ended.code == -signal.SIGKILL, ended.said
        seen["kills"] += 1
        seen[place(out)] += 1
        command = ["resume", str(out)]
    program.run(*command).well()
    trial.check(out)
    tell(f"one run, {kind} {' '.join(options)}", seen)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "kills"), [("text", 20), ("pairs", 12)])
def test_young_runs_killed_in_their_first_moments(program, trial, tell, place, kind, kills):
    """From the start of the process to the end of a short run, drawn evenly; what is left goes on or starts anew."""
    trial = trial(kind)
    draw, seen = random.Random(f"young {kind}"), Counter()
    out = program.folder / "young"
    begin = time.monotonic()
    program.run(*trial.command, "--out", str(program.folder / "timed")).well()
    whole = time.monotonic() - begin
    shutil.rmtree(program.folder / "timed")
    for _ in range(kills):
        shutil.rmtree(out, ignore_errors=True)
        ended = program.run(*trial.command, "--out", str(out), after=[0, draw.uniform(0.0, 1.0) * whole])
        seen["kills"] += ended.code == -signal.SIGKILL
        seen[place(out) if ended.code else "not hit: it had ended"] += 1
        if ended.code:
            seen[f"went on by {trial.recover(out)}"] += 1
        trial.check(out)
    assert seen["kills"] > kills / 2
    tell(f"young runs, {kind}", seen)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_started_as_a_user_does(program, trial, tell, place):
    """The same without a warm process: `python -m mingyue`, killed while it loads, while it starts, while it trains."""
    short, long = trial("text"), trial("text", *_SAVING)
    draw, seen = random.Random("cold"), Counter()
    out = program.folder / "cold"
    begin = time.monotonic()
    process = program.cold(*short.command, "--out", str(out))
    said, _ = process.communicate()
    assert process.returncode == 0, said
    whole = time.monotonic() - begin
    short.check(out)
    for number in range(10):
        shutil.rmtree(out, ignore_errors=True)
        process = program.cold(*short.command, "--out", str(out))
        time.sleep((number + draw.random()) / 10 * whole)
        process.kill()
        process.communicate()
        seen["kills"] += process.returncode == -signal.SIGKILL
        if process.returncode:
            seen[place(out)] += 1
            seen[f"went on by {short.recover(out)}"] += 1
        short.check(out)
    shutil.rmtree(out)
    command = [*long.command, "--out", str(out)]
    for _ in range(10):
        process = program.cold(*command)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step"):  # an evaluation: it trains
                break
        time.sleep(draw.uniform(0.0, 0.1))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        seen["kills"] += 1
        seen[place(out)] += 1
        command = ["resume", str(out)]
    program.run(*command).well()
    long.check(out)
    tell("as a user starts it", seen)
