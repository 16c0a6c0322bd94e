"""Attention: exact values by hand, three paths that agree, rows that see nothing, number formats, torch beside it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mingyue.nn import (
    CAUSAL,
    EVERYONE,
    Attend,
    MultiHeadAttention,
    Rotation,
    Taps,
    blocked_window_attention,
    chunked_window_attention,
    explicit_attention,
    fused_attention,
    needs_matrix,
)


def explicit(query: Tensor, key: Tensor, value: Tensor, attend: Attend) -> Tensor:
    return explicit_attention(query, key, value, attend)[0]


def tensors(shape_q: tuple[int, ...], shape_k: tuple[int, ...], *, seed: int = 0, dtype=torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (shape_q, shape_k, shape_k)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def gradients(path, inputs: list[Tensor], *arguments) -> tuple[Tensor, list[Tensor]]:
    heads = path(*inputs, *arguments)
    weight = torch.linspace(-1, 1, heads.numel()).view(heads.shape).to(heads.dtype)
    return heads.detach(), list(torch.autograd.grad((heads * weight).sum(), inputs))


def assert_same(one, other, tolerance: float = 1e-5) -> None:
    (heads, grads), (other_heads, other_grads) = one, other
    torch.testing.assert_close(heads, other_heads, rtol=0, atol=tolerance)
    for grad, other_grad in zip(grads, other_grads, strict=True):
        torch.testing.assert_close(grad, other_grad, rtol=0, atol=10 * tolerance)


# Two tokens, D = 4, so scores are divided by 2. q₂·k₁ / 2 = 0 and q₂·k₂ / 2 = ln 3: weights ¼ and ¾.
BY_HAND = (
    torch.tensor([[[[9.0, 9.0, 9.0, 9.0], [2 * math.log(3), 0.0, 0.0, 0.0]]]]),
    torch.tensor([[[[0.0, 5.0, 5.0, 5.0], [1.0, 0.0, 0.0, 0.0]]]]),
    torch.tensor([[[[4.0, 0.0, 0.0, 0.0], [8.0, 1.0, 0.0, 0.0]]]]),
)


@pytest.mark.parametrize("path", [explicit, fused_attention])
def test_two_tokens_by_hand(path):
    heads = path(*BY_HAND, CAUSAL)
    expected = torch.tensor([[4.0, 0.0, 0.0, 0.0], [0.25 * 4 + 0.75 * 8, 0.75, 0.0, 0.0]])
    torch.testing.assert_close(heads[0, 0], expected)


def test_three_tokens_by_hand_without_a_mask():
    """D = 1: weights are e^(q·k) over their sum; q = 1, keys ln 1, ln 2, ln 5."""
    query = torch.ones(1, 1, 1, 1)
    key = torch.tensor([1.0, 2.0, 5.0]).log().view(1, 1, 3, 1)
    value = torch.tensor([8.0, 16.0, 24.0]).view(1, 1, 3, 1)
    heads, weights = explicit_attention(query, key, value, EVERYONE)
    torch.testing.assert_close(weights.flatten(), torch.tensor([1.0, 2.0, 5.0]) / 8)
    torch.testing.assert_close(heads.flatten(), torch.tensor([1.0 + 4.0 + 15.0]))


def test_grouped_heads_share_their_key_value_head_in_order():
    """Query heads 0 and 1 read key-value head 0, heads 2 and 3 read head 1."""
    query, key = torch.zeros(1, 4, 1, 2), torch.zeros(1, 2, 1, 2)
    value = torch.tensor([3.0, 7.0]).view(1, 2, 1, 1).expand(1, 2, 1, 2)
    for path in (explicit, fused_attention):
        assert path(query, key, value, EVERYONE)[0, :, 0, 0].tolist() == [3.0, 3.0, 7.0, 7.0]


DESCRIPTIONS = {
    "everyone": lambda t, s: EVERYONE,
    "causal": lambda t, s: CAUSAL,
    "window": lambda t, s: Attend(causal=True, window=3),
    "wide window": lambda t, s: Attend(causal=True, window=s),
    "window both ways": lambda t, s: Attend(window=2),
    "lengths": lambda t, s: Attend(causal=True, lengths_B=torch.tensor([s, max(1, s - 3)])),
    "positions": lambda t, s: Attend(causal=True, query_positions_BT=torch.arange(t) + torch.tensor([[2], [0]])),
    "documents": lambda t, s: Attend(
        query_documents_BT=torch.arange(t)[None] // 3, key_documents_BS=torch.arange(s)[None] // 3
    ),
    "dense": lambda t, s: Attend(allowed=torch.arange(t)[:, None] % 3 <= torch.arange(s) % 5),
}


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(9, 9), (1, 9), (4, 9), (9, 4)])
@pytest.mark.parametrize("kind", DESCRIPTIONS)
def test_explicit_and_fused_agree_in_value_and_gradient(kind, n_queries, n_keys, groups):
    """A9: attention for looking and attention for speed are one function; rows that see something sum to 1."""
    attend = DESCRIPTIONS[kind](n_queries, n_keys)
    inputs = tensors((2, 4, n_queries, 8), (2, groups, n_keys, 8))
    assert_same(gradients(explicit, inputs, attend), gradients(fused_attention, inputs, attend))
    weights = explicit_attention(*inputs, attend)[1].detach()
    allowed = attend.matrix(n_queries, n_keys).expand_as(weights)
    assert (weights[~allowed] == 0).all()
    torch.testing.assert_close(weights.sum(dim=-1), allowed.any(dim=-1).float())


@given(
    window=st.integers(1, 6),
    n_tokens=st.integers(1, 20),
    groups=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None)
def test_blocked_window_is_the_dense_window_in_value_and_gradient(window, n_tokens, groups, seed):
    inputs = tensors((2, 4, n_tokens, 4), (2, groups, n_tokens, 4), seed=seed)
    dense = gradients(explicit, inputs, Attend(causal=True, window=window))
    assert_same(gradients(lambda q, k, v: blocked_window_attention(q, k, v, window), inputs), dense)
    assert_same(gradients(fused_attention, inputs, Attend(causal=True, window=window)), dense)


@given(
    window=st.integers(1, 300),
    n_tokens=st.integers(1, 500),
    groups=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=30, deadline=None)
def test_chunked_window_is_the_dense_window_in_value_and_gradient(window, n_tokens, groups, seed):
    """Whole chunks and a shorter last one, windows shorter and longer than a chunk and than the text."""
    inputs = tensors((2, 4, n_tokens, 4), (2, groups, n_tokens, 4), seed=seed, dtype=torch.float64)
    dense = gradients(explicit, inputs, Attend(causal=True, window=window))
    assert_same(gradients(lambda q, k, v: chunked_window_attention(q, k, v, window), inputs), dense, 1e-12)


def test_chunked_window_reads_heads_where_a_projection_left_them():
    """Views of one tensor, as Q, K and V are; the gradient of that tensor is the dense one."""
    joined = tensors((2, 200, 8, 4), (1,))[0]

    def split(path):
        query, key, value = (x.transpose(1, 2) for x in joined.split_with_sizes((4, 2, 2), dim=2))
        heads = path(query, key, value)
        return heads.detach(), [*torch.autograd.grad(heads.square().sum(), joined)]

    dense = split(lambda q, k, v: explicit(q, k, v, Attend(causal=True, window=40)))
    assert_same(split(lambda q, k, v: chunked_window_attention(q, k, v, 40)), dense)


@torch.enable_grad()
def test_a_window_keeps_no_copy_for_the_backward_pass():
    """Queries, keys and values where they lie, the result, a sum a row: whatever the length and the window."""
    inputs = tensors((1, 4, 1000, 8), (1, 2, 1000, 8))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        fused_attention(*inputs, Attend(causal=True, window=100))
    fresh = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}
    for given_tensor in inputs:
        fresh.pop(given_tensor.untyped_storage().data_ptr())
    assert sum(fresh.values()) == 4 * 1000 * (8 + 1) * 4


@torch.enable_grad()
def test_layers_that_share_a_drawn_description_share_its_bias():
    """One matrix of T × S numbers for all of them, not one a layer."""
    documents = torch.arange(64)[None] // 20
    drawn = Attend(causal=True, query_documents_BT=documents).with_matrix(64, 64)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        for _ in range(3):
            fused_attention(*tensors((1, 2, 64, 8), (1, 2, 64, 8)), drawn)
    matrices = {x.untyped_storage().data_ptr() for x in kept if x.shape[-2:] == (64, 64)}
    assert len(matrices) == 1


def test_a_window_longer_than_half_the_text_and_a_short_one_take_paths_that_agree():
    """Whatever path the fused call chooses for a length, changing the length by one token changes no earlier row."""
    attend = Attend(causal=True, window=4)
    query, key, value = (x.detach() for x in tensors((1, 2, 12, 8), (1, 2, 12, 8)))
    whole = fused_attention(query, key, value, attend)
    for n in range(1, 12):
        part = fused_attention(query[:, :, :n], key[:, :, :n], value[:, :, :n], attend)
        torch.testing.assert_close(part, whole[:, :, :n], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", DESCRIPTIONS)
@pytest.mark.parametrize(("n_queries", "n_keys"), [(9, 9), (1, 9), (4, 9)])
def test_the_fused_path_draws_a_matrix_only_when_it_says_so(kind, n_queries, n_keys, monkeypatch):
    attend = DESCRIPTIONS[kind](n_queries, n_keys)
    drawn = []
    draw = Attend.matrix
    monkeypatch.setattr(Attend, "matrix", lambda *a, **more: drawn.append(a) or draw(*a, **more))
    fused_attention(*tensors((2, 2, n_queries, 4), (2, 2, n_keys, 4)), attend)
    assert len(drawn) == needs_matrix(attend, n_queries, n_keys)
    expected = {"everyone": False, "causal": 1 < n_queries < n_keys, "wide window": 1 < n_queries < n_keys}
    assert needs_matrix(attend, n_queries, n_keys) == expected.get(kind, (kind, n_queries) != ("window", 9))


EMPTY_ROWS = {
    "no key is real": (Attend(lengths_B=torch.tensor([4, 0])), lambda b, t: b == 1),
    "a dense row of False": (
        Attend(allowed=torch.tensor([True, False, True, True])[:, None].expand(4, 4)),
        lambda b, t: t == 1,
    ),
    "a document of its own": (
        Attend(query_documents_BT=torch.tensor([[0, 9, 0, 0]]), key_documents_BS=torch.zeros(1, 4)),
        lambda b, t: t == 1,
    ),
    "all keys stand later": (
        Attend(causal=True, query_positions_BT=torch.tensor([[0, 1, 2, 3]]), key_positions_BS=torch.tensor([[2] * 4])),
        lambda b, t: t < 2,
    ),
    "the window is elsewhere": (
        Attend(window=2, query_positions_BT=torch.tensor([[0, 1, 50, 3]])),
        lambda b, t: t == 2,
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("path", [explicit, fused_attention])
@pytest.mark.parametrize("kind", EMPTY_ROWS)
def test_a_row_that_may_attend_to_nothing_gives_zero_with_finite_gradients(kind, path, dtype):
    attend, is_empty = EMPTY_ROWS[kind]
    inputs = tensors((2, 2, 4, 8), (2, 2, 4, 8), dtype=dtype)
    heads, grads = gradients(path, inputs, attend)
    for row in range(2):
        for query in range(4):
            assert bool((heads[row, :, query] == 0).all()) == is_empty(row, query)
            if is_empty(row, query):
                assert (grads[0][row, :, query] == 0).all()
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("kind", EMPTY_ROWS)
def test_no_step_of_the_explicit_path_makes_a_nan_even_on_the_way(kind):
    inputs = tensors((2, 2, 4, 8), (2, 2, 4, 8))
    with torch.autograd.detect_anomaly(check_nan=True):
        gradients(explicit, inputs, EMPTY_ROWS[kind][0])


@pytest.mark.parametrize("path", [explicit, fused_attention])
def test_more_queries_than_keys_leave_the_first_queries_empty(path):
    heads, grads = gradients(path, tensors((1, 2, 5, 4), (1, 2, 2, 4)), CAUSAL)
    assert (heads[:, :, :3] == 0).all()
    assert not (heads[:, :, 3:] == 0).any()
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("path", [explicit, fused_attention])
def test_no_keys_at_all_give_zero(path):
    query, nothing = torch.ones(2, 2, 3, 4), torch.ones(2, 1, 0, 4)
    for attend in (EVERYONE, CAUSAL, Attend(causal=True, query_positions_BT=torch.zeros(2, 3, dtype=torch.long))):
        assert path(query, nothing, nothing, attend).eq(0).all()


def test_blocked_window_has_finite_gradients_where_the_last_block_is_filled_up():
    heads, grads = gradients(lambda q, k, v: blocked_window_attention(q, k, v, 4), tensors((1, 2, 9, 4), (1, 2, 9, 4)))
    assert heads.isfinite().all()
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("attend", [CAUSAL, Attend(causal=True, window=2), Attend(lengths_B=torch.tensor([5, 2]))])
def test_masks_do_not_overflow_in_any_number_format(attend, dtype):
    """A8: hidden cells are exactly 0 and nothing overflows, however large the scores that the format can hold are."""
    query, key, value = (x.detach() for x in tensors((2, 2, 5, 16), (2, 2, 5, 16), dtype=dtype))
    query, key = query * 40, key * 40  # scores of some thousands, of both signs
    heads, weights = explicit_attention(query, key, value, attend)
    assert weights.dtype is dtype
    assert weights.isfinite().all()
    assert (weights[~attend.matrix(5, 5).expand_as(weights)] == 0).all()
    exact = explicit(query.float(), key.float(), value.float(), attend)
    for found in (heads, fused_attention(query, key, value, attend)):
        assert found.isfinite().all()
        torch.testing.assert_close(found.float(), exact, rtol=0, atol=0.05)


def test_attention_dropout_drops_weights_and_keeps_their_mean():
    query, key = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 4000, 4)
    value = torch.ones(1, 1, 4000, 4)
    torch.manual_seed(0)
    for dropped in (
        explicit_attention(query, key, value, EVERYONE, dropout=0.5)[0],
        fused_attention(query, key, value, EVERYONE, dropout=0.5),
    ):
        assert dropped[0, 0, 0, 0].item() != 1.0
        assert dropped[0, 0, 0, 0].item() == pytest.approx(1.0, abs=0.1)
    module = MultiHeadAttention(8, 2, 2, 4, dropout=0.5)
    x = torch.randn(1, 6, 8)
    assert torch.equal(module.eval()(x, CAUSAL, Rotation()), module(x, CAUSAL, Rotation()))
    assert not torch.equal(module.train()(x, CAUSAL, Rotation()), module.eval()(x, CAUSAL, Rotation()))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("attend", [EVERYONE, CAUSAL, Attend(lengths_B=torch.tensor([5, 3]))])
def test_multi_head_attention_is_torchs_with_the_same_weights(attend, bias):
    torch.manual_seed(3)
    reference = nn.MultiheadAttention(12, 3, bias=bias, batch_first=True)
    ours = MultiHeadAttention(12, 3, 3, 4, bias_qkv=bias, bias_output=bias)
    with torch.no_grad():
        ours.qkv.weight.copy_(reference.in_proj_weight)  # both are [Q; K; V]
        ours.output.weight.copy_(reference.out_proj.weight)
        if bias:
            ours.qkv.bias.copy_(reference.in_proj_bias.normal_())
            ours.output.bias.copy_(reference.out_proj.bias.normal_())
    x = torch.randn(2, 5, 12)
    hidden = ~attend.matrix(5, 5).expand(2, 3, 5, 5).flatten(0, 1)
    expected, weights = reference(x, x, x, attn_mask=hidden, average_attn_weights=False)
    taps = Taps(["weights"])
    torch.testing.assert_close(ours(x, attend, Rotation()), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours(x, attend, Rotation(), taps=taps), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(taps.values["weights"], weights, rtol=0, atol=1e-6)


def test_query_key_norm_works_on_each_head_with_its_gain_before_the_rotation():
    torch.manual_seed(0)
    module = MultiHeadAttention(8, 2, 1, 4, query_norm=nn.RMSNorm(4, eps=1e-6), key_norm=nn.RMSNorm(4, eps=1e-6))
    with torch.no_grad():
        module.query_norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    x = torch.randn(1, 3, 8)
    taps = Taps(["query", "key", "value"])
    module(100 * x, CAUSAL, Rotation(), taps=taps)
    query, key, value = module.qkv(x).view(1, 3, 4, 4).split([2, 1, 1], dim=2)

    def normed(heads: Tensor, gain: Tensor) -> Tensor:
        return (heads / heads.square().mean(dim=-1, keepdim=True).sqrt() * gain).transpose(1, 2)

    gain = torch.tensor([1.0, 2.0, 3.0, 4.0])
    torch.testing.assert_close(taps.values["query"], normed(query, gain), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(taps.values["key"], normed(key, torch.ones(4)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(taps.values["value"], 100 * value.transpose(1, 2), rtol=1e-4, atol=1e-4)
