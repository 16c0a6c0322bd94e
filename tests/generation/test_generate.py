"""From prompts to texts: marks, characters in pieces, stop texts, lengths, notes, and what a caller may count on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mingyue.config import GenerateSettings
from mingyue.errors import GenerationError
from mingyue.generation import generate, stream
from mingyue.text import byte_tokenizer, train_bpe, train_char

GREEDY = GenerateSettings(temperature=0)
BYTES = byte_tokenizer()


def scripted_text(scripted, text: str, asked: GenerateSettings, *, end: bool = True):
    """What is made of a model that writes the bytes of `text`, then EOS, after the prompt "p"."""
    ids = [*BYTES.encode("p" + text), BYTES.eos_id] if end else BYTES.encode("p" + text)
    model = scripted(ids, BYTES.vocab_size)
    events = list(stream(model, BYTES, ["p"], asked, starts_with_bos=False))
    result = events[-1].result
    assert result is not None
    assert "".join(event.text for event in events) == result.text
    assert [event.token for event in events] == result.ids
    assert result == generate(model, BYTES, ["p"], asked, starts_with_bos=False)[0]
    return [event.text for event in events], result


def test_a_character_of_several_tokens_is_never_shown_in_part(scripted):
    """S7: 好😀 byte by byte; the stream joined is the decoding of the whole."""
    pieces, result = scripted_text(scripted, "好😀!", GREEDY)
    assert pieces == ["", "", "好", "", "", "", "😀", "!", ""]
    assert result.text == "好😀!" == BYTES.decode(result.ids)
    assert result.stop == "end"


@pytest.mark.parametrize("n_tokens", range(1, 9))
@pytest.mark.parametrize("valid", [True, False])
def test_a_text_cut_inside_a_character_ends_before_it_or_in_one_mark(scripted, n_tokens, valid):
    """S7, N12: without `valid_utf8` a cut tail is flushed at the end, never before; with it, it is left out."""
    asked = GREEDY.replace(max_new_tokens=n_tokens, valid_utf8=valid)
    pieces, result = scripted_text(scripted, "好😀!", asked)
    assert "\ufffd" not in "".join(pieces[: len(pieces) if valid else -1])
    assert result.text == BYTES.decode(result.ids, whole=valid)
    assert result.stop == "length"
    assert len(result.ids) == n_tokens


@given(
    text=st.text("ab好", max_size=10),
    stops=st.lists(st.text("ab好", min_size=1, max_size=3), max_size=2),
    least=st.integers(0, 6),
    most=st.integers(1, 12),
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_stop_texts_across_tokens(scripted, text, stops, least, most):
    """The text up to the stop text that is complete first, after the minimum of tokens; `ids` hold its tokens too."""
    asked = GREEDY.replace(stop=tuple(stops), min_new_tokens=min(least, most), max_new_tokens=most)
    ids = BYTES.encode(text)
    if len(ids) < asked.min_new_tokens:
        return  # the script knows nothing after its EOS
    _, result = scripted_text(scripted, text, asked)
    for n_tokens in range(1, min(len(ids), most) + 1):
        so_far = BYTES.decode(ids[:n_tokens]).rstrip("\ufffd")
        before = BYTES.decode(ids[: max(n_tokens - 1, asked.min_new_tokens)]).rstrip("\ufffd")
        ends = [(at + len(stop), at) for stop in stops for at in range(len(so_far)) if so_far.startswith(stop, at)]
        new = [end for end in ends if end[0] > len(before)]
        if new and n_tokens > asked.min_new_tokens:
            assert (result.text, result.ids, result.stop) == (so_far[: min(new)[1]], ids[:n_tokens], "stop text")
            return
    whole = [*ids, BYTES.eos_id][:most]
    assert (result.text, result.ids) == (BYTES.decode(whole, whole=True), whole)
    assert result.stop == ("end" if len(whole) > len(ids) else "length")


def test_text_stops_at_the_end_mark_even_where_it_is_the_padding_too(scripted, letters):
    """S8: one mark for beginning, end and padding, as some given tokenizers have it; it ends the text all the same."""
    for marks in ({}, {"pad": 2, "bos": 2}, {"pad": 2}):
        tokenizer = letters(**marks)
        model = scripted([3, 4, 5, 2, 6, 7, 8], tokenizer.vocab_size)
        result = generate(model, tokenizer, ["a"], GREEDY, starts_with_bos=False)[0]
        assert (result.text, result.ids, result.stop) == ("bc", [4, 5, 2], "end")


def test_the_minimum_puts_off_the_end_mark(lively, letters):
    model, tokenizer = lively(vocab_size=6), letters(3)
    asked = GenerateSettings(temperature=2, samples=20, max_new_tokens=12)
    free = generate(model, tokenizer, [""], asked, starts_with_bos=True)
    assert min(len(result.ids) for result in free) < 5
    held = generate(model, tokenizer, [""], asked.replace(min_new_tokens=5), starts_with_bos=True)
    assert min(len(result.ids) for result in held) >= 6  # five tokens, then EOS
    assert any(result.stop == "end" for result in held)


def test_no_new_tokens_and_no_prompts(lively, letters):
    """S12: 0 new tokens works, for every prompt and sample; so does an empty list."""
    model, tokenizer = lively(), letters()
    asked = GREEDY.replace(max_new_tokens=0, samples=2)
    events = list(stream(model, tokenizer, ["ab", ""], asked, starts_with_bos=True))
    assert [(event.prompt_index, event.sample, event.text, event.token) for event in events] == [
        (0, 0, "", None),
        (0, 1, "", None),
        (1, 0, "", None),
        (1, 1, "", None),
    ]
    results = generate(model, tokenizer, ["ab", ""], asked, starts_with_bos=True)
    assert [(r.prompt, r.text, r.ids, r.logprobs, r.stop) for r in results[::2]] == [
        ("ab", "", [], None, "length"),
        ("", "", [], None, "length"),
    ]
    assert generate(model, tokenizer, [], GREEDY, starts_with_bos=True) == []


def test_an_empty_prompt_is_the_beginning_of_a_text_or_of_a_line(lively, letters, plainly):
    """S12: BOS alone for a model of many documents; a model of one long document hardly knows BOS."""
    model, tokenizer = lively(), letters()
    asked = GREEDY.replace(max_new_tokens=8)
    for bos, ids in ((True, [tokenizer.bos_id]), (False, tokenizer.encode("\n"))):
        result = generate(model, tokenizer, "", asked, starts_with_bos=bos)[0]
        assert len(result.ids) > 0
        assert result.ids == plainly(model, tokenizer, ids, asked)


def test_starts_with_bos_decides_what_the_model_reads(lively, letters, plainly):
    model, tokenizer = lively(), letters()
    asked = GREEDY.replace(max_new_tokens=8)
    for bos, ids in ((True, [1, 3, 4]), (False, [3, 4])):
        result = generate(model, tokenizer, ["ab"], asked, starts_with_bos=bos)[0]
        assert result.ids == plainly(model, tokenizer, ids, asked)


@pytest.mark.parametrize("make", [lambda: train_char(["abcabd"]), lambda: train_bpe(["abcabd " * 9], vocab_size=262)])
def test_characters_never_seen_in_training_are_read_and_no_unknown_is_written(lively, make):
    """S5: 好, an emoji, a zero byte and the spelling of a mark, to tokenizers that know only a, b, c, d."""
    tokenizer = make()
    model = lively(vocab_size=tokenizer.vocab_size)
    asked = GenerateSettings(max_new_tokens=40, temperature=2, samples=3)
    for result in generate(model, tokenizer, ["好", "😀\x00", "<eos><|endoftext|>[UNK]"], asked, starts_with_bos=True):
        assert set(result.ids) <= set(range(tokenizer.vocab_size)) - {tokenizer.pad_id, tokenizer.bos_id}
        assert result.text == tokenizer.decode(result.ids, whole=True)


def test_a_model_with_more_ids_than_its_tokenizer_writes_only_what_can_be_read(lively, letters):
    model, tokenizer = lively(vocab_size=64), letters(5)  # sizes rounded up for speed are common
    for result in generate(model, tokenizer, ["ab"], GenerateSettings(temperature=5), starts_with_bos=True):
        assert max(result.ids) < tokenizer.vocab_size


def test_a_tokenizer_of_another_model_is_an_error_with_both_numbers(lively, letters):
    with pytest.raises(GenerationError, match=r"token 22, but the model knows only tokens 0 to 9\n.*does not belong"):
        generate(lively(vocab_size=10), letters(), ["at"], GREEDY, starts_with_bos=True)


def test_a_long_prompt_is_cropped_and_said_once(lively, letters):
    """S6: both numbers and what is read; nothing is said where everything fits."""
    model, tokenizer, notes = lively(), letters(), []
    asked = GREEDY.replace(max_new_tokens=1)
    generate(model, tokenizer, ["a" * 16, "b"], asked, starts_with_bos=False, note=notes.append)
    assert notes == []
    generate(model, tokenizer, ["b", "a" * 20, "c" * 40], asked, starts_with_bos=False, note=notes.append)
    assert notes == [
        "Prompt 2 has 20 tokens, more than the context of 16: the model reads only its last 12 "
        "(2 of 3 prompts are too long). Whenever the context is full, reading continues from its last 8 tokens, "
        "wherever a prompt ends and generation begins."
    ]


def test_settings_without_effect_at_temperature_0_are_said(lively, letters):
    model, tokenizer, notes = lively(), letters(), []
    for changes in ({"top_k": 5, "min_p": 0.1}, {}):
        asked = GREEDY.replace(max_new_tokens=2, **changes)
        generate(model, tokenizer, "a", asked, starts_with_bos=False, note=notes.append)
    assert notes == ["At temperature 0 the likeliest token is taken: top_k, min_p without effect."]


@pytest.mark.parametrize("use_cache", [True, False])
def test_outgrowing_the_context_is_said_once(lively, letters, use_cache):
    """S6: one note however many texts and restarts; none for a text that just fills the context."""
    model, tokenizer, notes = lively(), letters(), []
    asked = GREEDY.replace(min_new_tokens=14, max_new_tokens=14)
    prompts = ["ab", "abc"]
    generate(model, tokenizer, prompts, asked, starts_with_bos=False, note=notes.append, use_cache=use_cache)
    assert notes == []
    asked = GREEDY.replace(min_new_tokens=60, max_new_tokens=60)
    generate(model, tokenizer, prompts, asked, starts_with_bos=False, note=notes.append, use_cache=use_cache)
    assert notes == [
        "The text is longer than the context of 16 tokens: whenever the context is full, generation continues from its "
        "last 8 tokens."
    ]


def test_log_probabilities_are_those_of_a_plain_pass(lively, letters, kind):
    model, tokenizer = lively(kind), letters()
    asked = GenerateSettings(max_new_tokens=12, temperature=1.5, top_k=5, repetition_penalty=1.3, samples=2)
    for result in generate(model, tokenizer, ["abc", "q"], asked, starts_with_bos=True, logprobs=True):
        ids = [1, *tokenizer.encode(result.prompt)]
        plain = model(torch.tensor([ids + result.ids]))[0].log_softmax(dim=-1).detach()
        expected = [float(plain[len(ids) - 1 + i, token]) for i, token in enumerate(result.ids)]
        assert result.logprobs == pytest.approx(expected, abs=1e-5)
        assert result.to_dict()["logprobs"] == result.logprobs
    events = stream(model, tokenizer, ["abc"], asked, starts_with_bos=True, logprobs=True)
    for event in events:
        assert event.logprob is not None


def test_samples_differ_from_each_other_and_seeds_too_but_not_runs(lively, letters):
    """T14: the same seed twice, the same texts; a prompt given twice gets two streams."""
    model, tokenizer = lively(), letters()
    asked = GenerateSettings(max_new_tokens=12, temperature=2, samples=3)

    def texts(**changes):
        results = generate(model, tokenizer, ["ab", "ab"], asked.replace(**changes), starts_with_bos=True)
        return [result.text for result in results]

    assert texts() == texts() == texts(batch_size=1)
    # Two short texts may be the same by chance, no more than that.
    assert len(set(texts())) >= 5
    assert len(set(texts() + texts(seed=2))) >= 10
    assert texts(samples=1) == texts()[::3]  # more samples change no earlier one


def test_a_model_in_training_writes_without_dropout_and_goes_on_training(lively, letters):
    """A7: train mode, with dropout and without, writes what eval mode writes; the caller's mode stays."""
    asked = GREEDY.replace(max_new_tokens=12)
    for dropout in (0.0, 0.5):
        model, tokenizer = lively(dropout=dropout, attention_dropout=dropout), letters()
        expected = generate(model, tokenizer, ["abc", "d"], asked, starts_with_bos=True)
        model.train()
        assert generate(model, tokenizer, ["abc", "d"], asked, starts_with_bos=True) == expected
        for _ in stream(model, tokenizer, ["abc"], asked, starts_with_bos=True):
            assert model.training
            assert all(block.training for block in model.blocks)


def test_a_stream_leaves_the_callers_gradients_alone_and_may_be_left_early(lively, letters):
    """The caller may train between two tokens; a stream that is not read to its end costs nothing more."""
    model, tokenizer = lively(), letters()
    events = stream(model, tokenizer, ["abc"], GREEDY.replace(min_new_tokens=9), starts_with_bos=True)
    for _, _ in zip(range(3), events, strict=False):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        model(torch.tensor([[3, 4]])).sum().backward()
    events.close()
    assert not torch.is_inference_mode_enabled()


def test_characters_that_training_never_met_are_named_once(lively):
    """N13: a prompt in characters that the model cannot know gave a strange text without a word."""
    tokenizer = train_char(["春眠不觉晓"])
    model, notes = lively(vocab_size=tokenizer.vocab_size), []
    unseen = range(3, 259)
    asked = GREEDY.replace(max_new_tokens=1)
    generate(model, tokenizer, ["春眠"], asked, starts_with_bos=True, unseen=unseen, note=notes.append)
    assert notes == []
    generate(model, tokenizer, ["春x", "éx眠x"], asked, starts_with_bos=True, unseen=unseen, note=notes.append)
    assert len(notes) == 1
    assert "of the prompt: 'x', 'é'." in notes[0]
    many = "abcdefghijkl"
    generate(model, tokenizer, [many], asked, starts_with_bos=True, unseen=unseen, note=notes.append)
    assert "'h', …" in notes[1]
