"""First weights of a model for pairs: Xavier's bounds for each matrix by itself, residual scaling for each stack."""

from __future__ import annotations

import math

import pytest
import torch

from mingyue.config import EncoderDecoderConfig, ModelSettings
from mingyue.models import build_model, initialise, resolve_pair_config

WIDTH, HEADS, D_HEAD, INNER = 96, 6, 20, 320


def build(preset: str = "paper-base", seed: int = 1, **changes):
    given = ModelSettings(
        preset=preset, d_model=WIDTH, n_heads=HEADS, d_head=D_HEAD, d_ff=INNER, n_layers=2, n_encoder_layers=8
    )
    config = resolve_pair_config(given, vocab_size=300, source_vocab_size=200, context=64).replace(**changes)
    return build_model(EncoderDecoderConfig.model_validate(config), seed=seed)


def assert_vectors(name: str, weight: torch.Tensor) -> None:
    assert (weight == (1.0 if name.endswith("norm.weight") else 0.0)).all(), name


@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 2, "feedforward": "swiglu"}])
def test_xavier_bounds_each_matrix_by_its_own_fans(changes):
    """Glorot & Bengio 2010: U(±√(6 / (fan_in + fan_out))), Q, K, V, gate and up each a matrix of its own."""
    queries, keys = HEADS * D_HEAD, changes.get("n_kv_heads", HEADS) * D_HEAD
    checked = 0
    for name, weight in build(tied_output=False, positions="learned", **changes).named_parameters():
        if weight.ndim < 2:
            assert_vectors(name, weight)
            continue
        if name.endswith("embedding.weight") or name.endswith("table") or name == "output.weight":
            assert weight.std().item() == pytest.approx(WIDTH**-0.5, rel=0.05), name
            continue
        fans = {
            "attention.qkv": (WIDTH, queries), "cross_attention.query": (WIDTH, queries),
            "cross_attention.key_value": (WIDTH, keys), "attention.output": (queries, WIDTH),
            "feedforward.inner": (WIDTH, INNER), "feedforward.output": (INNER, WIDTH),
        }  # fmt: skip
        fan_in, fan_out = next(value for key, value in fans.items() if name.endswith(f"{key}.weight"))
        bound = math.sqrt(6 / (fan_in + fan_out))
        assert weight.abs().max().item() <= bound, name
        assert weight.abs().max().item() == pytest.approx(bound, rel=0.01), name
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03), name
        checked += 1
    assert checked == 8 * 4 + 2 * 7


def test_with_the_papers_factor_embeddings_begin_with_variance_one():
    from mingyue.nn import Taps

    model, taps = build(positions="none").eval(), Taps("*.embeddings")
    model(torch.arange(50)[None], torch.arange(50)[None], taps=taps)
    for stack in ("encoder", "decoder"):
        assert taps.values[f"{stack}.embeddings"].std().item() == pytest.approx(1.0, rel=0.05)


def test_gpt2_rule_counts_the_sub_layers_of_each_stack():
    """What writes into a stream is divided by the root of how many write: 2 a block, 3 in the decoder."""
    residual = 0
    for name, weight in build(initialisation="gpt2").named_parameters():
        if weight.ndim < 2:
            assert_vectors(name, weight)
            continue
        expected = 0.02
        if name.endswith(("attention.output.weight", "feedforward.output.weight")):
            expected /= math.sqrt(2 * 8 if name.startswith("encoder.") else 3 * 2)
            residual += 1
        assert weight.std().item() == pytest.approx(expected, rel=0.05), name
    assert residual == 2 * 8 + 3 * 2


def test_zero_output_starts_both_stacks_as_the_identity_with_a_uniform_prediction():
    model = build(initialisation="zero-output", norm_placement="pre", tied_output=False, positions="none").eval()
    ids = torch.arange(20)[None]
    assert (model(ids, ids) == 0).all()
    scale = math.sqrt(WIDTH)
    torch.testing.assert_close(model.encode(ids), model.source_embedding(ids) * scale)
    memory = model.project_kv(model.encode(ids))
    torch.testing.assert_close(model.hidden(ids, memory), model.embedding(ids) * scale)


@pytest.mark.parametrize("preset", ["paper-base", "paper-big", "translate-small"])
def test_weights_are_a_pure_function_of_config_and_seed(preset):
    """T14: the same seed twice gives the same weights, whatever was drawn before; another seed gives others."""
    torch.manual_seed(5)
    one = build(preset).state_dict()
    torch.manual_seed(6)
    torch.rand(3)
    same, other = build(preset).state_dict(), build(preset, seed=2).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    matrices = [name for name, weight in one.items() if weight.ndim == 2]
    assert not any(torch.equal(one[name], other[name]) for name in matrices)
    again = build(preset, seed=3)
    initialise(again, seed=1)
    assert all(torch.equal(one[name], weight) for name, weight in again.state_dict().items())
