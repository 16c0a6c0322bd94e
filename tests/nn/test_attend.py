"""Attend describes who may attend to whom; the drawing is compared with the definition, cell by cell."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mingyue.nn import CAUSAL, EVERYONE, Attend

INF = float("inf")


@st.composite
def descriptions(draw: st.DrawFn) -> tuple[Attend, int, int, int]:
    """An Attend of any conditions together, with B, T, S."""
    n_rows, n_queries, n_keys = draw(st.integers(1, 3)), draw(st.integers(1, 6)), draw(st.integers(1, 6))

    def whole(low: int, high: int, *shape: int) -> torch.Tensor:
        count = int(torch.tensor(shape).prod())
        return torch.tensor(draw(st.lists(st.integers(low, high), min_size=count, max_size=count))).view(shape)

    def sometimes(low: int, high: int, *shape: int) -> torch.Tensor | None:
        return whole(low, high, *shape) if draw(st.booleans()) else None

    query_documents = sometimes(0, 1, n_rows, n_queries)
    own = n_queries == n_keys and draw(st.booleans())
    allowed = sometimes(0, 1, draw(st.sampled_from([1, n_rows])), 1, n_queries, n_keys)
    attend = Attend(
        causal=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, 7)),
        lengths_B=sometimes(0, n_keys, n_rows),
        query_positions_BT=sometimes(0, 8, draw(st.sampled_from([1, n_rows])), n_queries),
        key_positions_BS=sometimes(0, 8, draw(st.sampled_from([1, n_rows])), n_keys),
        query_documents_BT=query_documents,
        key_documents_BS=None if query_documents is None or own else whole(0, 1, n_rows, n_keys),
        allowed=None if allowed is None else allowed.bool(),
    )
    return attend, n_rows, n_queries, n_keys


def may_attend(attend: Attend, row: int, query: int, key: int, n_queries: int, n_keys: int) -> bool:
    """The definition, for one cell."""

    def at(tensor: torch.Tensor, place: int) -> int:
        return int(tensor[row if len(tensor) > 1 else 0, place])

    asking = n_keys - n_queries + query
    if attend.query_positions_BT is not None:
        asking = at(attend.query_positions_BT, query)
    looked_at = key if attend.key_positions_BS is None else at(attend.key_positions_BS, key)
    if attend.causal and looked_at > asking:
        return False
    if attend.window is not None and abs(asking - looked_at) >= attend.window:
        return False
    if attend.lengths_B is not None and key >= int(attend.lengths_B[row]):
        return False
    if attend.query_documents_BT is not None:
        documents = attend.query_documents_BT if attend.key_documents_BS is None else attend.key_documents_BS
        if at(attend.query_documents_BT, query) != at(documents, key):
            return False
    return attend.allowed is None or bool(attend.allowed[row if len(attend.allowed) > 1 else 0, 0, query, key])


@given(descriptions())
@settings(max_examples=150, deadline=None)
def test_matrix_is_the_definition_for_every_combination_of_conditions(case):
    attend, n_rows, n_queries, n_keys = case
    drawn = attend.matrix(n_queries, n_keys).expand(n_rows, 1, n_queries, n_keys)
    expected = [
        [[may_attend(attend, b, t, s, n_queries, n_keys) for s in range(n_keys)] for t in range(n_queries)]
        for b in range(n_rows)
    ]
    assert drawn[:, 0].tolist() == expected
    shared = attend.with_matrix(n_queries, n_keys)
    assert torch.equal(shared.matrix(n_queries, n_keys).expand_as(drawn), drawn)
    assert shared.may_have_empty_rows(n_queries, n_keys) == attend.may_have_empty_rows(n_queries, n_keys)
    if attend.hides_nothing(n_queries, n_keys):
        assert drawn.all()
    if not attend.may_have_empty_rows(n_queries, n_keys):
        assert drawn.any(dim=-1).all()


def test_causal_matrix_of_three_tokens():
    assert CAUSAL.matrix(3, 3)[0, 0].tolist() == [[True, False, False], [True, True, False], [True, True, True]]


def test_the_one_query_of_a_decoding_step_sees_every_cached_key():
    """A2: 1 query on 5 cached keys with a causal flag attends all 5; likewise 2 queries are the last 2 tokens."""
    assert CAUSAL.matrix(1, 5)[0, 0].tolist() == [[True] * 5]
    assert CAUSAL.matrix(2, 5)[0, 0].tolist() == [[True, True, True, True, False], [True] * 5]


def test_window_counts_the_token_itself():
    assert Attend(causal=True, window=2).matrix(4, 4)[0, 0].int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 1],
    ]
    assert Attend(window=2).matrix(3, 3)[0, 0].int().tolist() == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]


def test_a_dense_mask_may_have_fewer_axes():
    allowed = torch.tensor([[True, False, True], [True, True, False]])
    for shape in ((2, 3), (1, 2, 3), (1, 1, 2, 3)):
        assert torch.equal(Attend(allowed=allowed.view(shape)).matrix(2, 3)[0, 0], allowed)
    assert torch.equal(Attend(allowed=allowed[0]).matrix(2, 3)[0, 0], allowed[:1].expand(2, 3))


def test_masks_of_other_conventions_have_named_conversions():
    """A1: a mask in which 1 = hidden, an additive mask and ours describe the same cells; a raw one is refused."""
    hidden = torch.tensor([[0, 1, 1], [0, 0, 1], [0, 0, 0]])
    ours = CAUSAL.matrix(3, 3)
    assert torch.equal(Attend.from_hidden(hidden).matrix(3, 3), ours)
    assert torch.equal(Attend.from_hidden(hidden.bool()).matrix(3, 3), ours)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for large in (-INF, -1e4, torch.finfo(dtype).min):
            bias = torch.zeros(3, 3, dtype=dtype).masked_fill(hidden.bool(), large)
            assert torch.equal(Attend.from_additive(bias).matrix(3, 3), ours)
        back = Attend.from_additive(CAUSAL.additive(3, 3, dtype=dtype))
        assert torch.equal(back.matrix(3, 3), ours)
    with pytest.raises(ValueError, match=r"must be boolean \(True = may attend\), not torch.int64"):
        Attend(allowed=hidden)
    with pytest.raises(ValueError, match="only 0 and large negative"):
        Attend.from_additive(torch.tensor([[0.0, -2.0]]))
    with pytest.raises(ValueError, match="only 0 and large negative"):
        Attend.from_additive(torch.tensor([[0.0, float("nan")]]))


def test_additive_is_zero_or_minus_infinity():
    bias = CAUSAL.additive(2, 2, dtype=torch.float16)
    assert bias.dtype is torch.float16
    assert bias[0, 0].tolist() == [[0.0, -INF], [0.0, 0.0]]


def test_impossible_descriptions_are_refused():
    with pytest.raises(ValueError, match="window 0"):
        Attend(window=0)
    with pytest.raises(ValueError, match="needs query_documents_BT"):
        Attend(key_documents_BS=torch.zeros(1, 3))
    one_document = Attend(query_documents_BT=torch.zeros(1, 1))
    with pytest.raises(ValueError, match="3 keys, but documents of 1"):
        one_document.matrix(1, 3)


def test_what_is_known_without_drawing():
    assert EVERYONE.hides_nothing(3, 3)
    assert CAUSAL.hides_nothing(1, 5)
    assert not CAUSAL.hides_nothing(2, 5)
    assert not Attend(window=3).hides_nothing(5, 2)  # the first query stands 4 places before the last key
    assert not Attend(lengths_B=torch.tensor([3])).hides_nothing(1, 3)
    assert CAUSAL.may_have_empty_rows(5, 2)
    assert not Attend(causal=True, window=1).may_have_empty_rows(4, 4)
