"""Promise 1, "the same text, always": alone or in a batch, cached or not, in chunks, streamed, past the context."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mingyue.config import GenerateSettings
from mingyue.generation import generate, stream, window_start

PROMPTS = ["hijk", "a", "", "abcabcabcabcabcabcabcabc", "tsrq", "bbbbbbbbbbbbbbb", "mnopqrstmnopqrst", "ghghghgh"]
GREEDY = GenerateSettings(temperature=0, max_new_tokens=44)
FIXTURES_ARE_SAFE = [HealthCheck.function_scoped_fixture]  # they only make models and count


def prompt_ids(tokenizer, prompt: str, *, bos: bool) -> list[int]:
    return [tokenizer.bos_id, *tokenizer.encode(prompt)] if bos else tokenizer.encode(prompt or "\n")


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"batch_size": 1},
        {"batch_size": 3},
        {"prefill_chunk": 1},
        {"prefill_chunk": 5, "batch_size": 5},
        {"use_cache": False},
        {"use_cache": False, "batch_size": 1},
    ],
    ids=str,
)
def test_a_prompt_gets_the_same_text_alone_in_a_batch_cached_or_not_and_in_chunks(
    lively, letters, plainly, same_text, kind, way
):
    """A6, S6: eight prompts of different lengths, two longer than the context of 16, each writing far past it."""
    model, tokenizer = lively(kind), letters()
    use_cache = way.get("use_cache", True)
    asked = GREEDY.replace(**{name: value for name, value in way.items() if name != "use_cache"})
    results = generate(model, tokenizer, PROMPTS, asked, starts_with_bos=True, use_cache=use_cache)
    assert [result.prompt for result in results] == PROMPTS
    for i, result in enumerate(results):
        ids = prompt_ids(tokenizer, PROMPTS[i], bos=True)
        expected = plainly(model, tokenizer, ids, GREEDY)
        same_text.check(model, tokenizer, ids, expected, result.ids, GREEDY)
        assert result.text == tokenizer.decode(result.ids)
    assert same_text.ties <= 1
    assert len({len(result.ids) for result in results}) > 1 or kind != "rotary"  # some rows leave before others


def test_streamed_text_is_the_text(lively, letters, kind):
    model, tokenizer = lively(kind), letters()
    asked = GREEDY.replace(stop=("fg", "qqq", "aba"), batch_size=3)
    whole = generate(model, tokenizer, PROMPTS, asked, starts_with_bos=False)
    joined, tokens = {}, {}
    for event in stream(model, tokenizer, PROMPTS, asked, starts_with_bos=False):
        joined[event.prompt_index] = joined.get(event.prompt_index, "") + event.text
        tokens.setdefault(event.prompt_index, []).append(event.token)
        if event.result is not None:
            assert joined[event.prompt_index] == event.result.text
    assert [joined[i] for i in range(8)] == [result.text for result in whole]
    assert [tokens[i] for i in range(8)] == [result.ids for result in whole]


WRITING = st.fixed_dictionaries(
    {
        "max_new_tokens": st.integers(0, 30),
        "temperature": st.sampled_from([0.0, 0.0, 0.7, 1.0, 3.0]),
        "top_k": st.sampled_from([0, 1, 4, 100]),
        "top_p": st.sampled_from([1.0, 0.9, 0.4]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.4, 0.8]),
        "seed": st.integers(0, 3),
        "samples": st.integers(1, 3),
        "batch_size": st.integers(1, 6),
        "prefill_chunk": st.integers(1, 20),
    }
)


@given(
    kind=st.sampled_from(["none", "learned", "sinusoidal", "rotary", "rotary, window"]),
    prompts=st.lists(st.text("abcdefghij", max_size=24), max_size=6),
    fields=WRITING,
    bos=st.booleans(),
    use_cache=st.sampled_from([True, True, False]),
    eager_to_end=st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=FIXTURES_ARE_SAFE)
def test_whatever_is_asked_the_text_is_the_one_of_the_plain_rules(
    lively, letters, plainly, same_text, kind, prompts, fields, bos, use_cache, eager_to_end
):
    """T14, A6, S1-S4, S8: every setting, batch, chunk, cache; rows leave at EOS and others enter."""
    model, tokenizer = lively(kind), letters(8 if eager_to_end else 20)
    asked = GenerateSettings(min_new_tokens=min(2, fields["max_new_tokens"]), **fields)
    results = generate(model, tokenizer, prompts, asked, starts_with_bos=bos, use_cache=use_cache)
    assert [(r.prompt_index, r.sample) for r in results] == [
        (i, sample) for i in range(len(prompts)) for sample in range(asked.samples)
    ]
    for result in results:
        ids = prompt_ids(tokenizer, prompts[result.prompt_index], bos=bos)
        place = {"index": result.prompt_index, "sample": result.sample}
        expected = plainly(model, tokenizer, ids, asked, **place)
        same_text.check(model, tokenizer, ids, expected, result.ids, asked, **place)
        assert (result.stop == "end") == (result.ids[-1:] == [tokenizer.eos_id])
        assert not {tokenizer.pad_id, tokenizer.bos_id} & set(result.ids)


def test_the_window_is_a_pure_function_of_length():
    """DESIGN, past the context: the whole text while it fits, then from the last half of a full window."""
    assert [window_start(length, 8) for length in (0, 1, 8, 9, 12, 13, 16, 17)] == [0, 0, 0, 4, 4, 8, 8, 12]
    assert [window_start(length, 5) for length in (5, 6, 7, 8, 9)] == [0, 2, 2, 4, 4]
    assert [window_start(length, 1) for length in (1, 2, 3)] == [0, 1, 2]
    for context in range(1, 12):
        for length in range(1, 60):
            assert 1 <= length - window_start(length, context) <= context
            assert window_start(length, context) <= window_start(length + 1, context)
            assert length <= context or length - window_start(length, context) > context - max(1, context // 2)


@pytest.mark.parametrize("context", [1, 2, 3])
def test_tiny_contexts_write_on(lively, letters, plainly, same_text, context):
    model, tokenizer = lively("learned", context=context), letters()
    for prompt in ("", "abcd"):
        ids = prompt_ids(tokenizer, prompt, bos=False)
        result = generate(model, tokenizer, [prompt], GREEDY, starts_with_bos=False)[0]
        same_text.check(model, tokenizer, ids, plainly(model, tokenizer, ids, GREEDY), result.ids, GREEDY)


@pytest.mark.parametrize("seed", range(4))
def test_a_sample_copies_its_prompt_only_from_a_sibling_that_still_holds_it(lively, letters, plainly, same_text, seed):
    """Two rows, six samples that end at different times: some enter when their sibling's window has restarted."""
    model, tokenizer = lively("rotary", vocab_size=9, seed=2), letters(6)
    asked = GenerateSettings(temperature=3, max_new_tokens=40, samples=6, batch_size=2, seed=seed)
    ids = prompt_ids(tokenizer, "abcdefabcdef", bos=False)
    for result in generate(model, tokenizer, ["abcdefabcdef"], asked, starts_with_bos=False):
        expected = plainly(model, tokenizer, ids, asked, 0, result.sample)
        same_text.check(model, tokenizer, ids, expected, result.ids, asked, sample=result.sample)


def test_samples_of_one_prompt_read_it_once(lively, letters):
    model, tokenizer = lively("rotary", context=64), letters()
    read = []
    hidden = model.hidden
    model.hidden = lambda ids, **given: read.append(ids.numel()) or hidden(ids, **given)
    asked = GenerateSettings(max_new_tokens=2, samples=5, min_new_tokens=2)
    generate(model, tokenizer, ["a" * 50], asked, starts_with_bos=False)
    assert sum(read) == 50 + 4 + 5  # the prompt; its last token for four siblings; the first token of each
