"""The cache's book-keeping: rows of their own length, rows that leave, capacity. (Equal logits: tests/models.)"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mingyue.nn import Cache


def small(rows: int = 3, capacity: int = 10) -> Cache:
    return Cache(n_layers=2, rows=rows, n_kv_heads=2, capacity=capacity, d_head=4)


def push(cache: Cache, texts: dict[int, list[int]]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Append a number a token to some rows, padded with 99; returns the positions and the keys seen in each layer."""
    n_tokens = max(len(text) for text in texts.values())
    padded = torch.tensor([text + [99] * (n_tokens - len(text)) for text in texts.values()], dtype=torch.float32)
    step = cache.step([len(text) for text in texts.values()], rows=list(texts))
    positions = step.begin(len(texts), n_tokens, torch.device("cpu"))
    new = padded[:, None, :, None].expand(-1, 2, -1, 4)
    seen = []
    for layer in range(2):
        keys, values = step.extend(layer, new + 1000 * layer, -new)
        assert keys.shape == values.shape
        assert torch.equal(values, -(keys - 1000 * layer * (keys != 0)))
        seen.append(keys)
    step.commit()
    return positions, seen


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_row_holds_its_own_text_whatever_the_order_of_events(data):
    """A5: positions are what a row holds, not where padding or another row put it."""
    n_rows, capacity = data.draw(st.integers(1, 3)), 12
    cache, held, number = small(n_rows, capacity), [[] for _ in range(n_rows)], 0
    for _ in range(data.draw(st.integers(1, 6))):
        match data.draw(st.sampled_from(["push", "push", "push", "clear", "keep", "copy"])):
            case "clear":
                row = data.draw(st.integers(0, len(held) - 1))
                cache.clear(row)
                held[row] = []
            case "copy":
                source, target = data.draw(st.tuples(*[st.integers(0, len(held) - 1)] * 2))
                length = data.draw(st.none() | st.integers(0, len(held[source])))
                cache.copy(source, target, length)
                held[target] = held[source][:length]
            case "keep":
                rows = data.draw(st.lists(st.integers(0, len(held) - 1), min_size=1, max_size=4))
                cache.keep(rows)
                held = [list(held[row]) for row in rows]
            case _:
                rows = data.draw(st.permutations(range(len(held))))[: data.draw(st.integers(1, len(held)))]
                texts = {}
                for row in rows:
                    count = data.draw(st.integers(0, min(4, capacity - len(held[row]))))
                    texts[row] = [number + i + 1 for i in range(count)]
                    number += count
                if not any(texts.values()):
                    continue
                starts = [len(held[row]) for row in rows]
                positions, seen = push(cache, texts)
                for i, (row, text) in enumerate(texts.items()):
                    held[row] += text
                    place = positions[min(i, len(positions) - 1)]
                    assert place[: len(text)].tolist() == list(range(starts[i], starts[i] + len(text)))
                    assert seen[0][i, 0, : len(held[row]), 0].tolist() == held[row]
                    assert seen[1][i, 1, : len(held[row]), 3].tolist() == [1000 + x for x in held[row]]
        assert cache.lengths == [len(text) for text in held]


def test_a_row_that_is_full_refuses_and_stays_as_it_was():
    cache = small(2, capacity=4)
    push(cache, {0: [1, 2, 3], 1: [4]})
    with pytest.raises(ValueError, match="row 0 holds 3 tokens; 2 more exceed the cache's capacity of 4"):
        push(cache, {0: [5, 6], 1: [7]})
    assert cache.lengths == [3, 1]
    push(cache, {0: [5], 1: [7, 8, 9]})
    assert cache.lengths == [4, 4]


def test_a_row_can_begin_as_a_part_of_another():
    cache = small(2)
    push(cache, {0: [1, 2, 3], 1: [9]})
    cache.copy(0, 1, 2)
    assert cache.lengths == [3, 2]
    _, seen = push(cache, {0: [4], 1: [5]})
    assert seen[0][0, 0, :4, 0].tolist() == [1, 2, 3, 4]
    assert seen[0][1, 0, :3, 0].tolist() == [1, 2, 5]
    with pytest.raises(ValueError, match="row 0 holds 4 tokens: 5 cannot be copied"):
        cache.copy(0, 1, 5)


def test_plans_that_do_not_fit_are_refused():
    device = torch.device("cpu")
    with pytest.raises(ValueError, match="the input has 2 rows, the cache step 3"):
        small().step().begin(2, 1, device)
    with pytest.raises(ValueError, match=r"new_lengths \[1, 2, 3\] do not fit an input of 3 rows of 2 tokens"):
        small().step([1, 2, 3]).begin(3, 2, device)
    with pytest.raises(ValueError, match="do not fit an input of 3 rows"):
        small().step([1, 2]).begin(3, 2, device)
    with pytest.raises(ValueError, match=r"rows \[1, 1\] name a cache row twice"):
        small().step(rows=[1, 1]).begin(2, 2, device)


def test_a_step_takes_effect_when_it_is_committed_and_may_be_used_again():
    cache = small(1)
    step = cache.step()
    for expected in ([0, 1], [2, 3]):
        assert step.begin(1, 2, torch.device("cpu"))[0].tolist() == expected
        step.commit()
    assert cache.lengths == [4]


def test_all_rows_may_leave():
    cache = small(2)
    push(cache, {0: [1], 1: [2, 3]})
    cache.keep([])
    assert cache.lengths == []
    assert cache.keys[0].shape == (0, 2, 10, 4)
    assert cache.step().begin(0, 1, torch.device("cpu")).shape == (0, 1)


def test_a_row_takes_over_the_beginning_of_another_and_goes_its_own_way():
    cache = small(3)
    push(cache, {0: [1, 2, 3], 2: [7, 8, 9, 10]})
    cache.copy(0, 2, 2)
    cache.copy(0, 1)
    assert cache.lengths == [3, 3, 2]
    _, seen = push(cache, {2: [50], 1: [40], 0: [30]})
    assert [seen[0][i, 0, :length, 0].tolist() for i, length in enumerate((3, 4, 4))] == [
        [1, 2, 50],
        [1, 2, 3, 40],
        [1, 2, 3, 30],
    ]
    with pytest.raises(ValueError, match="row 2 holds 3 tokens: 4 cannot be copied"):
        cache.copy(2, 0, 4)
