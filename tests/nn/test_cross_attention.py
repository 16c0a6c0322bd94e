"""Attention from one text to another: by hand, torch's beside it, several rows on one memory, bad shapes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mingyue.nn import EVERYONE, Attend, CrossAttention, Taps, make_norm


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def make(n_heads: int = 4, n_kv_heads: int = 2, d_head: int = 6, *, bias: bool = True, qk_norm: bool = False):
    torch.manual_seed(0)
    norms = [make_norm("rms", d_head, 1e-6) if qk_norm else None for _ in range(2)]
    attention = CrossAttention(
        16, n_heads, n_kv_heads, d_head, bias_qkv=bias, bias_output=bias, query_norm=norms[0], key_norm=norms[1]
    )
    for weight in attention.parameters():
        weight.copy_(torch.randn(weight.shape) * 0.5)
    return attention.eval()


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_two_source_places_by_hand():
    """M = D = 1: keys ln 1 and ln 3, values 8 and 24 → weights ¼ and ¾ for a query of 1, ½ and ½ for one of 0."""
    attention = CrossAttention(1, 1, 1, 1)
    for weight, value in (
        (attention.query.weight, [[1.0]]),
        (attention.key_value.weight, [[1.0], [8 / math.log(3)]]),
        (attention.output.weight, [[1.0]]),
    ):
        weight.copy_(torch.tensor(value))
    memory = torch.tensor([[[0.0], [math.log(3)]]])
    key, value = attention.project_kv(memory)
    assert key.flatten().tolist() == pytest.approx([0.0, math.log(3)])
    assert value.flatten().tolist() == pytest.approx([0.0, 8.0])
    found = attention(torch.tensor([[[1.0], [0.0]]]), key, value, EVERYONE)
    assert found.flatten().tolist() == pytest.approx([0.75 * 8, 0.5 * 8])


@pytest.mark.parametrize("lengths", [None, [5, 2, 1]])
def test_it_is_torchs_attention_with_the_same_weights(lengths):
    ours = make(n_kv_heads=4, d_head=4)
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key_value.weight]))
    theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key_value.bias]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())
    x, memory = random(3, 7, 16), random(3, 5, 16, seed=2)
    real = None if lengths is None else torch.arange(5) < torch.tensor(lengths)[:, None]
    expected, expected_weights = theirs(
        x, memory, memory, key_padding_mask=None if real is None else ~real, average_attn_weights=False
    )
    attend = EVERYONE if real is None else Attend(allowed=real[:, None, None])
    taps = Taps("weights")
    torch.testing.assert_close(ours(x, *ours.project_kv(memory), attend), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours(x, *ours.project_kv(memory), attend, taps=taps), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(taps.values["weights"], expected_weights, rtol=0, atol=1e-6)


def test_keys_and_values_are_the_halves_of_one_projection_and_only_keys_are_normed():
    attention, memory = make(qk_norm=True), random(2, 5, 16)
    key, value = attention.project_kv(memory)
    assert key.shape == value.shape == (2, 2, 5, 6)
    whole = memory @ attention.key_value.weight.T + attention.key_value.bias
    keys, values = (part.unflatten(-1, (2, 6)).transpose(1, 2) for part in whole.chunk(2, dim=-1))
    torch.testing.assert_close(key, attention.key_norm(keys))
    torch.testing.assert_close(value, values)
    taps = Taps(["query", "key", "value"])
    x = random(2, 3, 16, seed=2)
    attention(x, key, value, EVERYONE, taps=taps)
    queries = (x @ attention.query.weight.T + attention.query.bias).unflatten(-1, (4, 6)).transpose(1, 2)
    torch.testing.assert_close(taps.values["query"], attention.query_norm(queries))
    assert torch.equal(taps.values["key"], key)
    assert torch.equal(taps.values["value"], value)


@given(
    st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.booleans(), st.data(),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_any_number_of_rows_on_one_memory_get_what_they_get_alone(rows, each, n_tokens, n_source, qk_norm, data):
    with torch.no_grad():
        attention = make(qk_norm=qk_norm)
        x, memory = random(rows * each, n_tokens, 16), random(rows, n_source, 16, seed=2)
        lengths = torch.tensor([data.draw(st.integers(1, n_source)) for _ in range(rows)])
        real = torch.arange(n_source) < lengths[:, None]
        together = attention(x, *attention.project_kv(memory), Attend(allowed=real[:, None, None], never_empty=True))
        assert together.shape == x.shape
        for row in range(rows * each):
            source = row // each
            alone = attention(
                x[row : row + 1], *attention.project_kv(memory[source : source + 1, : lengths[source]]), EVERYONE
            )
            torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-5)


def test_rows_that_do_not_divide_among_the_memory_are_refused():
    attention = make()
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        attention(random(3, 5, 16), *attention.project_kv(random(2, 4, 16)), EVERYONE)
