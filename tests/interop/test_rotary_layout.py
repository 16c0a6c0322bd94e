"""Pairs of neighbours or pairs in halves: the same function once the rows of queries and keys have changed places."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mingyue.interop import halves_from_interleaved, interleaved_from_halves
from mingyue.nn import Taps, explicit_attention
from mingyue.nn.attend import CAUSAL
from mingyue.nn.positions import rotary_frequencies


def test_one_head_of_six_by_hand():
    rows = torch.tensor([0, 1, 2, 3, 4, 5])
    assert halves_from_interleaved(rows, 6).tolist() == [0, 2, 4, 1, 3, 5]
    assert interleaved_from_halves(rows, 6).tolist() == [0, 3, 1, 4, 2, 5]


def test_heads_stay_apart():
    rows = torch.arange(8)[:, None] * torch.ones(1, 3)
    assert halves_from_interleaved(rows, 4)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2))
def test_each_is_the_inverse_of_the_other(n_heads, half, more_axes):
    weight = torch.randn(n_heads * 2 * half, *[3] * more_axes)
    assert torch.equal(interleaved_from_halves(halves_from_interleaved(weight, 2 * half), 2 * half), weight)
    assert torch.equal(halves_from_interleaved(interleaved_from_halves(weight, 2 * half), 2 * half), weight)


def turn_neighbours(x_BHTD: torch.Tensor, base: float) -> torch.Tensor:
    """The other layout, written out with complex numbers: (x[2i], x[2i + 1]) is one number, turned by its angle."""
    angles_TP = torch.arange(x_BHTD.shape[2])[:, None] * rotary_frequencies(x_BHTD.shape[3], base, None)
    pairs = torch.view_as_complex(x_BHTD.double().unflatten(-1, (-1, 2)).contiguous())
    turned = pairs * torch.polar(torch.ones_like(angles_TP), angles_TP)
    return torch.view_as_real(turned).flatten(-2).float()


@pytest.mark.parametrize("qk_norm", [False, True])
def test_a_checkpoint_with_interleaved_pairs_gives_the_same_logits(ours, qk_norm):
    """A10: a foreign model turns neighbours; its weights, permuted at the border, give its numbers in ours."""
    model = ours("llama", n_layers=1, bias_qkv=True, bias_output=True, qk_norm=qk_norm)
    attention, config = model.blocks[0].attention, model.config
    theirs = {name: weight.clone() for name, weight in attention.state_dict().items()}  # in their layout

    ids = torch.arange(12)[None] % 31
    x = model.blocks[0].attention_norm(model.embedding(ids))
    heads = (x @ theirs["qkv.weight"].T + theirs["qkv.bias"]).unflatten(-1, (-1, 6)).transpose(1, 2)
    query, key, value = heads.split([4, 2, 2], dim=1)
    if qk_norm:
        query = torch.nn.functional.rms_norm(query, (6,), theirs["query_norm.weight"], config.norm_eps)
        key = torch.nn.functional.rms_norm(key, (6,), theirs["key_norm.weight"], config.norm_eps)
    turned = (turn_neighbours(query, 5000.0), turn_neighbours(key, 5000.0), value)
    joined = explicit_attention(*turned, CAUSAL)[0].transpose(1, 2).flatten(2)
    expected = joined @ theirs["output.weight"].T + theirs["output.bias"]

    def found() -> torch.Tensor:
        taps = Taps("blocks.0.attention.output")
        model(ids, taps=taps)
        return taps.values["blocks.0.attention.output"]

    assert not torch.allclose(found(), expected, atol=1e-2)  # unpermuted weights are another function
    rows = [4 * 6, 2 * 6, 2 * 6]
    for name in ("qkv.weight", "qkv.bias"):
        query, key, value = theirs[name].split(rows)
        permuted = [halves_from_interleaved(query, 6), halves_from_interleaved(key, 6), value]
        attention.get_parameter(name).copy_(torch.cat(permuted))
    for name in ("query_norm.weight", "key_norm.weight") if qk_norm else ():
        attention.get_parameter(name).copy_(halves_from_interleaved(theirs[name], 6))
    assert (found() - expected).abs().max() < 1e-5
