from __future__ import annotations

import hashlib

import numpy as np
import pytest

from mingyue.config import DataSettings
from mingyue.data.corpus import TokenCorpus, TokenView
from mingyue.data.reading import read_documents
from mingyue.data.report import ReadReport
from mingyue.data.tokens import TokenShards, TokenWriter

FINGERPRINT = hashlib.sha256(b"a tokenizer").hexdigest()
BOS, EOS = 1, 2


@pytest.fixture
def read(tmp_path):
    """Reads sources; gives the documents and the report. Names without a folder are in tmp_path."""

    def run(*sources, **settings):
        report = ReadReport()
        names = [str(source) for source in sources] or [str(tmp_path)]
        documents = list(read_documents(DataSettings(sources=names, **settings), report))
        return documents, report

    return run


@pytest.fixture
def write(tmp_path):
    """Writes bytes, or text as UTF-8 with its line ends kept, below tmp_path."""

    def run(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        return path

    return run


@pytest.fixture
def view(tmp_path):
    """A token view of the given ids, on disk, in shards of `shard` ids."""
    count = 0

    def run(ids, *, vocab=1000, shard=1 << 20):
        nonlocal count
        count += 1
        with TokenWriter(
            tmp_path, f"view{count}", vocab_size=vocab, fingerprint=FINGERPRINT, shard_tokens=shard
        ) as writer:
            writer.append(np.asarray(ids, dtype=np.int64))
            files = writer.finish()
        return TokenView(TokenShards(files, fingerprint=FINGERPRINT), BOS)

    return run


@pytest.fixture
def corpus_of(view):
    """A corpus of training and held-out ids."""

    def run(train, held_out, *, vocab=1000, documents=1):
        return TokenCorpus(
            train=view(train, vocab=vocab),
            held_out=view(held_out, vocab=vocab),
            vocab_size=vocab,
            pad_id=0,
            bos_id=BOS,
            eos_id=EOS,
            fingerprint=FINGERPRINT,
            documents=documents,
            starts_with_bos=documents > 1,
            train_characters=len(train),
            held_out_characters=len(held_out),
            held_out_bytes=len(held_out),
        )

    return run
