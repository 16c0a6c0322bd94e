"""A disk that fills up at every moment of a run: the error says so, and with room the run goes on to the same end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter

import pytest


class SmallDisk:
    """A file system in memory, of a size that can change."""

    def __init__(self, path):
        self.path = path
        path.mkdir(exist_ok=True)
        self._mount("size=1m")

    def set(self, **limits):
        """A new and empty one."""
        self.close()
        self._mount(",".join(f"{name}={value}" for name, value in limits.items()))

    def make_room(self):
        self._run("mount", "-o", "remount,size=64m,nr_inodes=10000", str(self.path))

    def fill(self):
        """Leave no room beyond what is taken."""
        found = os.statvfs(self.path)
        self._run("mount", "-o", f"remount,size={(found.f_blocks - found.f_bfree) * found.f_frsize}", str(self.path))

    def close(self):
        self._run("umount", str(self.path))

    def _mount(self, options):
        self._run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.path))

    def _run(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PermissionError(done.stderr.strip())


@pytest.fixture(scope="module")
def small_disk(program):
    try:
        disk = SmallDisk(program.folder / "small")
    except (PermissionError, FileNotFoundError) as error:
        pytest.skip(f"no small file system can be mounted here: {error}")
    yield disk
    disk.close()


_KIB = [*range(4, 60, 4), *range(60, 4000, 40)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["text", "pairs"])
@pytest.mark.parametrize("what", ["room", "names"])
def test_a_disk_that_fills_up_at_any_file(program, trial, small_disk, tell, kind, what):
    """No room for more bytes, or for more files. Nothing that was there is lost, and no error is a fault of ours."""
    if kind == "pairs" and what == "names":
        pytest.skip("the same names as those of text")
    trial = trial(kind)
    out, seen, wrong = small_disk.path / "run", Counter(), []
    for limit in _KIB if what == "room" else range(2, 100):
        small_disk.set(**({"size": f"{limit}k"} if what == "room" else {"size": "64m", "nr_inodes": limit}))
        ended = program.run(*trial.command, "--out", str(out))
        if ended.code == 0:
            seen["fits"] += 1
            trial.check(out)
            break
        if ended.code != 2 or "the disk is full" not in " ".join(ended.said.split()):
            wrong.append((limit, ended))
            continue
        found = re.search(r"the disk is full: (.*?) could not be written", " ".join(ended.said.split()))
        assert found, ended.said
        seen[found[1]] += 1
        if out.exists():
            again = program.run("resume", str(out))  # still no room: it says so, or finds enough
            known = ("the disk is full", "before anything was trained", "holds no run")
            if again.code and (again.code != 2 or not any(words in " ".join(again.said.split()) for words in known)):
                wrong.append((limit, "resume", again))
        small_disk.make_room()
        if (out / "model").is_dir():
            program.run("resume", str(out)).refused("nothing is left to do")
        else:
            trial.recover(out)
        trial.check(out)
    assert wrong == []
    assert seen["fits"] == 1
    assert seen["the checkpoint"]
    tell(f"full disk, {what}, {kind}", seen)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_disk_that_is_full_when_the_model_is_written(program, trial, small_disk):
    """A save needs more room than the model, so it is the first to fail above; here only the model is missing."""
    trial = trial("text")
    out = small_disk.path / "run"
    small_disk.set(size="64m")
    program.run(*trial.command, "--out", str(out)).well()
    shutil.rmtree(out / "model")
    small_disk.fill()
    program.run("resume", str(out)).refused("the disk is full")
    assert not (out / "model").exists()
    small_disk.make_room()
    program.run("resume", str(out)).well()
    trial.check(out)
