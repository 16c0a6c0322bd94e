"""Runs that are killed, starved of disk, damaged and poisoned: how they are started, and what must come out of them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

WORDS = ("moon", "river", "night", "light", "snow", "mountain", "autumn", "wind", "lamp", "shadow", "window", "frost")
_TINY = "--d-model 32 --context 32 --batch-tokens 128 --threads 1 --steps 6 --checkpoint-every 2 --evaluate-every 3"
_COMMON = f"{_TINY} --keep 1 --sample-every 0 --dropout 0.1"
TEXT = f"poems.txt {_COMMON} --depth 1".split()
PAIRS = (
    f"--source words.txt --target turned.txt {_COMMON} --n-layers 1 --n-encoder-layers 1 --n-heads 2 "
    "--tokenizer-size 290 --bleu-lines 2"
).split()
COMMANDS = {"text": TEXT, "pairs": PAIRS}
_OF_THE_CLOCK = {"seconds", "tokens_per_second", "share_of_peak", "evaluation_seconds"}


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and a pair of files."""
    folder = tmp_path_factory.mktemp("reliability")
    draw = random.Random(1)
    lines = [[draw.choice(WORDS) for _ in range(draw.randint(2, 7))] for _ in range(120)]
    (folder / "poems.txt").write_text("\n".join(map(" ".join, lines)) + "\n", encoding="utf-8")
    (folder / "words.txt").write_text("\n".join(map(" ".join, lines)) + "\n", encoding="utf-8")
    (folder / "turned.txt").write_text("\n".join(" ".join(line[::-1]) for line in lines) + "\n", encoding="utf-8")
    return folder


@dataclass
class Ended:
    """How a process ended, and what it had said."""

    code: int
    said: str

    def well(self) -> Ended:
        assert self.code == 0, self.said
        return self

    def refused(self, *words: str) -> Ended:
        """A user's error: exit code 2, the words in it, no traceback."""
        assert self.code == 2, (self.code, self.said)
        assert "Traceback" not in self.said
        flat = " ".join(self.said.split())
        for word in words:
            assert word in flat, (word, flat)
        return self


class Program:
    """Starts `mingyue` in a folder: from a process that has the libraries loaded, or as a user does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("warm.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=quiet(),
        )

    def run(self, *arguments: str, **order: Any) -> Ended:
        """Start a process from the warm one and wait for it. `order`: see warm.py."""
        root = str(order.pop("root", self.folder)) + os.sep
        order |= {"arguments": arguments, "folder": str(self.folder), "root": root, "output": str(self._output)}
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        return Ended(code, self._output.read_text(encoding="utf-8", errors="replace"))

    def cold(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command as a shell would."""
        return subprocess.Popen(
            [sys.executable, "-m", "mingyue", *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=quiet(),
        )

    def close(self) -> None:
        self._server.communicate()

    @property
    def _output(self) -> Path:
        return self.folder / f"said-{os.getpid()}.txt"


def quiet() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@pytest.fixture(scope="session")
def program(words: Path) -> Iterator[Program]:
    if not hasattr(os, "fork") or not Path("/proc/self/fd").is_dir():
        pytest.skip("needs fork, kill −9 and /proc: Linux")
    made = Program(words)
    yield made
    made.close()


@dataclass
class Trial:
    """One run, and what it gives when nothing happens to it."""

    program: Program
    command: list[str]
    """Without --out."""
    whole: dict[str, Any]

    def recover(self, out: Path, *, resume_first: bool = True) -> str:
        """What a user does after a crash: resume, or train where nothing was begun. Returns the one that worked.

        A kill may fall between the last file and the end of the program: then there is nothing left to do.
        """
        if resume_first and out.exists():
            ended = self.program.run("resume", str(out))
            if ended.code == 0:
                return "resume"
            if "model" in saved(out) and "nothing is left to do" in ended.said:  # whether all is there, `check` says
                return "nothing: all was done"
            assert not saved(out), ended.said
            ended.refused("mingyue train")
        self.program.run(*self.command, "--out", str(out)).well()
        return "train"

    def check(self, out: Path) -> None:
        """The run is what it would have been, and nothing lies about."""
        assert self.differences(out) == []
        assert litter(out) == []

    def differences(self, out: Path) -> list[str]:
        """Names of what is not as it would have been."""
        found = story(out)
        return [name for name in {**found, **self.whole} if found.get(name) != self.whole.get(name)]


@pytest.fixture(scope="session")
def trial(program: Program) -> Callable[..., Trial]:
    """A kind of run ("text", "pairs") with further options ("--name", "value"), gone through once without harm."""
    made: dict[tuple[str, ...], Trial] = {}

    def of(kind: str, *options: str) -> Trial:
        if (kind, *options) not in made:
            command = ["train", *COMMANDS[kind]]
            for name, value in zip(options[::2], options[1::2], strict=True):
                if name in command:
                    command[command.index(name) + 1] = value
                else:
                    command += [name, value]
            out = program.folder / f"whole-{len(made)}"
            program.run(*command, "--out", str(out)).well()
            made[kind, *options] = Trial(program, command, story(out))
        return made[kind, *options]

    return of


def saved(out: Path) -> list[str]:
    """What there is to go on from: whole checkpoints and the model."""
    found = [path.name for path in out.glob("checkpoints/step-*")]
    return [*found, "model"] if (out / "model").is_dir() else found


def story(out: Path) -> dict[str, Any]:
    """All that a run leaves which does not depend on the clock: every bit of the weights, and the log."""
    told: dict[str, Any] = {}
    # Older ones are left where a kill fell between the last save and its pruning.
    latest = max(out.glob("checkpoints/step-*"))
    for file in sorted([*latest.glob("*.safetensors"), *out.glob("model/*.safetensors")]):
        for name, tensor in load_file(file).items():
            told[f"{file.relative_to(out)} {name}"] = tensor.numpy().tobytes()
    for file in (*sorted(out.glob("data/*.tokens")), out / "model" / "tokenizer.json"):
        told[str(file.relative_to(out))] = file.read_bytes()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    told["log"] = [
        {key: value for key, value in line.items() if key not in _OF_THE_CLOCK}
        for line in lines
        if line["event"] not in ("plan", "resume")
    ]
    return told


def litter(out: Path) -> list[str]:
    """Temporary names in a run folder and beside it."""
    beside = [
        path for path in out.parent.glob("*") if path.name.startswith((f"tmp-removed-{out.name}-", f".{out.name}"))
    ]
    found = [*beside, *(path for path in out.rglob("*") if path.name.endswith(".tmp") or path.name.startswith("tmp-"))]
    return [str(path) for path in found]


def _place(out: Path) -> str:
    """Where a kill has hit, by what it left."""
    if not out.is_dir():
        return "before the folder"
    names = {path.name for path in out.iterdir()}
    inside = {path.name.rstrip("0123456789-") for path in (out / "checkpoints").glob("tmp-*")}
    if any(name.startswith("tmp-removed") for name in inside):
        return "while an old checkpoint was removed"
    if inside:
        return "inside a save"
    if any(name.startswith(".model-") for name in names):
        return "inside the writing of the model"
    if litter(out):
        return "inside the writing of another file"
    if "plan.json" not in names:
        return "before the plan"
    return "between two saves" if saved(out) else "before the first checkpoint"


@pytest.fixture
def place() -> Callable[[Path], str]:
    """Where a kill has hit."""
    return _place


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str, dict[str, int]], None]:
    """Print what was counted, whatever pytest captures."""

    def show(what: str, seen: dict[str, int]) -> None:
        with capsys.disabled():
            print(f"\n{what}: {dict(sorted(seen.items()))}")

    return show
