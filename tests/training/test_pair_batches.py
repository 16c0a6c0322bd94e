"""Steps of a run on pairs: what they hold, how they are cut, and what they weigh."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mingyue.config import OptimiserSettings
from mingyue.data import IGNORE
from mingyue.errors import DataError
from mingyue.models import build_model
from mingyue.training import Optimisers, Rates, Stepper
from mingyue.training.pair_batches import PairBatches


def batches_of(corpus, tokens=60, micro=30, seed=3):
    return PairBatches(corpus, batch_tokens=tokens, micro_tokens=micro, seed=seed)


def pairs_in(batch):
    """The pairs of a batch as ids, padding taken off."""
    lengths = [batch.source_BS.shape[1]] * batch.rows if batch.source_lengths_B is None else batch.source_lengths_B
    return [
        (source[:length].tolist(), target[target != IGNORE].tolist())
        for source, length, target in zip(batch.source_BS, lengths, batch.targets_BT, strict=True)
    ]


def longer_side(batch):
    return max(batch.source_BS.shape[1], batch.targets_BT.shape[1])


def test_sizes_are_those_of_the_pairs(pair_corpus):
    corpus = pair_corpus()
    batches = batches_of(corpus)
    sizes = batches.sizes
    targets = int(corpus.train.target_lengths.sum())
    assert sizes.windows == batches.order.steps_per_epoch
    assert sizes.rows == 1
    assert sizes.step_tokens == round(targets / sizes.windows)
    assert sizes.heldout_tokens == int(corpus.valid.target_lengths.sum())
    assert sizes.steps_of(2.0) == 2 * sizes.windows
    assert batches.bytes_per_token == pytest.approx(500 / sizes.heldout_tokens)
    assert math.isnan(batches_of(pair_corpus(valid=0)).bytes_per_token)
    assert sizes.windows > 5  # and a step is not the whole


def test_identity_says_what_a_resumed_run_must_find_again(pair_corpus):
    """T1: another number of pairs, another tokenizer or another budget is another run; micro-batches are not."""
    corpus = pair_corpus()
    known = batches_of(corpus).identity
    assert known == {
        "tokenizer": corpus.fingerprint,
        "train_pairs": 60,
        "heldout_pairs": 20,
        "batch_tokens": 60,
        "digest": corpus.digest,
    }
    assert batches_of(corpus, micro=20).identity == known
    for other in (
        batches_of(corpus, tokens=61),
        batches_of(pair_corpus(train=59)),
        batches_of(pair_corpus(valid=19)),
        batches_of(replace(corpus, fingerprint="x")),
        batches_of(replace(corpus, digest="x")),
    ):
        assert other.identity != known


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tokens=st.integers(1, 90), micro=st.integers(1, 90), seed=st.integers(0, 50))
def test_an_epoch_holds_every_pair_once_however_it_is_cut(pair_corpus, tokens, micro, seed):
    """T3: micro-batches cut a step into the same pairs in the same order, each within its budget."""
    corpus = pair_corpus(train=25, valid=3)
    whole, cut = batches_of(corpus, tokens, tokens, seed), batches_of(corpus, tokens, micro, seed)
    steps = whole.sizes.windows
    assert cut.sizes == whole.sizes
    seen = []
    for step in range(steps):
        (one,) = whole.step(step)
        pieces = cut.step(step)
        pairs = [pair for piece in pieces for pair in pairs_in(piece)]
        assert pairs == pairs_in(one)
        assert sum(piece.tokens for piece in pieces) == one.tokens == int((one.targets_BT != IGNORE).sum())
        assert all(piece.rows == 1 or piece.rows * longer_side(piece) <= min(tokens, micro) for piece in pieces)
        seen += pairs
    rows = corpus.train
    assert sorted(seen) == sorted((rows.source(n).tolist(), rows.target(n).tolist()) for n in range(len(rows)))


def test_a_step_is_a_function_of_its_number(pair_corpus):
    """T2: asked again, in any order, by another object: the same tensors."""
    corpus = pair_corpus()
    one, two = batches_of(corpus), batches_of(corpus)
    for step in (17, 3, 40, 3):
        for first, second in zip(one.step(step), two.step(step), strict=True):
            assert torch.equal(first.source_BS, second.source_BS)
            assert torch.equal(first.targets_BT, second.targets_BT)
    other = batches_of(corpus, seed=4)
    assert any(pairs_in(one.step(n)[0]) != pairs_in(other.step(n)[0]) for n in range(3))


def test_held_out_pairs_come_all_or_in_part_and_always_the_same(pair_corpus):
    batches = batches_of(pair_corpus())
    everything = [pair for batch in batches.held_out(None) for pair in pairs_in(batch)]
    assert len(everything) == 20
    parts = [[pair for batch in batches.held_out(40) for pair in pairs_in(batch)] for _ in range(2)]
    assert parts[0] == parts[1]
    assert 0 < len(parts[0]) < 20
    assert all(pair in everything for pair in parts[0])
    assert all(batch.rows == 1 or batch.rows * longer_side(batch) <= 30 for batch in batches.held_out(None))


def test_no_pairs_make_no_step(pair_corpus):
    with pytest.raises(DataError, match="make no step"):
        batches_of(pair_corpus(train=0))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("micro", [1, 20, 35])
@pytest.mark.parametrize("changes", [{}, {"source_vocab_size": 23, "tied_output": False}])
def test_gradients_of_micro_batches_are_those_of_one_batch(
    pair_corpus, tiny_pair_config, cpu, smoothing, micro, changes
):
    """T3: pairs of unlike lengths, cut into micro-batches: the same gradient, each target token weighing the same."""
    corpus = pair_corpus()

    def gradients(tokens):
        model = build_model(tiny_pair_config(**changes), seed=5)
        optimisers = Optimisers(model, OptimiserSettings(), Rates(0.01, 0.02))
        stepper = Stepper(model, optimisers, cpu, seed=1, clip=0.0, label_smoothing=smoothing)
        pieces = batches_of(corpus, 120, tokens).step(1)
        nats, counted = stepper.backward(1, pieces)
        return len(pieces), nats, counted, {name: weight.grad for name, weight in model.named_parameters()}

    n_whole, nats, counted, whole = gradients(120)
    n_cut, cut_nats, cut_counted, cut = gradients(micro)
    assert n_whole == 1 < n_cut
    assert cut_counted == counted
    torch.testing.assert_close(cut_nats, nats)
    for name, gradient in whole.items():
        torch.testing.assert_close(cut[name], gradient, rtol=1e-4, atol=1e-6, msg=name)
