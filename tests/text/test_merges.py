"""Learning merges: exact greedy BPE."""

import json
from collections import Counter

import tokenizers
from hypothesis import assume, given
from hypothesis import strategies as st

from mingyue.text.merges import learn_merges

WORDS = st.dictionaries(
    st.one_of(st.text("ab", min_size=1, max_size=14), st.text("abc好坏é ", min_size=1, max_size=10)),
    st.integers(1, 5),
    min_size=1,
    max_size=25,
)


def by_hand(words, count):
    """The definition: count all pairs of neighbours, merge the most frequent, from the left, again."""
    letters = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = {word: [c for part, _ in letters.pre_tokenize_str(word) for c in part] for word in words}
    rank = {token: index for index, token in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}
    merges, refused = [], set()
    while len(merges) < count:
        pairs = Counter()
        for word, times in words.items():
            for pair in zip(split[word], split[word][1:], strict=False):
                pairs[pair] += times
        best = min(
            (p for p in pairs if pairs[p] >= 2 and p not in refused),
            key=lambda p: (-pairs[p], rank[p[0]], rank[p[1]]),
            default=None,
        )
        if best is None:
            break
        if "".join(best) in rank:
            refused.add(best)
            continue
        merges.append(best)
        rank["".join(best)] = len(rank)
        for word, parts in split.items():
            out = []
            for part in parts:
                if out and (out[-1], part) == best:
                    out[-1] = out[-1] + part
                    split[word] = out
                else:
                    out.append(part)
            split[word] = out
    return merges


def test_merges_by_hand():
    assert learn_merges({"abab": 2, "abc": 1}, 9) == [("a", "b"), ("ab", "ab")]
    assert learn_merges({"aaaaa": 1, "x": 9}, 9) == [("a", "a")], "aa aa a: (aa, aa) stands once"
    assert learn_merges({"zz": 2, "yy": 2}, 1) == [("y", "y")], "equal counts: the lower pair"


@given(WORDS, st.integers(0, 40))
def test_equals_the_definition(words, count):
    assert learn_merges(words, count) == by_hand(words, count)


@given(WORDS)
def test_equals_the_trainer_of_the_library(words):
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=286,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator([word for word, times in words.items() for _ in range(times)], trainer)
    theirs = [tuple(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    assume(len({"".join(pair) for pair in theirs}) == len(theirs))  # they may spell one token in two ways
    assert learn_merges(words, 30) == theirs


def test_pairs_far_below_the_first_threshold_are_found():
    """The text is counted anew with lower thresholds, in gaps left by earlier merges."""
    words = {"ab" * 500: 100, "cdcd": 700, "efg": 60, "xyz": 2, "q": 1}
    merges = learn_merges(words, 99)
    assert merges == by_hand(words, 99)
    assert ("x", "y") in merges and ("xy", "z") in merges


def test_no_token_is_spelled_in_two_ways():
    words = {"abc": 10, "ab": 30, "bcx": 25, "abcd": 9, "zbc": 20}
    tokens = [left + right for left, right in learn_merges(words, 50)]
    assert len(tokens) == len(set(tokens))


def test_no_words_give_no_merges():
    assert learn_merges({}, 5) == []
    assert learn_merges({"a": 7}, 5) == []
