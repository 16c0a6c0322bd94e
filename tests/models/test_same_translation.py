"""The promise "the same text, always" for two texts: padding, causality, caches, chunks, shared memories, looking."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import mingyue.nn.taps
from mingyue.models import EncoderDecoder
from mingyue.nn import MemoryKV, Taps

V, M = 23, 16
KINDS = {
    "none": {"positions": "none", "n_kv_heads": 1},
    "learned": {"positions": "learned", "norm": "layer", "bias_qkv": True, "bias_output": True, "output_bias": True},
    "sinusoidal": {
        "positions": "sinusoidal", "norm": "layer", "norm_placement": "post", "final_norm": False,
        "embedding_scale": True, "feedforward": "relu", "bias_feedforward": True,
    },
    "rotary": {"positions": "rotary", "qk_norm": True, "n_kv_heads": 4},
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)
LENGTHS = [9, 1, 5, 12]


def random_ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(0, V, shape, generator=torch.Generator().manual_seed(seed))


def assert_close(found: Tensor, expected: Tensor) -> None:
    """To 1e-5 of the largest number: five lively blocks carry vectors some tens long."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * max(1.0, expected.abs().max().item()))


def padded(lengths: list[int], *, filler: int = 0) -> tuple[Tensor, Tensor]:
    """(source_BS, source_lengths_B), rows of these lengths with `filler` after their ends."""
    lengths_B = torch.tensor(lengths)
    source_BS = random_ids(len(lengths), max(lengths), seed=3)
    return source_BS.masked_fill(torch.arange(max(lengths)) >= lengths_B[:, None], filler), lengths_B


def read(model: EncoderDecoder, lengths: list[int]) -> MemoryKV:
    source_BS, lengths_B = padded(lengths)
    return model.project_kv(model.encode(source_BS, source_lengths_B=lengths_B), source_lengths_B=lengths_B)


@every_kind
def test_padding_never_changes_a_row(translator, kind):
    """A6 for two texts: each pair of a padded batch gets the memory and the logits that it gets alone."""
    model = translator(**KINDS[kind])
    source_BS, lengths_B = padded(LENGTHS)
    target_BT = random_ids(4, 10, seed=2)
    memory_BSM = model.encode(source_BS, source_lengths_B=lengths_B)
    logits = model(source_BS, target_BT, source_lengths_B=lengths_B)
    for row, length in enumerate(LENGTHS):
        alone = source_BS[row : row + 1, :length]
        assert_close(memory_BSM[row, :length], model.encode(alone)[0])
        for target_length in (10, 4):  # what stands after a target's end is padding too
            assert_close(logits[row, :target_length], model(alone, target_BT[row : row + 1, :target_length])[0])


@every_kind
@pytest.mark.parametrize("looking", [False, True])
def test_what_stands_in_the_padding_changes_nothing_exactly(translator, kind, looking):
    model, target_BT = translator(**KINDS[kind]), random_ids(4, 6, seed=2)
    found = []
    for filler in (0, 22):
        source_BS, lengths_B = padded(LENGTHS, filler=filler)
        taps = Taps("*.blocks.*.*.weights") if looking else None
        found.append(model(source_BS, target_BT, source_lengths_B=lengths_B, taps=taps))
    assert torch.equal(*found)


def test_padding_means_the_same_in_training_and_in_evaluation(translator):
    """A7: train mode with dropout 0 and eval mode are equal."""
    model = translator()
    source_BS, lengths_B = padded(LENGTHS)
    logits = [m(source_BS, random_ids(4, 6), source_lengths_B=lengths_B) for m in (model.eval(), model.train())]
    assert torch.equal(*logits)


@every_kind
@pytest.mark.parametrize("looking", [False, True])
def test_a_later_target_token_changes_no_earlier_logit_exactly(translator, kind, looking):
    """A1: not by one bit, on the fused and on the explicit path."""
    model, target_BT = translator(**KINDS[kind]), random_ids(4, 20)
    source_BS, lengths_B = padded(LENGTHS)

    def logits(target_BT: Tensor) -> Tensor:
        taps = Taps("*.blocks.*.*.weights") if looking else None
        return model(source_BS, target_BT, source_lengths_B=lengths_B, taps=taps)

    before = logits(target_BT)
    for j in (1, 7, 19):
        other = target_BT.clone()
        other[:, j] = (other[:, j] + 1) % V
        after = logits(other)
        assert torch.equal(after[:, :j], before[:, :j])
        assert not torch.equal(after[:, j], before[:, j])


@every_kind
def test_every_source_token_is_seen_by_every_source_and_every_target_token(translator, kind):
    model, source_BS, target_BT = translator(**KINDS[kind]), random_ids(1, 8), random_ids(1, 5, seed=2)
    memory, logits = model.encode(source_BS), model(source_BS, target_BT)
    for place in range(8):
        other = source_BS.clone()
        other[0, place] = (other[0, place] + 1) % V
        assert ((model.encode(other) - memory).abs().amax(dim=-1) > 1e-5).all()
        assert ((model(other, target_BT) - logits).abs().amax(dim=-1) > 1e-5).all()


@every_kind
def test_token_by_token_with_a_cache_equals_one_pass_in_every_layer(translator, kind):
    """A3 for two texts: equal logits and equal outputs of every layer at every step."""
    model, target_BT = translator(**KINDS[kind]), random_ids(4, 24)
    memory = read(model, LENGTHS)
    whole = Taps(["decoder.blocks.*.*", "decoder.final"])
    model.hidden(target_BT, memory, taps=whole)
    cache = model.new_cache(4)
    for t in range(24):
        step = Taps(["decoder.blocks.*.*", "decoder.final"])
        model.hidden(target_BT[:, t : t + 1], memory, cache=cache.step(), taps=step)
        assert len(step.values) == 2 * 3 + 1
        for name, value in step.values.items():
            assert_close(value[:, 0], whole.values[name][:, t])
    assert cache.lengths == [24] * 4


@every_kind
@pytest.mark.parametrize("chunks", [[24], [1, 23], [7, 1, 1, 9, 6]])
def test_several_tokens_onto_a_cache_equal_one_pass(translator, kind, chunks):
    """A4 for two texts: a forced beginning of the target in chunks."""
    model, target_BT = translator(**KINDS[kind]), random_ids(4, 24)
    memory, cache = read(model, LENGTHS), model.new_cache(4)
    parts = [model.hidden(part, memory, cache=cache.step()) for part in target_BT.split(chunks, dim=1)]
    assert_close(torch.cat(parts, dim=1), model.hidden(target_BT, memory))


@every_kind
def test_rows_whose_targets_have_different_lengths_continue_from_their_own(translator, kind):
    """A5 for two texts."""
    model, target_BT, held = translator(**KINDS[kind]), random_ids(4, 24), [3, 11, 1, 8]
    memory, cache = read(model, LENGTHS), model.new_cache(4)
    model.hidden(target_BT[:, :11], memory, cache=cache.step(held))
    next_BT = torch.stack([target_BT[row, length : length + 2] for row, length in enumerate(held)])
    found = model.hidden(next_BT, memory, cache=cache.step())
    for row, length in enumerate(held):
        alone = model.hidden(target_BT[row : row + 1, : length + 2], memory.keep([row]))
        assert_close(found[row], alone[0, length:])


@every_kind
@pytest.mark.parametrize("each", [2, 5])
def test_several_targets_of_one_source_share_its_memory(translator, kind, each):
    """Rows b·K … b·K + K − 1 read row b of the memory: each gets the numbers that it gets alone, cached or not."""
    model, target_BT = translator(**KINDS[kind]), random_ids(4 * each, 7)
    memory = read(model, LENGTHS)
    together = model.hidden(target_BT, memory)
    cache = model.new_cache(4 * each)
    cached = [model.hidden(part, memory, cache=cache.step()) for part in target_BT.split([3, 1, 1, 2], dim=1)]
    assert_close(torch.cat(cached, dim=1), together)
    for row in range(4 * each):
        assert_close(together[row : row + 1], model.hidden(target_BT[row : row + 1], memory.keep([row // each])))


def test_a_memory_keeps_doubles_and_reorders_its_rows(translator):
    model = translator()
    memory = read(model, LENGTHS)
    assert memory.rows == 4
    target_BT = random_ids(4, 6)
    expected = model.hidden(target_BT, memory)
    for rows in ([2], [3, 0], [1, 1, 2, 0, 3]):
        kept = memory.keep(rows)
        assert kept.rows == len(rows)
        assert_close(model.hidden(target_BT[rows], kept), expected[rows])
    assert memory.rows == 4  # the original is as it was
    assert_close(model.hidden(target_BT, memory), expected)
    of_one_length = model.project_kv(model.encode(random_ids(4, 5)))
    expected = model.hidden(target_BT, of_one_length)
    assert_close(model.hidden(target_BT[[3, 1, 1]], of_one_length.keep([3, 1, 1])), expected[[3, 1, 1]])


@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hypotheses_and_sentences_come_and_go_and_each_gets_what_it_gets_alone(translator, data):
    """As a beam search has it: rows of the cache are reordered inside a sentence, whole sentences leave."""
    with torch.no_grad():
        model = translator(**KINDS[data.draw(st.sampled_from(sorted(KINDS)))])
        each, alive = data.draw(st.integers(1, 3)), [0, 1, 2, 3]
        whole = read(model, LENGTHS)
        memory, cache = whole, model.new_cache(4 * each)
        texts = [torch.empty(0, dtype=torch.long)] * (4 * each)
        for event in range(data.draw(st.integers(2, 5))):
            if len(alive) > 1 and data.draw(st.booleans()):
                stay = sorted(data.draw(st.sets(st.integers(0, len(alive) - 1), min_size=1)))
                memory, alive = memory.keep(stay), [alive[row] for row in stay]
                rows = [row * each + k for row in stay for k in range(each)]
                cache.keep(rows)
                texts = [texts[row] for row in rows]
            order = [row * each + data.draw(st.integers(0, each - 1)) for row in range(len(alive)) for _ in range(each)]
            cache.keep(order)
            texts = [texts[row] for row in order]
            new_BT = random_ids(len(texts), data.draw(st.integers(1, 3)), seed=event)
            texts = [torch.cat([text, new]) for text, new in zip(texts, new_BT, strict=True)]
            found = model.hidden(new_BT, memory, cache=cache.step())
            for row, text in enumerate(texts):
                alone = model.hidden(text[None], whole.keep([alive[row // each]]))
                assert_close(found[row], alone[0, -new_BT.shape[1] :])


# Looking in.


def documented_places() -> set[str]:
    text = mingyue.nn.taps.__doc__ or ""
    names = set(re.findall(r"^    ([a-z_.i]+) {2,}(?:x_)?[A-Z]{3,4}\b", text, flags=re.MULTILINE))
    assert "decoder.blocks.i.cross_attention.*  as attention.*" in text
    own = {name for name in names if name.startswith("decoder.")}
    both = {f"{stack}.{name}" for stack in ("encoder", "decoder") for name in names - own - {"logits"}}
    attention = {name for name in both if name.startswith("decoder.blocks.i.attention.")}
    return both | own | {name.replace("attention.", "cross_attention.") for name in attention} | {"logits"}


def expected_shapes(groups: int, inner: int = 20) -> dict[str, tuple[int, ...]]:
    B, S, T = 4, 12, 7

    def attention(place: str, n_queries: int, n_keys: int) -> dict[str, tuple[int, ...]]:
        return {
            f"{place}.query": (B, 4, n_queries, 6), f"{place}.key": (B, groups, n_keys, 6),
            f"{place}.value": (B, groups, n_keys, 6), f"{place}.scores": (B, 4, n_queries, n_keys),
            f"{place}.weights": (B, 4, n_queries, n_keys), f"{place}.heads": (B, 4, n_queries, 6),
            f"{place}.output": (B, n_queries, M),
        }  # fmt: skip

    shapes: dict[str, tuple[int, ...]] = {"logits": (B, T, V)}
    for stack, layers, n in (("encoder", 3, S), ("decoder", 2, T)):
        shapes |= {f"{stack}.embeddings": (B, n, M), f"{stack}.final": (B, n, M)}
        for i in range(layers):
            block = f"{stack}.blocks.{i}"
            shapes |= attention(f"{block}.attention", n, n)
            shapes |= {f"{block}.{name}": (B, n, M) for name in ("middle", "feedforward.output", "output")}
            shapes[f"{block}.feedforward.inner"] = (B, n, inner)
            if stack == "decoder":
                shapes |= attention(f"{block}.cross_attention", n, S)
                shapes[f"{block}.crossed"] = (B, n, M)
    return shapes


@every_kind
def test_every_documented_place_exists_in_its_documented_shape_and_looking_changes_nothing(translator, kind):
    """A9 for two texts: explicit equals fused; weights sum to 1, and are exactly 0 for padding and for the future."""
    model, taps = translator(**KINDS[kind]), Taps("*")
    source_BS, lengths_B = padded(LENGTHS)
    target_BT = random_ids(4, 7, seed=2)
    expected = model(source_BS, target_BT, source_lengths_B=lengths_B)
    assert_close(model(source_BS, target_BT, source_lengths_B=lengths_B, taps=taps), expected)
    assert {name: tuple(value.shape) for name, value in taps.values.items()} == expected_shapes(model.config.n_kv_heads)
    assert {re.sub(r"\.\d+\.", ".i.", name) for name in taps.values} == documented_places()
    real = (torch.arange(12) < lengths_B[:, None])[:, None, None]
    past = torch.ones(7, 7, dtype=torch.bool).tril()
    places = {
        "encoder.blocks.*.attention.weights": (real, 3),
        "decoder.blocks.*.attention.weights": (past, 2),
        "decoder.blocks.*.cross_attention.weights": (real, 2),
    }
    for pattern, (allowed, layers) in places.items():
        for layer in range(layers):
            weights = taps.values[pattern.replace("*", str(layer))]
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
            seen = allowed.expand_as(weights)
            assert (weights[~seen] == 0).all()
            assert (weights[seen] > 0).all()


def test_a_run_that_asks_for_little_stays_fused(translator, monkeypatch):
    model = translator()

    def fail(*_args, **_more):
        raise AssertionError("this run did not ask for it")

    monkeypatch.setattr("mingyue.nn.attention.explicit_attention", fail)
    model(random_ids(1, 4), random_ids(1, 3), taps=Taps(["*.blocks.*.*.heads", "decoder.blocks.*.crossed"]))
    for place in ("encoder.blocks.2.attention", "decoder.blocks.1.attention", "decoder.blocks.0.cross_attention"):
        with pytest.raises(AssertionError, match="did not ask"):
            model(random_ids(1, 4), random_ids(1, 3), taps=Taps(f"{place}.weights"))


def test_one_head_of_cross_attention_can_be_silenced(translator):
    model = translator()

    def without_head_2(heads: Tensor) -> Tensor:
        heads = heads.clone()
        heads[:, 2] = 0
        return heads

    edited = model(
        random_ids(2, 5), random_ids(2, 4), taps=Taps(edits={"decoder.blocks.1.cross_attention.heads": without_head_2})
    )
    before = model(random_ids(2, 5), random_ids(2, 4))
    model.decoder.blocks[1].cross_attention.output.weight[:, 12:18] = 0
    assert_close(edited, model(random_ids(2, 5), random_ids(2, 4)))
    assert not torch.allclose(edited, before, atol=1e-3)


def test_targets_that_cannot_be_shared_out_among_the_sources_are_refused(translator):
    model = translator()
    memory = model.project_kv(model.encode(torch.tensor([[3, 4], [5, 6]])))
    with pytest.raises(ValueError, match="3 targets are not a multiple of 2 source texts"):
        model.hidden(torch.tensor([[1], [1], [1]]), memory)
