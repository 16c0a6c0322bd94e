"""The promise "the same text, always", at the level of logits: masks, padding, caches, chunks, every position kind."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mingyue.nn import Attend, Taps

KINDS = {
    "none": {"positions": "none"},
    "learned": {"positions": "learned", "norm": "layer", "bias_qkv": True, "bias_output": True},
    "sinusoidal": {"positions": "sinusoidal", "norm_placement": "post", "final_norm": False, "embedding_scale": True},
    "rotary": {"positions": "rotary", "qk_norm": True},
    "rotary, scaled": {"positions": "rotary", "rotary_scaling": {"kind": "ntk", "factor": 2.0}, "n_kv_heads": 4},
    "rotary, window": {"positions": "rotary", "window": 3},
    "learned, window": {"positions": "learned", "window": 5, "n_kv_heads": 1, "d_head": 7},
}
every_kind = pytest.mark.parametrize("kind", KINDS)
TOLERANCE = 1e-5
LARGE = 2e-6  # of the largest value: logits reach 12, whose last bit is 1e-6, and each processor sums in its own order
FIXTURE_IS_SAFE = [HealthCheck.function_scoped_fixture]  # it only makes models


def random_ids(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 23, shape, generator=torch.Generator().manual_seed(seed))


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    atol = max(TOLERANCE, LARGE * float(expected.detach().abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@every_kind
@pytest.mark.parametrize("looking", [False, True])
def test_a_later_token_changes_no_earlier_logit_exactly(lively, kind, looking):
    """A1: changing token j > i changes no logit at i, not by one bit, on the fused and on the explicit path."""
    model, ids = lively(**KINDS[kind]), random_ids(2, 20)

    def logits(ids: torch.Tensor) -> torch.Tensor:
        return model(ids, taps=Taps("blocks.*.attention.weights") if looking else None)

    before = logits(ids)
    for j in (1, 7, 19):
        changed = ids.clone()
        changed[:, j] = (changed[:, j] + 1) % 23
        after = logits(changed)
        assert torch.equal(after[:, :j], before[:, :j])
        assert not torch.equal(after[:, j], before[:, j])


@every_kind
def test_token_by_token_with_a_cache_equals_one_pass_in_every_layer(lively, kind):
    """A3: equal logits and equal layer outputs at every step. A2: each step is 1 query on all cached keys."""
    model, ids = lively(**KINDS[kind]), random_ids(2, 24)
    whole = Taps(["blocks.*.output", "logits"])
    model(ids, taps=whole)
    cache = model.new_cache(2)
    for t in range(24):
        step = Taps(["blocks.*.output", "logits"])
        model(ids[:, t : t + 1], cache=cache.step(), taps=step)
        assert set(step.values) == {"blocks.0.output", "blocks.1.output", "logits"}
        for name, value in step.values.items():
            assert_close(value[:, 0], whole.values[name][:, t])
    assert cache.lengths == [24, 24]


@every_kind
@pytest.mark.parametrize("chunks", [[24], [1, 23], [10, 14], [7, 1, 1, 9, 6]])
def test_several_tokens_onto_a_cache_equal_one_pass(lively, kind, chunks):
    """A4: a long prompt in chunks, a second turn of a dialogue."""
    model, ids = lively(**KINDS[kind]), random_ids(2, 24)
    cache = model.new_cache(2)
    parts = [model(part, cache=cache.step()) for part in ids.split(chunks, dim=1)]
    assert_close(torch.cat(parts, dim=1), model(ids))


@every_kind
def test_rows_that_hold_different_lengths_continue_from_their_own(lively, kind):
    """A5: position and angle come from what each row holds, not from row 0."""
    model, ids = lively(**KINDS[kind]), random_ids(3, 24)
    held = [3, 11, 8]
    cache = model.new_cache(3)
    for row, length in enumerate(held):
        model(ids[row : row + 1, :length], cache=cache.step(rows=[row]))
    next_ids = torch.stack([ids[row, length : length + 2] for row, length in enumerate(held)])
    found = model(next_ids, cache=cache.step())
    for row, length in enumerate(held):
        assert_close(found[row], model(ids[row : row + 1, : length + 2])[0, length:])


@every_kind
def test_prompts_of_different_lengths_in_one_batch_get_the_logits_they_get_alone(lively, kind):
    """A6: padded on the right by lengths, padded on the left by positions, and as ragged rows of a cache."""
    model, lengths = lively(**KINDS[kind]), [9, 1, 5, 12]
    rows = [random_ids(1, length, seed=length) for length in lengths]
    alone = [model(row)[0] for row in rows]

    padded = torch.full((4, 12), 22)
    for i, row in enumerate(rows):
        padded[i, : row.shape[1]] = row
    by_lengths = model(padded, attend=Attend(lengths_B=torch.tensor(lengths)))
    in_cache = model(padded, cache=model.new_cache(4).step(lengths))

    left = torch.stack([row.roll(12 - length) for row, length in zip(padded, lengths, strict=True)])
    offset = torch.tensor([[12 - length] for length in lengths])
    real = torch.arange(12) >= offset
    positions = (torch.arange(12) - offset).clamp(min=0)
    by_positions = model(left, positions_BT=positions, attend=Attend(allowed=real[:, None, None, :]))

    for i, length in enumerate(lengths):
        assert_close(by_lengths[i, :length], alone[i])
        assert_close(in_cache[i, :length], alone[i])
        assert_close(by_positions[i, 12 - length :], alone[i])


@every_kind
def test_padding_means_the_same_in_training_and_in_evaluation(lively, kind):
    """A7: train mode with dropout 0 and eval mode are equal on every real row."""
    model, lengths = lively(**KINDS[kind]), torch.tensor([9, 4])
    ids = random_ids(2, 9)
    evaluated = model.eval()(ids, attend=Attend(lengths_B=lengths))
    trained = model.train()(ids, attend=Attend(lengths_B=lengths))
    for row, length in enumerate(lengths):
        assert torch.equal(trained[row, :length], evaluated[row, :length])


@every_kind
def test_packed_documents_get_the_logits_they_get_alone(lively, kind):
    model = lively(**KINDS[kind])
    ids = random_ids(1, 15)
    documents = torch.tensor([[4] * 6 + [7] * 8 + [4]])
    positions = torch.tensor([[*range(6), *range(8), 6]])
    found = model(ids, positions_BT=positions, attend=Attend(query_documents_BT=documents))
    assert_close(found[:, :6], model(ids[:, :6]))
    assert_close(found[:, 6:14], model(ids[:, 6:14]))
    if model.config.window is None:  # a document in two pieces is one text
        assert_close(found[0, 14], model(torch.cat([ids[:, :6], ids[:, 14:]], dim=1))[0, -1])


@every_kind
def test_a_run_for_looking_equals_a_run_for_speed(lively, kind):
    """A9: explicit and fused attention give the same logits, whole and from a cache; rows of weights sum to 1."""
    model, ids = lively(**KINDS[kind]), random_ids(2, 20)
    taps = Taps("*")
    expected = model(ids)
    assert_close(model(ids, taps=taps), expected)
    cache = model.new_cache(2)
    model(ids[:, :13], cache=cache.step(), taps=Taps("*"))
    from_cache = Taps("*")
    assert_close(model(ids[:, 13:], cache=cache.step(), taps=from_cache), expected[:, 13:])
    drawn = Attend(causal=True, window=model.config.window).matrix(20, 20)
    for layer in range(2):
        for weights, allowed in (
            (taps.values[f"blocks.{layer}.attention.weights"], drawn),
            (from_cache.values[f"blocks.{layer}.attention.weights"], drawn[:, :, 13:]),
        ):
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
            assert (weights[~allowed.expand_as(weights)] == 0).all()


@pytest.mark.parametrize("kind", ["learned", "rotary", "rotary, window"])
@given(data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=FIXTURE_IS_SAFE)
def test_a_queue_of_texts_through_the_rows_of_one_cache(lively, kind, data):
    """Rows leave, others take their place, rows are doubled and reordered: every logit is the one of the text alone."""
    with torch.no_grad():
        model = lively(**KINDS[kind])
        cache, texts = model.new_cache(3), [torch.empty(0, dtype=torch.long)] * 3
        for event in range(data.draw(st.integers(2, 5))):
            if data.draw(st.booleans()):
                rows = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=4))
                cache.keep(rows)
                texts = [texts[row] for row in rows]
            if data.draw(st.booleans()):
                row = data.draw(st.integers(0, len(texts) - 1))
                cache.clear(row)
                texts[row] = texts[row][:0]
            rows = data.draw(st.permutations(range(len(texts))))[: data.draw(st.integers(1, len(texts)))]
            new = [data.draw(st.integers(0, min(6, 24 - len(texts[row])))) for row in rows]
            ids = random_ids(len(rows), 6, seed=event)
            found = model(ids, cache=cache.step(new, rows=rows))
            for i, (row, count) in enumerate(zip(rows, new, strict=True)):
                texts[row] = torch.cat([texts[row], ids[i, :count]])
                if count:
                    assert_close(found[i, :count], model(texts[row][None])[0, len(texts[row]) - count :])


def test_what_a_left_text_put_into_a_row_is_never_seen_again(lively):
    model, cache = lively(), None
    for first in (random_ids(1, 20, seed=5), random_ids(1, 20, seed=6)):
        cache = model.new_cache(1)
        model(first, cache=cache.step())
        cache.clear(0)
        found = model(random_ids(1, 4), cache=cache.step([4]))
        assert_close(found, model(random_ids(1, 4)))


def test_a_cache_smaller_than_the_context_and_one_that_overflows(lively):
    model = lively()
    assert model.new_cache(1).capacity == 24
    assert model.new_cache(1, capacity=99).capacity == 24
    cache = model.new_cache(1, capacity=5)
    model(random_ids(1, 4), cache=cache.step())
    with pytest.raises(ValueError, match="row 0 holds 4 tokens; 2 more exceed the cache's capacity of 5"):
        model(random_ids(1, 2), cache=cache.step())
    assert cache.lengths == [4]


def test_a_window_given_to_a_model_narrows_its_own(lively):
    ids = random_ids(1, 12)
    wide, narrow = lively(window=6), lively(window=2)
    assert_close(wide(ids, attend=Attend(window=2)), narrow(ids))
    assert_close(narrow(ids, attend=Attend(window=6)), narrow(ids))
    assert_close(lively()(ids, attend=Attend(window=2)), narrow(ids))


@pytest.mark.filterwarnings("error")  # such as: a norm has left its fused kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["rotary", "learned"])
def test_mixed_precision_with_padding_cache_and_looking_stays_close(lively, kind, dtype):
    """A8: nothing overflows; a cache in fp32 serves a forward in 16 bits."""
    model, ids = lively(**KINDS[kind]), random_ids(2, 9)
    expected = model(ids)
    scale = expected.std().item()
    with torch.autocast("cpu", dtype=dtype):
        cache = model.new_cache(2)
        model(ids[:, :4], cache=cache.step())
        found = {
            "plain": model(ids),
            "looking": model(ids, taps=Taps("*")),
            "cache": torch.cat([expected[:, :4], model(ids[:, 4:], cache=cache.step([5, 5]))], dim=1),
        }
    for logits in found.values():
        assert (logits.float() - expected).abs().max() < 0.2 * scale
