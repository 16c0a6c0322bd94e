"""Logits equal to those of transformers, both ways: their random models here, ours there."""

from __future__ import annotations

import pytest
import torch

from mingyue.errors import InteropError
from mingyue.interop import from_hf_state, load_hf_folder, save_hf_folder, to_hf_state, verify_hf
from mingyue.models import DecoderOnly

pytest.importorskip("transformers", reason="extra `hf` is not installed: transformers is the other side")

V, CONTEXT = 31, 20
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip
BODY = {
    "vocab_size": V, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
}  # fmt: skip
GPT2 = {"vocab_size": V, "n_positions": CONTEXT, "n_embd": 24, "n_layer": 2, "n_head": 4}
ROPE = {"rope_type": "default", "rope_theta": 5000.0}
THEIRS = {
    "gpt2": ("GPT2", GPT2),
    "gpt2, own inner width, untied, exact gelu": (
        "GPT2", {**GPT2, "n_inner": 50, "tie_word_embeddings": False, "activation_function": "gelu"},
    ),
    "gpt2, squared relu, other eps": (
        "GPT2", {**GPT2, "activation_function": "relu2", "layer_norm_epsilon": 0.03, "resid_pdrop": 0.0},
    ),
    "llama": ("Llama", BODY),
    "llama, grouped queries, rope_theta": (
        "Llama", {**BODY, "num_key_value_heads": 2, "rope_parameters": ROPE, "rms_norm_eps": 0.02},
    ),
    "llama, one key-value head, tied": ("Llama", {**BODY, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama, llama3 scaling, biases": (
        "Llama", {**BODY, "rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True},
    ),
    "llama, linear scaling, head_dim": (
        "Llama", {**BODY, "rope_parameters": {**ROPE, "rope_type": "linear", "factor": 3.0}, "head_dim": 10},
    ),
    "qwen3, head_dim of its own": (
        "Qwen3", {**BODY, "head_dim": 10, "num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    "qwen3, sliding window, untied, biases": (
        "Qwen3",
        {
            **BODY, "head_dim": 8, "num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 4,
            "max_window_layers": 0, "attention_bias": True,
        },
    ),
}  # fmt: skip


def foreign(kind: str):
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    classes = {
        "GPT2": (GPT2Config, GPT2LMHeadModel),
        "Llama": (LlamaConfig, LlamaForCausalLM),
        "Qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }
    family, sizes = THEIRS[kind]
    config_class, model_class = classes[family]
    return model_class(config_class(**sizes, bos_token_id=1, eos_token_id=2))


def ids() -> torch.Tensor:
    return torch.randint(V, (2, CONTEXT), generator=torch.Generator().manual_seed(3))


def load(config, state) -> DecoderOnly:
    model = DecoderOnly(config)
    model.load_state_dict(state)
    return model.eval()


@pytest.mark.parametrize("kind", THEIRS)
def test_their_random_model_gives_the_same_logits_here(stirred, tmp_path, kind):
    """A10: rotary pairs in halves, turned and separate projections arrive where they belong: < 1e-4 in fp32."""
    theirs = stirred(foreign(kind))
    theirs.save_pretrained(tmp_path)
    model = load(*load_hf_folder(tmp_path))
    expected = theirs(ids()).logits
    assert expected.std() > 0.5
    assert (model(ids()) - expected).abs().max() < 1e-4
    cache = model.new_cache(2)
    parts = [model(part, cache=cache.step()) for part in ids().split([7, 1, 12], dim=1)]
    assert (torch.cat(parts, dim=1) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("kind", THEIRS)
def test_a_model_that_went_through_ours_is_theirs_again(stirred, kind):
    theirs = stirred(foreign(kind))
    before = {name: tensor for name, tensor in theirs.state_dict().items() if name != "lm_head.weight"}
    config, state = from_hf_state(theirs.config.to_dict(), theirs.state_dict())
    description, tensors = to_hf_state(config, state, special_ids={"bos_token_id": 1, "eos_token_id": 2})
    assert {name for name in tensors if name != "lm_head.weight"} == set(before)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in before.items())
    original = theirs.config.to_dict()
    again = {**type(theirs.config).from_dict(description).to_dict(), "dtype": original["dtype"]}
    left_out = {"architectures", "n_inner", "embd_pdrop", "max_window_layers", "transformers_version"}
    assert {k: v for k, v in again.items() if k not in left_out} == {
        k: v for k, v in original.items() if k not in left_out
    }


OURS = {
    "gpt2": ("gpt2", {}),
    "gpt2, untied, relu, dropout": ("gpt2", {"tied_output": False, "feedforward": "relu", "dropout": 0.1}),
    "llama": ("llama", {}),
    "llama, biases, tied, ntk scaling": (
        "llama",
        {
            "bias_qkv": True, "bias_output": True, "bias_feedforward": True, "tied_output": True,
            "rotary_scaling": {"kind": "ntk", "factor": 3.0}, "attention_dropout": 0.2,
        },
    ),
    "llama, linear scaling": ("llama", {"rotary_scaling": {"kind": "linear", "factor": 2.0}}),
    "llama, llama3 scaling": (
        "llama", {"rotary_scaling": {"kind": "llama3", "factor": 4.0, "original_context": 9}, "n_kv_heads": 1},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3, window, untied": ("qwen3", {"window": 5, "tied_output": False, "norm_eps": 0.01}),
}  # fmt: skip


@pytest.mark.parametrize("kind", OURS)
def test_our_random_model_gives_the_same_logits_there_and_comes_back_the_same(ours, tmp_path, kind, capfd):
    family, changes = OURS[kind]
    model = ours(family, **changes)
    save_hf_folder(tmp_path, model.config, model.state_dict())
    found = verify_hf(tmp_path, model)
    assert found.difference < 1e-4
    assert (found.tolerance, found.tokens) == (1e-4, 2 * CONTEXT)
    assert found.runtime.startswith("transformers ")
    assert capfd.readouterr() == ("", "")  # a library writes nothing to the screen
    config, state = load_hf_folder(tmp_path)
    assert all(torch.equal(state[name], weight) for name, weight in model.state_dict().items())
    assert set(state) == set(model.state_dict())
    if "ntk" not in kind:
        forgotten = {"dropout": config.dropout, "attention_dropout": config.attention_dropout}
        assert config == model.config.replace(**forgotten)
    assert (load(config, state)(ids()) - model(ids())).abs().max() < 1e-5


@pytest.mark.parametrize("preset", ["modern", "gpt2", "llama"])
def test_presets_go_to_their_family_as_they_are(tmp_path, preset):
    from mingyue.config import ModelSettings
    from mingyue.models import build_model, resolve_config

    config = resolve_config(ModelSettings(preset=preset), vocab_size=V, depth=2, context=CONTEXT)
    model = build_model(config, seed=1)
    special_ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    save_hf_folder(tmp_path, config, model.state_dict(), special_ids=special_ids)
    assert verify_hf(tmp_path, model).difference < 1e-4
    from transformers import AutoModelForCausalLM

    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (reloaded.config.pad_token_id, reloaded.config.bos_token_id, reloaded.config.eos_token_id) == (0, 1, 2)
    assert reloaded.generate(torch.tensor([[1, 5]]), max_new_tokens=3, min_new_tokens=3, do_sample=False).shape == (
        1,
        5,
    )


def test_verify_refuses_a_folder_that_differs(ours, tmp_path):
    model = ours("qwen3")
    save_hf_folder(tmp_path, model.config, model.state_dict())
    model.blocks[1].feedforward.output.weight[3, 4] += 0.5
    with pytest.raises(InteropError, match=r"logits in transformers differ by .* more than 1e-04"):
        verify_hf(tmp_path, model)


def test_verify_refuses_a_folder_in_which_transformers_would_make_up_weights(ours, tmp_path):
    from safetensors.torch import load_file, save_file

    model = ours("llama")
    save_hf_folder(tmp_path, model.config, model.state_dict())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InteropError, match=r"missing keys, the first is model.layers.1.mlp.up_proj.weight"):
        verify_hf(tmp_path, model)
    with pytest.raises(InteropError, match=r"tensor model.layers.1.mlp.up_proj.weight \[40, 24\] is missing"):
        load_hf_folder(tmp_path)


def test_verify_refuses_what_transformers_cannot_load(ours, tmp_path):
    with pytest.raises(InteropError, match="transformers cannot load"):
        verify_hf(tmp_path, ours("llama"))
