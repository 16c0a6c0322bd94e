"""One step: accumulation, clipping, and stopping before bad numbers reach a weight."""

from __future__ import annotations

import math

import pytest
import torch

from mingyue.config import OptimiserSettings
from mingyue.data import IGNORE, Batch
from mingyue.errors import TrainingError
from mingyue.models import build_model
from mingyue.training import Optimisers, Rates, Stepper


def batch_of(inputs, targets):
    return Batch(inputs, targets, None, int((targets != IGNORE).sum()))


def ragged(rows=6, length=16, seed=0):
    """Rows of which each has another number of targets."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(3, 23, (rows, length), generator=generator)
    targets = torch.randint(3, 23, (rows, length), generator=generator)
    for row in range(rows):
        targets[row, 3 + 2 * row :] = IGNORE
    return inputs, targets


@pytest.fixture
def stepper(tiny_config, cpu):
    """A stepper over a new tiny model."""

    def make(
        *,
        config=None,
        clip=0.0,
        label_smoothing=0.0,
        scaler=None,
        optimiser="adamw",
        runtime=cpu,
        unseen=(),
        **settings,
    ):
        model = build_model(tiny_config(**(config or {})), seed=5)
        optimisers = Optimisers(model, OptimiserSettings(optimiser=optimiser, **settings), Rates(0.01, 0.02))
        return Stepper(
            model, optimisers, runtime, seed=1, clip=clip, label_smoothing=label_smoothing, scaler=scaler, unseen=unseen
        )

    return make


def gradients(stepper):
    return {name: weight.grad.clone() for name, weight in stepper.model.named_parameters()}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("cuts", [[6], [3, 3], [1] * 6, [4, 2], [1, 5], [2, 2, 1, 1]])
def test_accumulated_gradients_equal_one_big_batch(stepper, cuts, smoothing):
    """T3, T6: rows of unequal length, cut into micro-batches with the last one partial: the same gradient."""
    inputs, targets = ragged()
    whole = stepper(label_smoothing=smoothing)
    nats, tokens = whole.backward(0, [batch_of(inputs, targets)])
    cut = stepper(label_smoothing=smoothing)
    pieces = [batch_of(*piece) for piece in zip(inputs.split(cuts), targets.split(cuts), strict=True)]
    cut_nats, cut_tokens = cut.backward(0, pieces)
    assert cut_tokens == tokens == sum(min(16, 3 + 2 * row) for row in range(6))
    torch.testing.assert_close(cut_nats, nats)
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(cut)[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_micro_batch_without_targets_adds_nothing(stepper):
    """T3: a micro-batch of padding alone changes no gradient."""
    inputs, targets = ragged(2)
    empty = batch_of(inputs, torch.full_like(targets, IGNORE))
    one, two = stepper(), stepper()
    one.backward(0, [batch_of(inputs, targets)])
    two.backward(0, [batch_of(inputs, targets), empty])
    for name, gradient in gradients(one).items():
        torch.testing.assert_close(gradients(two)[name], gradient, msg=name)


@pytest.mark.parametrize("tied_output", [True, False])
def test_after_unseen_tokens_the_objective_asks_for_seen_ones(stepper, tied_output):
    """The penalty by its formula, at the counted positions whose input is unseen; the likelihood alone is reported."""
    inputs, targets = ragged()
    unseen = [20, 21, 22]
    targets[(targets != IGNORE) & (targets >= 20)] = 5
    one = stepper(unseen=unseen, config={"tied_output": tied_output})
    nats, tokens = one.backward(0, [batch_of(inputs[:3], targets[:3]), batch_of(inputs[3:], targets[3:])])
    model = build_model(one.model.config, seed=5)
    logs = model(inputs).log_softmax(-1)
    counted = targets != IGNORE
    likelihood = logs.gather(-1, targets.clamp(min=0)[..., None]).squeeze(-1)[counted].sum()
    of_seen = logs[counted & (inputs >= 20)][:, :20].logsumexp(-1).sum()
    assert counted.logical_and(inputs >= 20).any()
    ((-likelihood - 20 * of_seen) / tokens).backward()
    assert nats.item() == pytest.approx(-likelihood.item(), rel=1e-5)
    for name, gradient in gradients(one).items():
        expected = dict(model.named_parameters())[name].grad
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5, msg=name)


def test_clipping_by_the_global_norm(stepper):
    """The gradient that reaches the optimiser has the largest norm allowed; the reported norm is the one before."""
    micro = [batch_of(*ragged())]
    free = stepper()
    norm = free.step(0, micro, 1.0).gradient_norm
    reference = torch.cat([gradient.flatten() for gradient in gradients(free).values()]).norm()
    assert norm == pytest.approx(reference.item(), rel=1e-5)
    clipped = stepper(clip=norm / 4)
    assert clipped.step(0, micro, 1.0).gradient_norm == pytest.approx(norm)
    for name, gradient in gradients(free).items():
        torch.testing.assert_close(gradients(clipped)[name], gradient / 4, msg=name)
    loose = stepper(clip=norm * 2)
    loose.step(0, micro, 1.0)
    assert all(torch.equal(gradients(loose)[name], gradient) for name, gradient in gradients(free).items())


def test_clipping_with_a_loss_scaler_unscales_first(stepper):
    """T7: with a loss scaler the norm is that of the true gradient, and so is what is clipped."""
    micro = [batch_of(*ragged(4)), batch_of(*ragged(2, seed=1))]
    plain = stepper(clip=0.05)
    scaled = stepper(clip=0.05, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    one, two = plain.step(0, micro, 1.0), scaled.step(0, micro, 1.0)
    assert one.gradient_norm > 0.05
    assert two.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-5)
    for (name, weight), other in zip(plain.model.named_parameters(), scaled.model.parameters(), strict=True):
        torch.testing.assert_close(other, weight, rtol=1e-5, atol=1e-6, msg=name)


def test_overflow_under_a_loss_scaler_skips_the_step(stepper):
    """T7: an overflow while the scale is looked for leaves the weights alone, lowers the scale, and goes on."""
    scaled = stepper(clip=1.0, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1))
    next(scaled.model.parameters()).register_hook(lambda gradient: gradient * 1e4)  # beyond what a number can hold
    before = {name: tensor.clone() for name, tensor in scaled.model.state_dict().items()}
    result = scaled.step(0, [batch_of(*ragged())], 1.0)
    assert not math.isfinite(result.gradient_norm)
    assert all(torch.equal(tensor, before[name]) for name, tensor in scaled.model.state_dict().items())
    assert scaled.scaler.get_scale() < 2.0**127


def poison(stepper, name, value):
    with torch.no_grad():
        dict(stepper.model.named_parameters())[name].view(-1)[0] = value


@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
@pytest.mark.parametrize(
    ("name", "value"), [("blocks.1.feedforward.output.weight", math.nan), ("embedding.weight", math.inf)]
)
def test_bad_weight_stops_before_the_update(stepper, optimiser, name, value):
    """T11: a weight that is not finite: the step and the weight are named, and nothing moves."""
    bad = stepper(optimiser=optimiser)
    poison(bad, name, value)
    before = {key: tensor.clone() for key, tensor in bad.model.state_dict().items()}
    with pytest.raises(TrainingError) as caught:
        bad.step(41, [batch_of(torch.zeros(2, 16, dtype=torch.long), ragged(2)[1])], 1.0)
    assert name in caught.value.message
    assert "step 42" in caught.value.message
    for key, tensor in bad.model.state_dict().items():
        assert torch.equal(tensor.nan_to_num(), before[key].nan_to_num())


def test_overflow_in_a_layer_names_the_layer(stepper):
    """T11: finite weights, an overflow in the forward pass: the first place where it shows is named."""
    bad = stepper()
    with torch.no_grad():
        bad.model.blocks[1].feedforward.inner.weight.fill_(1e30)
    with pytest.raises(TrainingError, match=r"the output of blocks\.1\.feedforward\.inner"):
        bad.step(0, [batch_of(*ragged())], 1.0)


def test_bad_gradient_names_where_it_began(stepper):
    """T11: a finite loss whose gradient is not: the layer where the backward pass went wrong is named."""

    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * math.inf

    bad = stepper()
    norm = bad.model.blocks[1].feedforward_norm
    norm.register_forward_hook(lambda module, inputs, output: Breaks.apply(output))
    before = {name: tensor.clone() for name, tensor in bad.model.state_dict().items()}
    with pytest.raises(TrainingError, match=r"the gradient became .*blocks\.1\.feedforward_norm") as caught:
        bad.step(6, [batch_of(*ragged())], 1.0)
    assert "step 7" in caught.value.message
    assert all(torch.equal(tensor, before[name]) for name, tensor in bad.model.state_dict().items())


def test_dropout_is_a_function_of_seed_step_and_micro_batch(stepper):
    """T14: the same step drops the same, whatever was drawn before; another step or micro-batch drops otherwise.

    Which rank takes a micro-batch changes nothing: tests/training/test_distributed.py.
    """
    micro = [batch_of(*ragged(2))]
    config = {"dropout": 0.3, "attention_dropout": 0.3}

    def gradient(step=0, place=0, noise=0):
        one = stepper(config=config)
        torch.rand(noise)
        empty = batch_of(micro[0].inputs_BT, torch.full_like(micro[0].targets_BT, IGNORE))
        one.backward(step, [empty] * place + micro)
        return gradients(one)["blocks.0.attention.qkv.weight"]

    assert torch.equal(gradient(), gradient(noise=17))
    for other in (gradient(step=1), gradient(place=1)):
        assert not torch.allclose(gradient(), other, rtol=1e-3)
