"""What the side-by-side scripts share: a text and its cut, nanoGPT's data and recipes, programs and their times.

The peer is used as it is, from a folder that the user names: its own training script, run as its README says. Nothing
is written into that folder.
"""

from __future__ import annotations

import argparse
import os
import pickle
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mingyue.data.corpora import resolve_corpus
from mingyue.data.report import ReadReport
from mingyue.runtime import available_cores

PEER = "https://github.com/karpathy/nanoGPT"
_ITERATION = re.compile(r"^iter (\d+): loss .*?, time ([\d.]+)ms", re.MULTILINE)


@dataclass(frozen=True)
class Text:
    """A text cut as all our comparisons cut it: the last tenth of its characters is held out."""

    train: str
    held_out: str

    @classmethod
    def read(cls, path: Path) -> Text:
        """UTF-8; a byte-order mark is no text, and a line ends with one character."""
        whole = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        cut = len(whole) - len(whole) // 10
        return cls(whole[:cut], whole[cut:])

    @property
    def vocabulary(self) -> list[str]:
        """The characters of the training part."""
        return sorted(set(self.train))


class PeerText:
    """A text as ids of nanoGPT: a character of the vocabulary each; one id more for those that only the rest has."""

    def __init__(self, text: Text) -> None:
        self._ids = {character: number for number, character in enumerate(text.vocabulary)}
        unknown = any(character not in self._ids for character in set(text.held_out))
        self.vocab_size = len(self._ids) + unknown
        self.train, self.held_out = self._encode(text.train), self._encode(text.held_out)

    def _encode(self, text: str) -> np.ndarray:
        return np.array([self._ids.get(character, len(self._ids)) for character in text], dtype=np.uint16)

    def write(self, folder: Path) -> None:
        """train.bin, val.bin and meta.pkl, in the form of its prepare.py."""
        folder.mkdir(parents=True, exist_ok=True)
        self.train.tofile(folder / "train.bin")
        self.held_out.tofile(folder / "val.bin")
        meta = {
            "vocab_size": self.vocab_size,
            "stoi": self._ids,
            "itos": {number: character for character, number in self._ids.items()},
        }
        (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


@dataclass(frozen=True)
class Recipe:
    """Sizes that both have, and the peer's numbers around them: its CPU recipe, and a larger one."""

    block: int
    batch: int
    layers: int
    heads: int
    width: int

    def peer_options(self, data: Path, out: Path, *, iterations: int, evaluate_every: int, log_every: int) -> list[str]:
        """The arguments of train.py: its README's recipe for CPUs at these sizes, the rate's cosine to the end."""
        numbers = {
            "dataset": data,  # an absolute path: joined to its data/ it stays what it is
            "out_dir": out,
            "device": "cpu",
            "compile": False,
            "eval_iters": 20,
            "eval_interval": evaluate_every,
            "log_interval": log_every,
            "block_size": self.block,
            "batch_size": self.batch,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_embd": self.width,
            "max_iters": iterations,
            "lr_decay_iters": iterations,
            "dropout": 0.0,
        }
        return ["config/train_shakespeare_char.py", *(f"--{name}={value}" for name, value in numbers.items())]

    @property
    def step_tokens(self) -> int:
        """Tokens of one step."""
        return self.block * self.batch


SMALL = Recipe(block=64, batch=12, layers=4, heads=4, width=128)
LARGE = Recipe(block=128, batch=16, layers=4, heads=4, width=256)


@dataclass(frozen=True)
class Finished:
    """A program that ran to its end."""

    seconds: float
    """From its start to its end."""
    output: str


def run(command: Sequence[str], *, threads: int, cwd: Path | None = None, show: bool = True) -> Finished:
    """Run a program to its end and time it. Ends this one if it fails, with the last lines that it wrote."""
    if show:
        print("$", *(Path(sys.executable).name if word == sys.executable else word for word in command), flush=True)
    threads_of_it = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    start = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | threads_of_it,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"it failed with {done.returncode}:\n" + "\n".join(done.stdout.splitlines()[-20:]))
    return Finished(seconds, done.stdout)


def run_peer(folder: Path, options: Sequence[str], *, threads: int) -> Finished:
    """nanoGPT's train.py."""
    return run([sys.executable, "train.py", *options], threads=threads, cwd=folder)


def iteration_seconds(output: str) -> list[float]:
    """Seconds of each iteration that train.py printed, in their order; the first holds its first evaluation too."""
    return [float(milliseconds) / 1000 for _, milliseconds in _ITERATION.findall(output)]


def run_ours(source: str, options: Sequence[str], *, out: Path, threads: int) -> Finished:
    """`mingyue train`, as a user types it."""
    where = ["--out", str(out), "--threads", str(threads), "--device", "cpu"]
    return run([sys.executable, "-m", "mingyue", "train", source, *where, *options], threads=threads)


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    """--nanogpt and --threads."""
    parser.add_argument("--nanogpt", type=Path, help=f"folder of a clone of {PEER}")
    parser.add_argument("--threads", type=int, default=available_cores())


def peer_folder(asked: Path | None) -> Path | None:
    """The peer's folder, or None after saying what is needed."""
    if asked is None:
        print(f"nanoGPT is not named, so only our side runs, and briefly: git clone {PEER}, then --nanogpt FOLDER")
        return None
    if not (asked / "train.py").is_file() or not (asked / "model.py").is_file():
        sys.exit(f"{asked} holds no train.py and model.py: give the folder of a clone of {PEER}")
    return asked.resolve()


def text_path(given: Path | None) -> Path:
    """The named text; without one, the text that every Python carries."""
    if given is None:
        path = resolve_corpus("python-docs", ReadReport())
        assert path is not None
        return path
    if not given.is_file():
        sys.exit(f"there is no file {given}")
    return given.resolve()


def machine(threads: int) -> str:
    """One line for tables: processor, cores, versions."""
    name = platform.processor() or platform.machine()
    with_names = Path("/proc/cpuinfo")
    if with_names.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", with_names.read_text(), re.MULTILINE)
        name = found[1] if found else name
    cores = "1 thread" if threads == 1 else f"{threads} threads"
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return f"{name}, {cores}; {system}, Python {platform.python_version()}, torch {torch.__version__}"
