"""Hand-written backward passes equal autograd's, and are used where they should be."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.config import ModelConfig
from mingyue.models import DecoderOnly, build_model
from mingyue.nn.custom_backward import (
    RMSNormFunction,
    SquaredReLUFunction,
    SwiGLUFunction,
    inverse_rms,
    rotate_heads,
    use_custom_backward,
)
from mingyue.nn.feedforward import gated, squared_relu
from mingyue.nn.positions import RotaryPositions

EPS = 1e-6


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def angles(n_tokens: int, d_head: int) -> tuple[Tensor, Tensor]:
    rotation = RotaryPositions(n_tokens, d_head).rotation(torch.arange(n_tokens)[None])
    assert rotation.angles is not None
    cosine, sine = rotation.angles
    return cosine.double(), sine.double()


def test_inverse_rms_is_one_over_the_root_mean_square() -> None:
    x = torch.tensor([[3.0, 4.0]])
    assert inverse_rms(x, 0.0).item() == pytest.approx((2 / 25) ** 0.5)
    assert inverse_rms(torch.zeros(1, 2), 1e-6).item() == pytest.approx(1e3)


def test_rms_norm_has_the_values_and_gradients_of_the_definition() -> None:
    x, gain = random(2, 3, 8), random(8, seed=1)
    torch.testing.assert_close(RMSNormFunction.apply(x, gain, EPS), F.rms_norm(x, (8,), gain, EPS))
    assert torch.autograd.gradcheck(lambda x, gain: RMSNormFunction.apply(x, gain, EPS), (x, gain))


def test_squared_relu_has_the_gradient_of_the_definition() -> None:
    x = random(4, 5)
    torch.testing.assert_close(SquaredReLUFunction.apply(x), x.relu().square())
    assert torch.autograd.gradcheck(SquaredReLUFunction.apply, (x,))


def test_swiglu_has_the_gradient_of_the_definition() -> None:
    both = random(3, 2, 10)
    gate, up = both.chunk(2, dim=-1)
    torch.testing.assert_close(SwiGLUFunction.apply(both), F.silu(gate) * up)
    assert torch.autograd.gradcheck(SwiGLUFunction.apply, (both,))


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("normed", [True, False])
def test_turned_heads_have_the_values_and_gradients_of_norm_and_rotation(turned: bool, normed: bool) -> None:
    n_heads, n_kv_heads, d_head, n_tokens = 4, 2, 6, 3
    heads = random(2, n_tokens, n_heads + 2 * n_kv_heads, d_head)
    gain = random(n_heads + n_kv_heads, d_head, seed=1) if normed else None
    known = angles(n_tokens, d_head) if turned else None
    n_turned = n_heads + n_kv_heads

    def composed(heads: Tensor, gain: Tensor | None) -> tuple[Tensor, Tensor]:
        x = heads[:, :, :n_turned]
        if gain is not None:
            x = F.rms_norm(x, (d_head,), None, EPS) * gain
        if known is not None:
            cosine, sine = known
            first, second = x.chunk(2, dim=-1)
            x = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
        return x, heads[:, :, n_turned:]

    for found, expected in zip(rotate_heads(heads, gain, EPS, known, n_turned), composed(heads, gain), strict=True):
        torch.testing.assert_close(found, expected)
    inputs = (heads, gain) if gain is not None else (heads,)
    check = lambda heads, gain=None: rotate_heads(heads, gain, EPS, known, n_turned)  # noqa: E731
    assert torch.autograd.gradcheck(check, inputs)


def test_they_serve_in_training_on_a_cpu_in_fp32_alone() -> None:
    x = torch.ones(2, 2)
    with torch.enable_grad():
        assert use_custom_backward(x)
        assert not use_custom_backward(x.double())
        assert not use_custom_backward(x.bfloat16())
        assert not use_custom_backward(x.to("meta"))
    with torch.no_grad():
        assert not use_custom_backward(x)


CHANGES = [
    {},
    {"qk_norm": True},
    {"qk_norm": True, "positions": "learned"},
    {"positions": "none", "norm": "layer", "feedforward": "relu2"},
    {"n_kv_heads": 1, "qk_norm": True, "feedforward": "relu2"},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_a_model_has_the_same_logits_and_gradients_either_way(
    changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"vocab_size": 11, "context": 8, "d_model": 16, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "d_head": 8}
    config = ModelConfig.read({**values, "d_ff": 24, **changes}, source="the test")
    model = build_model(config, seed=3)
    assert isinstance(model, DecoderOnly)
    ids = torch.randint(11, (2, 8), generator=torch.Generator().manual_seed(1))

    def run() -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad()
        logits = model(ids)
        F.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
        return logits.detach(), {
            name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None
        }

    with torch.enable_grad():
        logits, gradients = run()
        for module in ("custom_backward", "attention"):
            monkeypatch.setattr(f"mingyue.nn.{module}.use_custom_backward", lambda _: False)
        composed_logits, composed_gradients = run()
    torch.testing.assert_close(logits, composed_logits, rtol=1e-5, atol=1e-6)
    assert gradients.keys() == composed_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, composed_gradients[name], rtol=1e-4, atol=1e-7, msg=name)


def test_functions_of_the_modules_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.enable_grad():
        x = torch.randn(2, 4, requires_grad=True)
        assert type(squared_relu(x).grad_fn).__name__ == "SquaredReLUFunctionBackward"
        assert type(gated(x).grad_fn).__name__ == "SwiGLUFunctionBackward"
        monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
        assert type(gated(x).grad_fn).__name__ == "MulBackward0"
