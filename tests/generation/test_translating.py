"""Lines to translations: the same whatever the batch, drawn as the distribution says, aligned as the model looked."""

from __future__ import annotations

import math
import warnings
from collections import Counter

import pytest
import torch

from mingyue.config import TranslateSettings
from mingyue.errors import GenerationError
from mingyue.generation import Translation, translate, translate_ids
from mingyue.nn import Taps
from mingyue.runtime import derive_seed

PAD, BOS, EOS = 0, 1, 2
NEAR = 1e-4  # nats


def random_lines(n: int, longest: int = 12, seed: int = 0) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (n,), generator=generator).tolist()
    letters = [torch.randint(0, 20, (length,), generator=generator).tolist() for length in lengths]
    return ["".join(chr(ord("a") + index) for index in line) for line in letters]


@pytest.fixture
def into(lively_pair, letters):
    """`into(lines, kind, **settings)` translates with a random model of that kind."""

    def run(lines, kind="rotary", *, align=False, first_line=0, progress=None, **fields) -> list[list[Translation]]:
        asked = TranslateSettings(**{"extra_tokens": 6, **fields})
        named = {"align": align, "first_line": first_line, "progress": progress}
        return translate(lively_pair(kind), letters(), letters(), lines, asked, **named)

    return run


def assert_same(expected: list[list[Translation]], found: list[list[Translation]]) -> int:
    """The same texts; the number of those that differ by a near tie."""
    ties = 0
    for one, other in zip(expected, found, strict=True):
        assert len(one) == len(other)
        if [each.tokens for each in one] != [each.tokens for each in other]:
            assert max(abs(a.score - b.score) for a, b in zip(one, other, strict=True)) < NEAR
            ties += 1
        assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=NEAR)
        assert [each.finished for each in one] == [each.finished for each in other]
    return ties


@pytest.mark.parametrize("fields", [{"beam": 1}, {"n_best": 4}], ids=str)
def test_the_batch_changes_no_translation(into, pair_kind, fields):
    """S9: a file with batch 1, 3, 30, in another order, line by line: the same lines."""
    lines, ties = random_lines(31), 0
    expected = into(lines, pair_kind, batch_size=30, **fields)
    assert len({found[0].tokens for found in expected}) > 8
    for batch_size in (1, 3):
        ties += assert_same(expected, into(lines, pair_kind, batch_size=batch_size, **fields))
    ties += assert_same(expected[::-1], into(lines[::-1], pair_kind, batch_size=7, **fields))
    print(f"{len(lines) * 3} translations compared, {ties} near ties")
    if ties:
        warnings.warn(f"{ties} translations differ by a near tie", stacklevel=1)


def test_draws_depend_on_line_and_number_alone(into, pair_kind):
    lines = random_lines(9)
    asked = {"sample": True, "n_best": 3, "seed": 5}
    expected = into(lines, pair_kind, **asked)
    for batch_size in (1, 4):
        assert assert_same(expected, into(lines, pair_kind, batch_size=batch_size, **asked)) == 0
    fewer = into(lines, pair_kind, **{**asked, "n_best": 2})
    assert assert_same([each[:2] for each in expected], fewer) == 0
    # Empty lines are lines, and a text may come in several calls.
    shifted = into(["", *lines[1:5], ""], pair_kind, **asked)
    assert assert_same(expected[1:5], shifted[1:-1]) == 0
    assert assert_same(expected[5:], into(lines[5:], pair_kind, first_line=5, **asked)) == 0
    texts = {one.text for each in (expected, into(lines, pair_kind, **{**asked, "seed": 6})) for f in each for one in f}
    assert len(texts) > 35
    assert len({found[0].tokens for found in into([lines[0]] * 12, pair_kind, **asked)}) > 2


def test_draws_are_the_inverse_cumulative_distribution_at_their_numbers(chain):
    """Token by token, by hand: the number of (seed, line, draw, position) on the cumulative distribution."""
    rows = [[0, 0, 0.2, 0.5, 0.3]] * 5
    for one_of_many in range(4):
        asked = TranslateSettings(sample=True, n_best=3, seed=7, extra_tokens=4)
        found = translate_ids(chain(rows), [[3, EOS]] * 4, asked, bos_id=BOS, eos_id=EOS, pad_id=PAD)[one_of_many]
        for number, one in enumerate(found):
            ids: list[int] = []
            while len(ids) < 5 and EOS not in ids:
                share = (derive_seed(7, "token", one_of_many, number, len(ids)) >> 15) / 2**48
                ids.append(2 if share < 0.2 else 3 if share < 0.7 else 4)
            assert one.ids == tuple(ids)
            assert one.log_prob == pytest.approx(sum(math.log(rows[0][i]) for i in ids), abs=1e-5)
            assert one.score == pytest.approx(one.log_prob / ((5 + len(ids)) / 6) ** 0.6)
            assert one.finished == (ids[-1] == EOS)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {2: 0.2, 3: 0.5, 4: 0.3}),
        ({"temperature": 0.5}, {2: 4 / 38, 3: 25 / 38, 4: 9 / 38}),
        ({"top_k": 2}, {3: 5 / 8, 4: 3 / 8}),
        ({"top_p": 0.4}, {3: 1.0}),
        ({"temperature": 0.0}, {3: 1.0}),
    ],
    ids=str,
)
def test_frequencies_of_draws_are_those_of_the_softmax(chain, fields, expected):
    # Padding and begin marks have half of the probability: removed, the others share it.
    model, n = chain([[0.3, 0.2, 0.1, 0.25, 0.15]] * 5), 4000
    asked = TranslateSettings(sample=True, n_best=n, extra_tokens=0, **fields)
    (found,) = translate_ids(model, [[3, EOS]], asked, bos_id=BOS, eos_id=EOS, pad_id=PAD)
    counts = Counter(one.ids[0] for one in found)
    assert counts.keys() == expected.keys()
    for token, share in expected.items():
        assert abs(counts[token] / n - share) <= 4 * math.sqrt(share * (1 - share) / n)


def test_temperature_0_is_greedy(into):
    """S1."""
    lines = random_lines(10)
    greedy = into(lines, beam=1)
    drawn = into(lines, sample=True, temperature=0.0, n_best=2)
    assert assert_same([[one, one] for (one,) in greedy], drawn) == 0


def test_an_empty_line_stays_empty_and_costs_nothing(lively_pair, letters):
    model, told = lively_pair(), []
    lines = ["", "abc", "", "ba"]
    asked = TranslateSettings(n_best=2, extra_tokens=4)
    found = translate(model, letters(), letters(), lines, asked, progress=lambda *done: told.append(done))
    assert [len(each) for each in found] == [2] * 4
    assert [found[0], found[2]] == [[Translation("", 0.0, 0.0, True, (), ())] * 2] * 2
    assert_same([found[1], found[3]], translate(model, letters(), letters(), ["abc", "ba"], asked))
    assert told == [(4, 4)]
    model.encode = None  # not asked
    assert translate(model, letters(), letters(), ["", ""]) == [[found[0][0]]] * 2
    assert translate(model, letters(), letters(), []) == []


def test_progress_counts_lines(into):
    told = []
    into(random_lines(7), batch_size=3, progress=lambda *done: told.append(done))
    assert told == [(3, 7), (6, 7), (7, 7)]


def test_a_line_longer_than_the_context_is_cut_and_says_so(into):
    """S6: the context is 24 tokens, EOS one of them."""
    fits, longer = "abcdefghijklmnopqrstabc", "abcdefghijklmnopqrstabcd"
    found = into([fits, longer, longer * 5], extra_tokens=50)
    assert [each[0].truncated for each in found] == [False, True, True]
    assert {each[0].source_tokens for each in found} == {(*fits, "<2>")}
    assert len({each[0].text for each in found}) == 1
    assert all(len(each[0].tokens) <= 24 for each in found)


def test_a_translation_is_told_whole(into, letters):
    for line, found in zip(random_lines(20), into(random_lines(20), n_best=2), strict=True):
        for one in found:
            assert one.source_tokens == (*line, "<2>")
            assert "".join(one.tokens).removesuffix("<2>") == one.text
            assert one.finished == (one.tokens[-1] == "<2>")
            assert one.to_dict().keys() == set(vars(one)) - {"alignment"}


def test_alignments_are_the_weights_of_the_last_cross_attention(into, lively_pair, letters, pair_kind):
    lines, tokenizer, model = [*random_lines(5), ""], letters(), lively_pair(pair_kind)
    found = into(lines, pair_kind, n_best=3, align=True, batch_size=3)
    assert found[-1][0].alignment is None
    for line, each in zip(lines[:-1], found, strict=False):
        source = torch.tensor([[*tokenizer.encode(line), EOS]])
        for one in each:
            ids = [*tokenizer.encode(one.text), *([EOS] if one.finished else [])]
            name, inputs = "decoder.blocks.1.cross_attention.weights", torch.tensor([[BOS, *ids[:-1]]])
            taps = Taps(name)
            with torch.no_grad():
                model(source, inputs, taps=taps)
            assert one.alignment is not None
            assert one.alignment.shape == (len(one.tokens), len(one.source_tokens))
            torch.testing.assert_close(one.alignment, taps.values[name][0].mean(0), atol=1e-5, rtol=0)
            torch.testing.assert_close(one.alignment.sum(-1), torch.ones(len(ids)), atol=1e-5, rtol=0)
            assert one.to_dict()["alignment"] == one.alignment.tolist()
    plain = into(lines, pair_kind, n_best=3, batch_size=3)
    assert plain == found
    assert plain[0][0].alignment is None


def test_two_tokenizers_of_different_sizes(lively_pair, letters):
    """Ids that only the model has are never written; a line is read by the source's tokenizer."""
    model = lively_pair(vocab_size=9, source_vocab_size=23, output_bias=True)
    with torch.no_grad():
        model.output.bias[7:] = 20.0
    asked = TranslateSettings(extra_tokens=3)
    found = translate(model, letters(), letters(4), random_lines(8), asked)
    assert set("".join(each[0].text for each in found)) <= set("abcd")


def test_ids_that_the_model_does_not_know_are_an_error(lively_pair, letters):
    model = lively_pair(vocab_size=9)
    with pytest.raises(GenerationError, match=r"line 2 has token 12, but the model knows only tokens 0 to 8"):
        translate(model, letters(), letters(6), ["abc", "aj"])
    with pytest.raises(GenerationError, match="line 42 has"):
        translate(model, letters(), letters(6), ["abc", "aj"], first_line=40)


@pytest.mark.parametrize("n_tokens", [0, 25])
def test_sources_without_a_token_or_longer_than_the_context_are_refused(lively_pair, n_tokens):
    with pytest.raises(GenerationError, match=f"source 1 has {n_tokens} tokens; the model reads 1 to 24"):
        translate_ids(lively_pair(), [[EOS], [3] * n_tokens], bos_id=BOS, eos_id=EOS, pad_id=PAD)


def test_a_model_in_training_goes_back_to_it_and_dropout_is_off(lively_pair, letters):
    model = lively_pair(dropout=0.5)
    expected = translate(model, letters(), letters(), ["abcde"])
    model.train()
    assert translate(model, letters(), letters(), ["abcde"]) == expected
    assert model.training
    assert all(part.training for part in model.modules())
