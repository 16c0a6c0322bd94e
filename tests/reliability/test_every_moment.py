"""Kill −9 before every change of the disk that a run makes, and in the middle of every file that it writes."""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter

import pytest


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_killed_before_every_change_of_the_disk(program, trial, kind, tell):
    """Every second moment of a run on text, the others on pairs; with half a file left where one is written, too.

    Both kinds write by the same code. Some recoveries are killed as well.
    """
    trial = trial(kind)
    out, trace = program.folder / f"killed-{kind}", program.folder / "trace.txt"
    program.run(*trial.command, "--out", str(out), trace=str(trace)).well()
    events = trace.read_text(encoding="utf-8").splitlines()
    halves = [number for number, event in enumerate(events, 1) if event.split()[0] in ("fsync", "save", "line")]
    draw = random.Random(kind)
    first = 1 if kind == "text" else 2
    cut = halves if kind == "text" else draw.sample(halves, len(halves) // 3)
    moments = sorted([*((number, False) for number in range(first, len(events) + 1, 2)), *((at, True) for at in cut)])
    seen: Counter[str] = Counter()
    for number, half in moments:
        shutil.rmtree(out, ignore_errors=True)
        ended = program.run(*trial.command, "--out", str(out), kill_at=number, half=half)
        assert ended.code == -signal.SIGKILL, (number, ended.said)
        seen["kills"] += 1
        seen[f"killed at {events[number - 1].split()[0]}"] += 1
        if draw.random() < 0.3 and out.exists():  # the recovery is killed too
            again = program.run("resume", str(out), kill_at=draw.randint(1, 60), half=draw.random() < 0.5)
            seen["kills"] += again.code == -signal.SIGKILL
        worked = trial.recover(out, resume_first=draw.random() < 0.8 or bool(_begun(out)))
        seen[f"went on by {worked}"] += 1
        try:
            trial.check(out)
        except AssertionError as error:
            raise AssertionError(
                f"after a kill before event {number} ({events[number - 1]}), half {half}: {error}"
            ) from error
    tell(f"every change of the disk, {kind} ({len(events)} of them)", seen)


def _begun(out):
    return [path for path in (out / "checkpoints", out / "model") if path.is_dir()]
