"""Muon against torch.optim.Muon, its stacks against single matrices, its state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mingyue.training.muon import NEWTON_SCHULZ_STEPS, Matrix, Muon, newton_schulz, orthogonalise

SHAPES = [(8, 8), (8, 8), (24, 8), (8, 24), (24, 8), (5, 7), (1, 6)]


def weights(seed=0, shapes=SHAPES):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def give_gradients(parameters, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def whole(parameters):
    return [Matrix(f"w{number}", weight, (weight.shape[0],)) for number, weight in enumerate(parameters)]


def test_equals_torch_in_fp32(monkeypatch):
    """torch.optim.Muon with its bfloat16 cast taken out takes the same steps, over all shapes and several steps."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.clone())
    usual = lambda x: newton_schulz(x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7), 5)  # noqa: E731
    monkeypatch.setattr("mingyue.training.muon.orthogonalise", usual)  # their norm, their number of steps
    ours, theirs = weights(), weights()
    muon = Muon(whole(ours), rate=0.02, momentum=0.9, weight_decay=0.1)
    reference = torch.optim.Muon(theirs, lr=0.02, momentum=0.9, weight_decay=0.1)
    for step in range(4):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        muon.step()
        reference.step()
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_matrices_in_one_weight_are_moved_each_for_itself():
    """Q, K, V live in one weight; the step is that of three weights."""
    (joined,) = weights(shapes=[(8 + 4 + 4, 8)])
    apart = [nn.Parameter(part.clone()) for part in joined.detach().split([8, 4, 4])]
    give_gradients([joined], 1)
    for part, gradient in zip(apart, joined.grad.split([8, 4, 4]), strict=True):
        part.grad = gradient.clone()
    Muon([Matrix("qkv", joined, (8, 4, 4))], rate=0.1).step()
    Muon(whole(apart), rate=0.1).step()
    torch.testing.assert_close(joined.detach(), torch.cat([part.detach() for part in apart]))
    (one,) = weights(shapes=[(16, 8)])
    give_gradients([one], 1)
    Muon(whole([one]), rate=0.1).step()
    assert not torch.allclose(one, joined)


def test_update_has_singular_values_near_one():
    """Newton–Schulz keeps singular vectors and brings singular values, large and small, near 1."""
    generator = torch.Generator().manual_seed(1)
    matrices = torch.randn(3, 12, 40, generator=generator) * torch.tensor([1e-3, 1.0, 1e3]).view(-1, 1, 1)
    result = orthogonalise(matrices)
    values = torch.linalg.svdvals(result)
    assert 0.6 < values.min() < values.max() < 1.3
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    cosine = (result * (u @ vh)).sum((1, 2)) / result.norm(dim=(1, 2)) / (u @ vh).norm(dim=(1, 2))
    assert (cosine > 0.98).all()


@pytest.mark.parametrize("shape", [(16, 16), (16, 24), (16, 64)])
def test_four_steps_come_as_far_as_five_from_the_usual_norm(shape):
    """The tighter bound is one: no singular value starts above 1; and what is far below the largest comes as far."""
    generator = torch.Generator().manual_seed(2)
    matrices = torch.randn(8, *shape, generator=generator)
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    matrices = u * torch.logspace(0, -2, shape[0]) @ vh  # singular values from 1 down to 0.01
    ours = torch.linalg.svdvals(orthogonalise(matrices))
    usual = torch.linalg.svdvals(newton_schulz(matrices / torch.linalg.matrix_norm(matrices, keepdim=True), 5))
    assert ours.max() < 1.3
    assert ours.min() > 0.9 * usual.min()
    assert (ours > 0.6).float().mean() >= (usual > 0.6).float().mean() - 0.01


def test_wide_matrices_are_orthogonalised_as_others_are():
    """Iterating Gram matrices is the same arithmetic in another order."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 12, 48, generator=generator)
    x = x / torch.linalg.matrix_norm(x, keepdim=True)
    bound = torch.linalg.matrix_norm((x @ x.mT) @ (x @ x.mT), keepdim=True) ** 0.25
    torch.testing.assert_close(orthogonalise(x), newton_schulz(x / bound, NEWTON_SCHULZ_STEPS), rtol=1e-3, atol=1e-4)


def test_no_gradient_and_zero_gradient_are_finite():
    """A weight without a gradient, or with one of zeros, does not move and does not become NaN."""
    parameters = weights()
    before = [parameter.detach().clone() for parameter in parameters]
    parameters[2].grad = torch.zeros_like(parameters[2])
    Muon(whole(parameters), rate=0.1).step()
    for parameter, old in zip(parameters, before, strict=True):
        assert torch.equal(parameter, old)


def test_state_is_restored_exactly():
    """T2: saved and loaded in the middle, the next steps are the same bits."""
    ours = weights(shapes=[(12, 4), (4, 12), (4, 4)])
    split = [Matrix("a", ours[0], (4, 4, 4)), Matrix("b", ours[1], (4,)), Matrix("c", ours[2], (4,))]
    first = Muon(split, rate=0.1, weight_decay=0.1)
    give_gradients(ours, 1)
    first.step()
    state = {name: tensor.clone() for name, tensor in first.named_state().items()}
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
        "a.momentum": (12, 4),
        "b.momentum": (4, 12),
        "c.momentum": (4, 4),
    }
    copies = [nn.Parameter(weight.detach().clone()) for weight in ours]
    second = Muon(
        [Matrix(old.name, copy, old.rows) for old, copy in zip(split, copies, strict=True)],
        rate=0.1,
        weight_decay=0.1,
    )
    second.load_named_state(state)
    for parameters, muon in ((ours, first), (copies, second)):
        give_gradients(parameters, 2)
        muon.step()
    assert all(torch.equal(one, two) for one, two in zip(ours, copies, strict=True))


def test_wrong_rows_are_refused():
    """Rows that do not add up to the weight's are a mistake in the program, told at once."""
    (weight,) = weights(shapes=[(6, 4)])
    with pytest.raises(ValueError, match="qkv"):
        Muon([Matrix("qkv", weight, (3, 2))], rate=0.1)
