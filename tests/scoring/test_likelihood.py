"""Scores are the model's own probabilities: exact on short texts, each token once on long ones."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mingyue.config import GenerateSettings, ModelSettings
from mingyue.errors import GenerationError
from mingyue.generation import TorchBackend, generate
from mingyue.models import DecoderOnly, build_model, resolve_config
from mingyue.scoring import score, token_logprobs, window_starts
from mingyue.text import Tokenizer, byte_tokenizer, train_char

CONTEXT = 12


def tokenizer() -> Tokenizer:
    return train_char(["床前明月光，疑是地上霜。"])


def model_for(words: Tokenizer, context: int = CONTEXT, positions: str = "rotary") -> DecoderOnly:
    settings = ModelSettings.model_validate({"d_model": 32, "n_heads": 2, "positions": positions})
    config = resolve_config(settings, vocab_size=words.vocab_size, depth=2, context=context)
    model = build_model(config, seed=5).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(8)  # far from uniform, so that a token scored in the wrong place shows
    return model


@pytest.mark.parametrize("starts_with_bos", [True, False])
def test_a_score_is_the_log_softmax_of_the_models_logits(starts_with_bos: bool) -> None:
    words = tokenizer()
    model = model_for(words)
    result = score(model, words, "床前明月光", starts_with_bos=starts_with_bos)
    ids = words.encode("床前明月光")
    read = [words.bos_id, *ids] if starts_with_bos else ids
    with torch.no_grad():
        logs = model(torch.tensor([read]))[0].log_softmax(-1)
    expected = [float(logs[t, read[t + 1]]) for t in range(len(read) - 1)]
    found = [token.logprob for token in result.tokens]
    assert found[0] is None or starts_with_bos
    assert found[-len(expected) :] == pytest.approx(expected, abs=1e-5)
    assert result.total == pytest.approx(sum(expected), abs=1e-5)
    assert result.scored == len(expected)
    assert result.perplexity == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-4)


def test_bits_per_byte_count_the_bytes_of_what_was_scored() -> None:
    words = tokenizer()
    result = score(model_for(words), words, "床前a", starts_with_bos=False)
    assert result.scored_bytes == 3 + 1
    assert result.bits_per_byte == pytest.approx(-result.total / math.log(2) / 4)


def test_the_probabilities_of_all_texts_of_a_length_sum_to_one() -> None:
    """The chain rule, over every string of ids of a tiny vocabulary."""
    settings = ModelSettings(d_model=16, n_heads=2)
    config = resolve_config(settings, vocab_size=5, depth=2, context=4)
    model = build_model(config, seed=2).eval()
    total = 0.0
    with torch.no_grad():
        for rest in itertools.product(range(5), repeat=3):
            ids = torch.tensor([[1, *rest]])
            logs = model(ids[:, :-1]).log_softmax(-1)
            total += math.exp(float(logs.gather(2, ids[:, 1:, None]).sum()))
    assert total == pytest.approx(1.0, abs=1e-5)


@given(st.integers(1, 60), st.integers(1, 20), st.data())
def test_every_target_is_counted_once_with_enough_before_it(n_targets: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    length = min(context, n_targets)
    counted: list[int] = []
    for number, (start, first) in enumerate(window_starts(n_targets, context, stride)):
        assert 0 <= start <= n_targets - length
        counted += range(first, start + length)
        if number:
            assert first - start >= context - stride
    assert counted == list(range(n_targets))


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary"])
@pytest.mark.parametrize("stride", [1, 5, CONTEXT])
def test_a_long_text_is_scored_in_windows_as_each_window_says_alone(positions: str, stride: int) -> None:
    words = tokenizer()
    model = model_for(words, positions=positions)
    text = "疑是地上霜，床前明月光。" * 3
    result = score(model, words, text, starts_with_bos=True, stride=stride)
    read = torch.tensor([words.bos_id, *words.encode(text)])
    expected = []
    with torch.no_grad():
        for start, first in window_starts(len(read) - 1, CONTEXT, stride):
            window = read[start : start + CONTEXT + 1]
            logs = model(window[None, :-1])[0].log_softmax(-1)
            expected += [float(logs[t - start, read[t + 1]]) for t in range(first, start + CONTEXT)]
    assert [token.logprob for token in result.tokens] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("backend", [False, True])
def test_progress_counts_windows_and_can_end_the_score(backend: bool, monkeypatch) -> None:
    monkeypatch.setattr("mingyue.scoring.likelihood._MAX_TOKENS_BETWEEN", 4 * CONTEXT)
    words, calls = tokenizer(), list[tuple[int, int]]()
    model, text = model_for(words), "疑是地上霜，床前明月光。" * 10
    computed = TorchBackend(model) if backend else None

    def end(done: int, total: int) -> None:
        raise InterruptedError

    found = score(model, words, text, starts_with_bos=True, backend=computed, progress=lambda *call: calls.append(call))
    plain = score(model, words, text, starts_with_bos=True, backend=computed)
    assert [one.logprob for one in found.tokens] == pytest.approx([one.logprob for one in plain.tokens], abs=1e-4)
    assert {total for _, total in calls} == {found.windows} and calls[-1][0] == found.windows
    assert [done for done, _ in calls] == sorted({done for done, _ in calls}) and len(calls) > 4
    with pytest.raises(InterruptedError):
        score(model, words, text, starts_with_bos=True, backend=computed, progress=end)


def test_bytes_can_be_scored_where_a_character_is_several_tokens() -> None:
    words = byte_tokenizer()
    result = score(model_for(words), words, "好😀", starts_with_bos=True)
    assert result.scored == result.scored_bytes == 7


def test_a_text_that_cannot_be_scored_is_a_clear_error() -> None:
    words = tokenizer()
    model = model_for(words)
    with pytest.raises(GenerationError, match="empty"):
        score(model, words, "", starts_with_bos=True)
    with pytest.raises(GenerationError, match=f"stride {CONTEXT + 1} is not from 1 to {CONTEXT}"):
        score(model, words, "床前", starts_with_bos=True, stride=CONTEXT + 1)
    small = build_model(resolve_config(ModelSettings(d_model=32), vocab_size=100, depth=1, context=8), seed=1)
    with pytest.raises(GenerationError, match="does not belong"):
        score(small, words, "床前明月光", starts_with_bos=True)


def test_one_token_with_nothing_before_it_has_no_score() -> None:
    words = tokenizer()
    result = score(model_for(words), words, "床", starts_with_bos=False)
    assert result.scored == 0
    assert math.isnan(result.perplexity)
    assert result.to_dict()["perplexity"] is None


@pytest.mark.parametrize("positions", ["none", "learned", "rotary"])
def test_probabilities_of_all_texts_sum_to_one_past_the_context_too(positions: str) -> None:
    """The chain rule where windows overlap: texts of 2, 4 and 5 ids after a first one, a context of 3."""
    config = resolve_config(
        ModelSettings.model_validate({"d_model": 16, "n_heads": 2, "positions": positions}),
        vocab_size=3,
        depth=1,
        context=3,
    )
    model = build_model(config, seed=2)
    for length in (2, 4, 5):
        texts = itertools.product(range(3), repeat=length)
        total = sum(math.exp(math.fsum(token_logprobs(model, [0, *text]))) for text in texts)
        assert total == pytest.approx(1.0, abs=1e-5)


def test_a_written_text_gets_the_log_probabilities_that_it_was_written_with() -> None:
    words = tokenizer()
    model = model_for(words, context=40)
    asked = GenerateSettings(max_new_tokens=20, min_new_tokens=20, temperature=1.5)
    written = generate(model, words, ["床前"], asked, starts_with_bos=True, logprobs=True)[0]
    read = [words.bos_id, *words.encode("床前"), *written.ids]
    assert token_logprobs(model, read)[2:] == pytest.approx(written.logprobs, abs=1e-4)


def test_pieces_of_windows_and_of_logits_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    words = tokenizer()
    model = model_for(words)
    text = "疑是地上霜，床前明月光。" * 4
    whole = score(model, words, text, starts_with_bos=True, stride=3)
    monkeypatch.setattr("mingyue.scoring.likelihood._MAX_LOGITS", 5 * words.vocab_size)
    monkeypatch.setattr("mingyue.scoring.likelihood._MAX_TOKENS", 2 * CONTEXT)
    pieces = score(model, words, text, starts_with_bos=True, stride=3)
    assert [t.logprob for t in pieces.tokens] == pytest.approx([t.logprob for t in whole.tokens], abs=1e-5)
    assert pieces.windows == whole.windows == 1 + 12
    assert len(pieces.tokens) == pieces.scored == 48


def test_a_model_in_training_is_scored_without_dropout_and_goes_on_training() -> None:
    words = tokenizer()
    settings = ModelSettings(d_model=32, n_heads=2, dropout=0.5, attention_dropout=0.5)
    model = build_model(resolve_config(settings, vocab_size=words.vocab_size, depth=2, context=CONTEXT), seed=1).eval()
    expected = score(model, words, "床前明月光", starts_with_bos=True)
    model.train()
    assert score(model, words, "床前明月光", starts_with_bos=True) == expected
    assert model.training
    assert all(block.training for block in model.blocks)


def test_broken_weights_are_an_error_and_no_score() -> None:
    words = tokenizer()
    model = model_for(words)
    with torch.no_grad():
        model.embedding.weight.fill_(math.nan)
    with pytest.raises(GenerationError, match="output is NaN"):
        score(model, words, "床前", starts_with_bos=True)
