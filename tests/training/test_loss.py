"""The loss: sums over tokens, nothing from padding, the same however a step is cut."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mingyue.data import IGNORE, Batch
from mingyue.models import build_model
from mingyue.training import evaluate, hidden_and_targets, loss_of_hidden, loss_of_logits
from mingyue.training import loss as loss_module

CPU = torch.device("cpu")


def batch_of(inputs, targets, documents=None):
    counted = int((targets != IGNORE).sum())
    return Batch(inputs, targets, documents, counted)


def test_value_by_hand():
    """Two tokens, vocabulary of two: −ln of the two probabilities, summed."""
    logits = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])
    loss = loss_of_logits(logits, torch.tensor([1, 0]))
    assert loss.nats.item() == pytest.approx(-math.log(0.75) - math.log(0.5))
    assert loss.objective.item() == pytest.approx(loss.nats.item())


def test_label_smoothing_by_hand():
    """ε/V on every id, 1 − ε more on the target; the plain likelihood is reported beside it."""
    logits = torch.tensor([[0.0, math.log(3.0)]])
    loss = loss_of_logits(logits, torch.tensor([1]), label_smoothing=0.2)
    assert loss.objective.item() == pytest.approx(-0.9 * math.log(0.75) - 0.1 * math.log(0.25))
    assert loss.nats.item() == pytest.approx(-math.log(0.75))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 6), st.sampled_from([0.0, 0.1, 0.5]))
def test_padded_rows_equal_dropped_rows(seed, n_padded, smoothing):
    """T6: label smoothing with padding: value and gradient as if the padded rows were not there."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(8, 5, generator=generator)
    targets = torch.randint(0, 5, (8,), generator=generator)
    padded = torch.randperm(8, generator=generator)[:n_padded]
    targets[padded] = IGNORE
    keep = targets != IGNORE
    with_padding = logits.clone().requires_grad_()
    without = logits[keep].clone().requires_grad_()
    one = loss_of_logits(with_padding, targets, label_smoothing=smoothing)
    two = loss_of_logits(without, targets[keep], label_smoothing=smoothing)
    one.objective.backward()
    two.objective.backward()
    torch.testing.assert_close(one.objective, two.objective)
    torch.testing.assert_close(one.nats, two.nats)
    torch.testing.assert_close(with_padding.grad[keep], without.grad)
    assert (with_padding.grad[~keep] == 0).all()
    reference = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing, ignore_index=IGNORE)
    torch.testing.assert_close(one.objective, reference)


@pytest.mark.parametrize("tied", [True, False])
def test_large_vocabulary_in_pieces_is_the_same_loss(tiny_config, monkeypatch, tied):
    """T6: the loss taken in pieces equals the plain one, value and gradients, padding left out."""
    model = build_model(tiny_config(vocab_size=61, tied_output=tied), seed=3)
    inputs = torch.randint(3, 61, (4, 16))
    targets = torch.randint(3, 61, (4, 16))
    targets[1, 7:] = IGNORE
    batch = batch_of(inputs, targets)

    def gradients():
        model.zero_grad()
        loss = loss_of_hidden(model, *hidden_and_targets(model, batch, CPU))
        loss.objective.backward()
        return loss.nats, {name: weight.grad.clone() for name, weight in model.named_parameters()}

    plain_nats, plain = gradients()
    monkeypatch.setattr(loss_module, "CHUNKED_VOCABULARY", 1)
    calls = []
    original = loss_module.linear_cross_entropy

    def counted(*args, **options):
        calls.append(1)
        return original(*args, **options)

    monkeypatch.setattr(loss_module, "linear_cross_entropy", counted)
    nats, pieces = gradients()
    assert calls
    torch.testing.assert_close(nats, plain_nats)
    for name, gradient in plain.items():
        torch.testing.assert_close(pieces[name], gradient, msg=name)


def test_evaluation_has_no_dropout_and_leaves_the_mode(tiny_config, cpu):
    """T14: an evaluation is the same twice, without gradients, and the model is in the mode that it was in."""
    model = build_model(tiny_config(dropout=0.5), seed=3).train()
    batch = batch_of(torch.randint(3, 23, (2, 16)), torch.randint(3, 23, (2, 16)))
    first, second = (evaluate(model, [batch, batch], cpu, bytes_per_token=2.0) for _ in range(2))
    assert first.nats == second.nats
    assert first.tokens == 64
    assert model.training
    assert all(weight.grad is None for weight in model.parameters())
    reference = F.cross_entropy(model.eval()(batch.inputs_BT).flatten(0, 1), batch.targets_BT.flatten())
    assert first.loss == pytest.approx(reference.item(), rel=1e-6)
    assert first.bits_per_byte == pytest.approx(first.loss / math.log(2) / 2)
    assert first.perplexity == pytest.approx(math.exp(first.loss))


def nats_of(model, batch):
    return loss_of_hidden(model, *hidden_and_targets(model, batch, CPU)).nats.item()


def test_documents_limit_attention(tiny_config):
    """A batch that says which document each token is of: text before it does not change its loss."""
    model = build_model(tiny_config(), seed=3)
    inputs = torch.randint(3, 23, (1, 16))
    other = inputs.clone()
    other[0, :8] = torch.randint(3, 23, (8,))
    assert not torch.equal(inputs, other)
    targets = torch.full((1, 16), IGNORE)
    targets[0, 8:] = 5
    documents = torch.tensor([[0] * 8 + [1] * 8])
    apart = [nats_of(model, batch_of(ids, targets, documents)) for ids in (inputs, other)]
    joined = [nats_of(model, batch_of(ids, targets)) for ids in (inputs, other)]
    assert apart[0] == apart[1]
    assert joined[0] != joined[1]
