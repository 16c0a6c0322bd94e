"""A process that has the libraries loaded and forks the program from itself: one JSON line in, two out.

A kill then falls into the program and not into the import of PyTorch, and a run starts in a quarter of a second. The
child runs `mingyue.cli.main` on the arguments, as the command does; only the measuring of the machine's speed and the
long samples at the end are left out, which take half of the time and touch no file. What may be asked of it besides:

    trace    a file: every event that changes the disk is written there, a line each
    kill_at  kill −9 before the event of this number (from 1)
    half     at such an event, leave half of the content of the file that is being written
    after    [lines, seconds]: kill −9 so long after so many lines of the log (0 = after the start)
    nan      [where, step, name]: put a NaN into a weight, a gradient or an activation at this step (from 1)
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # noqa: F401
import safetensors.torch
import tomli_w  # noqa: F401
import torch
import torch._dynamo  # what every optimiser loads when it is made

import mingyue.bundle
import mingyue.cli
import mingyue.cli.app
import mingyue.cli.progress
import mingyue.cli.resume
import mingyue.cli.train
import mingyue.cli.verdict
import mingyue.runs.pair_run
import mingyue.runs.run
import mingyue.runs.text_run
import mingyue.text
import mingyue.training.checkpoints
import mingyue.training.log
from mingyue.training.step import Stepper

with suppress(ImportError):
    import sacrebleu  # noqa: F401

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod"}


class Disk:
    """Counts what the process does to the disk below `root`, and dies at the event that it was told."""

    def __init__(self, root: str, trace: str | None, kill_at: int | None, half: bool) -> None:
        self.root, self.kill_at, self.half = root, kill_at, half
        self.trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if trace else None
        self.count = 0
        self.lines_until: list[int] = []
        """Lines of the log that are still to come, and the pipe that then hears of it."""

    def watch(self) -> None:
        fsync, log = os.fsync, mingyue.training.log.MetricsLog.write

        def watched_fsync(handle: Any) -> None:
            number = handle if isinstance(handle, int) else handle.fileno()
            self.event("fsync", str(Path(f"/proc/self/fd/{number}").readlink()), number)
            fsync(handle)

        def watched_save(*args: Any, **kwargs: Any) -> None:
            save_file(*args, **kwargs)
            self.event("save", str(args[1]))

        def watched_log(this: Any, event: str, **values: Any) -> None:
            self.event("line", str(this.path))
            log(this, event, **values)
            self.tell()

        save_file = safetensors.torch.save_file
        os.fsync = watched_fsync
        mingyue.training.log.MetricsLog.write = watched_log
        for module in (safetensors.torch, mingyue.training.checkpoints):
            module.save_file = watched_save
        sys.addaudithook(self.heard)

    def tell(self) -> None:
        if self.lines_until:
            self.lines_until[0] -= 1
            if not self.lines_until[0]:
                os.write(self.lines_until[1], b".")

    def heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & _WRITES)
            if writes and isinstance(path, str | os.PathLike):
                self.event("open", os.fspath(path))
        elif event in _CHANGES and isinstance(args[0], str | os.PathLike):
            self.event(event.removeprefix("os."), os.fspath(args[0]))

    def event(self, kind: str, path: str, handle: int | None = None) -> None:
        path = str(Path(path).absolute())
        if not path.startswith(self.root):
            return
        self.count += 1
        if self.trace is not None:
            os.write(self.trace, f"{kind} {path.removeprefix(self.root)}\n".encode())
        if self.count != self.kill_at:
            return
        if self.half:
            self.leave_half(kind, path, handle)
        os.kill(os.getpid(), signal.SIGKILL)

    def leave_half(self, kind: str, path: str, handle: int | None) -> None:
        if kind == "line":
            line = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(line, b'{"event": "train", "st')
        elif kind in ("fsync", "save") and Path(path).is_file():
            file = os.open(path, os.O_WRONLY) if handle is None else handle
            os.ftruncate(file, os.fstat(file).st_size // 2)


def poison(where: str, at: int, name: str) -> None:
    """Make one number NaN at step `at`: before it in a weight, in its gradient or activation, or after its update."""
    step = Stepper.step
    nan = float("nan")

    def poisoned(this: Any, number: int, *args: Any) -> Any:
        if number + 1 != at:
            return step(this, number, *args)
        weight = dict(this.model.named_parameters()).get(name)
        if where == "weight":
            with torch.no_grad():
                weight.view(-1)[0] = nan
        elif where == "gradient":
            weight.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([0]), nan))
        elif where == "activation":
            part = this.model.get_submodule(name)
            part.register_forward_hook(lambda module, inputs, output: output.index_fill(-1, torch.tensor([0]), nan))
        result = step(this, number, *args)
        if where == "update":
            with torch.no_grad():
                weight.view(-1)[0] = nan
        return result

    Stepper.step = poisoned


def child(order: dict[str, Any], pipe: int) -> None:
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for handle, number in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(handle, number)
    os.chdir(order["folder"])
    if order.get("nan"):
        poison(*order["nan"])
    if order.keys() & {"trace", "kill_at", "after"}:
        disk = Disk(order["root"], order.get("trace"), order.get("kill_at"), bool(order.get("half")))
        lines = order.get("after", [0, 0.0])[0]
        disk.lines_until = [lines, pipe] if lines else []
        disk.watch()
    code = mingyue.cli.main(order["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve() -> None:
    torch.set_num_threads(1)
    mingyue.runs.run.measure_peak = lambda *args, **kwargs: 1e10
    mingyue.runs.text_run.nominal_peak = lambda peak, threads: peak
    mingyue.runs.text_run._SAMPLE_TOKENS = 4
    mingyue.runs.pair_run._SHOWN = 1
    gc.freeze()
    answer = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        order = json.loads(line)
        hears, says = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(hears)
            try:
                child(order, says)
            finally:
                os._exit(99)
        os.close(says)
        if "after" in order:
            lines, seconds = order["after"]
            if not lines or os.read(hears, 1):  # else it has ended before
                time.sleep(seconds)
                os.kill(process, signal.SIGKILL)  # not yet waited for, so the number is still its own
        os.close(hears)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), file=answer, flush=True)


serve()
