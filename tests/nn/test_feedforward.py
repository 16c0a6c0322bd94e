"""Feed-forward parts and norms, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from mingyue.nn import FeedForward, SwiGLU, Taps, make_feedforward, make_norm


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def normal_cdf(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


ACTIVATIONS = {
    "relu": lambda x: max(0.0, x),
    "gelu": lambda x: x * normal_cdf(x),
    "gelu-tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * sigmoid(x),
    "relu2": lambda x: max(0.0, x) ** 2,
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_two_layers_with_an_activation_between_by_hand(kind):
    """FFN(x) = f(x W₁ + b₁) W₂ + b₂ at x = (1, 2): inner = (0.5, -2.5), result = 3 f(0.5) - f(-2.5) + 0.25."""
    part = make_feedforward(kind, 2, 2, bias=True)
    assert isinstance(part, FeedForward)
    with torch.no_grad():
        part.inner.weight.copy_(torch.tensor([[0.5, 0.0], [0.0, -1.0]]))
        part.inner.bias.copy_(torch.tensor([0.0, -0.5]))
        part.output.weight.copy_(torch.tensor([[3.0, -1.0], [0.0, 0.0]]))
        part.output.bias.copy_(torch.tensor([0.25, 7.0]))
    f = ACTIVATIONS[kind]
    found = part(torch.tensor([[[1.0, 2.0]]]))[0, 0].tolist()
    assert found == pytest.approx([3 * f(0.5) - f(-2.5) + 0.25, 7.0], abs=1e-6)


def test_swiglu_by_hand_gate_rows_first():
    part = make_feedforward("swiglu", 1, 2, bias=False)
    assert isinstance(part, SwiGLU)
    assert [tuple(weight.shape) for weight in part.parameters()] == [(4, 1), (1, 2)]
    with torch.no_grad():
        part.inner.weight.copy_(torch.tensor([[1.0], [-2.0], [3.0], [5.0]]))  # gates 1, -2; ups 3, 5
        part.output.weight.copy_(torch.tensor([[1.0, 10.0]]))
    taps = Taps(["inner", "output"])
    found = part(torch.tensor([[[2.0]]]), taps)
    inner = [2 * sigmoid(2) * 6, -4 * sigmoid(-4) * 10]
    assert taps.values["inner"][0, 0].tolist() == pytest.approx(inner)
    assert found.item() == pytest.approx(inner[0] + 10 * inner[1])


def test_biases_are_there_when_asked_for():
    for kind in (*ACTIVATIONS, "swiglu"):
        assert {name for name, _ in make_feedforward(kind, 4, 6, bias=True).named_parameters()} == {
            "inner.weight", "inner.bias", "output.weight", "output.bias",
        }  # fmt: skip
        assert len(list(make_feedforward(kind, 4, 6, bias=False).parameters())) == 2
    with pytest.raises(ValueError, match="'gelo' is not one of relu, gelu, gelu-tanh, silu, relu2, swiglu"):
        make_feedforward("gelo", 4, 6, bias=False)


def test_norms_by_hand():
    x = torch.tensor([1.0, 3.0])
    layer, rms = make_norm("layer", 2, 1e-6), make_norm("rms", 2, 1e-6)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([2.0, 2.0]))
        layer.bias.copy_(torch.tensor([0.0, 1.0]))
        rms.weight.copy_(torch.tensor([1.0, 2.0]))
    assert layer(x).tolist() == pytest.approx([-2.0, 3.0], abs=1e-5)  # mean 2, standard deviation 1
    assert rms(x).tolist() == pytest.approx([1 / math.sqrt(5), 6 / math.sqrt(5)], abs=1e-5)  # root of (1 + 9) / 2
    assert [name for name, _ in rms.named_parameters()] == ["weight"]
    with pytest.raises(ValueError, match="norm 'batch'"):
        make_norm("batch", 2, 1e-6)


def test_the_norms_epsilon_is_the_one_given_and_stands_inside_the_root():
    for kind in ("layer", "rms"):
        found = make_norm(kind, 2, 3.0)(torch.tensor([1.0, -1.0]))
        assert found.tolist() == pytest.approx([0.5, -0.5])  # 1 / √(1 + 3)
