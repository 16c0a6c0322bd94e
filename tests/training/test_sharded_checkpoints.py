"""Checkpoints of a sharded run: whole or not there, for any number of ranks, written while training goes on."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from mingyue.config import TrainSettings
from mingyue.data import Batch
from mingyue.errors import CheckpointError
from mingyue.models import build_model
from mingyue.runtime import Runtime
from mingyue.training.checkpoints import Checkpoint, Checkpoints, DamagedCheckpointError
from mingyue.training.names import clean_state, load_clean_state
from mingyue.training.optimisers import Optimisers, Rates
from mingyue.training.sharded_checkpoints import ShardedCheckpoints
from mingyue.training.sharding import build_sharded, whole_weights
from mingyue.training.step import Stepper

resource = pytest.importorskip("resource")  # limits of files: not on Windows, which does not fork either
CPU = torch.device("cpu")


class Side:
    """A model in training: on its own, or this rank's part of it."""

    def __init__(self, config, folder, ranks=None, *, optimiser="adamw", seed=3, keep=2):
        settings = TrainSettings.from_flat(optimiser=optimiser)
        self.ranks = ranks
        if ranks is None:
            runtime = Runtime(CPU, torch.float32, 1)
            self.model = build_model(config, seed=seed)
            self.checkpoints = Checkpoints(folder, keep=keep)
        else:
            runtime = Runtime(CPU, torch.float32, 1, (), ranks.rank, ranks.size)
            self.model = build_sharded(config, seed=seed, runtime=runtime)
            self.checkpoints = ShardedCheckpoints(folder, keep=keep, ranks=ranks, model=self.model)
        self.optimisers = Optimisers(self.model, settings.optimiser, Rates(0.01, 0.02), ranks=ranks)
        self.stepper = Stepper.of(self.model, self.optimisers, runtime, settings, ranks=ranks)

    def step(self, step):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(3, 23, (4, 3, 17), generator=generator)
        batches = [Batch(rows[:, :-1], rows[:, 1:], None, 48) for rows in ids]
        if self.ranks is not None:
            batches = batches[self.ranks.rank :: self.ranks.size]
        return self.stepper.step(step, batches, 1.0).loss

    def save(self, step):
        state = clean_state(self.model), self.optimisers.named_state()
        return self.checkpoints.save(Checkpoint(step, *state, {"counters": {"step": step}}))

    def load(self):
        found, notes = self.checkpoints.load_latest()
        load_clean_state(self.model, found.model)
        self.optimisers.load_named_state(found.optimiser)
        return found.step, notes

    def weights(self):
        if self.ranks is not None:
            return whole_weights(self.model)
        return {name: weight.clone() for name, weight in self.model.state_dict().items()}


def on(size, on_ranks, work):
    """`work(ranks)` on so many ranks, or `work(None)` here for 0: without sharding. Returns what rank 0 gave."""
    return work(None) if size == 0 else on_ranks(size, work)[0]


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("optimiser", "writers", "readers"),
    [
        ("muon", 2, 0),
        pytest.param("adamw", 2, 1, marks=pytest.mark.slow),
        pytest.param("muon", 1, 2, marks=pytest.mark.slow),
        pytest.param("muon", 2, 2, marks=pytest.mark.slow),
        pytest.param("adamw", 0, 2, marks=pytest.mark.slow),
        pytest.param("muon", 3, 2, marks=pytest.mark.slow),
    ],
)
def test_what_some_ranks_wrote_others_read_exactly(on_ranks, tiny_config, tmp_path, optimiser, writers, readers):
    """0 stands for one process without sharding."""
    # Two rows on three ranks: one of them holds none.
    folder, config = tmp_path / "checkpoints", tiny_config(d_head=2 if writers == 3 else 8)

    def write(ranks):
        side = Side(config, folder, ranks, optimiser=optimiser)
        side.step(0)
        side.step(1)
        side.save(2)
        saved = side.weights()
        loss = side.step(2)  # training goes on while it is written, and must not write into what is saved
        if ranks is not None:
            side.checkpoints.wait()
        return saved, loss

    def read(ranks):
        side = Side(config, folder, ranks, optimiser=optimiser, seed=99)
        assert side.load() == (2, [])
        loaded = side.weights()
        return loaded, side.step(2)

    saved, next_loss = on(writers, on_ranks, write)
    loaded, loss = on(readers, on_ranks, read)
    assert_equal(loaded, saved)
    assert loss == pytest.approx(next_loss, abs=1e-6)
    if writers == readers:
        assert loss == next_loss, "the optimisers' state is not the one that was saved"
    if writers:
        assert {path.suffix for path in folder.rglob("*") if path.is_file()} == {".safetensors", ".json"}
        assert len(list(folder.rglob("shard-*"))) >= 2 * writers - 1


def test_the_optimisers_state_comes_back_to_the_bit(on_ranks, tiny_config, tmp_path):
    folder, config = tmp_path / "checkpoints", tiny_config()

    def work(ranks):
        side = Side(config, folder, ranks, optimiser="muon")
        side.step(0)
        side.save(1)
        side.checkpoints.wait()
        return {
            name: getattr(value, "full_tensor", value.clone)() for name, value in side.optimisers.named_state().items()
        }

    state = on_ranks(2, work)[0]
    assert_equal(Checkpoints(folder).load(1).optimiser, state)
    assert any(name.endswith(".momentum") for name in state) and any(name.endswith(".step") for name in state)


@pytest.mark.slow
def test_old_checkpoints_go_and_the_best_stays(on_ranks, tiny_config, tmp_path):
    def work(ranks):
        side = Side(tiny_config(), tmp_path, ranks)
        for step in range(1, 6):
            side.step(step)
            state = clean_state(side.model), side.optimisers.named_state()
            side.checkpoints.save(Checkpoint(step, *state, {}), best=1)
        side.checkpoints.wait()
        return side.checkpoints.steps()

    assert on_ranks(2, work) == [[1, 4, 5], [1, 4, 5]]


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["changed", "missing"])
def test_a_damaged_share_is_named_and_the_checkpoint_before_is_used(on_ranks, tiny_config, tmp_path, harm):
    config = tiny_config()

    def write(ranks):
        side = Side(config, tmp_path, ranks)
        for step in (1, 2):
            side.step(step)
            side.save(step)
        side.checkpoints.wait()

    on_ranks(2, write)
    victim = next((tmp_path / "step-00000002").glob("shard-00002-*"))
    if harm == "changed":
        content = bytearray(victim.read_bytes())
        content[-3] ^= 1
        victim.write_bytes(content)
    else:
        victim.unlink()
    with pytest.raises(DamagedCheckpointError, match=victim.name):
        Checkpoints(tmp_path).load(2)

    def read(ranks):
        side = Side(config, tmp_path, ranks)
        return side.load()

    found = on_ranks(2, read)
    assert found[0] == found[1]
    step, notes = found[0]
    assert step == 1 and len(notes) == 1
    assert victim.name in notes[0] and "damaged-step-00000002" in notes[0]
    assert Checkpoints(tmp_path).steps() == [1]


@pytest.mark.slow
def test_a_disk_that_is_full_for_one_rank_is_reported_by_all(on_ranks, tiny_config, tmp_path):
    def work(ranks):
        side = Side(tiny_config(), tmp_path, ranks)
        side.step(0)
        side.save(1)
        side.checkpoints.wait()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if ranks.rank == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))
        side.save(2)
        side.step(1)  # goes on meanwhile
        deadline = time.monotonic() + 60
        while not side.checkpoints.failed:
            assert time.monotonic() < deadline, "the failure was never noticed"
            time.sleep(0.05)
        with pytest.raises(CheckpointError) as caught:
            side.checkpoints.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        side.save(3)  # with room again, the run can go on
        side.checkpoints.wait()
        return caught.value.message, caught.value.advice

    first, second = on_ranks(2, work)
    assert first == second
    assert "disk" in first[0] and "rank 1 of 2" in first[0] and "step-00000002" in first[0]
    assert "resume" in first[1]
    assert Checkpoints(tmp_path).steps() == [1, 3]
    assert not list(tmp_path.glob("tmp-*"))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["_write_share", "_checksums", "_publish"])
def test_a_kill_inside_a_save_leaves_the_checkpoint_before(on_ranks, tiny_config, tmp_path, monkeypatch, moment):
    config = tiny_config()
    original = getattr(ShardedCheckpoints, moment)

    def work(ranks):
        side = Side(config, tmp_path, ranks)
        side.step(0)
        side.save(1)
        side.checkpoints.wait()
        if ranks.rank == 0:
            monkeypatch.setattr(ShardedCheckpoints, moment, lambda *given: (time.sleep(0.3), os.kill(os.getpid(), 9)))
        side.save(2)
        time.sleep(1)
        return "alive"

    with pytest.raises(FileNotFoundError):  # rank 0 leaves no result
        on_ranks(2, work)
    assert Checkpoints(tmp_path).steps() == [1]
    assert original is not None and list(tmp_path.glob("tmp-*"))

    def again(ranks):
        side = Side(config, tmp_path, ranks)
        swept = side.checkpoints.sweep()
        return swept, side.load()

    for swept, found in on_ranks(2, again):
        assert swept and found == (1, [])
    assert not list(tmp_path.glob("tmp-*"))


@pytest.mark.slow
def test_a_checkpoint_of_another_model_names_the_first_tensor(on_ranks, tiny_config, tmp_path):
    on_ranks(2, lambda ranks: _write_one(Side(tiny_config(), tmp_path, ranks)))

    def read(ranks):
        with pytest.raises(CheckpointError) as caught:
            Side(tiny_config(d_ff=32), tmp_path, ranks).load()
        return caught.value.message

    first, second = on_ranks(2, read)
    assert first == second
    assert "blocks.0.feedforward.inner.weight is [48, 16], the model asks for [64, 16]" in first


def _write_one(side):
    side.step(0)
    side.save(1)
    side.checkpoints.wait()
