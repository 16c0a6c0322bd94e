"""Calls public functions in a process of its own, and prints what each call left changed in it. See test_caller.py."""

from __future__ import annotations

import contextlib
import json
import locale
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mingyue
from mingyue import api
from mingyue.config import TrainSettings
from mingyue.training import Observer

TINY: dict[str, Any] = {
    "depth": 1, "d_model": 32, "context": 32, "batch_tokens": 128, "steps": 4, "threads": 1, "dropout": 0.1,
    "evaluate_every": 2, "checkpoint_every": 2, "sample_every": 2,
}  # fmt: skip
PAIRS: dict[str, Any] = {
    **{name: value for name, value in TINY.items() if name != "depth"},
    **{"source": ("s.txt",), "target": ("t.txt",), "n_layers": 1, "n_encoder_layers": 1, "n_heads": 2},
    **{"tokenizer": "char", "bleu_lines": 2},
}
changed: dict[str, list[str]] = {}


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def process() -> dict[str, Any]:
    """Everything that a call must leave as it was."""
    return {
        "threads": torch.get_num_threads(),
        "denormals": 5e-324 > 0,
        "denormals of workers": int((torch.full((1 << 18,), 1e-40) * 1.0).count_nonzero()),
        "random numbers of torch": torch.get_rng_state().tolist(),
        "random numbers of numpy": str(np.random.get_state()),
        "random numbers of Python": random.getstate(),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "warnings": list(warnings.filters),
        "folder": Path.cwd(),
        "environment": dict(os.environ),
        "umask": umask(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "locale": locale.setlocale(locale.LC_ALL),
        "streams": (sys.stdout, sys.stderr, sys.stdin),
        "search path": list(sys.path),
        "limits": (sys.getrecursionlimit(), sys.get_int_max_str_digits(), sys.getswitchinterval()),
    }


@contextlib.contextmanager
def watched(name: str) -> Iterator[None]:
    before = process()
    yield
    after = process()
    changed[name] = [what for what in before if before[what] != after[what]]


def call(name: str, work: Callable[[], Any], *, fails: bool = False) -> Any:
    with watched(name):
        try:
            result = work()
        except (mingyue.MingyueError, KeyboardInterrupt):
            if not fails:
                raise
            return None
    assert not fails, name
    return result


class Impatient(Observer):
    def on_note(self, sentence: str) -> None:
        raise KeyboardInterrupt


def main() -> None:
    torch.set_num_threads(2)
    torch.manual_seed(7)
    lines = [f"The mill {i % 9} turns by the river {i % 7}.\n" for i in range(60)]
    Path("a.txt").write_text("".join(lines), encoding="utf-8")
    for name, number in (("s.txt", 3), ("t.txt", 5)):
        Path(name).write_text("".join(f"word {i} and {number * i}\n" for i in range(60)), encoding="utf-8")

    with torch.no_grad():  # of the caller: training computes gradients all the same
        result = call("train", lambda: mingyue.train(sources=["a.txt"], out="r", watch="The mill", **TINY))
    call("resume", lambda: mingyue.resume("r", steps=6))
    call("train on pairs", lambda: mingyue.train(out="p", **PAIRS))
    call("train, refused", lambda: mingyue.train(sources=["nowhere.txt"], out="q", **TINY), fails=True)
    call("train, refused settings", lambda: mingyue.train(sources=["a.txt"], out="q", device="gpu"), fails=True)
    call("resume, refused", lambda: mingyue.resume("r", d_model=64), fails=True)
    stopped = TrainSettings().with_flat(sources=["a.txt"], out="stopped", **TINY)
    call("train, stopped", lambda: mingyue.train(stopped, observer=Impatient()), fails=True)

    model = call("load", lambda: mingyue.load("r", threads=1))
    call("load a checkpoint", lambda: mingyue.load("r", threads=1, step=4))
    call("load, refused", lambda: mingyue.load("nowhere"), fails=True)
    call("load, wrong kind", lambda: mingyue.load("p"), fails=True)
    call("info", lambda: api.info("r"))
    call("doctor", api.doctor)
    call("generate", lambda: model.generate(["The", "mill"], max_new_tokens=8, samples=2))
    call("generate, refused", lambda: model.generate("The", temperature=-1), fails=True)
    call("score", lambda: model.score("The mill 3 turns. " * 9))
    call("score, refused", lambda: model.score(""), fails=True)
    call("logits", lambda: model.logits("The mill"))
    stream = model.stream("The", max_new_tokens=8)
    for number in range(3):
        call(f"stream, piece {number}", lambda: next(stream))
    call("stream, closed", stream.close if hasattr(stream, "close") else lambda: None)

    inspection = call("inspect", lambda: mingyue.inspect("r", "The mill 3 turns", threads=1))
    for view in ("attention", "lens", "surprise", "trace", "heads", "film"):
        call(view, getattr(inspection, view))
    call("vectors", lambda: inspection.vectors("mill", ["The mill 3", "a mill"]))
    call("neighbours", lambda: inspection.neighbours("m"))
    call("run", inspection.run)
    call("capture", lambda: inspection.capture("blocks.*.output"))
    call("patching", lambda: inspection.patching("The mill 5 turns", answer="t", instead="r"))
    call("view, refused", lambda: inspection.view("nothing"), fails=True)

    translator = call("load_translator", lambda: mingyue.load_translator("p", threads=1))
    call("translate", lambda: translator.translate(["word 3 and 9", "word 4"]))
    call("translate, sampled", lambda: translator.translate(["word 3 and 9"], sample=True, seed=3))
    call("loss", lambda: translator.loss(["word 3"], ["word 4"]))
    call("loss, refused", lambda: translator.loss([], []), fails=True)
    call("evaluate", lambda: translator.evaluate(["word 3"], ["word 4"]))

    torch.set_default_dtype(torch.float64)
    same = call("generate, in fp64", lambda: mingyue.load("r").generate("The", max_new_tokens=4)[0].text)
    torch.set_default_dtype(torch.float32)
    assert same == mingyue.load("r").generate("The", max_new_tokens=4)[0].text
    print(json.dumps({"changed": changed, "threads": mingyue.load("r").runtime.threads, "steps": result.training.step}))


if __name__ == "__main__":
    main()
