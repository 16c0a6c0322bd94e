"""GPT-2 (Radford et al. 2019), as `GPT2LMHeadModel` stores it: its layers hold [in, out] weights ("Conv1D")."""

from __future__ import annotations

from mingyue.config import ModelConfig
from mingyue.interop.mapping import Family, Setting, TensorRule, weight_and_bias

_ACTIVATIONS = {
    "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu": "gelu", "relu": "relu", "relu2": "relu2",
}  # fmt: skip

GPT2 = Family(
    config_class=ModelConfig,
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    settings=(
        Setting("vocab_size", "vocab_size"),
        Setting("n_positions", "context"),
        Setting("n_embd", "d_model"),
        Setting("n_layer", "n_layers"),
        Setting("n_head", "n_heads"),
        Setting("n_inner", "d_ff", default=lambda theirs: 4 * theirs["n_embd"]),
        Setting("activation_function", "feedforward", default=lambda _: "gelu_new", values=_ACTIVATIONS),
        Setting("layer_norm_epsilon", "norm_eps", default=lambda _: 1e-5),
        Setting("resid_pdrop", "dropout", default=lambda _: 0.1, also=("embd_pdrop",)),
        Setting("attn_pdrop", "attention_dropout", default=lambda _: 0.1),
        Setting("tie_word_embeddings", "tied_output", default=lambda _: True),
    ),
    fixed={
        "positions": "learned",
        "n_kv_heads": lambda ours: ours["n_heads"],
        "d_head": lambda ours: ours["d_model"] // ours["n_heads"],
        "norm": "layer",
        "norm_placement": "pre",
        "final_norm": True,
        "qk_norm": False,
        "bias_qkv": True,
        "bias_output": True,
        "bias_feedforward": True,
        "embedding_scale": False,
        "window": None,
    },
    required={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "quantization_config": None,
    },
    tensors=(
        TensorRule("embedding.weight", "transformer.wte.weight"),
        TensorRule("positions.table", "transformer.wpe.weight"),
        *weight_and_bias("blocks.{i}.attention_norm", "transformer.h.{i}.ln_1"),
        *weight_and_bias("blocks.{i}.attention.qkv", "transformer.h.{i}.attn.c_attn", transposed=True),
        *weight_and_bias("blocks.{i}.attention.output", "transformer.h.{i}.attn.c_proj", transposed=True),
        *weight_and_bias("blocks.{i}.feedforward_norm", "transformer.h.{i}.ln_2"),
        *weight_and_bias("blocks.{i}.feedforward.inner", "transformer.h.{i}.mlp.c_fc", transposed=True),
        *weight_and_bias("blocks.{i}.feedforward.output", "transformer.h.{i}.mlp.c_proj", transposed=True),
        *weight_and_bias("final_norm", "transformer.ln_f"),
        TensorRule("output.weight", "lm_head.weight"),
    ),
    ignored=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
)
