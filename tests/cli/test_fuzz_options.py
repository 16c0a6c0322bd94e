"""Every option of every verb, read from the code, with values that nobody means: refused by name, or harmless."""

from __future__ import annotations

import functools
import os
import re
import resource
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

import pytest

from mingyue.config import TrainSettings, setting_of

HUGE = "9" * 35
NUMBERS = ("", "-1", "0", "1e-320", "1e308", "nan", "inf", str(2**31), str(2**63 - 1), str(2**63), "9" * 5_000)
FEW_NUMBERS = ("", "-1", "0", "1e308", "nan", "inf", str(2**63), "9" * 5_000)
BETWEEN = "999999999"  # within many bounds, and more than any machine has
WORDS = ("", "-1", "0", "nan", HUGE)
WORK = {"steps", "minutes", "epochs", "batch_tokens", "max_new_tokens", "extra_tokens", "samples", "n_best"}
"""Options that ask for much work where the value is within the bounds: they do not get BETWEEN."""
SECONDS = 60
MEMORY = 6 * 2**30  # address space of a case beyond that of this process

TINY = "--depth 1 --d-model 32 --context 40 --batch-tokens 64 --threads 1 --tokenizer byte --sample-every 0"
PAIRS = "--d-model 32 --n-layers 1 --context 40 --batch-tokens 64 --threads 1 --tokenizer char --bleu-lines 0"


@dataclass(frozen=True)
class Option:
    """An option (or, without dashes, a positional argument) of a verb."""

    verb: tuple[str, ...]
    name: str
    kind: Literal["number", "switch", "word"]

    @property
    def values(self) -> Sequence[str]:
        if self.kind == "switch":
            return ("nan", "-1", "")
        if self.kind == "word":
            return WORDS
        if self.verb in (("resume",), ("demo",)):  # their options are those of train
            return FEW_NUMBERS
        return NUMBERS if self.field in WORK else (*NUMBERS, BETWEEN)

    @property
    def field(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")


@functools.cache
def options() -> list[Option]:
    """All of them, as the parser has them."""
    from mingyue.cli.app import app

    def walk(here, path: tuple[str, ...]) -> Iterator[Option]:
        for name in here:
            if name.startswith("-"):  # --help, --version, --install-completion
                continue
            inner, verb = here[name], (*path, name)
            nested = [other for other in inner if not other.startswith("-")]
            yield from walk(inner, verb)
            if not nested:
                for one in inner.assemble_argument_collection(parse_docstring=False):
                    yield Option(verb, one.name, kind_of(one.hint))

    return list(walk(app, ()))


def kind_of(hint) -> Literal["number", "switch", "word"]:
    types = {get_origin(one) or one for one in members(hint)} - {NoneType}
    if types <= {int, float}:
        return "number"
    return "switch" if types == {bool} else "word"


def members(hint) -> Iterator[object]:
    if get_origin(hint) in (Union, UnionType):
        for one in get_args(hint):
            yield from members(one)
    else:
        yield hint


@pytest.fixture(scope="module")
def loaded() -> None:
    """Imports what the commands need, once for all forks."""
    import torch

    import mingyue.api
    import mingyue.claims.run
    import mingyue.cli.inspect

    torch.set_num_threads(1)
    for view in mingyue.cli.inspect.VIEWS:
        getattr(mingyue.cli.inspect, view)


@pytest.fixture(scope="module")
def place(tmp_path_factory, loaded) -> Path:
    """A folder with a text, pairs, and a trained run of each."""
    folder = tmp_path_factory.mktemp("fuzz")
    lines = [f"The mill {i % 9} turns by the river {i % 7}." for i in range(60)]
    (folder / "a.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "s").write_text("".join(f"{i:03}\n" for i in range(200)), encoding="utf-8")
    (folder / "t").write_text("".join(f"{999 - i:03}\n" for i in range(200)), encoding="utf-8")
    text = [
        "train",
        str(folder / "a.txt"),
        "--out",
        str(folder / "run"),
        "--steps",
        "4",
        "--watch",
        "The",
        *TINY.split(),
    ]
    pairs = [*pair_base(folder), "--out", str(folder / "pairs")]
    for command in (text, pairs):
        code, said = forked(command, folder)
        assert code == 0, said
    return folder


def pair_base(folder: Path) -> list[str]:
    return ["train", "--source", str(folder / "s"), "--target", str(folder / "t"), "--steps", "2", *PAIRS.split()]


def base(option: Option, place: Path) -> list[str]:
    """A command of the verb that works, and quickly."""
    verb, run, pairs = option.verb, str(place / "run"), str(place / "pairs")
    if verb == ("train",):
        found = TrainSettings.fields().get(option.field)
        details = None if found is None else setting_of(found[1])
        if details is not None and details.kinds == "pairs":
            return pair_base(place)
        return ["train", str(place / "a.txt"), "--steps", "2", *TINY.split()]
    commands = {
        ("resume",): ["resume", "run", "--steps", "5"],
        ("demo",): ["demo", "--steps", "2", *TINY.split()],
        ("generate",): ["generate", run, "--max-new-tokens", "2"],
        ("score",): ["score", run, "--text", "The mill"],
        ("translate",): ["translate", pairs, "--text", "123", "--extra-tokens", "2"],
        ("evaluate",): ["evaluate", pairs, "--source", str(place / "s"), "--target", str(place / "t"), "--beam", "1"],
        ("info",): ["info", run],
        ("claims", "run"): ["claims", "run", "variance", "--small", "--workers", "1"],
        ("claims", "report"): ["claims", "report", run],
        ("data", "get"): ["data", "get", "python-docs"],
    }
    if verb[0] == "inspect":
        looked = [*verb, run]
        if verb[1] in ("vectors", "neighbours"):
            looked += ["--word", "m"]
        if verb[1] == "film":
            looked += ["--out", "film.html"]
        elif verb[1] == "vectors":
            looked += ["--texts", "The mill", "--texts", "a mill"]
        elif verb[1] != "neighbours":
            looked += ["--text", "The mill"]
        if verb[1] == "patch":
            looked += ["--other", "The mile"]
        return looked
    return commands.get(verb, list(verb))


def cases(option: Option, place: Path) -> Iterator[tuple[str, list[str]]]:
    """The value, and the command with it."""
    command = base(option, place)
    if not option.name.startswith("--"):
        given = [place for place, token in enumerate(command) if place >= len(option.verb) and token[:1] != "-"][:1]
        for value in option.values:
            yield value, [*option.verb, value, *command[given[0] + 1 if given else len(option.verb) :]]
        return
    if option.name in command:
        at = command.index(option.name)
        del command[at : at + (1 if option.kind == "switch" else 2)]
    if option.field in ("minutes", "epochs") and "--steps" in command:
        at = command.index("--steps")
        del command[at : at + 2]
    for value in option.values:
        yield value, [*command, f"{option.name}={value}"]
    if option.kind == "switch" and option.field != "compile":  # which takes a minute
        yield "", [*command, option.name]


def forked(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """Exit code (negative: the signal that ended it) and output of a command in `folder`, in a fork of this process.

    Nothing has been computed in this process, so that a fork has no threads to miss; it has imported everything.
    """
    said = folder / "said.txt"
    child = os.fork()
    if child == 0:
        try:
            os.chdir(folder)
            for descriptor in (1, 2):
                os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
            # Of data, not of addresses: V8, which draws charts, reserves many more than it uses.
            now = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_DATA, (now + MEMORY, now + MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            from mingyue.cli import main

            code = main(command)
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException as error:  # whatever it is, it must not run this test again in the child
            os.write(2, f"Traceback: {error!r}".encode())
            code = 99
        os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said.read_text(encoding="utf-8", errors="replace")


def fault(option: Option, value: str, code: int, said: str) -> str | None:
    """What is wrong with how a case ended, if anything is."""
    if code == -signal.SIGALRM:
        return f"no end within {SECONDS} s"
    if code < 0:
        return f"ended by signal {-code}"
    if "Traceback" in said or code not in (0, 2):
        return f"exit code {code}"
    flat = re.sub(r"\s", "", said).replace("_", "-")
    named = option.name.removeprefix("--") in flat or option.name.startswith("--") is False
    quoted = option.kind == "word" and (value in flat if value else True)
    return None if code == 0 or named or quoted else "refused without its name"


def verbs() -> list[tuple[str, ...]]:
    return sorted({option.verb for option in options()})


@pytest.mark.parametrize("verb", [verb for verb in verbs() if verb not in (("resume",), ("demo",))], ids=" ".join)
def test_every_number_of_every_verb_has_finite_bounds(verb):
    """The parser refuses what is beyond them, before any work. (resume and demo have the options of train.)"""
    from mingyue.cli.main import _parse

    command = [
        *verb,
        *(["x"] if verb[0] in ("generate", "score", "translate", "evaluate", "inspect", "resume") else []),
    ]
    values = ("nan", "inf", HUGE, f"-{HUGE}", "9" * 5_000)
    numbers = [option.name for option in options() if option.verb == verb and option.kind == "number"]
    assert not numbers or _parse(command) is not None
    unbounded = [f"{name}={value}" for name in numbers for value in values if _parse([*command, f"{name}={value}"])]
    assert unbounded == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each case is a fork of this process")
@pytest.mark.parametrize("verb", verbs(), ids=" ".join)
def test_no_value_of_any_option_ends_in_a_fault(verb, place, tmp_path, monkeypatch, capsys):
    """No traceback, no hang, no abort: exit code 0, or 2 with the name of the option."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("mingyue.api.demo._TEXT", str(place / "a.txt"))
    wrong, ends = [], Counter()
    for option in options():
        if option.verb != verb:
            continue
        for number, (value, command) in enumerate(cases(option, place)):
            here = tmp_path / f"{option.field}-{number}"
            here.mkdir()
            if verb == ("resume",):
                shutil.copytree(place / "run", here / "run")
            code, said = forked(command, here)
            ends[code] += 1
            if (what := fault(option, value, code, said)) is not None:
                shown = " ".join(token[:80] for token in command)
                wrong.append(f"{what}: {shown}\n    {said.strip()[-600:]}")
            shutil.rmtree(here, ignore_errors=True)
    with capsys.disabled():
        print(f"\n    {' '.join(verb)}: {ends.total():,} cases, {ends[2]:,} refused, {ends[0]:,} harmless")
    assert not wrong, f"{len(wrong)} of {ends.total()}\n" + "\n".join(wrong)
