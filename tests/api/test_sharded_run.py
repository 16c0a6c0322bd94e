"""`--parallel sharded` from the command line to the bundle."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from mingyue import load

_SETTINGS = {
    "n_layers": 2,
    "d_model": 32,
    "context": 32,
    "batch_tokens": 256,
    "micro_batch_tokens": 128,
    "evaluate_every": 4,
    "checkpoint_every": 4,
    "sample_every": 1,
    "threads": 1,
    "seed": 3,
}


def mingyue(verb, what, **settings):
    options = [str(part) for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]
    command = [sys.executable, "-m", "mingyue", verb, str(what), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr + done.stdout


def heldout(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["heldout_loss"] for line in lines if "heldout_loss" in line]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_train_hand_over_and_are_resumed_by_one(tmp_path):
    text = tmp_path / "t.txt"
    choose = random.Random(1).choice
    text.write_text("\n".join(" ".join(choose(["moon", "light", "frost"]) for _ in range(9)) for _ in range(300)))
    alone, sharded = tmp_path / "alone", tmp_path / "sharded"
    mingyue("train", text, out=alone, steps=8, **_SETTINGS)
    mingyue("train", text, out=sharded, steps=8, nproc=2, parallel="sharded", **_SETTINGS)
    assert heldout(sharded) == pytest.approx(heldout(alone), abs=1e-5)
    one, other = (load(folder).score("moon light frost").nats_per_token for folder in (alone, sharded))
    assert one == pytest.approx(other, abs=1e-3)
    files = [path for path in (sharded / "checkpoints").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"} and len(files) == 2 * 5

    for folder in (alone, sharded):
        mingyue("resume", folder, steps=12, nproc=1)
    assert heldout(sharded) == pytest.approx(heldout(alone), abs=2e-5)
