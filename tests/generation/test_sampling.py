"""The choice of a token: exact values by hand, properties, and the frequencies that come out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mingyue.config import GenerateSettings
from mingyue.errors import GenerationError, SettingsError
from mingyue.generation.allowed import AllowedTokens
from mingyue.generation.sampling import choose, distribution, draw, penalise, uniform

FOUR = np.log(np.array([[0.1, 0.4, 0.3, 0.2]], dtype=np.float32))
PLAIN = GenerateSettings(temperature=1)


def text(
    asked: GenerateSettings,
    index: int = 0,
    sample: int = 0,
    n_generated: int = 0,
    *,
    seen: list[bool] | None = None,
    counts: list[int] | None = None,
    never: Sequence[int] = (),
    top_logprobs: int | None = None,
    logit_bias: dict[int, float] | None = None,
) -> SimpleNamespace:
    request = SimpleNamespace(settings=asked, top_logprobs=top_logprobs, logit_bias=logit_bias or {})
    return SimpleNamespace(
        request=request,
        place=(index, sample, n_generated),
        n_generated=n_generated,
        seen=None if seen is None else np.array(seen),
        counts=None if counts is None else np.array(counts),
        state=0,
        allowed=AllowedTokens(never),
        eos_id=3,
    )


def shares(asked: GenerateSettings, logits: np.ndarray = FOUR) -> list[float]:
    return [round(value, 6) for value in distribution(logits, asked)[0].tolist()]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [0.1, 0.4, 0.3, 0.2]),
        ({"temperature": 0.5}, [0.01 / 0.3, 0.16 / 0.3, 0.09 / 0.3, 0.04 / 0.3]),
        ({"top_k": 2}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_p": 0.69}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_p": 0.71}, [0, 4 / 9, 3 / 9, 2 / 9]),
        ({"top_p": 0.01}, [0, 1, 0, 0]),
        ({"min_p": 0.51}, [0, 4 / 7, 3 / 7, 0]),
        ({"min_p": 0.49}, [0, 4 / 9, 3 / 9, 2 / 9]),
        ({"min_p": 1.0}, [0, 1, 0, 0]),
        # Each step sees what the one before left: 0.4 of all is 4/7 of two, and reaches 0.5.
        ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0]),
        ({"temperature": 0.5, "top_p": 0.5}, [0, 1, 0, 0]),
    ],
    ids=str,
)
def test_exact_values(fields, expected):
    assert shares(PLAIN.replace(**fields)) == [round(value, 6) for value in expected]


def test_top_k_above_the_vocabulary_is_all_and_zero_is_off():
    """S2."""
    for top_k in (0, 4, 5, 10**9):
        assert shares(PLAIN.replace(top_k=top_k)) == shares(PLAIN)


def test_temperature_zero_and_top_k_one_take_the_likeliest():
    """S1."""
    logits = np.random.default_rng(0).standard_normal((6, 50)).astype(np.float32)
    for asked in (PLAIN.replace(temperature=0), PLAIN.replace(top_k=1), PLAIN.replace(temperature=1e-310)):
        chosen = choose(logits.copy(), [text(asked, i) for i in range(6)])
        assert [choice.token for choice in chosen] == logits.argmax(axis=-1).tolist()


logit_rows = st.lists(st.floats(-30, 30, width=16), min_size=2, max_size=40)


@given(
    row=logit_rows,
    temperature=st.floats(0.05, 20),
    top_k=st.integers(0, 50),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
)
@settings(max_examples=150, deadline=None)
def test_what_is_removed_has_probability_exactly_zero_and_is_never_drawn(row, temperature, top_k, top_p, min_p):
    """S3: exact zeros outside top-k, top-p and min-p; the likeliest always stays; the ends of the line are safe."""
    asked = GenerateSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    probabilities = distribution(np.array([row], dtype=np.float32), asked)
    assert probabilities.dtype == np.float64
    found = probabilities[0].tolist()
    assert math.isclose(sum(found), 1.0, rel_tol=1e-12)
    order = sorted(range(len(row)), key=lambda i: -row[i])
    kept = [i for i in order if found[i] > 0]
    assert row[order[0]] == max(row[i] for i in kept)
    assert min(row[i] for i in kept) >= max([row[i] for i in order if found[i] == 0], default=-math.inf)
    if top_k:
        assert len(kept) <= top_k
    assert all(found[i] >= min_p * max(found) * (1 - 1e-12) for i in kept)
    for number in (0.0, 2**-48, 0.5, 1 - 2**-48):
        share, token = draw(probabilities, np.array([number]))
        assert found[int(token[0])] == float(share[0]) > 0


def test_a_nucleus_wider_than_the_first_try_is_found():
    """S3: a flat distribution over 5,000 tokens; the nucleus needs more candidates than are looked at first."""
    logits = np.linspace(0, 0.01, 5000)[None]
    found = distribution(logits, PLAIN.replace(top_p=0.9))[0]
    whole = distribution(logits, PLAIN)[0]
    removed = whole[found == 0]
    assert (found[:400] == 0).all()
    assert 0.1 - 1e-3 < float(removed.sum()) <= 0.1
    assert int((found > 0).sum()) == 5000 - len(removed)


@given(row=logit_rows, penalty=st.floats(1.01, 5))
@settings(max_examples=60, deadline=None)
def test_a_repetition_penalty_makes_a_token_less_likely_whatever_the_sign(row, penalty):
    """S4: on positive and on negative logits; tokens not seen keep theirs."""
    logits = np.array([row], dtype=np.float32)
    seen = np.arange(len(row))[None] % 2 == 0
    penalised = penalise(logits, seen, penalty)
    assert (penalised[seen] <= logits[seen]).all()
    assert (penalised[seen] < logits[seen])[np.abs(logits[seen]) > 1e-3].all()
    assert np.array_equal(penalised[~seen], logits[~seen])
    assert penalise(np.array([2.0, -2.0]), np.array([True, True]), 2.0).tolist() == [1.0, -4.0]


def test_presence_and_frequency_penalties_and_biases_are_subtracted_and_added():
    """By hand: 0.4 was generated twice, 0.3 once; a bias can forbid a token or force one."""
    greedy = PLAIN.replace(temperature=0)

    def chosen(counts=None, logit_bias=None, **fields) -> int:
        counts = counts or [0, 2, 1, 0]
        one = text(greedy.replace(**fields), counts=counts, logit_bias=logit_bias, top_logprobs=0)
        (choice,) = choose(FOUR.copy(), [one])
        assert choice.logprob == pytest.approx(math.log([0.1, 0.4, 0.3, 0.2][choice.token]), abs=1e-6)
        return choice.token

    assert chosen() == 1
    assert chosen(presence_penalty=0.3) == 1  # 0.4 and 0.3 fall alike; 0.4·e^-0.3 = 0.296
    assert chosen(presence_penalty=0.7) == 3  # 0.4·e^-0.7 = 0.199
    assert chosen(frequency_penalty=0.3) == 2  # 0.4·e^-0.6 = 0.2195, 0.3·e^-0.3 = 0.222
    assert chosen(frequency_penalty=-1.0) == 1
    assert chosen(logit_bias={1: -100.0}) == 2
    assert chosen(logit_bias={0: 100.0}) == 0


def test_marks_are_never_written_and_the_end_only_after_the_minimum():
    """S5, S8: PAD and BOS have the highest logits of all; EOS the next."""
    logits = np.array([[9.0, 8.0, 0.0, 7.0, 1.0]] * 2, dtype=np.float32)
    for asked in (PLAIN.replace(temperature=0), PLAIN.replace(top_k=1)):
        held = asked.replace(min_new_tokens=4)
        chosen = choose(logits.copy(), [text(held, n_generated=n, never=[0, 1]) for n in (3, 4)])
        assert [choice.token for choice in chosen] == [4, 3]
        ignored = choose(logits.copy(), [text(asked.replace(ignore_eos=True), never=[0, 1])] * 2)
        assert [choice.token for choice in ignored] == [4, 4]


def test_log_probabilities_are_the_models_own():
    """Before penalty, removal, temperature and filters; the likeliest come first, of equal ones the lower id."""
    asked = GenerateSettings(temperature=0.1, top_k=1, repetition_penalty=3.0)
    seen = [False, True, False, False]
    (choice,) = choose(FOUR + np.float32(5.0), [text(asked, seen=seen, never=[0], top_logprobs=3)])
    assert choice.token == 2  # 0.3; the likelier 0.4 was seen before
    assert choice.logprob == pytest.approx(math.log(0.3), abs=1e-6)
    assert [token for token, _ in choice.top] == [1, 2, 3]
    assert [logprob for _, logprob in choice.top] == pytest.approx(np.log([0.4, 0.3, 0.2]), abs=1e-6)
    (choice,) = choose(FOUR.copy(), [text(asked.replace(repetition_penalty=1.0))])
    assert choice.logprob is None and choice.top == ()
    (choice,) = choose(np.zeros((1, 4), dtype=np.float32), [text(asked, seen=seen, top_logprobs=9)])
    assert [token for token, _ in choice.top] == [0, 1, 2, 3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_logits_that_are_no_numbers_are_an_error_of_their_row_alone(temperature, broken):
    logits = np.concatenate([FOUR, np.full((1, 4), broken, dtype=np.float32)])
    good, bad = choose(logits, [text(PLAIN.replace(temperature=temperature), index) for index in range(2)])
    assert isinstance(bad, GenerationError) and "leave no token to choose" in str(bad)
    assert 0 <= good.token < 4


def test_frequencies_are_the_probabilities_and_streams_are_independent():
    """A chi-squared test for each stream, and for pairs of neighbours in place, sample, prompt and seed."""
    asked = PLAIN.replace(top_k=3)
    expected = np.array([0, 4 / 9, 3 / 9, 2 / 9])
    n = 3000
    streams = {
        "place": [uniform(1, 0, 0, i) for i in range(n)],
        "sample": [uniform(1, 0, i, 0) for i in range(n)],
        "prompt": [uniform(1, i, 0, 0) for i in range(n)],
        "seed": [uniform(i, 0, 0, 0) for i in range(n)],
    }
    for name, numbers in streams.items():
        assert all(0 <= number < 1 for number in numbers)
        _, tokens = draw(np.repeat(distribution(FOUR, asked), n, axis=0), np.array(numbers))
        counts = np.bincount(tokens, minlength=4)
        assert counts[0] == 0
        assert float(((counts - n * expected)[1:] ** 2 / (n * expected[1:])).sum()) < 13.8, name  # p = 0.001
        pairs = np.bincount(tokens[:-1] * 4 + tokens[1:], minlength=16)
        both = (expected[:, None] * expected[None]).flatten() * (n - 1)
        assert float(((pairs - both)[both > 0] ** 2 / both[both > 0]).sum()) < 26.1, name
    assert len({uniform(s, p, n, t) for s in range(4) for p in range(4) for n in range(4) for t in range(4)}) == 256


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, "temperature = -0.1"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"repetition_penalty": math.inf}, "repetition_penalty"),
        ({"top_p": 1.5}, "top_p = 1.5"),
        ({"top_p": 0.0}, "top_p = 0.0"),
        ({"top_k": -1}, "top_k = -1"),
        ({"min_p": 2}, "min_p = 2"),
        ({"repetition_penalty": 0}, "repetition_penalty = 0"),
        ({"max_new_tokens": -1}, "max_new_tokens = -1"),
        ({"samples": 0}, "samples = 0"),
        ({"stop": [""]}, "a stop text is empty"),
        ({"max_new_tokens": 3, "min_new_tokens": 4}, "min_new_tokens 4 is above max_new_tokens 3"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused_by_name(fields, message):
    """S12: negative temperature, top-p above 1, and the like."""
    with pytest.raises(SettingsError, match=message):
        GenerateSettings.read(fields, source="the test")
