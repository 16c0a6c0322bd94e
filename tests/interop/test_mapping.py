"""The name maps are strict in both directions: the first thing that does not fit is named, with both shapes."""

from __future__ import annotations

import pytest
import torch

from mingyue.config import ModelSettings
from mingyue.errors import InteropError
from mingyue.interop import FAMILIES, choose_family, from_hf_state, to_hf_state
from mingyue.models import DecoderOnly, resolve_config

every_family = pytest.mark.parametrize("family", FAMILIES)
TABLE = "model.embed_tokens.weight"
EMBEDDING = {"gpt2": "transformer.wte.weight", "llama": TABLE, "qwen3": TABLE}


def exported(model: DecoderOnly, family: str):
    return to_hf_state(model.config, model.state_dict(), family=family)


@every_family
def test_every_weight_goes_out_and_comes_back_bit_for_bit(ours, family):
    for changes in ({}, {"tied_output": False}, {"tied_output": True}, {"n_layers": 11}):
        model = ours(family, **changes)
        description, tensors = exported(model, family)
        config, state = from_hf_state(description, tensors)
        assert config == model.config.replace(dropout=config.dropout, attention_dropout=config.attention_dropout)
        assert list(state) == list(model.state_dict())
        assert all(torch.equal(state[name], weight) for name, weight in model.state_dict().items())
        assert sum(tensor.numel() for tensor in tensors.values()) == sum(w.numel() for w in model.parameters())


@every_family
def test_what_is_written_is_a_copy(ours, family):
    model = ours(family)
    _, tensors = exported(model, family)
    before = model(torch.zeros(1, 3, dtype=torch.long))
    for tensor in tensors.values():
        assert tensor.is_contiguous()
        tensor.zero_()
    assert torch.equal(model(torch.zeros(1, 3, dtype=torch.long)), before)


@every_family
def test_a_missing_an_unexpected_and_a_misshapen_tensor_are_named_with_their_shapes(ours, family):
    description, tensors = exported(ours(family), family)
    for name, tensor in tensors.items():
        shape = list(tensor.shape)
        without = {key: value for key, value in tensors.items() if key != name}
        with pytest.raises(InteropError) as missing:
            from_hf_state(description, without)
        assert missing.value.message == f"tensor {name} {shape} is missing"
        with pytest.raises(InteropError) as misshapen:
            from_hf_state(description, {**tensors, name: torch.ones(7, *tensor.shape)})
        assert misshapen.value.message == f"tensor {name} is {[7, *shape]}, the config asks for {shape}"
    with pytest.raises(InteropError, match=r"tensor .*extra \[2, 3\] is not part of a .* model of this config.json"):
        from_hf_state(description, {**tensors, f"{FAMILIES[family].prefix}extra": torch.ones(2, 3)})


def test_a_square_weight_that_is_turned_is_really_turned(ours):
    model = ours("gpt2", d_ff=24)
    _, tensors = exported(model, "gpt2")
    for block, attention in ((0, model.blocks[0].attention), (1, model.blocks[1].attention)):
        assert torch.equal(tensors[f"transformer.h.{block}.attn.c_proj.weight"], attention.output.weight.T)
        assert torch.equal(
            tensors[f"transformer.h.{block}.attn.c_attn.weight"][:, 24:48].T, attention.qkv.weight[24:48]
        )
    assert torch.equal(tensors["transformer.h.1.mlp.c_fc.weight"], model.blocks[1].feedforward.inner.weight.T)


def test_queries_keys_values_and_gate_up_are_cut_where_they_end(ours):
    model = ours("llama", n_kv_heads=1)
    _, tensors = exported(model, "llama")
    qkv, inner = model.blocks[1].attention.qkv.weight, model.blocks[1].feedforward.inner.weight
    for name, rows in (("q_proj", slice(0, 24)), ("k_proj", slice(24, 30)), ("v_proj", slice(30, 36))):
        assert torch.equal(tensors[f"model.layers.1.self_attn.{name}.weight"], qkv[rows])
    assert torch.equal(tensors["model.layers.1.mlp.gate_proj.weight"], inner[:40])
    assert torch.equal(tensors["model.layers.1.mlp.up_proj.weight"], inner[40:])


def test_the_first_gpt2_files_have_no_prefix_and_hold_masks(ours):
    model = ours("gpt2")
    description, tensors = exported(model, "gpt2")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    masks = {f"h.{i}.attn.{name}": torch.ones(1, 1, 20, 20) for i in range(2) for name in ("bias", "masked_bias")}
    _, state = from_hf_state(description, {**bare, **masks})
    assert all(torch.equal(state[name], weight) for name, weight in model.state_dict().items())


@every_family
def test_a_tied_table_may_be_stored_twice_but_not_with_two_values(ours, family):
    description, tensors = exported(ours(family, tied_output=True), family)
    table = tensors[EMBEDDING[family]]
    assert "output.weight" not in from_hf_state(description, {**tensors, "lm_head.weight": table.clone()})[1]
    with pytest.raises(InteropError, match=r"lm_head.weight is not the embedding table"):
        from_hf_state(description, {**tensors, "lm_head.weight": table + 1})


@every_family
def test_sixteen_bits_are_read_as_fp32_and_integers_are_refused(ours, family):
    description, tensors = exported(ours(family), family)
    _, state = from_hf_state(description, {name: tensor.bfloat16() for name, tensor in tensors.items()})
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    name, tensor = next(iter(tensors.items()))
    with pytest.raises(InteropError, match=f"tensor {name} holds torch.int8 numbers"):
        from_hf_state(description, {**tensors, name: tensor.to(torch.int8)})


@every_family
def test_the_state_must_be_that_of_the_config(ours, family):
    model = ours(family)
    state = dict(model.state_dict())
    with pytest.raises(InteropError, match=r"tensor extra \[1\] does not belong to a model of this config"):
        to_hf_state(model.config, {**state, "extra": torch.ones(1)})
    removed = state.pop("final_norm.weight")
    with pytest.raises(InteropError, match=r"tensor final_norm.weight \[24\] is missing"):
        to_hf_state(model.config, state)
    with pytest.raises(InteropError, match=r"tensor final_norm.weight is \[25\], the config asks for \[24\]"):
        to_hf_state(model.config, {**state, "final_norm.weight": torch.cat([removed, removed[:1]])})


REFUSED = [
    ("gpt2", {"positions": "sinusoidal"}, "gpt2 cannot express positions sinusoidal: it has learned"),
    ("gpt2", {"n_kv_heads": 2}, "gpt2 cannot express n_kv_heads 2: it has 4"),
    ("gpt2", {"d_head": 5}, "gpt2 cannot express d_head 5: it has 6"),
    ("gpt2", {"norm": "rms"}, "gpt2 cannot express norm rms: it has layer"),
    ("gpt2", {"bias_output": False}, "gpt2 cannot express bias_output False: it has True"),
    (
        "gpt2",
        {"feedforward": "swiglu"},
        "gpt2 cannot express feedforward swiglu: it knows gelu-tanh, gelu, relu, relu2",
    ),
    ("gpt2", {"norm_placement": "post"}, "gpt2 cannot express norm_placement post: it has pre"),
    ("gpt2", {"final_norm": False}, "gpt2 cannot express final_norm False: it has True"),
    ("gpt2", {"embedding_scale": True}, "gpt2 cannot express embedding_scale True: it has False"),
    ("llama", {"window": 4}, "llama cannot express window 4: it has None"),
    ("llama", {"qk_norm": True}, "llama cannot express qk_norm True: it has False"),
    ("llama", {"bias_qkv": True}, "llama cannot express bias_output False with bias_qkv True"),
    ("llama", {"feedforward": "gelu"}, "llama cannot express feedforward gelu: it knows swiglu"),
    ("llama", {"d_model": 25, "d_head": 6}, "llama cannot express d_model 25 with n_heads 4"),
    ("qwen3", {"qk_norm": False}, "qwen3 cannot express qk_norm False: it has True"),
    ("qwen3", {"bias_feedforward": True}, "qwen3 cannot express bias_feedforward True: it has False"),
    ("qwen3", {"positions": "none"}, "qwen3 cannot express positions none: it has rotary"),
]


@pytest.mark.parametrize(("family", "changes", "words"), REFUSED)
def test_a_config_that_a_family_cannot_express_names_the_setting(ours, family, changes, words):
    with pytest.raises(InteropError) as caught:
        exported(ours(family, **changes), family)
    assert caught.value.message.startswith(words)


def test_the_family_is_found_and_where_none_fits_each_says_why(ours):
    for family in FAMILIES:
        assert choose_family(ours(family).config).model_type == family
    for preset, family in (("gpt2", "gpt2"), ("llama", "llama"), ("modern", "qwen3")):
        config = resolve_config(ModelSettings(preset=preset), vocab_size=9, depth=2, context=8)
        assert choose_family(config).model_type == family
    with pytest.raises(InteropError) as caught:
        choose_family(ours("llama", positions="sinusoidal").config)
    for family in FAMILIES:
        assert f"{family} cannot express positions sinusoidal" in caught.value.message


def test_unknown_names_are_answered_with_known_ones(ours):
    description, tensors = exported(ours("llama"), "llama")
    with pytest.raises(InteropError, match=r"model_type is 'lama'; known: gpt2, llama, qwen3\nDid you mean llama\?"):
        from_hf_state({**description, "model_type": "lama"}, tensors)
    with pytest.raises(InteropError, match="model_type is None"):
        from_hf_state({}, tensors)
    with pytest.raises(InteropError, match="family is 'bloom'"):
        exported(ours("llama"), "bloom")
    with pytest.raises(InteropError, match="there is no 'bos'; known: bos_token_id"):
        to_hf_state(ours("llama").config, ours("llama").state_dict(), special_ids={"bos": 1})


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("gpt2", {"n_embd": None}, "config.json has no n_embd"),
        ("gpt2", {"n_embd": "wide"}, "config.json describes no gpt2 model"),
        ("gpt2", {"n_head": 0}, "config.json describes no gpt2 model"),
        ("gpt2", {"activation_function": "tanh"}, "activation_function is 'tanh'; known: gelu_new"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True; only False"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config is"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; known: silu"),
        (
            "llama",
            {"num_attention_heads": 0, "head_dim": None},
            "config.json has no head_dim, and it cannot be",
        ),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type is 'yarn'; known: default"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "rope_type linear has no factor"),
        ("llama", {"rope_scaling": {"type": "llama3", "factor": 2.0}}, "rope_type llama3 has no low_freq_factor"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (
            "qwen3",
            {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
            "rope_parameters differ between layers",
        ),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types mixes"),
    ],
)
def test_a_config_that_is_not_understood_names_the_key(ours, family, changes, words):
    description, tensors = exported(ours(family), family)
    with pytest.raises(InteropError) as caught:
        from_hf_state({**description, **changes}, tensors)
    assert words in caught.value.message


def test_keys_that_are_missing_mean_what_transformers_takes_them_for(ours):
    gpt2 = {"model_type": "gpt2", "vocab_size": 31, "n_positions": 20, "n_embd": 24, "n_layer": 2, "n_head": 4}
    config = FAMILIES["gpt2"].read_config(gpt2)
    assert (config.d_ff, config.feedforward, config.norm_eps, config.dropout) == (96, "gelu-tanh", 1e-5, 0.1)
    assert config.tied_output
    llama = {
        "vocab_size": 31, "max_position_embeddings": 20, "hidden_size": 24, "intermediate_size": 40,
        "num_hidden_layers": 2, "num_attention_heads": 4,
    }  # fmt: skip
    config = FAMILIES["llama"].read_config(llama)
    assert (config.n_kv_heads, config.d_head, config.norm_eps, config.rotary_base) == (4, 6, 1e-6, 10000.0)
    assert not (config.tied_output or config.bias_qkv or config.bias_feedforward)
    config = FAMILIES["qwen3"].read_config({**llama, "head_dim": 10, "use_sliding_window": False, "sliding_window": 4})
    assert (config.window, config.d_head) == (None, 10)
    sliding = {**llama, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
    assert FAMILIES["qwen3"].read_config(sliding).window == 4
    with pytest.raises(InteropError, match="layer_types mixes"):
        FAMILIES["qwen3"].read_config({**sliding, "max_window_layers": 1})


def test_a_window_is_said_in_every_way_that_a_version_of_transformers_reads(ours):
    said = FAMILIES["qwen3"].write_config(ours("qwen3", window=5).config)
    assert (said["use_sliding_window"], said["sliding_window"], said["max_window_layers"]) == (True, 5, 0)
    assert said["layer_types"] == ["sliding_attention"] * 2
    for left_out in ("layer_types", "max_window_layers"):  # either is enough
        assert FAMILIES["qwen3"].read_config({k: v for k, v in said.items() if k != left_out}).window == 5
    said = FAMILIES["qwen3"].write_config(ours("qwen3").config)
    assert (said["use_sliding_window"], said["sliding_window"]) == (False, None)
    assert said["layer_types"] == ["full_attention"] * 2


@pytest.mark.parametrize("version", [4, 5])
def test_rotary_keys_of_transformers_4_and_5_are_both_read_and_both_written(ours, version):
    scaling = {"kind": "llama3", "factor": 8.0, "original_context": 10}
    for changes in ({}, {"rotary_scaling": {"kind": "linear", "factor": 2.0}}, {"rotary_scaling": scaling}):
        model = ours("llama", **changes)
        description, _ = exported(model, "llama")
        if version == 4:
            del description["rope_parameters"]
        else:
            del description["rope_theta"], description["rope_scaling"]
        config = FAMILIES["llama"].read_config(description)
        assert (config.rotary_base, config.rotary_scaling) == (5000.0, model.config.rotary_scaling)


def test_ntk_scaling_is_written_as_the_larger_base_that_it_is(ours):
    model = ours("llama", rotary_scaling={"kind": "ntk", "factor": 4.0})
    description, tensors = exported(model, "llama")
    assert description["rope_theta"] == pytest.approx(5000.0 * 4.0 ** (6 / 4))
    assert description["rope_scaling"] is None
    config, state = from_hf_state(description, tensors)
    again = DecoderOnly(config)
    again.load_state_dict(state)
    ids = torch.arange(20)[None]
    torch.testing.assert_close(again(ids), model(ids), rtol=0, atol=1e-5)
