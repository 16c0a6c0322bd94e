"""Beam search against what it stands for: every possible target text, scored by the formula."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mingyue.config import TranslateSettings
from mingyue.errors import GenerationError
from mingyue.generation import Hypothesis, translate_ids
from mingyue.generation.beam import largest
from mingyue.generation.hypotheses import length_penalties
from mingyue.models import EncoderDecoder

PAD, BOS, EOS = 0, 1, 2
A, B, C = 3, 4, 5


def search(model: EncoderDecoder, sources: Sequence[Sequence[int]], **fields) -> list[list[Hypothesis]]:
    return translate_ids(model, sources, TranslateSettings(**fields), bos_id=BOS, eos_id=EOS, pad_id=PAD)


def logprobs(model: EncoderDecoder, source: Sequence[int], ids: Sequence[int]) -> list[float]:
    """log P of each of `ids`, by teacher forcing, without a cache."""
    with torch.no_grad():
        logits = model(torch.tensor([source]), torch.tensor([[BOS, *ids[:-1]]]))[0].double()
    return logits.log_softmax(-1)[range(len(ids)), list(ids)].tolist()


def penalty(length: int, alpha: float) -> float:
    return ((5 + length) / 6) ** alpha


def everything(model: EncoderDecoder, source: Sequence[int], limit: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every target text and its log P: those that end within the limit, and those that it cuts off."""
    letters = [i for i in range(model.config.vocab_size) if i not in (PAD, BOS, EOS)]
    for length in range(1, limit + 1):
        for start in itertools.product(letters, repeat=length - 1):
            for last in [EOS, *letters] if length == limit else [EOS]:
                yield (*start, last), sum(logprobs(model, source, [*start, last]))


def greedy(model: EncoderDecoder, source: Sequence[int], limit: int) -> tuple[int, ...]:
    ids: list[int] = []
    while len(ids) < limit and EOS not in ids:
        with torch.no_grad():
            logits = model(torch.tensor([source]), torch.tensor([[BOS, *ids]]))[0, -1]
        logits[[PAD, BOS]] = -math.inf
        ids.append(int(logits.argmax()))
    return tuple(ids)


def plain_beam(
    model: EncoderDecoder, source: Sequence[int], limit: int, beam: int, alpha: float
) -> list[tuple[int, ...]]:
    """The rules of the module in plain lists: no cache, no batch, and every search goes on to the limit."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    pool: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, limit + 1):
        with torch.no_grad():
            inputs = torch.tensor([[BOS, *ids] for _, ids in live])
            rows = model(torch.tensor([source] * len(live)), inputs)[:, -1].double().log_softmax(-1).tolist()
        candidates = [
            (total + row[token], (*ids, token))
            for (total, ids), row in zip(live, rows, strict=True)
            for token in range(len(row))
            if token not in (PAD, BOS)
        ]
        best = sorted(candidates, key=lambda one: -one[0])[: 2 * beam]
        pool += [(total / penalty(length, alpha), ids) for total, ids in best if ids[-1] == EOS or length == limit]
        live = [one for one in best if one[1][-1] != EOS][:beam]
    return [ids for _, ids in sorted(pool, key=lambda one: -one[0])[:beam]]


def random_sources(n: int, vocab_size: int = 23, longest: int = 9, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (n,), generator=generator).tolist()
    return [[*torch.randint(3, vocab_size, (length,), generator=generator).tolist(), EOS] for length in lengths]


def test_length_penalty_by_its_written_formula():
    assert length_penalties(7, 0.0) == [1.0] * 8
    assert length_penalties(7, 1.0) == pytest.approx([5 / 6, 1, 7 / 6, 8 / 6, 9 / 6, 10 / 6, 11 / 6, 2])
    assert length_penalties(13, 0.6)[13] == pytest.approx(3**0.6)
    assert all(math.isfinite(value) for value in length_penalties(200, 1e6))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_as_wide_as_the_space_equals_exhaustive_search(lively_pair, seed, alpha):
    """S10: finished and unfinished texts, every place of the n-best list, each length penalty."""
    kind = ["rotary", "learned", "sinusoidal"][seed]
    model, source, limit = lively_pair(kind, vocab_size=6, seed=seed), [A, B, EOS], 4
    every = sorted(
        ((total / penalty(len(ids), alpha), total, ids) for ids, total in everything(model, source, limit)),
        reverse=True,
    )
    beam = 3**3  # beginnings of three letters
    for n_best in (1, beam):
        found = search(model, [source], beam=beam, n_best=n_best, length_penalty=alpha, extra_tokens=limit - 2)[0]
        assert [one.ids for one in found] == [ids for _, _, ids in every[:n_best]]
        assert [one.score for one in found] == pytest.approx([score for score, _, _ in every[:n_best]], abs=1e-5)
        assert [one.log_prob for one in found] == pytest.approx([total for _, total, _ in every[:n_best]], abs=1e-5)
        assert [one.finished for one in found] == [ids[-1] == EOS for _, _, ids in every[:n_best]]


@pytest.mark.parametrize("beam", [2, 3, 5])
def test_a_narrow_beam_keeps_its_rules(lively_pair, pair_kind, beam):
    model, sources = lively_pair(pair_kind, vocab_size=9, seed=beam), random_sources(3, vocab_size=9, seed=beam)
    for alpha in (0.0, 1.0):
        found = search(model, sources, beam=beam, n_best=beam, length_penalty=alpha, extra_tokens=4)
        for each, source in zip(found, sources, strict=True):
            assert [one.ids for one in each] == plain_beam(model, source, len(source) + 3, beam, alpha)


def test_as_many_go_on_as_there_are_beams_although_some_end(chain):
    """Of the two best beginnings one ends; the third takes its place, and only it comes to be the best."""
    rows = [[1 / 6] * 6 for _ in range(6)]
    rows[BOS] = [0, 0, 0.4, 0.35, 0.25, 0]
    rows[A] = [0, 0, 0.25, 0.25, 0.25, 0.25]
    rows[B] = [0, 0, 0.99, 0.01, 0, 0]
    assert search(chain(rows), [[A, EOS]], beam=2, length_penalty=4.0, extra_tokens=1)[0][0].ids == (B, EOS)


def test_a_text_that_ends_first_and_best_so_far_does_not_end_the_search(chain):
    """S10: EOS at once has 0.4, a longer text 0.35 in all; by length it is the longer that wins."""
    rows = [[1 / 6] * 6 for _ in range(6)]
    rows[BOS] = [0, 0, 0.4, 0.35, 0.25, 0]
    rows[A] = [0, 0, 0.001, 0, 0, 0.999]
    rows[C] = [0, 0, 0.001, 0, 0.999, 0]
    rows[B] = [0, 0, 0.998, 0.001, 0.001, 0]
    model = chain(rows)
    long = math.log(0.35 * 0.999 * 0.999 * 0.998)
    for beam in (2, 3, 4):
        best = search(model, [[A, EOS]], beam=beam, length_penalty=2.0)[0][0]
        assert best.ids == (A, C, B, EOS)
        assert best.log_prob == pytest.approx(long, abs=1e-5)
        assert best.score == pytest.approx(long / 1.5**2, abs=1e-5)
        # With the raw sum the short one is right, and so it is for a beam of 1, which never looks back.
        assert search(model, [[A, EOS]], beam=beam, length_penalty=0.0)[0][0].ids == (EOS,)
    assert search(model, [[A, EOS]], beam=1, length_penalty=2.0)[0][0].ids == (EOS,)


def test_as_many_finished_texts_as_beams_do_not_end_the_search(chain):
    """S10: two poor texts end early and fill a beam of 2; the third, later, beats both."""
    rows = [[1 / 6] * 6 for _ in range(6)]
    rows[BOS] = [0, 0, 0.3, 0.4, 0.3, 0]
    rows[A] = [0, 0, 0.3, 0, 0, 0.7]
    rows[B] = [0, 0, 0.9, 0, 0, 0.1]
    rows[C] = [0, 0, 0.9, 0, 0, 0.1]
    best = search(chain(rows), [[A, EOS]], beam=2, length_penalty=1.0)[0][0]
    assert best.ids == (A, C, EOS)
    assert best.score == pytest.approx(math.log(0.4 * 0.7 * 0.9) / (8 / 6), abs=1e-5)


def test_a_search_ends_as_soon_as_nothing_can_change(chain):
    rows = [[0, 0, 0.98, 0.01, 0.01] for _ in range(5)]
    model, steps = chain(rows, context=60), []
    model.output.register_forward_hook(lambda *_: steps.append(1))
    found = search(model, [[A] * 8 + [EOS]], beam=4, length_penalty=0.0)
    assert found[0][0].ids == (EOS,)
    assert len(steps) == 1  # log 0.98 is above every other beginning
    steps.clear()
    search(model, [[A] * 8 + [EOS]], beam=4, n_best=4, length_penalty=0.0)
    assert 1 < len(steps) < 10


def test_the_first_results_do_not_depend_on_how_many_are_asked_for(lively_pair, pair_kind):
    model, sources = lively_pair(pair_kind), random_sources(5)
    for alpha in (0.0, 1.0):
        fullest = search(model, sources, beam=5, n_best=5, length_penalty=alpha, extra_tokens=8)
        for n_best in (1, 3):
            found = search(model, sources, beam=5, n_best=n_best, length_penalty=alpha, extra_tokens=8)
            assert [[one.ids for one in few] for few in found] == [
                [one.ids for one in many[:n_best]] for many in fullest
            ]


def test_beam_1_is_greedy(lively_pair, pair_kind):
    seen = set()
    for seed in range(3):
        model, sources = lively_pair(pair_kind, vocab_size=9, seed=seed), random_sources(5, vocab_size=9, seed=seed)
        expected = [greedy(model, source, len(source) + 5) for source in sources]
        for alpha in (0.0, 2.0):
            found = search(model, sources, beam=1, length_penalty=alpha, extra_tokens=6)
            assert [one.ids for (one,) in found] == expected
        seen |= {(one.finished, one.ids) for (one,) in found}
    assert len(seen) > 6
    assert {finished for finished, _ in seen} == {True, False}


@given(
    seed=st.integers(0, 10**6),
    beam=st.integers(1, 6),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 3.0]),
    extra=st.integers(0, 12),
    kind=st.sampled_from(["none", "learned", "sinusoidal", "rotary"]),
)
@settings(max_examples=25, deadline=None)
def test_whatever_is_found_is_well_formed(lively_pair, seed, beam, alpha, extra, kind):
    """S11: one EOS at most, last; no PAD or BOS; within the limit; sums and scores by the formulas."""
    model = lively_pair(kind, vocab_size=9, seed=seed % 7)
    sources = random_sources(3, vocab_size=9, seed=seed)
    results = search(model, sources, beam=beam, n_best=beam, length_penalty=alpha, extra_tokens=extra)
    for source, found in zip(sources, results, strict=True):
        limit = min(len(source) - 1 + extra, model.config.context)
        assert 1 <= len(found) <= beam
        assert len({one.ids for one in found}) == len(found)
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        for one in found:
            assert 1 <= len(one.ids) <= limit
            assert not {PAD, BOS} & set(one.ids)
            assert EOS not in one.ids[:-1]
            assert one.finished == (one.ids[-1] == EOS)
            assert one.finished or len(one.ids) == limit
            assert one.log_prob == pytest.approx(sum(logprobs(model, source, one.ids)), abs=1e-4)
            assert one.score == pytest.approx(one.log_prob / penalty(len(one.ids), alpha))


def test_the_limit_is_the_source_and_some_more_within_the_context(chain):
    rows = [[0, 0, 1e-9, 0.5, 0.5 - 1e-9] for _ in range(5)]
    model = chain(rows, context=12)
    for n_source, extra, limit in ((3, 0, 3), (3, 4, 7), (1, 1, 2), (1, 0, 1), (8, 50, 12), (0, 0, 1)):
        for beam in (1, 3):
            best = search(model, [[A] * n_source + [EOS]], beam=beam, extra_tokens=extra)[0][0]
            assert len(best.ids) == limit
            assert not best.finished


def test_each_text_of_a_batch_has_its_own_limit(chain):
    rows = [[0, 0, 1e-9, 0.5, 0.5 - 1e-9] for _ in range(5)]
    sources = [[A] * n + [EOS] for n in (2, 9, 5, 5, 1)]
    found = search(chain(rows, context=20), sources, beam=3, n_best=3, extra_tokens=3)
    assert [{len(one.ids) for one in each} for each in found] == [{5}, {12}, {8}, {8}, {4}]


def test_padding_and_begin_marks_are_not_written_even_if_likeliest(lively_pair):
    model, sources = lively_pair(output_bias=True), random_sources(5)
    with torch.no_grad():
        model.output.bias[[PAD, BOS]] = 30.0
    for beam in (1, 4):
        for found, source in zip(search(model, sources, beam=beam, extra_tokens=5), sources, strict=True):
            assert not {PAD, BOS} & set(found[0].ids)
            # What was taken away is not given to the others: log P is the model's own.
            assert found[0].log_prob == pytest.approx(sum(logprobs(model, source, found[0].ids)), rel=1e-4)
            assert found[0].log_prob < -20


def test_equal_scores_go_in_a_fixed_order(chain):
    model = chain([[0.2] * 5 for _ in range(5)])
    assert search(model, [[A, EOS]], beam=1, extra_tokens=3)[0][0].ids == (EOS,)
    first = search(model, [[A, EOS]] * 5, beam=4, n_best=4, extra_tokens=3, length_penalty=0.0)
    assert first == [first[0]] * 5
    assert first == search(model, [[A, EOS]] * 5, beam=4, n_best=4, extra_tokens=3, length_penalty=0.0, batch_size=1)


def test_logits_that_are_not_numbers_are_an_error(lively_pair):
    for value in (math.nan, math.inf, -math.inf):
        model = lively_pair(output_bias=True)
        with torch.no_grad():
            model.output.bias.fill_(value)
        for beam in (1, 3):
            with pytest.raises(GenerationError, match="NaN"):
                search(model, random_sources(3), beam=beam, extra_tokens=2)


@given(
    n_values=st.sampled_from([1, 5, 511, 2048, 2049, 2560, 3000, 5631]),
    n=st.sampled_from([1, 2, 8, 13, 64, 100]),
    n_rows=st.integers(1, 5),
    hidden=st.integers(0, 40),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_largest_are_those_of_a_sort(n_values, n, n_rows, hidden, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.stack([torch.randperm(n_values, generator=generator) for _ in range(n_rows)]).float()
    x[:, : min(hidden, n_values - 1)] = -math.inf
    values, places = largest(x, n)
    expected = x.sort(dim=1, descending=True)
    assert values.equal(expected.values[:, :n])
    assert x.gather(1, places).equal(values)
    finite = values > -math.inf
    assert places[finite].equal(expected.indices[:, :n][finite])


def test_largest_shows_nan():
    x = torch.zeros(2, 3000)
    x[1, 2999] = math.nan
    assert largest(x, 8)[0].isnan().any(dim=1).tolist() == [False, True]
