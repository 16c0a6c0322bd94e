"""The loss in pieces against whole logits: the same values and gradients, and no more work than was asked for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from mingyue.data import IGNORE, PairRows, pair_batch
from mingyue.models import build_model
from mingyue.training import cross_entropy, hidden_and_targets, loss_of_hidden
from mingyue.training import loss as loss_module
from mingyue.training.cross_entropy import linear_cross_entropy

CPU = torch.device("cpu")
EOS = 2


def case(seed, rows, *, ignored=0, words=11, width=5):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(words, width, generator=generator, dtype=torch.float64).requires_grad_()
    targets = torch.randint(0, words, (rows,), generator=generator)
    targets[torch.randperm(rows, generator=generator)[:ignored]] = IGNORE
    return x, weight, targets


def gradients_of(objective, *leaves):
    return torch.autograd.grad(0.37 * objective, leaves)  # what stands behind it in a step: a division by the tokens


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(0, 20), st.sampled_from([0.0, 0.1, 1.0]))
@pytest.mark.parametrize("piece", [1, 7, 256])
def test_value_and_gradients_are_those_of_whole_logits(piece, seed, rows, ignored, smoothing):
    """T6: one piece or several, the last one shorter, targets left out: as if the logits were all there."""
    x, weight, targets = case(seed, rows, ignored=ignored)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_entropy, "_PIECE", piece)
        objective, nats = linear_cross_entropy(x, weight, targets, label_smoothing=smoothing)
        found = gradients_of(objective, x, weight)
    expected = F.cross_entropy(x @ weight.T, targets, reduction="sum", ignore_index=IGNORE, label_smoothing=smoothing)
    torch.testing.assert_close(objective, expected)
    torch.testing.assert_close(nats, F.cross_entropy(x @ weight.T, targets, reduction="sum", ignore_index=IGNORE))
    for one, other in zip(found, gradients_of(expected, x, weight), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_as_torch_has_it(smoothing):
    """`torch.nn.functional.linear_cross_entropy`, over more rows than one piece takes, in the precision of training."""
    x, weight, targets = case(1, 700, ignored=90, words=50)
    x, weight = (tensor.detach().float().requires_grad_() for tensor in (x, weight))
    expected = F.linear_cross_entropy(
        x, weight, targets, reduction="sum", ignore_index=IGNORE, label_smoothing=smoothing
    )
    objective, _ = linear_cross_entropy(x, weight, targets, label_smoothing=smoothing)
    torch.testing.assert_close(objective, expected)
    for one, other in zip(gradients_of(objective, x, weight), gradients_of(expected, x, weight), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 6])
def test_nothing_counted_is_nothing_lost(rows):
    """T6: every row left out, or no row at all: a loss of 0 and gradients of 0, not of NaN."""
    x, weight, targets = case(1, rows, ignored=rows)
    objective, nats = linear_cross_entropy(x, weight, targets, label_smoothing=0.1)
    assert (objective.item(), nats.item()) == (0.0, 0.0)
    for gradient in gradients_of(objective, x, weight):
        assert (gradient == 0).all()


def test_the_likelihood_has_no_gradient():
    x, weight, targets = case(1, 6)
    objective, nats = linear_cross_entropy(x, weight, targets)
    assert objective.requires_grad
    assert not nats.requires_grad


class _Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def products(call):
    """Matrix products that a call makes."""
    with _Operations() as operations:
        call()
    return sum("mm" in name or "matmul" in name for name in operations.seen)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_evaluation_makes_no_gradients(mode):
    """Without autograd a piece is one matrix product; with it, three, and the gradients are made there and then."""
    x, weight, targets = case(1, 6)
    assert products(lambda: linear_cross_entropy(x, weight, targets)) == 3
    with mode():
        assert products(lambda: linear_cross_entropy(x, weight, targets, label_smoothing=0.1)) == 1
        objective, nats = linear_cross_entropy(x, weight, targets)
    assert not objective.requires_grad
    assert objective.item() == nats.item() > 0


def test_frozen_output_layer():
    """Only one of the two asks for a gradient: it gets the right one, the other none."""
    x, weight, targets = case(1, 9, ignored=2)
    expected = gradients_of(linear_cross_entropy(x, weight, targets)[0], x, weight)
    for leaf, other, gradient in ((x, weight, expected[0]), (weight, x, expected[1])):
        leaf.grad = other.grad = None
        other.requires_grad_(False)
        (0.37 * linear_cross_entropy(x, weight, targets)[0]).backward()
        torch.testing.assert_close(leaf.grad, gradient)
        assert other.grad is None
        other.requires_grad_()


# --- pairs through a whole model --------------------------------------------------------------------------------------

PAIRS = PairRows.of(
    [[*source, EOS] for source in ([5, 6, 7, 8, 9], [3], [4, 4, 9], [])],
    [[*target, EOS] for target in ([9, 8], [5, 4, 3, 6, 7, 8, 9], [], [3, 3, 3])],
)


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("cuts", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[3, 1, 0], [2]]])
@pytest.mark.parametrize("changes", [{}, {"tied_output": False}, {"source_vocab_size": 23}, {"output_bias": True}])
def test_padded_pairs_weigh_nothing(tiny_pair_config, monkeypatch, in_pieces, smoothing, cuts, changes):
    """T6: pairs batched with padding and cut into micro-batches: loss and gradients of each pair by itself, summed."""
    if in_pieces:
        monkeypatch.setattr(loss_module, "CHUNKED_VOCABULARY", 1)
        monkeypatch.setattr(cross_entropy, "_PIECE", 3)
        monkeypatch.setattr(loss_module, "is_chunked", lambda *_, **__: True)
    model = build_model(tiny_pair_config(**changes), seed=2)

    def summed(batches):
        model.zero_grad()
        objective = nats = torch.zeros(())
        for index in batches:
            batch = pair_batch(PAIRS, index, pad_id=0, bos_id=1)
            loss = loss_of_hidden(model, *hidden_and_targets(model, batch, CPU), label_smoothing=smoothing)
            loss.objective.backward()
            objective, nats = objective + loss.objective.detach(), nats + loss.nats
        return objective, nats, {name: weight.grad.clone() for name, weight in model.named_parameters()}

    objective, nats, gradients = summed(cuts)
    monkeypatch.undo()
    alone = summed([[0], [1], [2], [3]])
    torch.testing.assert_close((objective, nats), alone[:2])
    for name, gradient in alone[2].items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-5, msg=name)
    assert (objective.item() != nats.item()) == bool(smoothing)
