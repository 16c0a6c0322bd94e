"""A workbench: tiny models on a made-up text, and runs that can be stopped anywhere."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import traceback

import numpy as np
import pytest
import torch
import torch.distributed as dist

from mingyue.config import EncoderDecoderConfig, ModelConfig, TrainSettings
from mingyue.data import PairCorpus, PairRows, TokenCorpus, TokenShards, TokenView, TokenWriter
from mingyue.models import build_model
from mingyue.runtime import Processes, Runtime
from mingyue.training import Callbacks, Clock, CorpusBatches, Observer, RunFolder, StopRequests, Trainer
from mingyue.training.distributed import Ranks
from mingyue.training.pair_batches import PairBatches

BOS, EOS = 1, 2
FINGERPRINT = hashlib.sha256(b"a tokenizer").hexdigest()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _documents(length, vocab, seed):
    """Documents with a rule in them (mostly, the next id is a fixed function of this one), so that loss can fall."""
    random = np.random.default_rng(seed)
    ids = []
    while len(ids) < length:
        token = int(random.integers(3, vocab))
        ids.append(BOS)
        for _ in range(int(random.integers(5, 40))):
            ids.append(token)
            follows = 3 + (token * 7 + 2) % (vocab - 3)
            token = follows if random.random() < 0.8 else int(random.integers(3, vocab))
        ids.append(EOS)
    return ids[:length]


@pytest.fixture
def tiny_config():
    """A tiny model's config; keyword arguments change it."""

    def make(**changes):
        values = {
            "vocab_size": 23,
            "context": 16,
            "d_model": 16,
            "n_layers": 2,
            "n_heads": 2,
            "n_kv_heads": 1,
            "d_head": 8,
            "d_ff": 24,
            "qk_norm": True,
        }
        return ModelConfig(**(values | changes))

    return make


@pytest.fixture
def corpus(tmp_path):
    """A made-up text of tokens on disk; `train` and `held_out` are lengths."""
    count = 0

    def make(train=700, held_out=150, vocab=23):
        nonlocal count
        count += 1

        def view(name, ids):
            with TokenWriter(tmp_path, f"{name}{count}", vocab_size=vocab, fingerprint=FINGERPRINT) as writer:
                writer.append(ids)
                files = writer.finish()
            return TokenView(TokenShards(files), BOS)

        return TokenCorpus(
            train=view("train", _documents(train, vocab, 1) if train else []),
            held_out=view("held", _documents(held_out, vocab, 2) if held_out else []),
            vocab_size=vocab,
            pad_id=0,
            bos_id=BOS,
            eos_id=EOS,
            fingerprint=FINGERPRINT,
            documents=9,
            starts_with_bos=True,
            train_characters=train,
            held_out_characters=held_out,
            held_out_bytes=2 * held_out,
        )

    return make


@pytest.fixture
def cpu():
    return Runtime(torch.device("cpu"), torch.float32, 1)


_MOST_SECONDS = 240


@pytest.fixture
def on_ranks(tmp_path):
    """`on_ranks(2, work)` calls `work(ranks)` in each of so many processes and gives what they returned, in order.

    They are forked, with everything made so far, so `work` may be any function; results are saved by torch.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system does not fork")
    fork, count = multiprocessing.get_context("fork"), 0

    def run(size, work):
        nonlocal count
        count += 1
        place = tmp_path / f"ranks{count}"
        place.mkdir()
        workers = [fork.Process(target=_on_rank, args=(rank, size, place, work)) for rank in range(size)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(_MOST_SECONDS)
        late = [worker for worker in workers if worker.is_alive()]
        for worker in late:
            worker.kill()
            worker.join()
        assert not late, f"{len(late)} of {size} ranks wait for ever"
        found = [torch.load(place / str(rank), weights_only=False) for rank in range(size)]
        failed = [text for done, text in found if not done]
        assert not failed, "\n".join(failed)
        return [result for _, result in found]

    return run


def _on_rank(rank, size, place, work):
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{place / 'store'}", rank=rank, world_size=size)
        result = (True, work(Ranks(Processes(rank, size))))
    except BaseException:
        result = (False, traceback.format_exc())
    torch.save(result, place / str(rank))
    os._exit(0)


class Watcher(Observer):
    """Remembers what it was told; raises, or asks for a stop, after a given step."""

    def __init__(self, *, die_after=None, stop_after=None, stop=None):
        self.steps, self.evaluations, self.samples, self.saves, self.notes, self.plans = [], [], [], [], [], []
        self.ended = None
        self.die_after, self.stop_after, self.stop = die_after, stop_after, stop

    def on_step(self, report):
        self.steps.append(report)
        if report.step == self.die_after:
            raise Killed
        if report.step == self.stop_after:
            self.stop.request()

    def on_evaluate(self, report):
        self.evaluations.append(report)

    def on_sample(self, step, text):
        self.samples.append((step, text))

    def on_checkpoint(self, path, step, best):
        self.saves.append((step, best))

    def on_note(self, text):
        self.notes.append(text)

    def on_plan(self, plan):
        self.plans.append(plan)

    def on_end(self, result):
        self.ended = result


class Killed(BaseException):
    """Stands in for a kill: nothing catches it, nothing is saved."""


class Bench:
    """Starts and resumes runs in one folder, each time with everything made anew, as a new process would."""

    def __init__(self, path, config, corpus, runtime, settings, *, rows=4, micro_rows=2):
        self.path, self.config, self.corpus, self.runtime = path, config, corpus, runtime
        self.settings, self.rows, self.micro_rows = settings, rows, micro_rows

    def go(self, *, resume=False, watcher=None, settings=None, clock=None, stop=None, prepare=None, **callbacks):
        settings = settings or self.settings
        model = build_model(self.config, seed=settings.run.seed)
        if prepare is not None:
            prepare(model)
        batches = self.batches(settings)
        folder = RunFolder.open(self.path) if resume else RunFolder.create(self.path, settings)[0]
        with folder, stop or StopRequests() as requests:
            trainer = Trainer(
                model,
                batches,
                settings,
                folder=folder,
                runtime=self.runtime,
                callbacks=Callbacks(observer=watcher or Watcher(), clock=clock or Clock(), **callbacks),
                resume=resume,
                stop=requests,
            )
            result = trainer.train()
        return model, result

    def batches(self, settings):
        return CorpusBatches(
            self.corpus,
            context=self.config.context,
            rows=self.rows,
            micro_rows=self.micro_rows,
            seed=settings.run.seed,
            documents=not settings.data.attend_across_documents,
        )


class PairBench(Bench):
    """The same on pairs; `rows` and `micro_rows` are tokens here."""

    def batches(self, settings):
        return PairBatches(self.corpus, batch_tokens=self.rows, micro_tokens=self.micro_rows, seed=settings.run.seed)


@pytest.fixture
def tiny_pair_config():
    """A tiny encoder-decoder model's config; keyword arguments change it."""

    def make(**changes):
        values = {
            "vocab_size": 23,
            "context": 16,
            "d_model": 16,
            "n_layers": 2,
            "n_encoder_layers": 1,
            "n_heads": 2,
            "n_kv_heads": 2,
            "d_head": 8,
            "d_ff": 24,
        }
        return EncoderDecoderConfig(**(values | changes))

    return make


@pytest.fixture
def pair_corpus():
    """Made-up pairs in memory: the target is the source backwards, sometimes with more behind it."""

    def make(train=60, valid=20, vocab=23):
        random = np.random.default_rng(7)

        def view(count):
            sources = [random.integers(3, vocab, int(random.integers(1, 9))).tolist() for _ in range(count)]
            targets = [source[::-1] + source[: int(random.integers(0, 4))] for source in sources]
            return PairRows.of([[*row, EOS] for row in sources], [[*row, EOS] for row in targets])

        return PairCorpus(
            train=view(train),
            valid=view(valid),
            source_vocab_size=vocab,
            target_vocab_size=vocab,
            pad_id=0,
            bos_id=BOS,
            eos_id=EOS,
            valid_target_bytes=500,
            fingerprint=FINGERPRINT,
        )

    return make


@pytest.fixture
def pair_bench(tmp_path, tiny_pair_config, pair_corpus, cpu):
    """A run of a tiny model on pairs; keyword arguments as those of `bench`."""
    count = 0

    def make(*, config=None, sizes=None, tokens=60, micro_tokens=30, name=None, **settings):
        nonlocal count
        count += 1
        values = {"steps": 12, "evaluate_every": 4, "sample_every": 0, "source": "a", "target": "b"} | settings
        return PairBench(
            tmp_path / (name or f"pairs{count}"),
            tiny_pair_config(**(config or {})),
            pair_corpus(**(sizes or {})),
            cpu,
            TrainSettings.from_flat(**values),
            rows=tokens,
            micro_rows=micro_tokens,
        )

    return make


@pytest.fixture
def bench(tmp_path, tiny_config, corpus, cpu):
    """A run of a tiny model; keyword arguments are settings, except `config`, `sizes`, `rows`, `micro_rows`, `name`."""
    count = 0

    def make(*, config=None, sizes=None, rows=4, micro_rows=2, name=None, **settings):
        nonlocal count
        count += 1
        values = {"steps": 30, "evaluate_every": 7, "sample_every": 0} | settings
        return Bench(
            tmp_path / (name or f"run{count}"),
            tiny_config(**(config or {})),
            corpus(**(sizes or {})),
            cpu,
            TrainSettings.from_flat(**values),
            rows=rows,
            micro_rows=micro_rows,
        )

    return make


@pytest.fixture
def watcher():
    return Watcher


@pytest.fixture
def killed():
    return Killed
