"""What a model must beat."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from mingyue.data import baselines

BOS, EOS = 1, 2


def by_hand(train, held_out, size):
    """The formulae of the module, term by term, in plain Python."""
    pairs = [(v, w) for v, w in pairwise(train) if w != BOS]
    single, double, after = Counter(w for _, w in pairs), Counter(pairs), Counter(v for v, _ in pairs)
    types = Counter(v for v, _ in double)

    def discount(counts):
        once, twice = sum(c == 1 for c in counts), sum(c == 2 for c in counts)
        return min(max(once / (once + 2 * twice) if once else 0.5, 0.1), 0.95)

    d, e, n = discount(single.values()), discount(double.values()), len(pairs)

    def unigram(w):
        return max(single[w] - d, 0) / n + d * len(single) / n / size

    def bigram(v, w):
        if not after[v]:
            return unigram(w)
        return max(double[v, w] - e, 0) / after[v] + e * types[v] / after[v] * unigram(w)

    assert sum(unigram(w) for w in range(size)) == pytest.approx(1)
    for v in range(size):
        assert sum(bigram(v, w) for w in range(size)) == pytest.approx(1)
    scored = [(v, w) for v, w in pairwise(held_out) if w != BOS]
    count = len(scored)
    return (
        -sum(math.log(unigram(w)) for _, w in scored) / count,
        -sum(math.log(bigram(v, w)) for v, w in scored) / count,
    )


def random_ids(count, size, seed):
    return np.random.default_rng(seed).integers(0, size, count) ** 2 % size


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("chunk", [1 << 22, 37])
def test_the_losses_are_those_of_the_formulae(corpus_of, monkeypatch, dense, chunk):
    module = sys.modules["mingyue.data.baselines"]
    monkeypatch.setattr(module, "_CHUNK", chunk)
    if not dense:
        monkeypatch.setattr(module, "_DENSE", 0)
    train, held_out = random_ids(400, 12, 1), random_ids(90, 14, 2)
    found = baselines(corpus_of(train, held_out, vocab=15))
    unigram, bigram = by_hand(train.tolist(), held_out.tolist(), 15)
    assert found.uniform == pytest.approx(math.log(15))
    assert found.unigram == pytest.approx(unigram, rel=1e-12)
    assert found.bigram == pytest.approx(bigram, rel=1e-12)
    assert found.held_out_targets == int((held_out[1:] != BOS).sum())


def test_a_bigram_text_is_foreseen_by_the_bigram_model(corpus_of):
    text = [3, 4, 5, 6] * 200
    found = baselines(corpus_of(text, text[:41], vocab=10))
    assert found.bigram < 0.02 < math.log(4) * 0.9 < found.unigram < found.uniform


def test_without_held_out_text_there_is_only_the_uniform_guess(corpus_of):
    found = baselines(corpus_of([3, 4, 5], [], vocab=10))
    assert (found.unigram, found.bigram, found.held_out_targets) == (None, None, 0)


def test_of_a_long_text_only_a_part_is_counted(corpus_of):
    found = baselines(corpus_of([3, 4] * 500, [3, 4] * 300, vocab=10), max_tokens=100)
    assert found.train_targets == 100 and found.held_out_targets == 100


def test_millions_of_tokens_take_seconds(corpus_of):
    corpus = corpus_of(random_ids(2_000_000, 6000, 1), random_ids(200_000, 6000, 2), vocab=6000)
    begin = time.perf_counter()
    baselines(corpus)
    assert time.perf_counter() - begin < 4
