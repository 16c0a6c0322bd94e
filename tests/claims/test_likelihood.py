"""The claims of "Likelihood": their small forms, and verdicts from numbers that contradict them."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
import torch
from small_forms import unsure

from mingyue.claims.claim import Number, Trial
from mingyue.claims.likelihood import chain_rule, logs, maximum_likelihood

NAMES = ("chain_rule", "logs", "cross_entropy", "maximum_likelihood", "hallucination", "shift")


@pytest.fixture(scope="module")
def measured():
    found = {}

    def get(name):
        if name not in found:
            found[name] = claim(name).measure(Trial("small"))
        return found[name]

    return get


def claim(name):
    return importlib.import_module(f"mingyue.claims.likelihood.{name}").CLAIM


@pytest.mark.parametrize("name", NAMES)
def test_the_small_form_is_supported(measured, name):
    numbers = measured(name).numbers
    found = claim(name).finding(numbers)
    assert found.verdict == "supported", found.reason.en
    assert set(numbers) == set(claim(name).labels)


@pytest.mark.parametrize(
    ("name", "values", "verdict"),
    [
        ("chain_rule", {"masked_total": 1.01}, "not supported"),
        ("chain_rule", {"untrained_total": 0.9}, "not supported"),
        ("chain_rule", {"passes_apart": 0.01}, "not supported"),
        ("chain_rule", {"open_total": 1.0}, "not supported"),
        ("chain_rule", {"open_total": Number(3.0, 0.5, 5.5)}, "not supported"),
        ("logs", {"zero_after": 5000.0}, "not supported"),
        ("logs", {"sum_off": 0.1}, "not supported"),
        ("logs", {"sums_finite": 0.0}, "not supported"),
        ("cross_entropy", {"value": 0.1}, "not supported"),
        ("cross_entropy", {"gradient": 0.1}, "not supported"),
        ("cross_entropy", {"residual": 0.1}, "not supported"),
        ("cross_entropy", {"training": 0.1}, "not supported"),
        ("cross_entropy", {"smoothed": 0.0}, "not supported"),
        ("maximum_likelihood", {"left_most": 0.5}, "not supported"),
        ("maximum_likelihood", {"ratio_most": 2.0}, "not supported"),
        ("maximum_likelihood", {"ratio_least": 0.5}, "not supported"),
        ("maximum_likelihood", {"text_loss_apart": 0.1}, "not supported"),
        ("maximum_likelihood", {"text_gradient_apart": 0.1}, "not supported"),
        ("maximum_likelihood", {"untrained_least": 0.05}, "not supported"),
        ("maximum_likelihood", {"gain_short": -0.01}, "not supported"),
        ("maximum_likelihood", {"gain_long": Number(0.01, -0.01, 0.03)}, "not supported"),
        ("maximum_likelihood", {"more_text": 0.9}, "not supported"),
        ("maximum_likelihood", {"more_training": 0.5}, "not supported"),
        ("maximum_likelihood", {"left_most": Number(0.05, -0.1, 0.2)}, "not supported"),
        ("hallucination", {"off_most": 0.0, "off_at": 0.9}, "not supported"),
        ("hallucination", {"stranger_answered": 0.2}, "not supported"),
        ("hallucination", {"untrained_answered": 1.0, "stranger_answered": 0.95}, "not supported"),
        ("hallucination", {"off_most": Number(0.5, 0.4, 0.6), "off_at": 0.5}, "not supported"),
        ("hallucination", {"untrained_likeliest": 0.9, "stranger_likeliest": 0.5}, "supported with a correction"),
        ("hallucination", {"stranger_likeliest": 0.06}, "supported with a correction"),
        ("shift", {"copied_own_loss": 1.0}, "not supported"),
        ("shift", {"copied_next_loss": 0.5}, "not supported"),
        ("shift", {"copied_possible": 0.95}, "not supported"),
        ("shift", {"shifted_loss": 9.0}, "not supported"),
        ("shift", {"shifted_possible": 0.2}, "not supported"),
        ("shift", {"batch_is_shifted": 0.0}, "not supported"),
        ("shift", {"shifted_possible": Number(0.95, 0.8, 1.0)}, "not supported"),
    ],
)
def test_numbers_that_contradict_a_claim_change_its_verdict(measured, name, values, verdict):
    given = {key: value if isinstance(value, Number) else Number.exact(value) for key, value in values.items()}
    numbers = {**measured(name).numbers, **given}
    assert claim(name).judge(numbers).verdict == verdict


@pytest.mark.parametrize("name", NAMES)
def test_intervals_that_reach_everywhere_support_nothing(measured, name):
    assert claim(name).judge(unsure(measured(name).numbers)).verdict == "not supported"


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_drawn_in_both_languages(measured, name):
    pytest.importorskip("altair")
    english, chinese = (
        [chart.spec() for chart in claim(name).draw(measured(name), language)] for language in ("en", "zh")
    )
    assert english and len(english) == len(chinese) and english != chinese


def test_the_same_seed_gives_the_same_numbers(measured):
    again = claim("logs").measure(Trial("small"))
    assert again == measured("logs")
    assert claim("logs").measure(Trial("small", 1)).numbers != again.numbers


def test_taking_the_mask_away_is_all_that_the_second_arm_does():
    """Row by row, a text that ends at t gives the logits that the masked model has at t: only what is seen differs."""
    model = chain_rule.tiny(4, context=5, initialisation="xavier")
    ids = torch.tensor([[0, 3, 1, 2, 2]])
    with torch.no_grad():
        last = chain_rule._without_mask(model, ids)[:, -1]
        assert torch.allclose(last[0].softmax(-1).sum(), torch.tensor(1.0))
        one = chain_rule.tiny(4, context=5, n_layers=1, initialisation="xavier")
        assert torch.allclose(chain_rule._without_mask(one, ids)[:, -1], one(ids)[:, -1], atol=1e-5)
        assert not torch.allclose(chain_rule._without_mask(one, ids)[:, 0], one(ids)[:, 0], atol=1e-3)


@pytest.mark.parametrize("value", [1.0, 0.1, 3.3e-20, 1.1754944e-38, 1e-40, 2.5e-45, 1e-46, 0.7e-45])
def test_rounding_is_that_of_fp32(value):
    torch.set_flush_denormal(False)
    assert float(logs._round_to_fp32(np.float64(value))) == float(np.float32(value))


def test_a_constant_factor_underflows_where_arithmetic_says():
    halves = np.full(200, math.log(0.5))
    assert logs._characters_until_zero(halves) == 150  # 2⁻¹⁴⁹ is the smallest number; half of it is rounded to 0
    assert logs._characters_until_zero(np.full(3, -1.0)) == 4


def test_counts_are_those_of_the_text():
    truth, counts, ids = maximum_likelihood._text(4, 500)
    assert counts.sum() == 500 and len(ids) == 501
    assert counts[ids[0], ids[1]] >= 1 and torch.allclose(truth.sum(-1), torch.ones(6, dtype=torch.float64))
    assert maximum_likelihood._divergence(counts, counts / counts.sum(-1, keepdim=True)) == pytest.approx(0, abs=1e-12)
    assert maximum_likelihood._divergence(counts, truth) > 0


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 200])
def test_the_loss_of_a_text_counts_each_of_its_pairs_once(length):
    _, counts, ids = maximum_likelihood._text(2, length)
    model = maximum_likelihood._model(2)
    assert maximum_likelihood._text_apart(model, counts, ids) == pytest.approx((0, 0), abs=1e-9)
    assert maximum_likelihood._text_apart(model, counts.roll(1, 1), ids)[1] > 1e-3


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_the_report_form_is_supported(name):
    found = claim(name).finding(claim(name).measure(Trial("report", 1)).numbers)
    assert found.verdict == "supported", found.reason.en
