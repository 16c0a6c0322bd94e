"""From a person's settings to a complete config: presets, the dial, every size by itself, contradictions in words."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mingyue.config import EncoderDecoderConfig, ModelConfig, ModelSettings
from mingyue.errors import SettingsError
from mingyue.models import build_model, resolve_config, resolve_pair_config

PRESETS = ("modern", "speed", "gpt2", "llama")


def resolve(depth: int = 4, **given_settings) -> ModelConfig:
    return resolve_config(ModelSettings(**given_settings), vocab_size=100, depth=depth, context=64)


def test_the_default_is_modern_and_shaped_like_qwen3():
    config = resolve()
    assert config == resolve(preset="modern")
    assert (config.positions, config.norm, config.feedforward) == ("rotary", "rms", "swiglu")
    assert config.qk_norm
    assert config.tied_output
    assert not (config.bias_qkv or config.bias_output or config.bias_feedforward)
    assert (config.norm_placement, config.final_norm, config.norm_eps) == ("pre", True, 1e-6)


def test_gpt2_is_shaped_like_gpt2():
    config = resolve(preset="gpt2")
    assert (config.positions, config.norm, config.feedforward) == ("learned", "layer", "gelu-tanh")
    assert config.bias_qkv
    assert config.bias_output
    assert config.bias_feedforward
    assert config.tied_output
    assert not config.qk_norm
    assert (config.n_kv_heads, config.d_ff, config.norm_eps) == (config.n_heads, 4 * config.d_model, 1e-5)


def test_llama_is_shaped_like_llama_with_grouped_queries():
    config = resolve(preset="llama", depth=8)
    assert (config.positions, config.norm, config.feedforward) == ("rotary", "rms", "swiglu")
    assert not (config.qk_norm or config.tied_output or config.bias_qkv)
    assert (config.n_heads, config.n_kv_heads) == (8, 2)


def test_speed_has_the_parts_that_are_cheap_on_a_cpu_and_an_output_layer_of_its_own():
    config = resolve(preset="speed")
    assert (config.feedforward, config.norm, config.tied_output) == ("relu2", "layer", False)


@pytest.mark.parametrize(("context", "base"), [(16, 100.0), (64, 100.0), (256, 256.0), (8192, 8192.0)])
def test_the_slowest_rotary_pair_turns_over_a_context(context, base):
    def base_of(**settings):
        return resolve_config(ModelSettings(**settings), vocab_size=100, depth=2, context=context).rotary_base

    assert base_of() == base_of(preset="speed") == base
    assert base_of(preset="llama") == 10000.0
    assert base_of(rotary_base=777.0) == 777.0


@pytest.mark.parametrize("preset", PRESETS)
def test_the_dial_sets_layers_and_width_together(preset):
    for depth in (1, 2, 6, 12):
        config = resolve(depth, preset=preset)
        assert config.n_layers == depth
        assert config.d_model == 64 * depth
        assert config.d_head == (16 if depth <= 2 else 32 if depth <= 4 else 64)
        assert config.n_heads * config.d_head == config.d_model
    sizes = [sum(p.numel() for p in build_model(resolve(d, preset=preset), seed=1).parameters()) for d in (1, 2, 3)]
    assert all(one < next_one for one, next_one in pairwise(sizes))


EVERY_SETTING = {
    "d_model": 80,
    "n_layers": 3,
    "n_heads": 5,
    "n_kv_heads": 1,
    "d_head": 18,
    "d_ff": 77,
    "positions": "sinusoidal",
    "feedforward": "relu",
    "norm": "layer",
    "norm_placement": "post",
    "qk_norm": True,
    "tied_output": False,
    "rotary_base": 777.0,
    "window": 9,
    "dropout": 0.25,
    "attention_dropout": 0.125,
    "initialisation": "zero-output",
}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", EVERY_SETTING)
def test_every_size_and_choice_can_be_set_by_itself(name, preset):
    value = EVERY_SETTING[name]
    more = {"d_model": 80} if name == "n_heads" else {"n_heads": 4} if name == "d_head" else {}
    config = resolve(preset=preset, **{name: value, **more})
    assert getattr(config, name) == value
    logits = build_model(config, seed=1)(torch.zeros(1, 3, dtype=torch.long))
    assert logits.shape == (1, 3, 100)


def test_no_setting_of_a_model_is_forgotten():
    """`n_encoder_layers` is for models of pairs alone; see below."""
    known = {*EVERY_SETTING, "preset", "depth", "context", "n_encoder_layers"}
    assert known == set(ModelSettings.model_fields)


def test_a_setting_that_is_false_or_zero_wins_over_the_preset():
    assert resolve(preset="modern", qk_norm=False).qk_norm is False
    assert resolve(preset="gpt2", tied_output=False).tied_output is False
    assert resolve(preset="gpt2", dropout=0.0).dropout == 0.0


def test_a_gated_part_gets_two_thirds_of_the_width_so_that_parameters_stay_equal():
    assert resolve(d_model=96).d_ff == 256
    assert resolve(d_model=128).d_ff == 352  # 341 rounded up to a multiple of 32
    assert resolve(d_model=96, feedforward="gelu").d_ff == 384


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(8, 2), (4, 1), (6, 3), (5, 5), (1, 1)])
def test_llama_groups_queries_as_far_as_the_heads_divide(n_heads, n_kv_heads):
    assert resolve(preset="llama", n_heads=n_heads, d_model=240).n_kv_heads == n_kv_heads


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"n_heads": 6, "n_kv_heads": 4, "d_model": 60}, "n_heads 6 is not a multiple of n_kv_heads 4"),
        ({"n_heads": 3, "d_model": 64}, "d_model 64 is not a multiple of n_heads 3"),
        ({"d_head": 15}, "d_head 15 must be even"),
        ({"n_heads": 4, "d_model": 20}, "d_head 5 must be even"),
    ],
)
def test_sizes_that_contradict_each_other_are_named(wrong, words):
    with pytest.raises(SettingsError, match=words):
        resolve(**wrong)


@given(st.integers(1, 40), st.sampled_from(PRESETS), st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_any_depth_and_any_width_give_a_config_or_an_error_in_words(depth, preset, d_model):
    assert resolve(depth, preset=preset).n_layers == depth
    config = resolve(depth, preset=preset, d_model=d_model)
    assert config.d_model == d_model
    assert config.n_heads % config.n_kv_heads == 0


# Models for pairs.

PAIR_PRESETS = ("paper-base", "paper-big", "translate-small")
EVERY_PAIR_SETTING = {name: value for name, value in EVERY_SETTING.items() if name != "window"} | {
    "n_encoder_layers": 7
}


def resolve_pairs(source_vocab_size: int | None = None, **given_settings) -> EncoderDecoderConfig:
    return resolve_pair_config(
        ModelSettings(**given_settings), vocab_size=100, source_vocab_size=source_vocab_size, context=64
    )


def test_the_default_for_pairs_is_small_with_norms_first():
    config, paper = resolve_pairs(), resolve_pairs(preset="paper-base")
    assert config == resolve_pairs(preset="translate-small")
    assert (config.norm_placement, config.final_norm) == ("pre", True)
    for size in ("d_model", "d_ff", "n_layers", "n_encoder_layers"):
        assert 2 * getattr(config, size) <= getattr(paper, size), size
    assert config.n_encoder_layers == config.n_layers
    assert config.d_head * config.n_heads == config.d_model
    assert config.tied_output
    assert config.source_vocab_size is None
    assert resolve_pairs(source_vocab_size=70).source_vocab_size == 70


@pytest.mark.parametrize(
    ("preset", "sizes"),
    [("paper-base", (6, 512, 2048, 8, 64, 0.1)), ("paper-big", (6, 1024, 4096, 16, 64, 0.3))],
)
def test_the_papers_models_are_those_of_table_3(preset, sizes):
    """Vaswani et al. 2017, table 3: N, d_model, d_ff, h, d_k, P_drop; sections 3.1, 3.3, 3.4 and 3.5 for the rest."""
    config = resolve_pairs(preset=preset)
    found = (config.n_layers, config.d_model, config.d_ff, config.n_heads, config.d_head, config.dropout)
    assert found == sizes
    assert (config.n_encoder_layers, config.n_kv_heads) == (config.n_layers, config.n_heads)
    assert (config.positions, config.sinusoid_layout) == ("sinusoidal", "interleaved")
    assert (config.norm, config.norm_placement, config.final_norm) == ("layer", "post", False)
    assert (config.feedforward, config.bias_feedforward) == ("relu", True)
    assert config.embedding_scale
    assert config.tied_output
    assert config.attention_dropout == 0.0


@pytest.mark.parametrize("preset", PAIR_PRESETS)
@pytest.mark.parametrize("name", EVERY_PAIR_SETTING)
def test_every_size_and_choice_of_a_model_for_pairs_can_be_set_by_itself(name, preset):
    value = EVERY_PAIR_SETTING[name]
    small = {"d_model": 80, "n_heads": 4, "n_layers": 2, "d_ff": 33}
    config = resolve_pairs(preset=preset, **{**small, name: value})
    assert getattr(config, name) == value
    unchanged = resolve_pairs(preset=preset, **small)
    follows = {"n_layers": {"n_encoder_layers"}, "n_heads": {"d_head", "n_kv_heads"}, "d_model": {"d_head"}}
    differing = {key for key in type(config).model_fields if getattr(config, key) != getattr(unchanged, key)}
    assert differing <= {name} | follows.get(name, set())
    ids = torch.zeros(1, 3, dtype=torch.long)
    assert build_model(config, seed=1)(ids, ids).shape == (1, 3, 100)


def test_no_setting_of_a_model_for_pairs_is_forgotten():
    assert {*EVERY_PAIR_SETTING, "preset", "depth", "context", "window"} == set(ModelSettings.model_fields)


def test_the_dial_of_pairs_sets_layers_of_both_stacks_and_width_together():
    config = resolve_pairs(depth=4)
    assert (config.n_layers, config.n_encoder_layers, config.d_model, config.d_ff) == (4, 4, 256, 1024)
    assert resolve_pairs(depth=4, n_encoder_layers=9).n_encoder_layers == 9
    assert resolve_pairs(n_layers=2).n_encoder_layers == 2


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_of_one_text_are_refused_for_pairs_and_the_other_way_round(preset):
    with pytest.raises(SettingsError, match=f"preset {preset} is a decoder-only model"):
        resolve_pairs(preset=preset)
    for pair_preset in PAIR_PRESETS:
        with pytest.raises(SettingsError, match=f"preset {pair_preset} is an encoder-decoder model"):
            resolve(preset=pair_preset)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"window": 5}, "a sliding window is for decoder-only models"),
        ({"n_heads": 6, "n_kv_heads": 4, "d_model": 60}, "n_heads 6 is not a multiple of n_kv_heads 4"),
        ({"n_heads": 3, "d_model": 64}, "d_model 64 is not a multiple of n_heads 3"),
        ({"d_head": 15, "positions": "rotary"}, "d_head 15 must be even"),
    ],
)
def test_sizes_of_pairs_that_contradict_each_other_are_named(wrong, words):
    with pytest.raises(SettingsError, match=words):
        resolve_pairs(**wrong)


@given(st.integers(1, 20), st.sampled_from(PAIR_PRESETS), st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_any_depth_and_any_width_give_a_config_for_pairs(depth, preset, d_model):
    assert resolve_pairs(depth=depth, preset=preset).n_encoder_layers == depth
    config = resolve_pairs(depth=depth, preset=preset, d_model=d_model)
    assert config.d_model == d_model
    assert config.n_heads % config.n_kv_heads == 0
