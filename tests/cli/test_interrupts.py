"""Ctrl-C at any moment of the command line: one quiet line and exit code 130, for every verb."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows sends no such signal to oneself")

# Each makes Ctrl-C come where its exception gets lost or becomes another one.
SWALLOWED_BY_AN_IMPORT = """
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            try:
                interrupt()
            except BaseException:  # as compiled modules do
                pass
sys.meta_path.insert(0, Finder())
"""
LOST_IN_A_DESTRUCTOR = """
class Doomed:
    def __del__(self):
        interrupt()
import mingyue.api
def doctor():
    Doomed()
    time.sleep(5)
mingyue.api.doctor = doctor
"""
TURNED_INTO_ANOTHER_ERROR = """
import mingyue.api
def doctor():
    try:
        interrupt()
    except BaseException as error:
        raise RuntimeError("a library was left half made") from error
mingyue.api.doctor = doctor
"""
LOST_ON_THE_WAY = """
import mingyue.api
done = mingyue.api.doctor
def doctor():
    try:
        interrupt()
    except BaseException:
        pass
    return done()
mingyue.api.doctor = doctor
"""
AFTER_THE_WORK = """
import atexit
atexit.register(interrupt)
"""
PROGRAM = """
import os, runpy, signal, sys, time
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)  # a signal is received between two instructions
sys.argv[1:] = {arguments!r}
{prelude}
runpy.run_module("mingyue", run_name="__main__")
"""
VERBS = [
    "train", "resume", "demo", "generate", "score", "translate", "evaluate", "inspect", "info", "claims", "data",
    "doctor", "version",
]  # fmt: skip


def run(prelude: str, arguments: list[str], cwd: Path) -> tuple[int, str]:
    program = PROGRAM.format(prelude=prelude, arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=cwd, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_while_a_verb_is_imported(tmp_path, verb):
    prelude = SWALLOWED_BY_AN_IMPORT.format(module=f"mingyue.cli.{verb}")
    assert run(prelude, [verb, "x"], tmp_path) == (130, "error: stopped\n")


@pytest.mark.parametrize("module", ["mingyue.cli", "mingyue.errors", "cyclopts", "torch"])
def test_while_a_library_is_imported(tmp_path, module):
    prelude = SWALLOWED_BY_AN_IMPORT.format(module=module)
    assert run(prelude, ["doctor"], tmp_path) == (130, "error: stopped\n")


@pytest.mark.parametrize(
    "prelude",
    [LOST_IN_A_DESTRUCTOR, TURNED_INTO_ANOTHER_ERROR, LOST_ON_THE_WAY, AFTER_THE_WORK],
    ids=["destructor", "another error", "on the way", "after the work"],
)
def test_where_the_exception_gets_lost(tmp_path, prelude):
    arguments = ["version"] if prelude == AFTER_THE_WORK else ["doctor"]
    code, err = run(prelude, arguments, tmp_path)
    lines = [line for line in err.splitlines() if not line.startswith("note: ")]  # of doctor, which was at its end
    assert (code, lines) == (130, ["error: stopped"])


def test_a_program_that_was_started_with_ctrl_c_ignored_keeps_it_so(tmp_path):
    prelude = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + AFTER_THE_WORK
    assert run(prelude, ["version"], tmp_path) == (0, "")
