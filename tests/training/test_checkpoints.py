"""Checkpoints: whole or not there, whatever happens to the disk or the process."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil

import pytest
import torch
from safetensors import SafetensorError

from mingyue.errors import CheckpointError, TrainingError
from mingyue.training import Checkpoint, Checkpoints
from mingyue.training import checkpoints as module


def checkpoint(step):
    weights = {"a": torch.full((3, 4), float(step)), "b": torch.arange(5.0)}
    return Checkpoint(step, weights, {"adamw.a.step": torch.tensor(float(step))}, {"step": step, "loss": 1 / 3})


@pytest.fixture
def store(tmp_path):
    def make(keep=2):
        return Checkpoints(tmp_path / "checkpoints", keep=keep)

    return make


def test_loads_what_was_saved(store):
    """Tensors and numbers come back to the last bit, from folders named by step."""
    path = store().save(checkpoint(1234))
    assert path.name == "step-00001234"
    assert sorted(file.name for file in path.iterdir()) == ["model.safetensors", "optimiser.safetensors", "state.json"]
    loaded, notes = store().load_latest()
    assert (loaded.step, loaded.state, notes) == (1234, {"step": 1234, "loss": 1 / 3}, [])
    assert torch.equal(loaded.model["a"], torch.full((3, 4), 1234.0))
    assert loaded.optimiser["adamw.a.step"] == 1234.0


def test_keeps_the_latest_and_the_best(store):
    """`keep` latest ones and the best; with keep 1 the one before goes only after the new one is there."""
    checkpoints = store(keep=2)
    for step in (1, 2, 3, 4, 5):
        checkpoints.save(checkpoint(step), best=2 if step >= 2 else 1)
    assert checkpoints.steps() == [2, 4, 5]
    one = store(keep=1)
    one.save(checkpoint(6), best=6)
    assert one.steps() == [6]


def test_pruning_leaves_the_one_just_written(store):
    """T13: after going back to an earlier step, later checkpoints do not push out the only good one."""
    checkpoints = store(keep=1)
    checkpoints.save(checkpoint(100))
    checkpoints.path(200).mkdir()  # a damaged later one
    checkpoints.save(checkpoint(150))
    assert 150 in checkpoints.steps()
    loaded, notes = checkpoints.load_latest()
    assert loaded.step == 150
    assert len(notes) == 1


def test_checkpoint_that_cannot_be_removed_stops_nothing(store, monkeypatch):
    """An old checkpoint held open by another program (Windows) stays until a later save can remove it."""

    def remove_folder(path):
        raise PermissionError(errno.EACCES, "in use")

    checkpoints = store(keep=1)
    checkpoints.save(checkpoint(10))
    with monkeypatch.context() as patch:
        patch.setattr(module, "remove_folder", remove_folder)
        checkpoints.save(checkpoint(20))
    assert checkpoints.steps() == [10, 20]
    checkpoints.save(checkpoint(30))
    assert checkpoints.steps() == [30]


@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.safetensors", "state.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "gone"])
def test_damaged_one_is_named_and_the_one_before_is_used(store, name, harm):
    """T13: any file flipped, cut, emptied or gone: named, set aside (not deleted), the checkpoint before it loads."""
    checkpoints = store()
    for step in (10, 20):
        checkpoints.save(checkpoint(step))
    path = checkpoints.path(20) / name
    content = bytearray(path.read_bytes())
    if harm == "gone":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes({"flip": bytes(content), "cut": bytes(content[:-3]), "empty": b""}[harm])
    loaded, notes = checkpoints.load_latest()
    assert loaded.step == 10
    assert name in notes[0]
    assert "step-00000020" in notes[0]
    assert any("damaged-step-00000020" in folder.name for folder in checkpoints.folder.iterdir())
    assert checkpoints.steps() == [10]


def test_no_sound_checkpoint_says_so(store):
    """T13: when every checkpoint is damaged, each is named and the advice is to start again."""
    checkpoints = store()
    for step in (10, 20):
        checkpoints.save(checkpoint(step))
        (checkpoints.path(step) / "state.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"(?s)no sound checkpoint.*00000020.*00000010") as caught:
        checkpoints.load_latest()
    assert "mingyue train" in caught.value.advice


def test_newer_version_is_refused_and_not_set_aside(store, monkeypatch):
    """A checkpoint of a later program is not called damaged: it stays where it is."""
    monkeypatch.setattr(module, "FORMAT", 99)
    store().save(checkpoint(1))
    monkeypatch.setattr(module, "FORMAT", 1)
    with pytest.raises(CheckpointError, match="99"):
        store().load_latest()
    assert store().steps() == [1]


def fail_fsync(number, after):
    original, calls = os.fsync, iter(range(1000))

    def fsync(handle):
        if next(calls) >= after:
            raise OSError(number, os.strerror(number))
        original(handle)

    return fsync


@pytest.mark.parametrize("after", range(5))
def test_full_disk_says_disk_and_harms_nothing(store, monkeypatch, after):
    """T13: the disk fills up at any moment of a save: the error says disk, nothing half stays, the old one loads."""
    checkpoints = store()
    checkpoints.save(checkpoint(10))
    monkeypatch.setattr(os, "fsync", fail_fsync(errno.ENOSPC, after))
    try:
        checkpoints.save(checkpoint(20))
    except CheckpointError as error:
        assert "disk is full" in error.message
        assert "step-00000020" in error.message
        assert re.search(r"[\d,.]+ MB free", error.message)
        assert "resume" in error.advice
        if after < 4:
            assert checkpoints.steps() == [10]
    else:
        pytest.fail("a full disk went unnoticed")
    monkeypatch.undo()
    assert not list(checkpoints.folder.glob("tmp-*"))
    loaded, notes = checkpoints.load_latest()
    assert loaded.step in (10, 20)
    assert not notes


def test_full_disk_inside_safetensors_says_disk_too(store, monkeypatch):
    """T13: safetensors writes by itself; its error about a full disk is told like any other."""

    def save_file(*args, **kwargs):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    checkpoints = store()
    checkpoints.save(checkpoint(10))
    monkeypatch.setattr(module, "save_file", save_file)
    with pytest.raises(CheckpointError, match="the disk is full"):
        checkpoints.save(checkpoint(20))
    assert checkpoints.load_latest()[0].step == 10


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_forbidden_folder_says_so(store):
    checkpoints = store()
    checkpoints.folder.mkdir()
    checkpoints.folder.chmod(0o500)
    with pytest.raises(CheckpointError, match="permission denied"):
        checkpoints.save(checkpoint(20))
    checkpoints.folder.chmod(0o700)


def test_what_an_interrupted_save_left_is_swept(store):
    """T13: temporary folders of a killed save are never taken for checkpoints, and are removed at a resume."""
    checkpoints = store()
    checkpoints.save(checkpoint(10))
    left = checkpoints.folder / "tmp-step-00000020-4242"
    shutil.copytree(checkpoints.path(10), left)
    assert checkpoints.steps() == [10]
    assert checkpoints.sweep() == [left.name]
    assert not left.exists()
    assert checkpoints.sweep() == []


def test_killed_at_any_call_leaves_a_checkpoint(store, monkeypatch):
    """T13: a kill before any call that changes the disk, in a save or its pruning: one whole checkpoint loads."""

    class Kill(BaseException):
        pass

    def killing(original, moment):
        def call(*args, **kwargs):
            nonlocal_count[0] += 1
            if nonlocal_count[0] == moment:
                raise Kill
            return original(*args, **kwargs)

        return call

    names = [(os, "fsync"), (os, "rename"), (os, "mkdir"), (module, "save_file")]
    for moment in range(1, 40):
        checkpoints = store(keep=1)
        shutil.rmtree(checkpoints.folder, ignore_errors=True)
        checkpoints.save(checkpoint(10))
        nonlocal_count = [0]
        with monkeypatch.context() as patch:
            for owner, name in names:
                patch.setattr(owner, name, killing(getattr(owner, name), moment))
            patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)  # a killed process cleans nothing up
            try:
                checkpoints.save(checkpoint(20))
            except Kill:
                pass
            else:
                assert moment > 5, "no call was met"
                break
        checkpoints.sweep()
        loaded, _ = checkpoints.load_latest()
        assert loaded.step in (10, 20)
    else:
        pytest.fail("the save never ended")


def test_loading_executes_nothing(store, tmp_path, monkeypatch):
    """T12: a pickle in place of any file of a checkpoint is refused, and what is in it does not run."""
    import pickle

    flag = tmp_path / "executed"

    class Hostile:
        def __reduce__(self):
            return (os.mkdir, (str(flag),))

    for name in ("model.safetensors", "optimiser.safetensors", "state.json"):
        checkpoints = store()
        checkpoints.save(checkpoint(10))
        (checkpoints.path(10) / name).write_bytes(pickle.dumps(Hostile()))
        with pytest.raises(CheckpointError):
            checkpoints.load(10)
    assert not flag.exists()


def test_weights_that_are_not_finite_are_never_saved(store):
    """A checkpoint that nothing could go on from would push out a good one."""
    checkpoints = store(keep=1)
    checkpoints.save(checkpoint(10))
    bad = checkpoint(20)
    bad.model["a"][1, 2] = float("nan")
    with pytest.raises(TrainingError, match="the weight a is not finite after step 20"):
        checkpoints.save(bad)
    assert checkpoints.steps() == [10]
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-00000010"]


def test_a_file_that_the_disk_cannot_give_back_is_damage(store, monkeypatch):
    """A read that fails is told with the file's name, and the checkpoint before it is used."""
    checkpoints = store()
    for step in (10, 20):
        checkpoints.save(checkpoint(step))
    read = module.sha256_of

    def failing(path):
        if path.parent.name == "step-00000020":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    monkeypatch.setattr(module, "sha256_of", failing)
    loaded, notes = checkpoints.load_latest()
    assert loaded.step == 10
    assert "model.safetensors" in notes[0]
    assert os.strerror(errno.EIO) in notes[0]


def test_checksum_covers_every_number_of_the_state(store):
    """A state.json changed by hand, still good JSON, is noticed."""
    checkpoints = store()
    path = checkpoints.save(checkpoint(10)) / "state.json"
    text = path.read_text(encoding="utf-8")
    digits = [match.start() for match in re.finditer(r"(?<=: )\d", text)]
    for place in random.Random(1).sample(digits, min(4, len(digits))):
        changed = text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]
        path.write_text(changed, encoding="utf-8")
        with pytest.raises(CheckpointError):
            checkpoints.load(10)
