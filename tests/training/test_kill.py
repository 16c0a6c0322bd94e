"""Real kills: a run in a process of its own, killed with kill −9 at random moments and resumed until it is done."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mingyue.training import Checkpoints

# A run small enough to be killed often, saving all the time so that many kills fall into a save.
_SCRIPT = """
import hashlib, json, sys
from pathlib import Path
import numpy as np, torch
from mingyue.config import ModelConfig, TrainSettings
from mingyue.data import TokenCorpus, TokenShards, TokenView, TokenWriter
from mingyue.models import build_model
from mingyue.runtime import Runtime
from mingyue.training import Caller, CorpusBatches, Observer, RunFolder, train

torch.set_num_threads(1)
path, tokens, options = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
settings = TrainSettings.from_flat(sample_every=0, evaluate_every=25, checkpoint_every=2, keep=2, **options)
fingerprint = hashlib.sha256(b"t").hexdigest()
if not tokens.exists():
    tokens.mkdir()
    for name, count in (("train", 900), ("held", 200)):
        with TokenWriter(tokens, name, vocab_size=23, fingerprint=fingerprint) as writer:
            writer.append(np.random.default_rng(count).integers(3, 23, count))
            writer.finish()
views = [TokenView(TokenShards([tokens / f"{name}-00000.tokens"]), 1) for name in ("train", "held")]
corpus = TokenCorpus(*views, vocab_size=23, pad_id=0, bos_id=1, eos_id=2, fingerprint=fingerprint, documents=1,
    starts_with_bos=False, train_characters=900, held_out_characters=200, held_out_bytes=200)
config = ModelConfig(vocab_size=23, context=16, d_model=64, n_layers=2, n_heads=2, n_kv_heads=1, d_head=32, d_ff=96,
    dropout=0.1)
resume = (path / "run.toml").exists()
folder = RunFolder.open(path) if resume else RunFolder.create(path, settings)[0]

class Tells(Observer):
    def on_step(self, report):
        print(report.step, flush=True)

with folder:
    train(build_model(config, seed=1), CorpusBatches(corpus, context=16, rows=8, micro_rows=4, seed=1), settings,
        folder=folder, runtime=Runtime(torch.device("cpu"), torch.float32, 1), caller=Caller(observer=Tells()),
        resume=resume)
print("done", flush=True)
"""


def start(script, path, tokens, options):
    command = [sys.executable, str(script), str(path), str(tokens), json.dumps(options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8")


def finish(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert output.strip().endswith("done")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill −9")
@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_killed_at_twenty_moments_equals_never_stopped(tmp_path, optimiser):
    """T13, T2: kill −9 at 20 random moments, some in a save: every resume works, and the final bits are the same."""
    script = tmp_path / "run.py"
    script.write_text(_SCRIPT, encoding="utf-8")
    options = {"steps": 400, "optimiser": optimiser, "dropout": None}
    tokens = tmp_path / "tokens"
    finish(start(script, tmp_path / "whole", tokens, options))
    moments = random.Random(optimiser)
    broken = tmp_path / "broken"
    kills = 0
    while kills < 20:
        process = start(script, broken, tokens, options)
        first = process.stdout.readline()  # the first step after start or resume: from here on anything may be cut
        if "done" in first:
            pytest.fail(f"the run ended after {kills} kills: make it longer")
        time.sleep(moments.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
    finish(start(script, broken, tokens, options))
    one, two = (_final(tmp_path / name) for name in ("whole", "broken"))
    assert one == two


def _final(run: Path) -> dict[str, bytes]:
    checkpoints = Checkpoints(run / "checkpoints")
    path = checkpoints.path(checkpoints.steps()[-1])
    tensors = {**load_file(path / "model.safetensors"), **load_file(path / "optimiser.safetensors")}
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
