"""A run folder that is removed, renamed or replaced while a run goes on: noticed before anything is saved there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import mingyue
from mingyue.config import TrainSettings
from mingyue.errors import CheckpointError
from mingyue.training import Observer, RunFolder

TEXT = "".join(f"The mill {i % 9} turns by the river {i % 7}.\n" for i in range(60))
TINY = {"depth": 1, "context": 32, "batch_tokens": 128, "d_model": 32, "threads": 1, "steps": 6, "sample_every": 0}


def remove(path: Path) -> None:
    shutil.rmtree(path)


def rename(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def replace(path: Path) -> None:
    """Another run began in its place."""
    shutil.rmtree(path)
    other, _ = RunFolder.create(path, TrainSettings())
    other.unlock()


class Meddler(Observer):
    """Does something to the run folder after a step."""

    def __init__(self, path: Path, what, step: int) -> None:
        self.path, self.what, self.step = path, what, step

    def on_step(self, report) -> None:
        if report.step == self.step:
            self.what(self.path)


@pytest.mark.parametrize("what", [remove, rename, replace])
@pytest.mark.parametrize(("step", "cadence"), [(2, {"checkpoint_every": 4}), (6, {"held_out": 0.0})])
def test_nothing_is_written_to_a_folder_that_is_no_longer_the_runs(tmp_path, what, step, cadence):
    """During training and at its end: an error that says so; what is at the path now stays as it is."""
    source, path = tmp_path / "a.txt", tmp_path / "run"
    source.write_text(TEXT, encoding="utf-8")
    with pytest.raises(CheckpointError, match="removed, renamed or replaced"):
        mingyue.train(
            sources=[str(source)],
            out=str(path),
            evaluate_every=6,
            observer=Meddler(path, what, step),
            **TINY,
            **cadence,
        )
    found = sorted(inside.name for inside in path.iterdir()) if path.exists() else []
    assert found == (["run.lock", "run.toml"] if what is replace else [])


@pytest.mark.parametrize("what", [remove, rename, replace])
def test_settings_plan_and_removal_look_at_the_lock_first(tmp_path, what):
    folder, _ = RunFolder.create(tmp_path / "run", TrainSettings())
    with folder:
        folder.write_plan({"key": "", "plan": {}})
        what(folder.path)
        for write in (lambda: folder.write_settings(TrainSettings()), lambda: folder.write_plan({}), folder.remove):
            with pytest.raises(CheckpointError, match="removed, renamed or replaced"):
                write()
    assert folder.path.exists() == (what is replace)
