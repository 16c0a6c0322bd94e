"""Rotary angles and their scaling kinds against the functions of the transformers library."""

from __future__ import annotations

import pytest
import torch

from mingyue.config import RotaryScaling
from mingyue.nn.positions import rotary_frequencies

transformers = pytest.importorskip("transformers", reason="extra `hf` is not installed")

D_HEAD, CONTEXT = 64, 128


def reference(parameters: dict, seq_len: int | None = None) -> torch.Tensor:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        hidden_size=2 * D_HEAD,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_theta": 5000.0, **parameters},
    )
    if parameters["rope_type"] == "default":
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        return LlamaRotaryEmbedding(config).inv_freq
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=seq_len)
    assert attention_factor == 1.0
    return frequencies


def ours(**scaling) -> torch.Tensor:
    return rotary_frequencies(D_HEAD, 5000.0, RotaryScaling(**scaling) if scaling else None).float()


def test_plain_and_linear():
    torch.testing.assert_close(ours(), reference({"rope_type": "default"}), rtol=1e-5, atol=0)
    expected = reference({"rope_type": "linear", "factor": 2.5})
    torch.testing.assert_close(ours(kind="linear", factor=2.5), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("stretch", [1.0, 2.0, 3.5])
def test_ntk_is_the_dynamic_kind_at_the_length_that_it_is_stretched_to(stretch):
    """Their base grows with the running length; at `stretch` times the context it is ours, from the first token on."""
    expected = reference({"rope_type": "dynamic", "factor": 1.0}, seq_len=int(stretch * CONTEXT))
    torch.testing.assert_close(ours(kind="ntk", factor=stretch), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("low", "high"), [(1.0, 4.0), (2.0, 3.0)])
def test_llama3(low, high):
    expected = reference(
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": 32,
        }
    )
    scaling = {"factor": 8.0, "original_context": 32, "low_frequency_factor": low, "high_frequency_factor": high}
    torch.testing.assert_close(ours(kind="llama3", **scaling), expected, rtol=1e-5, atol=0)
