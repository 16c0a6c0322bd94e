"""Memory and time of a training step against its context, and the estimate of memory beside what was measured.

    python bench/contexts.py                 2,048 to 8,192 tokens, windowed and full, with and without --recompute
    python bench/contexts.py --all           to 131,072 tokens in a window, 32,768 with full attention (half an hour)
    python bench/contexts.py --settings      ten different settings: the estimate beside the peak

One row, 4 layers, 256 wide, 9,222 words, the preset modern, Muon. Each point is a process of its own: its peak is
VmHWM (Linux) less what was resident after imports; time is that of the last step, update included.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time

import torch

from mingyue.config import TrainSettings
from mingyue.data import Batch, PairRows, pair_batch
from mingyue.models import build_model, resolve_config, resolve_pair_config
from mingyue.runtime import choose_runtime
from mingyue.training import Optimisers, Stepper, peak_rates
from mingyue.training.memory import MicroBatch, step_memory
from mingyue.training.recompute import recompute_blocks

LONG = {"preset": "modern", "depth": 4, "d_model": 256, "n_layers": 4}
TEN = [
    ({**LONG, "context": 2048}, 8, 9222),
    ({**LONG, "context": 16384, "window": 1024}, 1, 9222),
    ({**LONG, "context": 32768, "window": 512, "recompute": True}, 1, 9222),
    ({**LONG, "context": 512, "chunked_loss": False}, 12, 16000),
    ({"preset": "speed", "depth": 6, "context": 256, "optimiser": "adamw"}, 48, 500),
    ({"preset": "gpt2", "depth": 6, "context": 1024, "dropout": 0.1}, 8, 2000),
    ({"preset": "gpt2", "depth": 4, "context": 1024, "attention_dropout": 0.1}, 3, 1000),
    ({"preset": "llama", "depth": 12, "context": 512, "optimiser": "adamw"}, 2, 32000),
    ({"preset": "modern", "depth": 12, "context": 256}, 2, 8192),
    ({"preset": "translate-small", "context": 128}, 80, 4096),
]  # fmt: skip


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def step(given: dict, rows: int, words: int, steps: int) -> dict:
    """Take steps here; the peak is that of this process."""
    settings = TrainSettings.from_flat(**given)
    runtime = choose_runtime("cpu", None, settings.run.threads)
    torch.set_num_threads(runtime.threads)
    torch.set_flush_denormal(True)
    context, model_settings = settings.model.context or 1, settings.model
    generator = torch.Generator().manual_seed(1)
    before = peak()
    if settings.model.preset == "translate-small":
        config = resolve_pair_config(model_settings, vocab_size=words, source_vocab_size=None, context=context)
        ids = torch.randint(3, words, (rows, context), generator=generator).tolist()
        batch = pair_batch(PairRows.of(ids, ids), list(range(rows)), pad_id=0, bos_id=1)
    else:
        depth = model_settings.depth or 4
        config = resolve_config(model_settings, vocab_size=words, depth=depth, context=context)
        ids = torch.randint(3, words, (rows, context + 1), generator=generator)
        batch = Batch(ids[:, :-1], ids[:, 1:], None, rows * context)
    model = build_model(config, seed=1).train()
    if settings.batch.recompute:
        recompute_blocks(model)
    optimisers = Optimisers(model, settings.optimiser, peak_rates(settings, config, 1))
    stepper = Stepper.of(model, optimisers, runtime, settings)
    seconds = 0.0
    for number in range(steps):
        start = time.perf_counter()
        stepper.step(number, [batch], 1.0)
        seconds = time.perf_counter() - start
    estimate = step_memory(config, settings, MicroBatch(rows, context), runtime).total
    return {"peak": peak() - before, "estimate": estimate, "seconds": seconds}


def measure(given: dict, rows: int = 1, words: int = 9222, *, steps: int) -> dict:
    call = [sys.executable, __file__, "--child", json.dumps([given, rows, words, steps])]
    return json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)


def line(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--settings", action="store_true")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(step(*json.loads(asked.child))))
        return
    more = {} if asked.threads is None else {"threads": asked.threads}
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}\n")
    if asked.settings:
        line("settings", "rows", "words", "peak, GiB", "estimate, GiB", "off by")
        line(*["--"] * 6)
        for given, rows, words in TEN:
            found = measure(given | more, rows, words, steps=asked.steps)
            off = found["estimate"] / found["peak"] - 1
            spelled = ", ".join(f"{name} {value}" for name, value in given.items())
            line(
                spelled, rows, words, f"{found['peak'] / 2**30:.2f}", f"{found['estimate'] / 2**30:.2f}", f"{off:+.0%}"
            )
        return
    lengths = (2048, 8192, 32768, 131072) if asked.all else (2048, 4096, 8192)
    line("tokens", "attention", "--recompute", "peak, GiB", "estimate, GiB", "s a step", "tokens/s")
    line(*["--"] * 7)
    for window in (1024, None):
        for context in lengths:
            if window is None and context > 32768:
                continue
            for recompute in (False, True):
                given = {**LONG, **more, "context": context, "window": window, "recompute": recompute}
                found = measure(given, steps=asked.steps)
                line(
                    f"{context:,}", f"window {window}" if window else "full", "yes" if recompute else "no",
                    f"{found['peak'] / 2**30:.2f}", f"{found['estimate'] / 2**30:.2f}",
                    f"{found['seconds']:.1f}", f"{context / found['seconds']:,.0f}",
                )  # fmt: skip


if __name__ == "__main__":
    main()
