"""Generated text is valid UTF-8, whatever the model would like, and nothing else about it changes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mingyue.config import GenerateSettings, TranslateSettings
from mingyue.generation import generate, stream, translate
from mingyue.generation.allowed import AllowedTokens
from mingyue.generation.hypotheses import TokenMask
from mingyue.text import Tokenizer, byte_tokenizer, train_bpe, train_char
from mingyue.text.utf8 import BOUNDARY, INVALID, utf8_steps

MARK = "\ufffd"
POEM = "春眠不觉晓，处处闻啼鸟。夜来风雨声，花落知多少。"
FIXTURES_ARE_SAFE = [HealthCheck.function_scoped_fixture]


def byte_fallback() -> Tokenizer:
    """A tokenizer.json as SentencePiece models have it: pieces, and bytes for the rest."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "春", "风"]
    steps = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}]
    steps += [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "merges": []}
    spec = {
        "version": "1.0",
        "added_tokens": [{"id": index, "content": tokens[index], **flags} for index in range(3)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {**model, "vocab": {token: index for index, token in enumerate(tokens)}},
    }
    return Tokenizer.from_json(json.dumps(spec, ensure_ascii=False))


TOKENIZERS = {
    "byte": byte_tokenizer(),
    "char": train_char([POEM]),
    "bpe": train_bpe([POEM * 8], vocab_size=300),  # tokens that begin or end inside a character
    "byte fallback": byte_fallback(),
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request) -> Tokenizer:
    return TOKENIZERS[request.param]


@given(
    seed=st.integers(0, 9),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 4.0]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    n_tokens=st.integers(1, 40),
    stop=st.sampled_from([(), ("春",), ("a", "风")]),
    prompts=st.lists(st.sampled_from(["", "春眠", "a", "😀"]), min_size=1, max_size=4),
)
@settings(max_examples=8, deadline=None, suppress_health_check=FIXTURES_ARE_SAFE)
def test_no_text_has_bytes_that_are_no_character(
    lively, tokenizer, seed, temperature, top_k, top_p, repetition_penalty, n_tokens, stop, prompts
):
    """N12: greedy or seeded, alone or in a batch, cached or not, streamed or not: valid, and the same text."""
    model = lively(vocab_size=tokenizer.vocab_size, seed=seed)
    asked = GenerateSettings(
        max_new_tokens=n_tokens,
        min_new_tokens=n_tokens // 2,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=stop,
    )
    found = generate(model, tokenizer, prompts, asked, starts_with_bos=True)
    for index, one in enumerate(found):
        data = b"".join(tokenizer.token_bytes(token) for token in one.ids)
        whole = data.decode("utf-8", "ignore")
        assert data.startswith(whole.encode()) and len(data) - len(whole.encode()) < 4
        assert one.stop == "length" or data == whole.encode()  # neither EOS nor a stop text comes inside a character
        assert one.text == whole if one.stop != "stop text" else whole.startswith(one.text)
        assert MARK not in one.text
        events = list(stream(model, tokenizer, prompts, asked, starts_with_bos=True))
        assert "".join(event.text for event in events if event.prompt_index == index) == one.text
    slow = asked.replace(batch_size=1, prefill_chunk=1)
    assert [one.ids for one in generate(model, tokenizer, prompts, slow, starts_with_bos=True)] == [
        one.ids for one in generate(model, tokenizer, prompts, asked, starts_with_bos=True, use_cache=False)
    ]


def test_without_the_setting_such_bytes_come(lively, tokenizer):
    model = lively(vocab_size=tokenizer.vocab_size)
    asked = GenerateSettings(temperature=4, max_new_tokens=60)
    assert MARK in generate(model, tokenizer, "a", asked.replace(valid_utf8=False), starts_with_bos=True)[0].text
    assert MARK not in generate(model, tokenizer, "a", asked, starts_with_bos=True)[0].text


def test_a_shorter_limit_gives_the_beginning_of_the_text(lively, tokenizer):
    """A character cut at the limit is left out; the tokens before it do not depend on the limit."""
    model = lively(vocab_size=tokenizer.vocab_size)
    asked = GenerateSettings(temperature=3, max_new_tokens=30, samples=3)
    whole = generate(model, tokenizer, "a", asked, starts_with_bos=True)
    assert max(len(one.ids) for one in whole) == 30
    for n_tokens in range(1, 30):
        short = generate(model, tokenizer, "a", asked.replace(max_new_tokens=n_tokens), starts_with_bos=True)
        for one, other in zip(short, whole, strict=True):
            assert one.ids == other.ids[:n_tokens] and other.text.startswith(one.text)


def test_log_probabilities_are_those_of_the_model(lively, tokenizer):
    """Not of what is left of its distribution."""
    model = lively(vocab_size=tokenizer.vocab_size, context=64)
    asked = GenerateSettings(temperature=3, max_new_tokens=20)
    one = generate(model, tokenizer, "a", asked, starts_with_bos=True, logprobs=True)[0]
    ids = [tokenizer.bos_id, *tokenizer.encode("a"), *one.ids]
    with torch.no_grad():
        logprobs = model(torch.tensor([ids]))[0].log_softmax(dim=-1)
    first = len(ids) - len(one.ids)
    expected = [logprobs[place - 1, ids[place]].item() for place in range(first, len(ids))]
    assert one.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("fields", [{"beam": 1}, {"beam": 4, "n_best": 4}, {"sample": True, "n_best": 3}], ids=str)
def test_translations_alike(lively_pair, tokenizer, fields):
    lines = ["春眠", "a", "😀 b", "处处闻啼鸟"]
    found_marks = 0
    for seed in range(3):
        model = lively_pair(vocab_size=tokenizer.vocab_size, seed=seed, context=16)
        asked = TranslateSettings(extra_tokens=9, **fields)
        found = translate(model, tokenizer, tokenizer, lines, asked)
        assert not any(MARK in one.text for best in found for one in best)
        free = translate(model, tokenizer, tokenizer, lines, asked.replace(valid_utf8=False))
        found_marks += sum(MARK in one.text for best in free for one in best)
        alone = translate(model, tokenizer, tokenizer, lines, asked.replace(batch_size=1))
        assert [[one.text for one in best] for best in alone] == [[one.text for one in best] for best in found]
    assert found_marks


def test_a_character_that_no_allowed_token_completes_is_not_begun():
    """Ids that training never saw are not generated: without them some beginnings lead nowhere."""
    tokens = [b"", b"a", b"\xe5", b"\xa5", b"\xbd", b"\xe5\xa5", b"\xf0", b"\x9f"]
    steps = utf8_steps(tokens)
    state = int(steps[BOUNDARY, 2])

    def left(never: set[int], state: int) -> list[int]:
        allowed = AllowedTokens(never, steps_SV=steps, vocab_size=len(tokens), eos_id=0)
        logits = np.zeros((1, len(tokens)))
        allowed.remove(logits, [state])
        masked, states = torch.zeros(3, len(tokens)), torch.tensor([0, state, 0])
        TokenMask(allowed, torch.device("cpu")).remove(masked, states)
        assert np.array_equal(masked[1].numpy(), logits[0])
        return np.flatnonzero(np.isfinite(logits[0])).tolist()

    assert left(set(), BOUNDARY) == [0, 1, 2, 5, 6]
    assert left(set(), state) == [3, 4, 7]  # EOS and a letter may not come inside a character
    assert left({3, 4}, BOUNDARY) == [0, 1, 2, 5, 6]  # 9f completes them
    assert left({3, 4, 7}, BOUNDARY) == [0, 1]
    assert int(steps[state, 1]) == INVALID


def test_a_text_without_a_prompt_begins_with_a_whole_character(lively):
    """Where texts do not begin with BOS, a token of the training text is read, perhaps half of a character."""
    tokenizer = TOKENIZERS["byte"]
    model = lively(vocab_size=tokenizer.vocab_size)
    begin = tokenizer.encode("好")[0]
    asked = GenerateSettings(temperature=4, max_new_tokens=30, samples=5)
    for one in generate(model, tokenizer, "", asked, starts_with_bos=False, begin_id=begin):
        assert MARK not in one.text and one.text == tokenizer.decode(one.ids, whole=True)
