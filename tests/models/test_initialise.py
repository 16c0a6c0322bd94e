"""Initial weights: measured spread, the residual rule, a uniform first prediction, one seed one model."""

from __future__ import annotations

import math

import pytest
import torch

from mingyue.config import ModelSettings
from mingyue.models import build_model, initialise, resolve_config

LAYERS = 8


def build(preset: str, seed: int = 1, **changes):
    settings = ModelSettings(preset=preset, d_model=128, **changes)
    return build_model(resolve_config(settings, vocab_size=300, depth=LAYERS, context=64), seed=seed)


def spread(weight: torch.Tensor) -> float:
    return weight.std().item()


@pytest.mark.parametrize("preset", ["gpt2", "modern", "llama"])
def test_gpt2_rule_by_measurement(preset):
    """Radford et al. 2019, section 2.3: N(0, 0.02), what writes into the residual stream divided by √(2 · layers)."""
    matrices = 0
    for name, weight in build(preset).named_parameters():
        if weight.ndim < 2:
            assert (weight == (1.0 if name.endswith("norm.weight") else 0.0)).all(), name
            continue
        residual = name.endswith((".attention.output.weight", ".feedforward.output.weight"))
        expected = 0.02 / math.sqrt(2 * LAYERS) if residual else 0.02
        assert spread(weight) == pytest.approx(expected, rel=0.05), name
        assert abs(weight.mean().item()) < 5 * expected / math.sqrt(weight.numel()), name
        matrices += residual
    assert matrices == 2 * LAYERS


def test_zero_output_rule_by_measurement():
    for name, weight in build("speed", initialisation="zero-output").named_parameters():
        if weight.ndim < 2:
            assert (weight == (1.0 if name.endswith("norm.weight") else 0.0)).all(), name
        elif name.endswith("output.weight"):
            assert (weight == 0).all(), name
        elif name == "embedding.weight":
            assert spread(weight) == pytest.approx(0.02, rel=0.05)
        else:
            assert spread(weight) == pytest.approx(1 / math.sqrt(weight.shape[1]), rel=0.05), name


def test_zero_output_starts_as_the_identity_with_a_uniform_prediction():
    model = build("speed", initialisation="zero-output")
    ids = torch.arange(20)[None]
    assert (model(ids) == 0).all()
    expected = model.final_norm(model.embedding(ids))
    assert torch.equal(model.hidden(ids), expected)


def test_the_first_prediction_of_every_preset_is_near_uniform():
    ids = torch.arange(60).view(2, 30)
    for preset in ("modern", "speed", "gpt2", "llama"):
        log_probabilities = build(preset)(ids).log_softmax(dim=-1)
        loss = -log_probabilities[:, :-1].gather(-1, ids[:, 1:, None]).mean().item()
        assert loss == pytest.approx(math.log(300), abs=0.15), preset


@pytest.mark.parametrize("preset", ["modern", "speed", "gpt2", "llama"])
def test_weights_are_a_pure_function_of_config_and_seed(preset):
    """T14: the same seed twice gives the same weights, whatever was drawn before; another seed gives others."""
    torch.manual_seed(5)
    one = build(preset).state_dict()
    torch.manual_seed(6)
    torch.rand(3)
    same, other = build(preset).state_dict(), build(preset, seed=2).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["embedding.weight"], other["embedding.weight"])


def test_building_a_model_leaves_the_global_stream_of_random_numbers_to_itself_and_can_be_repeated():
    model = build("gpt2")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1.0)
    initialise(model, seed=1)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
