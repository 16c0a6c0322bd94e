"""Token files: the right type, a header that is checked, shards that read as one."""

from __future__ import annotations

import errno
import hashlib
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mingyue.data.tokens import TokenShards, TokenWriter, stored_type
from mingyue.errors import DataError

FINGERPRINT = hashlib.sha256(b"a tokenizer").hexdigest()


@pytest.fixture
def store(tmp_path):
    def run(ids, *, vocab=100, shard=1 << 20, name="train"):
        with TokenWriter(tmp_path, name, vocab_size=vocab, fingerprint=FINGERPRINT, shard_tokens=shard) as writer:
            writer.append(ids)
            return writer.finish()

    return run


@pytest.mark.parametrize(("vocab", "size"), [(300, 2), (65_536, 2), (65_537, 4), (151_936, 4)])
def test_the_stored_type_follows_the_vocabulary(store, vocab, size):
    """D3: the largest id of each vocabulary comes back as it was, in 2 or 4 bytes."""
    ids = [0, vocab - 1, vocab // 2]
    shards = TokenShards(store(ids, vocab=vocab), fingerprint=FINGERPRINT)
    assert shards.dtype == stored_type(vocab) and shards.dtype.itemsize == size
    assert shards.read(0, 3).tolist() == ids
    assert shards.files[0].stat().st_size == 64 + 3 * size


@pytest.mark.parametrize("id", [65_536, 65_537, -1, 70_000])
def test_an_id_that_does_not_fit_is_refused_not_wrapped(store, id):
    """D3: 65537 must not become 1."""
    with pytest.raises(DataError, match=f"token id {id} is outside the vocabulary of 65,536"):
        store([5, id], vocab=65_536)


DAMAGE = {
    "another magic": (0, b"PICKLE\x00\x00", "is not a token file"),
    "another version": (8, struct.pack("<I", 9), "of version 9; this program reads 1"),
    "another type": (12, struct.pack("<I", 4), "says 4 bytes an id for a vocabulary of 100"),
    "a larger vocabulary": (24, struct.pack("<Q", 70_000), "says 2 bytes an id for a vocabulary of 70,000"),
    "another count": (16, struct.pack("<Q", 7), "should hold 7 ids in 78 bytes and has 70"),
    "another tokenizer": (32, bytes(32), "was made with the tokenizer 000000000000"),
}


@pytest.mark.parametrize(("at", "data", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_header_that_does_not_fit_is_refused(store, at, data, message):
    """D3: type, count and tokenizer are checked when a file is opened."""
    (path,) = store([1, 2, 3])
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=message):
        TokenShards([path], fingerprint=FINGERPRINT)


def test_a_file_cut_short_is_refused(store):
    """D3: in the header as well as in the ids."""
    (path,) = store([1, 2, 3])
    content = path.read_bytes()
    for length in (0, 20, 64, 69):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"not a token file|should hold 3 ids"):
            TokenShards([path])
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        TokenShards([path])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 99), min_size=1, max_size=40), st.integers(1, 9), st.data())
def test_shards_read_as_one_sequence(store, ids, shard, data):
    shards = TokenShards(store(ids, shard=shard))
    assert len(shards) == len(ids) and len(shards.files) == -(-len(ids) // shard)
    start = data.draw(st.integers(0, len(ids)))
    stop = data.draw(st.integers(start, len(ids)))
    assert shards.read(start, stop).tolist() == ids[start:stop]
    length = data.draw(st.integers(1, len(ids)))
    starts = data.draw(st.lists(st.integers(0, len(ids) - length), max_size=4))
    expected = [ids[at : at + length] for at in starts]
    assert shards.windows(np.array(starts, dtype=np.int64), length).tolist() == expected


def test_reading_outside_is_an_error_not_other_tokens(store):
    """D2: no window ever wraps around or comes back short."""
    shards = TokenShards(store([1, 2, 3]))
    for starts in ([1], [-1], [5]):
        with pytest.raises(DataError, match="there are 3"):
            shards.windows(np.array(starts), 3)


def test_no_ids_make_an_empty_file(store):
    shards = TokenShards(store([]))
    assert len(shards) == 0 and shards.read(0, 0).size == 0


def test_a_failure_leaves_no_file_behind(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        TokenWriter(tmp_path, "train", vocab_size=10, fingerprint=FINGERPRINT, shard_tokens=4) as writer,
    ):
        writer.append(np.arange(3))
        writer._flush()
        assert list(tmp_path.iterdir())
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    """T13: the error says disk, in the tokens too."""

    def full(self, file, data):
        raise self._refused(OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr(TokenWriter, "_write", full)
    with (
        pytest.raises(DataError, match="disk is full"),
        TokenWriter(tmp_path, "train", vocab_size=10, fingerprint=FINGERPRINT) as writer,
    ):
        writer.append([1])
        writer.finish()
