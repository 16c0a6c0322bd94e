"""Sizes by formula against the real module, torch's own counter of operations, and what autograd really keeps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from mingyue.config import ModelConfig, ModelSettings, OptimiserSettings
from mingyue.models import DecoderOnly, build_model, resolve_config, sizes
from mingyue.nn import CAUSAL, Attend

ROWS, CONTEXT, VOCABULARY = 2, 24, 50


def preset(name: str, **changes) -> ModelConfig:
    given_settings = ModelSettings(preset=name, d_model=96, n_heads=4, d_head=20, d_ff=70)
    return resolve_config(given_settings, vocab_size=VOCABULARY, depth=3, context=CONTEXT).replace(**changes)


CONFIGS = {
    "modern": preset("modern"),
    "speed": preset("speed"),
    "gpt2": preset("gpt2"),
    "llama, grouped queries": preset("llama"),
    "one key-value head": preset("modern", n_kv_heads=1, tied_output=False),
    "the paper": preset("gpt2", positions="sinusoidal", feedforward="relu", norm_placement="post", final_norm=False),
}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@st.composite
def any_config(draw: st.DrawFn) -> ModelConfig:
    groups, n_kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    flags = ("final_norm", "qk_norm", "bias_qkv", "bias_output", "bias_feedforward", "tied_output")
    return ModelConfig(
        vocab_size=draw(st.integers(1, 30)), context=draw(st.integers(1, 9)), d_model=draw(st.integers(1, 12)),
        n_layers=draw(st.integers(1, 3)), n_heads=groups * n_kv_heads, n_kv_heads=n_kv_heads,
        d_head=2 * draw(st.integers(1, 4)), d_ff=draw(st.integers(1, 12)),
        positions=draw(st.sampled_from(["none", "learned", "sinusoidal", "rotary"])),
        feedforward=draw(st.sampled_from(["relu", "gelu", "relu2", "swiglu"])),
        norm=draw(st.sampled_from(["layer", "rms"])),
        **{flag: draw(st.booleans()) for flag in flags},
    )  # fmt: skip


@given(any_config())
@settings(max_examples=60, deadline=None)
def test_parameters_by_part_are_those_of_the_real_module(config):
    with torch.device("meta"):
        model = DecoderOnly(config)
    counts = dict.fromkeys(sizes(config).parts(), 0)
    matrices = 0
    for name, weight in model.named_parameters():
        part = next(
            (key for key in ("attention.", "feedforward.", "norm") if key in name), name.split(".", maxsplit=1)[0]
        ).rstrip(".")
        counts["norms" if part == "norm" else part] += weight.numel()
        matrices += weight.numel() if name.startswith("blocks.") and weight.ndim == 2 else 0
    found = sizes(config)
    assert found.parts() == counts
    assert found.block_matrices == matrices
    assert found.parameters == sum(weight.numel() for weight in model.parameters())
    tables = sum(found.parts()[name] for name in ("embedding", "positions", "output"))
    assert found.parameters_without_embeddings == found.parameters - tables


def test_gpt2_small_has_its_published_number_of_parameters():
    config = resolve_config(
        ModelSettings(preset="gpt2", d_model=768, n_heads=12), vocab_size=50257, depth=12, context=1024
    )
    assert sizes(config).parameters == 124_439_808
    assert sizes(config).cache_bytes() == 2 * 12 * 768 * 1024 * 4


@torch.enable_grad()
def counted(config: ModelConfig) -> tuple[int, int]:
    """(forward, forward and backward) by torch's counter, which is told of the CPU's fused attention by its own rule.

    Its rule looks at shapes alone: a causal call counts T keys for each query.
    """

    def forward(query, key, value, *_, out_val=None, **__):
        return sdpa_flop_count(query, key, value)

    def backward(grad, query, key, value, *_, out_val=None, **__):
        return sdpa_backward_flop_count(grad, query, key, value)

    rules = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: forward,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
    }
    model = build_model(config, seed=1)
    with FlopCounterMode(display=False, custom_mapping=rules) as counter:
        logits = model(torch.zeros(ROWS, config.context, dtype=torch.long))
        after_forward = counter.get_total_flops()
        logits.sum().backward()
        return after_forward, counter.get_total_flops()


@every_config
def test_operations_are_those_that_torch_counts_forward_and_backward(config):
    tokens = ROWS * config.context
    found = sizes(config)
    assert counted(config) == (
        pytest.approx(tokens * found.forward_flops(dense=True), rel=1e-12),
        pytest.approx(tokens * found.training_flops(dense=True), rel=1e-12),
    )


@pytest.mark.parametrize("window", [1, 5, 11, 12, 30])
def test_operations_in_a_window_are_those_of_its_chunks(window):
    config = preset("modern", window=window)
    forward, training = counted(config)
    assert forward == pytest.approx(ROWS * CONTEXT * sizes(config).forward_flops(dense=True), rel=1e-12)
    assert training == pytest.approx(ROWS * CONTEXT * sizes(config).training_flops(dense=True), rel=1e-12)


def test_torch_counts_a_causal_mask_as_if_it_hid_nothing():
    """Why `dense` exists: the counter's figure is the same for a causal call and one that hides nothing."""
    query = torch.ones(1, 2, 8, 4)

    def count(**more) -> int:
        with (
            FlopCounterMode(display=False) as counter,
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            F.scaled_dot_product_attention(query, query, query, **more)
        return counter.get_total_flops()

    assert count(is_causal=True) == count() == 2 * 2 * 2 * 8 * 8 * 4  # two products, a multiply-add is 2


@pytest.mark.parametrize("window", [None, 1, 4, 24, 99])
@pytest.mark.parametrize("context", [1, 7, 24])
def test_attention_counts_the_keys_that_are_seen(window, context):
    config = preset("llama", window=window)
    seen = (CAUSAL if window is None else Attend(causal=True, window=window)).matrix(context, context).sum().item()
    found = sizes(config)
    products = 2 * (found.block_matrices + VOCABULARY * 96)
    per_token = 2 * 2 * 3 * 4 * 20 * seen / context  # two products, multiply-add, layers, heads, width, keys
    assert found.forward_flops(context) == pytest.approx(products + per_token)
    assert found.training_flops(context) == pytest.approx(3 * products + 3.5 * per_token)


def kept_by_autograd(config: ModelConfig) -> int:
    """Bytes of everything that a forward pass keeps for backward, weights aside, each storage once."""
    model = build_model(config, seed=1).train()
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(torch.zeros(ROWS, config.context, dtype=torch.long))
    assert logits.requires_grad
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    return sum(size for address, size in storages.items() if address not in own)


@every_config
def test_activations_are_what_autograd_keeps(config):
    with torch.enable_grad():
        kept = kept_by_autograd(config)
    assert sizes(config).activation_bytes(ROWS, logits=False) == pytest.approx(kept, rel=0.03)


@pytest.mark.parametrize("changes", [{"dropout": 0.1}, {"attention_dropout": 0.1}, {"window": 6}, {"window": 20}])
def test_activations_with_dropout_or_in_a_window(changes):
    for config in (preset("modern", **changes), preset("llama", **changes)):
        with torch.enable_grad():
            kept = kept_by_autograd(config)
        assert sizes(config).activation_bytes(ROWS, logits=False) == pytest.approx(kept, rel=0.1)


def test_activations_grow_with_rows_context_and_number_format_and_count_logits_twice():
    found = sizes(preset("modern"))
    one = found.activation_bytes(1, 10, logits=False)
    assert found.activation_bytes(3, 10, logits=False) == 3 * one
    assert found.activation_bytes(1, 10, logits=False, bytes_per_number=2) == one // 2
    assert found.activation_bytes(1, 10) == one + 10 * 2 * VOCABULARY * 4


@every_config
def test_weights_and_caches_take_the_bytes_of_the_real_ones(config):
    model = build_model(config, seed=1)
    assert sizes(config).weight_bytes() == sum(weight.nbytes for weight in model.parameters())
    assert sizes(config).weight_bytes(2) == sum(weight.nbytes for weight in model.bfloat16().parameters())
    cache = build_model(config, seed=1).new_cache(3, capacity=7)
    assert sizes(config).cache_bytes(3, 7) == sum(held.nbytes for held in (*cache.keys, *cache.values))
    assert sizes(config).cache_bytes(3, 999) == sizes(config).cache_bytes(3)


@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
@every_config
def test_optimisers_remember_the_bytes_of_the_real_ones(config, optimiser):
    from mingyue.training.optimisers import Optimisers, Rates

    model = build_model(config, seed=1)
    with torch.enable_grad():
        model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    optimisers = Optimisers(model, OptimiserSettings(optimiser=optimiser), Rates(1e-3, 1e-3))
    optimisers.step()
    remembered = [value for name, value in optimisers.named_state().items() if not name.endswith(".step")]
    assert sizes(config).optimiser_bytes(optimiser) == sum(value.nbytes for value in remembered)


def test_training_bytes_add_up():
    found = sizes(preset("gpt2"))
    bill = found.training_bytes("muon", 4, 16, activation_bytes_per_number=2, logits=False)
    assert bill.weights == bill.gradients == found.weight_bytes()
    assert bill.optimiser == found.optimiser_bytes("muon") + 4 * found.block_matrices
    assert bill.activations == found.activation_bytes(4, 16, bytes_per_number=2, logits=False)
    assert bill.total == bill.weights + bill.gradients + bill.optimiser + bill.activations
    assert found.training_bytes("adamw", 4, 16).optimiser == 8 * found.parameters
