"""A model divided over ranks learns as one that is not."""

from __future__ import annotations

import errno
import time

import pytest
import torch
from torch.distributed.checkpoint import HuggingFaceStorageWriter

from mingyue.config import TrainSettings
from mingyue.data import IGNORE, Batch, PairBatch
from mingyue.errors import CheckpointError, SettingsError, TrainingError
from mingyue.models import build_model, make_model
from mingyue.runtime import Runtime, derive_seed
from mingyue.training import Callbacks, CorpusBatches, RunFolder, Trainer, read_log
from mingyue.training.checkpoints import Checkpoints
from mingyue.training.loss import evaluate
from mingyue.training.optimisers import Optimisers, Rates
from mingyue.training.sharding import build_sharded, in_step, row_range, set_rows, sum_of_rows, whole_weights
from mingyue.training.step import Stepper

CPU = torch.device("cpu")


def runtime(ranks=None):
    return (
        Runtime(CPU, torch.float32, 1) if ranks is None else Runtime(CPU, torch.float32, 1, (), ranks.rank, ranks.size)
    )


def text(n_micro, *, vocab=23, rows=3, length=16):
    """Micro-batches of one step, with unequal numbers of targets."""
    generator = torch.Generator().manual_seed(n_micro)
    batches = []
    for micro in range(n_micro):
        ids = torch.randint(3, vocab, (rows, length + 1), generator=generator)
        targets = ids[:, 1:].clone()
        targets[0, : 2 * micro] = IGNORE
        batches.append(Batch(ids[:, :-1], targets, None, int((targets != IGNORE).sum())))
    return batches


def pairs(n_micro):
    generator = torch.Generator().manual_seed(n_micro)
    batches = []
    for micro in range(n_micro):
        source, target = (torch.randint(3, 23, (3, 9 + micro), generator=generator) for _ in range(2))
        lengths = torch.tensor([9, 4, 7])
        answers = target.clone()
        answers[1, 5:] = IGNORE
        batches.append(PairBatch(source, lengths, target, answers, int((answers != IGNORE).sum())))
    return batches


def steps(config, micro_batches, *, ranks=None, n_steps=5, optimiser="adamw", label_smoothing=0.0, unseen=(), **how):
    """(loss and gradient norm of each step, weights at the end): sharded where there are ranks."""
    settings = TrainSettings.from_flat(optimiser=optimiser, label_smoothing=label_smoothing)
    if ranks is None:
        model, mine = build_model(config, seed=3), micro_batches
    else:
        model = build_sharded(config, seed=3, runtime=runtime(ranks), **how)
        mine = micro_batches[ranks.rank :: ranks.size]
    if unseen and ranks is None:
        with torch.no_grad():
            model.input_table[unseen] = model.input_table[unseen[0]].clone()
    elif unseen:
        with torch.no_grad():
            rows = torch.tensor(unseen)
            set_rows(model.input_table, rows, sum_of_rows(model.input_table, rows[:1]))
    stepper = Stepper.of(
        model,
        Optimisers(model, settings.optimiser, Rates(0.01, 0.02), ranks=ranks),
        runtime(ranks),
        settings,
        unseen,
        ranks=ranks,
    )
    taken = [stepper.step(step, mine, 1.0) for step in range(n_steps)]
    weights = dict(model.state_dict()) if ranks is None else whole_weights(model)
    return [(result.loss, result.gradient_norm) for result in taken], weights


def assert_alike(alone, found, *, tolerance=1e-6):
    for losses, _ in found:
        assert losses == found[0][0], "the ranks disagree"
        for (loss, norm), (other_loss, other_norm) in zip(alone[0], losses, strict=True):
            assert other_loss == pytest.approx(loss, abs=tolerance)
            assert other_norm == pytest.approx(norm, rel=1e-4)
    assert alone[0][-1][0] < alone[0][0][0]
    weights = found[0][1]
    assert weights.keys() == alone[1].keys()
    assert max(float((weights[name] - weight).abs().max()) for name, weight in alone[1].items()) < 50 * tolerance
    assert not any(other for _, other in found[1:]), "only rank 0 has whole weights"


@pytest.mark.parametrize("rows", [1, 7, 8, 9])
def test_rows_are_dealt_out_as_torch_cuts_them(rows):
    cut = torch.arange(rows).chunk(4)
    assert [row_range(rows, rank, 4) for rank in range(len(cut))] == [(int(c[0]), int(c[-1]) + 1) for c in cut]
    assert all(row_range(rows, rank, 4) == (rows, rows) for rank in range(len(cut), 4))


def test_two_ranks_learn_as_one_with_all_micro_batches(on_ranks, tiny_config):
    # Accumulation, an odd number of micro-batches, dropout, unequal numbers of tokens, tied and untied output at once.
    config = tiny_config(dropout=0.1)
    found = on_ranks(2, lambda ranks: steps(config, text(5), ranks=ranks))
    assert_alike(steps(config, text(5)), found)


@pytest.mark.parametrize("unseen", [[20, 21, 22], [0, 9, 22]])
def test_rows_of_unseen_tokens_stay_equal_wherever_they_lie(on_ranks, tiny_config, unseen):
    """On one rank or on both; 9 and 20 are inputs here, so that their gradients differ."""
    config = tiny_config(tied_output=True)
    found = on_ranks(2, lambda ranks: steps(config, text(5), ranks=ranks, unseen=unseen))
    assert_alike(steps(config, text(5), unseen=unseen), found)
    rows = found[0][1]["embedding.weight"][unseen]
    assert (rows == rows[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_any_number_of_ranks_and_both_optimisers(on_ranks, tiny_config, size, optimiser):
    config = tiny_config(tied_output=False, feedforward="swiglu", positions="learned")
    found = on_ranks(size, lambda ranks: steps(config, text(4), ranks=ranks, optimiser=optimiser))
    assert_alike(steps(config, text(4), optimiser=optimiser), found)


@pytest.mark.slow
def test_more_ranks_than_rows(on_ranks, tiny_config):
    config = tiny_config(d_head=2, n_heads=2)
    found = on_ranks(3, lambda ranks: steps(config, text(4), ranks=ranks, optimiser="muon"))
    assert_alike(steps(config, text(4), optimiser="muon"), found)


@pytest.mark.slow
def test_a_large_vocabulary_with_the_loss_in_pieces(on_ranks, tiny_config):
    config = tiny_config(vocab_size=2100)
    found = on_ranks(2, lambda ranks: steps(config, text(4, vocab=2100), ranks=ranks, label_smoothing=0.1))
    assert_alike(steps(config, text(4, vocab=2100), label_smoothing=0.1), found)


@pytest.mark.slow
def test_recomputed_blocks(on_ranks, tiny_config):
    config = tiny_config(dropout=0.1)
    found = on_ranks(2, lambda ranks: steps(config, text(4), ranks=ranks, recompute=True))
    assert_alike(steps(config, text(4)), found)


@pytest.mark.slow
def test_compiled_and_recomputed_blocks(on_ranks, tiny_config):
    config = tiny_config()
    found = on_ranks(2, lambda ranks: steps(config, text(4), ranks=ranks, recompute=True, compiled=True))
    assert_alike(steps(config, text(4)), found, tolerance=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
def test_pairs_with_a_rank_that_has_nothing_left(on_ranks, tiny_pair_config, recompute):
    # Encoder, memory and decoder share gathered weights; of 3 micro-batches the second rank has one.
    config = tiny_pair_config(qk_norm=True, positions="sinusoidal")
    found = on_ranks(2, lambda ranks: steps(config, pairs(3), ranks=ranks, recompute=recompute, optimiser="muon"))
    assert_alike(steps(config, pairs(3), optimiser="muon"), found)


def test_first_weights_are_those_of_the_seed_and_evaluation_is_exact(on_ranks, tiny_config):
    config = tiny_config(positions="sinusoidal")
    batches = text(3)

    def work(ranks):
        model = build_sharded(config, seed=7, runtime=runtime(ranks))
        shares = sum(weight.to_local().numel() for weight in model.parameters())
        mine = in_step(batches[ranks.rank :: ranks.size], model, ranks)
        nats = evaluate(model, mine, runtime(ranks), bytes_per_token=1.0, ranks=ranks)
        again = evaluate(model, in_step([], model, ranks), runtime(ranks), bytes_per_token=1.0, ranks=ranks)
        return shares, nats.nats, nats.tokens, again.tokens, whole_weights(model)

    found = on_ranks(2, work)
    model = build_model(config, seed=7)
    alone = evaluate(model, batches, runtime(), bytes_per_token=1.0)
    for _, nats, tokens, nothing, _ in found:
        assert (tokens, nothing) == (alone.tokens, 0)
        assert nats == pytest.approx(alone.nats, abs=1e-4)
    assert found[0][0] + found[1][0] == sum(weight.numel() for weight in model.parameters())
    weights = found[0][4]
    assert all(torch.equal(weights[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.slow
def test_a_step_after_an_evaluation_sees_the_moved_weights(on_ranks, tiny_config):
    config = tiny_config()

    def work(ranks):
        settings = TrainSettings.from_flat(optimiser="adamw")
        model = build_sharded(config, seed=3, runtime=runtime(ranks))
        optimisers = Optimisers(model, settings.optimiser, Rates(0.01, 0.02), ranks=ranks)
        stepper = Stepper.of(model, optimisers, runtime(ranks), settings, ranks=ranks)
        losses = []
        for step in range(3):
            losses.append(stepper.step(step, text(2)[ranks.rank :: ranks.size], 1.0).loss)
            batches = in_step(text(2)[ranks.rank :: ranks.size], model, ranks)
            losses.append(evaluate(model, batches, runtime(ranks), bytes_per_token=1.0, ranks=ranks).loss)
        return losses

    losses = on_ranks(2, work)[0]
    assert losses[1] == pytest.approx(losses[2], abs=1e-6) and losses[3] == pytest.approx(losses[4], abs=1e-6)
    assert losses[5] < losses[3] < losses[1] < losses[0]


@pytest.mark.slow
def test_a_number_that_is_not_finite_stops_every_rank_with_one_error(on_ranks, tiny_config):
    config = tiny_config()

    def work(ranks):
        model = build_sharded(config, seed=3, runtime=runtime(ranks))
        with torch.no_grad():
            weight = dict(model.named_parameters())["blocks.1.feedforward.inner.weight"].to_local()
            weight[0, 0] = torch.nan if ranks.rank == 1 else weight[0, 0]
        settings = TrainSettings()
        optimisers = Optimisers(model, settings.optimiser, Rates(0.01, 0.02), ranks=ranks)
        stepper = Stepper.of(model, optimisers, runtime(ranks), settings, ranks=ranks)
        with pytest.raises(TrainingError) as caught:
            stepper.step(0, text(3)[ranks.rank :: ranks.size], 1.0)
        return caught.value.message

    first, second = on_ranks(2, work)
    assert first == second and "blocks.1.feedforward.inner.weight is not finite" in first


def test_fp16_is_refused_before_anything_is_made(tiny_config):
    with pytest.raises(SettingsError, match="fp32 or bf16"):
        build_sharded(tiny_config(), seed=1, runtime=Runtime(CPU, torch.float16, 1))


def settings_of(**changes):
    values = {"steps": 6, "optimiser": "muon", "evaluate_every": 2, "checkpoint_every": 2, "sample_every": 1, "keep": 9}
    return TrainSettings.from_flat(**(values | changes))


def whole_run(config, corpus, folder, settings, ranks=None, *, resume=False):
    """A run with everything in it; returns (result, weights handed over, texts that were written)."""
    sharded = ranks is not None and settings.run.parallel == "sharded"
    seed = derive_seed(settings.run.seed, "weights")
    if sharded:
        with torch.device("meta"):
            model = make_model(config)
    else:
        model = build_model(config, seed=seed)
    batches = CorpusBatches(corpus, context=config.context, rows=4, micro_rows=1, seed=settings.run.seed)
    written = []

    def sample():
        written.append(round(sum(float(weight.detach().abs().sum()) for weight in model.parameters()), 2))
        return str(written[-1])

    trainer = Trainer(
        model,
        batches,
        settings,
        folder=folder,
        runtime=runtime(ranks),
        callbacks=Callbacks(sample=sample),
        resume=resume,
        **({} if ranks is None else {"ranks": ranks}),
    )
    result = trainer.train()
    return result, dict(model.state_dict()) if ranks is None or ranks.is_main else {}, written


@pytest.mark.slow
@pytest.mark.parametrize("average_last", [1, 3])
def test_a_whole_run_and_going_on_with_it_alone(on_ranks, tiny_config, corpus, tmp_path, average_last):
    """Evaluations, texts, best weights or mean, log and hand-over are those of one process; so is what it resumes."""
    config, texts = tiny_config(positions="sinusoidal"), corpus()
    alone, sharded = settings_of(average_last=average_last), settings_of(average_last=average_last, parallel="sharded")
    with RunFolder.create(tmp_path / "alone", alone)[0] as folder:
        expected, weights, written = whole_run(config, texts, folder, alone)
    with RunFolder.create(tmp_path / "sharded", sharded)[0] as folder:
        found = on_ranks(2, lambda ranks: whole_run(config, texts, folder, sharded, ranks))
        for result, _, _ in found:
            assert result.evaluation.loss == pytest.approx(expected.evaluation.loss, abs=2e-6)
            assert (result.weights_step, result.averaged) == (expected.weights_step, expected.averaged)
        assert found[0][2] == pytest.approx(written, abs=0.02) and found[1][2] == []
        assert found[0][1].keys() == weights.keys()
        assert all(torch.allclose(found[0][1][name], weight, atol=2e-4) for name, weight in weights.items())

        longer = sharded.with_flat(steps=8, parallel="data")
        again, _, _ = whole_run(config, texts, folder, longer, resume=True)
    with RunFolder.open(tmp_path / "alone") as folder:
        expected, _, _ = whole_run(config, texts, folder, alone.with_flat(steps=8), resume=True)
    assert again.step == 8 and again.evaluation.loss == pytest.approx(expected.evaluation.loss, abs=5e-6)
    events = [[line["event"] for line in read_log(tmp_path / name / "metrics.jsonl")] for name in ("alone", "sharded")]
    assert events[0] == events[1]


@pytest.mark.slow
def test_a_save_that_fails_in_the_background_ends_the_run_on_every_rank(
    on_ranks, tiny_config, corpus, tmp_path, monkeypatch
):
    config, texts, settings = tiny_config(), corpus(), settings_of(steps=1000, parallel="sharded", evaluate_every=900)
    original = HuggingFaceStorageWriter.write_data

    def full(self, *given):
        if "00000004" in str(self.path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(self, *given)

    def work(ranks):
        if ranks.rank == 1:
            monkeypatch.setattr(HuggingFaceStorageWriter, "write_data", full)
        with pytest.raises(CheckpointError) as caught:
            whole_run(config, texts, folder, settings, ranks)
        return caught.value.message

    with RunFolder.create(tmp_path / "run", settings)[0] as folder:
        first, second = on_ranks(2, work)
    assert first == second and "step-00000004" in first and "rank 1 of 2" in first and "disk" in first
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [2]


@pytest.mark.slow
def test_a_training_error_leaves_the_save_that_was_under_way(on_ranks, tiny_config, corpus, tmp_path, monkeypatch):
    config, texts, settings = tiny_config(), corpus(), settings_of(parallel="sharded", evaluate_every=900)
    step, write = Stepper.step, HuggingFaceStorageWriter.write_data

    def slowly(self, *given):
        time.sleep(1)
        return write(self, *given)

    def step_until(self, number, *given):
        if number == 3:
            raise TrainingError("the loss became nan")
        return step(self, number, *given)

    monkeypatch.setattr(HuggingFaceStorageWriter, "write_data", slowly)
    monkeypatch.setattr(Stepper, "step", step_until)

    def work(ranks):
        with pytest.raises(TrainingError, match="became nan"):
            whole_run(config, texts, folder, settings, ranks)

    with RunFolder.create(tmp_path / "run", settings)[0] as folder:
        on_ranks(2, work)
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [2]
