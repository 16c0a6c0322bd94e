"""The run folder: settings that replay, one writer, no run lost."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest

from mingyue.config import TrainSettings
from mingyue.errors import CheckpointError, SettingsError
from mingyue.training import Checkpoint, Checkpoints, RunFolder

SETTINGS = TrainSettings.from_flat(sources=["诗 集.txt", "b\\c"], steps=20, separator="\n\n", learning_rate=1e-3)


def begin(path, settings=SETTINGS):
    folder, notes = RunFolder.create(path, settings)
    folder.unlock()
    return folder, notes


def test_settings_come_back_from_run_toml(tmp_path):
    """run.toml holds every setting; those that are None are left out; any text survives; it is TOML for others too."""
    folder, notes = begin(tmp_path / "run")
    assert notes == []
    assert folder.read_settings() == SETTINGS
    values = tomllib.loads(folder.settings_path.read_text(encoding="utf-8"))
    assert values["data"]["sources"] == ["诗 集.txt", "b\\c"]
    assert "minutes" not in values["budget"]
    assert TrainSettings.read(values, source="run.toml") == SETTINGS


def test_typo_in_run_toml_names_the_nearest(tmp_path):
    folder, _ = begin(tmp_path / "run")
    text = folder.settings_path.read_text(encoding="utf-8")
    folder.settings_path.write_text(text.replace("learning_rate", "lerning_rate"), encoding="utf-8")
    with pytest.raises(SettingsError, match=r"run\.toml.*lerning_rate.*learning_rate"):
        folder.read_settings()
    for content in ("[data", "", "# only a remark\n"):
        folder.settings_path.write_text(content, encoding="utf-8")
        with pytest.raises(SettingsError, match=r"run\.toml") as caught:
            folder.read_settings()
        assert "latest checkpoint" in caught.value.advice


def test_existing_run_is_refused_or_moved_aside(tmp_path):
    """A run is never overwritten: refused with both ways out, or moved aside whole."""
    path = tmp_path / "run"
    begin(path)
    (path / "checkpoints").mkdir()
    (path / "metrics.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match="already holds a run") as caught:
        begin(path)
    assert "resume" in caught.value.advice
    assert "--overwrite" in caught.value.advice
    again = SETTINGS.with_flat(overwrite=True)
    _, notes = begin(path, again)
    assert not (path / "metrics.jsonl").exists()
    assert (tmp_path / "run.1" / "metrics.jsonl").is_file()
    assert "run.1" in notes[0]
    (path / "checkpoints").mkdir()
    begin(path, again)
    assert (tmp_path / "run.2").is_dir()


def test_folder_of_something_else_is_left_alone(tmp_path):
    """A folder that is not a run is refused, with --overwrite too; so is a file."""
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("a", encoding="utf-8")
    for overwrite in (False, True):
        for path in (tmp_path / "letters", tmp_path / "letters" / "a.txt"):
            with pytest.raises(CheckpointError, match="letters"):
                begin(path, SETTINGS.with_flat(overwrite=overwrite))
    assert (tmp_path / "letters" / "a.txt").read_text(encoding="utf-8") == "a"


def test_start_killed_before_run_toml_can_be_repeated(tmp_path):
    """T13: a folder in which there is only a lock (killed while starting) is as good as an empty one."""
    path = tmp_path / "run"
    path.mkdir()
    RunFolder(path).lock()
    folder, _ = begin(tmp_path / "other")
    (folder.path / "run.toml").unlink()
    begin(folder.path)


def test_second_program_is_refused(tmp_path):
    """Two programs cannot write the same run; the lock goes with the process that held it, however it ended."""
    path = tmp_path / "run"
    folder, _ = RunFolder.create(path, SETTINGS)
    with pytest.raises(CheckpointError, match=f"in use by another program.*{os.getpid()}"):
        RunFolder.open(path).lock()
    with pytest.raises(CheckpointError, match="in use"):
        begin(path, SETTINGS.with_flat(overwrite=True))
    assert path.is_dir()
    folder.unlock()
    script = (
        "import os, pathlib, sys; from mingyue.training.run_folder import RunFolder; "
        "f = RunFolder(pathlib.Path(sys.argv[1])); f.lock(); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline().strip() == "locked"
        with pytest.raises(CheckpointError, match=str(other.pid)):
            RunFolder.open(path).lock()
        other.kill()
    with RunFolder.open(path):
        pass


def test_no_run_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="holds no run"):
        RunFolder.open(tmp_path)


def test_plan_is_recorded(tmp_path):
    folder, _ = begin(tmp_path / "run")
    told = []
    assert folder.read_plan("k", told.append) is None
    folder.write_plan({"key": "a", "plan": {"total_steps": 7}})
    found = folder.read_plan("k", told.append)
    assert (found["key"], found["plan"], told) == ("a", {"total_steps": 7}, [])


@pytest.mark.parametrize("harm", ["a number", "cut", "gone"])
def test_damaged_plan_is_set_aside_and_taken_from_the_log(tmp_path, harm):
    """A plan.json that is still JSON but says another number is noticed; the log holds the same plan."""
    folder, _ = begin(tmp_path / "run")
    folder.write_plan({"key": "a", "plan": {"total_steps": 7}})
    line = '{"event": "plan", "step": 0, "tokens": 0, "seconds": 0.1, "total_steps": 7}\n'
    folder.metrics.write_text(line, encoding="utf-8")
    plan = folder.path / "plan.json"
    text = plan.read_text(encoding="utf-8")
    if harm == "gone":
        plan.unlink()
    else:
        plan.write_text(text.replace("7", "8", 1) if harm == "a number" else text[:20], encoding="utf-8")
    told = []
    assert folder.read_plan("k", told.append) == {"key": "k", "plan": {"total_steps": 7}}
    assert "plan.json" in told[0]
    assert not plan.exists()
    assert (folder.path / "damaged-plan.json.1").exists() is (harm != "gone")


def test_what_killed_programs_left_is_swept(tmp_path):
    """Half-written files, a bundle that was being made, a removal that was cut short; what is no litter stays."""
    folder, _ = begin(tmp_path / "run")
    left = [".run.toml.12.tmp", ".plan.json.7.tmp", "data/.train-00000.tokens.9.tmp", "../tmp-removed-run-5/x"]
    stays = ["notes.tmp", ".mine.tmp", "../tmp-removed-run-home/x", "../tmp-removed-run2-5/x"]
    for name in (*left, *stays):
        path = folder.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("half", encoding="utf-8")
    (folder.path / ".model-abcd_123.tmp").mkdir()
    (folder.path / ".model-old.tmp").mkdir()
    begin(tmp_path / "run")
    assert not any((folder.path / name).exists() for name in left)
    assert (tmp_path / "tmp-removed-run-home" / "x").exists()
    begin(tmp_path / "other")
    opened = RunFolder.open(folder.path)
    for name in (".run.toml.12.tmp", "notes.tmp", ".mine.tmp"):
        (folder.path / name).write_text("half", encoding="utf-8")
    (folder.path / ".model-old.tmp").mkdir(exist_ok=True)
    with opened:
        opened.sweep()
    assert not (folder.path / ".run.toml.12.tmp").exists()
    assert (folder.path / "notes.tmp").exists() and (folder.path / ".mine.tmp").exists()
    assert folder.model.is_dir()  # the only model there was: put back


def test_start_killed_while_run_toml_was_written_can_be_repeated(tmp_path):
    """A temporary run.toml beside the lock is what a killed start leaves: no reason to refuse the folder."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "run.lock").touch()
    (path / ".run.toml.31415.tmp").write_text("[mod", encoding="utf-8")
    begin(path)
    assert not (path / ".run.toml.31415.tmp").exists()


def test_run_toml_that_is_gone_comes_back_from_the_latest_checkpoint(tmp_path):
    """The settings are in every checkpoint; without one that is sound the error says so."""
    folder, _ = begin(tmp_path / "run")
    for step in (1, 2):
        state = {"settings": SETTINGS.with_flat(seed=step).model_dump(mode="json")}
        Checkpoints(folder.checkpoints).save(Checkpoint(step, {}, {}, state))
    assert folder.restore_settings() is None
    folder.settings_path.unlink()
    (folder.checkpoints / "step-00000002" / "state.json").write_text("{", encoding="utf-8")
    again = RunFolder.open(folder.path)
    assert again.read_settings() == SETTINGS.with_flat(seed=1)
    assert not again.settings_path.exists()  # reading writes nothing
    assert "step 1" in again.restore_settings()
    assert again.read_settings() == SETTINGS.with_flat(seed=1)
    again.settings_path.unlink()
    (folder.checkpoints / "step-00000001" / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"run\.toml is missing"):
        again.restore_settings()
