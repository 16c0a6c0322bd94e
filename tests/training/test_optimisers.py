"""Which optimiser moves which weight, at which rate, and what is saved of it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from mingyue.config import OptimiserSettings, TrainSettings
from mingyue.errors import CheckpointError
from mingyue.models import build_model
from mingyue.runtime import Runtime
from mingyue.training import Optimisers, Rates, peak_rates
from mingyue.training.names import clean_name, clean_state, load_clean_state
from mingyue.training.optimisers import group_of, matrix_rows
from mingyue.training.prepare import compiles

RATES = Rates(adamw=0.01, muon=0.02)


def give_gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator)


@pytest.mark.parametrize(
    ("name", "axes", "group"),
    [
        ("embedding.weight", 2, "embeddings"),
        ("positions.table", 2, "embeddings"),
        ("output.weight", 2, "output"),
        ("blocks.0.attention.qkv.weight", 2, "matrices"),
        ("blocks.3.feedforward.output.weight", 2, "matrices"),
        ("blocks.3.attention.output.weight", 2, "matrices"),
        ("blocks.0.attention.qkv.bias", 1, "vectors"),
        ("blocks.0.attention.query_norm.weight", 1, "vectors"),
        ("final_norm.weight", 1, "vectors"),
    ],
)
def test_groups_by_name(name, axes, group):
    assert group_of(name, torch.empty((2,) * axes)) == group


def test_every_weight_of_every_kind_of_model_is_moved(tiny_config):
    """No weight is left out: biases, learned positions and a free output layer among them."""
    config = tiny_config(
        positions="learned", tied_output=False, bias_qkv=True, bias_output=True, bias_feedforward=True, norm="layer"
    )
    for optimiser in ("muon", "adamw"):
        model = build_model(config, seed=1)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        optimisers = Optimisers(model, OptimiserSettings(optimiser=optimiser), RATES)
        give_gradients(model, 1)
        optimisers.step()
        assert not [name for name, weight in model.named_parameters() if torch.equal(weight, before[name])]


def test_slices_of_joined_weights(tiny_config):
    """Q, K, V and the two halves of SwiGLU are matrices of their own, whatever the number of key-value heads."""
    config = tiny_config()
    assert matrix_rows("blocks.0.attention.qkv.weight", torch.empty(32, 16), config) == (16, 8, 8)
    assert matrix_rows("blocks.1.feedforward.inner.weight", torch.empty(48, 16), config) == (24, 24)
    assert matrix_rows("blocks.1.feedforward.inner.weight", torch.empty(24, 16), tiny_config(feedforward="gelu")) == (
        24,
    )
    assert matrix_rows("blocks.1.attention.output.weight", torch.empty(16, 16), config) == (16,)
    model = build_model(config, seed=1)  # and they fit the real weights
    for name, weight in model.named_parameters():
        if group_of(name, weight) == "matrices":
            assert sum(matrix_rows(name, weight, config)) == weight.shape[0]


def test_only_matrices_decay(tiny_config):
    """With gradients of zero only the matrices and a free output layer shrink: gains, biases, embeddings do not."""
    for optimiser in ("muon", "adamw"):
        model = build_model(tiny_config(tied_output=False), seed=1)
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        optimisers = Optimisers(model, OptimiserSettings(optimiser=optimiser, weight_decay=0.5), RATES)
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        optimisers.step()
        for name, weight in model.named_parameters():
            decayed = weight.ndim == 2 and name != "embedding.weight"
            rate = RATES.muon if optimiser == "muon" and name.startswith("blocks") else RATES.adamw
            factor = 1 - rate * 0.5 if decayed else 1.0
            torch.testing.assert_close(weight.detach(), before[name] * factor, msg=name)


def test_rates_scale_both_optimisers(tiny_config):
    """A rate of 0 moves nothing; the multiplier acts on every weight."""
    model = build_model(tiny_config(), seed=1)
    optimisers = Optimisers(model, OptimiserSettings(), RATES)
    give_gradients(model, 1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimisers.set_rates(0.0)
    optimisers.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    optimisers.set_rates(0.5)
    assert {group["lr"] for group in optimisers.adamw.param_groups} == {0.005}
    assert optimisers.muon.rate == 0.01


@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_state_is_restored_exactly_by_name(tiny_config, optimiser):
    """T2: state saved by weight name and loaded into new optimisers continues with the same bits."""
    settings = OptimiserSettings(optimiser=optimiser)
    one = build_model(tiny_config(), seed=1)
    first = Optimisers(one, settings, RATES)
    for step in range(3):
        give_gradients(one, step)
        first.step()
    state = {name: tensor.clone() for name, tensor in first.named_state().items()}
    expected = "muon.blocks.0.attention.qkv.weight.momentum" if optimiser == "muon" else None
    assert {"adamw.embedding.weight.exp_avg", "adamw.final_norm.weight.step", expected} - {None} <= set(state)
    two = build_model(tiny_config(), seed=1)
    load_clean_state(two, clean_state(one))
    second = Optimisers(two, settings, RATES)
    second.load_named_state(state)
    for model, optimisers in ((one, first), (two, second)):
        give_gradients(model, 9)
        optimisers.step()
    assert all(torch.equal(tensor, two.state_dict()[name]) for name, tensor in one.state_dict().items())


def test_state_before_the_first_step(tiny_config):
    """A checkpoint made before any step loads too."""
    model = build_model(tiny_config(), seed=1)
    optimisers = Optimisers(model, OptimiserSettings(), RATES)
    state = {name: tensor.clone() for name, tensor in optimisers.named_state().items()}
    Optimisers(model, OptimiserSettings(), RATES).load_named_state(state)


def test_wrong_state_is_named(tiny_config):
    """A missing, misshapen or foreign tensor is an error with its name."""
    model = build_model(tiny_config(), seed=1)
    optimisers = Optimisers(model, OptimiserSettings(), RATES)
    give_gradients(model, 1)
    optimisers.step()
    state = {name: tensor.clone() for name, tensor in optimisers.named_state().items()}
    for name in ("adamw.embedding.weight.exp_avg", "muon.blocks.1.feedforward.output.weight.momentum"):
        with pytest.raises(CheckpointError, match=name):
            optimisers.load_named_state({key: value for key, value in state.items() if key != name})
        with pytest.raises(CheckpointError, match=name):
            optimisers.load_named_state(state | {name: torch.zeros(3, 3)})
    with pytest.raises(CheckpointError, match="stranger"):
        optimisers.load_named_state(state | {"adamw.stranger.exp_avg": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"adamw\.embedding\.weight"):  # Muon's run is not AdamW's
        optimisers.load_named_state(
            {name: value for name, value in state.items() if name.startswith("muon") or "final_norm" in name}
        )


def test_clean_names_after_compile(tiny_config):
    """T10: names are the model's own under a compiled wrapper, and load strictly both ways."""
    model = build_model(tiny_config(), seed=1)
    own = set(model.state_dict())
    wrapped = torch.compile(model, backend="eager")
    assert set(wrapped.state_dict()) != own
    assert set(clean_state(wrapped)) == own
    other = build_model(tiny_config(), seed=2)
    load_clean_state(torch.compile(other, backend="eager"), clean_state(wrapped))
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in other.state_dict().items())
    assert clean_name("module._orig_mod.blocks.0.attention.qkv.weight") == "blocks.0.attention.qkv.weight"


def test_wrong_weights_are_named(tiny_config):
    """T10: strict: the first missing, misshapen or foreign tensor is named."""
    model = build_model(tiny_config(), seed=1)
    state = clean_state(model)
    for wrong in (
        {name: tensor for name, tensor in state.items() if name != "final_norm.weight"},
        state | {"final_norm.weight": torch.zeros(3)},
    ):
        with pytest.raises(CheckpointError, match=r"final_norm\.weight"):
            load_clean_state(model, wrong)
    with pytest.raises(CheckpointError, match="stranger"):
        load_clean_state(model, state | {"stranger": torch.zeros(1)})


def test_rates_given_and_chosen(tiny_config):
    """Given rates stand; chosen ones follow the width; the paper's peak follows width and warm-up."""
    narrow, wide = tiny_config(), tiny_config(d_model=64)
    given = TrainSettings.from_flat(learning_rate=0.1, muon_learning_rate=0.2)
    assert peak_rates(given, narrow, 10) == Rates(0.1, 0.2)
    chosen = [peak_rates(TrainSettings(), config, 10) for config in (narrow, wide)]
    assert chosen[0].adamw == pytest.approx(2 * chosen[1].adamw)
    assert chosen[0].muon > chosen[1].muon  # below a width of 128
    assert peak_rates(TrainSettings(), tiny_config(d_model=128), 10).muon == 0.02
    assert peak_rates(TrainSettings(), tiny_config(d_model=512), 10).muon == 0.02
    paper = TrainSettings.from_flat(schedule="paper")
    assert peak_rates(paper, wide, 100).adamw == pytest.approx(64**-0.5 * 100**-0.5)
    assert peak_rates(TrainSettings.from_flat(schedule="paper", learning_rate=0.1), wide, 100).adamw == 0.1


# --- models of pairs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "axes", "group"),
    [
        ("source_embedding.weight", 2, "embeddings"),
        ("encoder.positions.table", 2, "embeddings"),
        ("decoder.positions.table", 2, "embeddings"),
        ("encoder.blocks.0.attention.qkv.weight", 2, "matrices"),
        ("decoder.blocks.0.cross_attention.query.weight", 2, "matrices"),
        ("decoder.blocks.5.cross_attention.key_value.weight", 2, "matrices"),
        ("decoder.blocks.5.cross_attention.output.weight", 2, "matrices"),
        ("decoder.blocks.0.cross_attention_norm.weight", 1, "vectors"),
        ("encoder.blocks.0.feedforward.inner.bias", 1, "vectors"),
        ("decoder.final_norm.weight", 1, "vectors"),
        ("output.bias", 1, "vectors"),
    ],
)
def test_groups_of_an_encoder_and_a_decoder(name, axes, group):
    assert group_of(name, torch.empty((2,) * axes)) == group


@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 1, "feedforward": "swiglu", "source_vocab_size": 31}])
def test_slices_of_cross_attention(tiny_pair_config, changes):
    """Keys and values of the memory are two matrices, the query one; and the slices fit every real weight."""
    config = tiny_pair_config(**changes)
    keys = 8 * config.n_kv_heads
    name = "decoder.blocks.1.cross_attention"
    assert matrix_rows(f"{name}.key_value.weight", torch.empty(2 * keys, 16), config) == (keys, keys)
    assert matrix_rows(f"{name}.query.weight", torch.empty(16, 16), config) == (16,)
    assert matrix_rows("encoder.blocks.0.attention.qkv.weight", torch.empty(16 + 2 * keys, 16), config) == (
        16,
        keys,
        keys,
    )
    model = build_model(config, seed=1)
    for each, weight in model.named_parameters():
        if group_of(each, weight) == "matrices":
            assert sum(matrix_rows(each, weight, config)) == weight.shape[0], each


def test_muon_treats_keys_and_values_of_the_memory_apart(tiny_pair_config):
    """How the keys move depends on their own gradient alone, as it would not if both halves were one matrix."""

    def moved(factor):
        model = build_model(tiny_pair_config(), seed=1)
        weight = model.get_parameter("decoder.blocks.0.cross_attention.key_value.weight")
        before = weight.detach().clone()
        optimisers = Optimisers(model, OptimiserSettings(weight_decay=0.0), RATES)
        give_gradients(model, 1)
        weight.grad[16:] *= factor
        optimisers.step()
        return (weight - before).detach().split(16)

    keys, values = moved(1.0)
    same_keys, no_values = moved(0.0)
    assert torch.equal(keys, same_keys)
    assert keys.norm() > 0 and values.norm() > 0
    assert no_values.norm() == 0


def test_every_weight_of_a_model_of_pairs_is_moved(tiny_pair_config):
    config = tiny_pair_config(
        positions="learned", tied_output=False, output_bias=True, source_vocab_size=31, bias_qkv=True, bias_output=True
    )
    for optimiser in ("muon", "adamw"):
        model = build_model(config, seed=1)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        optimisers = Optimisers(model, OptimiserSettings(optimiser=optimiser), RATES)
        give_gradients(model, 1)
        optimisers.step()
        assert not [name for name, weight in model.named_parameters() if torch.equal(weight, before[name])]


def test_compiling_reaches_every_block_of_both_stacks(pair_bench, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compiled.append(module))  # noqa: PLW0108
    model, _ = pair_bench(steps=1, compile=True).go()
    blocks = [*model.encoder.blocks, *model.decoder.blocks]
    assert len(blocks) == 3
    assert [id(block) for block in compiled] == [id(block) for block in blocks]


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [
        ("cpu", {"minutes": 60.0}, False),
        ("cpu", {"compile": True}, True),
        ("cuda", {"minutes": 60.0}, True),
        ("cuda", {"minutes": 1.0}, False),
        ("cuda", {}, True),
        ("cuda", {"steps": 100}, False),
        ("cuda", {"steps": 5000}, True),
        ("cuda", {"epochs": 1.0}, True),
        ("cuda", {"compile": False}, False),
        ("cuda", {"source": ("a.en",), "target": ("a.de",)}, False),
    ],
)
def test_blocks_are_compiled_where_it_pays(device, given, expected):
    runtime = Runtime(torch.device(device), torch.float32, threads=1)
    assert compiles(TrainSettings.from_flat(**given), runtime) is expected


def test_adamw_is_pytorchs_and_does_not_wait_for_the_compiler():
    """The same bits as torch.optim.AdamW; and torch._dynamo, 1.3 s of imports, is not loaded by making or using it."""
    program = """
import sys, torch
from mingyue.training.optimisers import AdamW
ours, theirs = (torch.nn.Parameter(torch.ones(3, 3)) for _ in range(2))
one = AdamW([ours], lr=0.1, weight_decay=0.1, fused=True)
for _ in range(3):
    ours.grad = torch.full((3, 3), 0.3)
    one.step()
assert "torch._dynamo" not in sys.modules
two = torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.1, fused=True)
for _ in range(3):
    theirs.grad = torch.full((3, 3), 0.3)
    two.step()
assert torch.equal(ours, theirs)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
