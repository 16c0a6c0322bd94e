"""The claims of "Scaling by √d_k": their small forms, and verdicts from numbers that contradict them."""

from __future__ import annotations

import pytest
from small_forms import unsure

from mingyue.claims.claim import Number, Trial
from mingyue.claims.scaling import additive, saturation, variance


def changed(numbers, **values):
    given = {name: value if isinstance(value, Number) else Number.exact(value) for name, value in values.items()}
    return {**numbers, **given}


def specs(claim, measurement):
    pytest.importorskip("altair")
    return [[chart.spec() for chart in claim.CLAIM.draw(measurement, language)] for language in ("en", "zh")]


@pytest.fixture(scope="module")
def measured():
    found = {}

    def get(claim):
        if claim not in found:
            found[claim] = claim.CLAIM.measure(Trial("small"))
        return found[claim]

    return get


def test_variance_grows_with_the_width_and_is_1_after_scaling(measured):
    found = variance.CLAIM.finding(measured(variance).numbers)
    assert found.verdict == "supported" and "1.0" in found.reason.en
    assert set(measured(variance).numbers) == set(variance.CLAIM.labels)


@pytest.mark.parametrize(
    "values",
    [
        {"ratio_most": 1.3},
        {"ratio_least": 0.5},
        {"scaled_most": 4.0},
        {"scaled_least": 0.1},
        {"mean_most": -0.2},
        {"ratio_most": Number(1.0, 0.8, 1.2)},
        {"mean_most": Number(0.0, -0.06, 0.06)},
    ],
)
def test_variance_can_fail(measured, values):
    assert variance.CLAIM.judge(changed(measured(variance).numbers, **values)).verdict == "not supported"


def test_variance_is_measured_and_not_assumed(monkeypatch):
    """Keys that are the queries are not independent of them: the mean is d_k, and the measurement sees it."""
    import torch

    real = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *size, generator: real(*size, generator=generator.manual_seed(1)))
    numbers = variance.CLAIM.measure(Trial("small")).numbers
    assert variance.CLAIM.judge(numbers).verdict == "not supported"


def test_saturation_is_of_the_typical_row_and_not_of_the_mean(measured):
    numbers = measured(saturation).numbers
    found = saturation.CLAIM.judge(numbers)
    assert found.verdict == "supported with a correction"
    assert numbers["plain_top_share_most"].value > 2 * numbers["scaled_top_share_most"].value
    assert set(numbers) == set(saturation.CLAIM.labels)


def test_that_few_rows_carry_the_gradient_is_said_only_where_it_was_measured(measured):
    numbers = measured(saturation).numbers
    assert "A tenth of the rows" in saturation.CLAIM.finding(numbers).reason.en
    for values in ({"plain_top_share_most": 0.3}, {"plain_gap_top_most": 30.0}):
        found = saturation.CLAIM.finding(changed(numbers, **values))
        assert found.verdict == "supported with a correction" and "A tenth of the rows" not in found.reason.en
    shares = [number for name, number in numbers.items() if "vanished" in name or "share" in name]
    assert shares and all(number.low >= 0 and number.high <= 1 for number in shares)


def test_the_jacobian_is_that_of_softmax():
    import torch

    scores = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(-1), scores)
    p = scores.softmax(-1)
    assert torch.allclose(jacobian, torch.diag(p) - p[:, None] * p)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ({"plain_largest_most": 0.6}, "not supported"),
        ({"plain_jacobian_most": 0.1}, "not supported"),
        ({"scaled_jacobian_most": 0.01}, "not supported"),
        ({"scaled_vanished_most": 0.1}, "not supported"),
        ({"scaled_largest_most": 0.9}, "not supported"),
        ({"plain_gradient_mean_most": 0.001}, "supported"),
        ({"plain_gradient_median_most": 0.1}, "not supported"),
        ({"scaled_gradient_median_most": 0.01}, "not supported"),
        ({"plain_largest_most": Number(0.97, 0.9, 1.0)}, "not supported"),
        ({"scaled_jacobian_most": Number(0.24, 0.1, 0.4)}, "not supported"),
    ],
)
def test_saturation_can_have_each_verdict(measured, values, verdict):
    assert saturation.CLAIM.judge(changed(measured(saturation).numbers, **values)).verdict == verdict


@pytest.mark.parametrize("claim", [variance, saturation, additive])
def test_intervals_that_reach_everywhere_support_nothing(measured, claim):
    assert claim.CLAIM.judge(unsure(measured(claim).numbers)).verdict == "not supported"


def steps(**values):
    names = {"least_width": 8, "most_width": 256, "steps": 400}
    for end, needed in (("least", (100, 105, 95)), ("most", (120, 400, 110))):
        for arm, step in zip(("additive", "plain", "scaled"), needed, strict=True):
            names |= {f"{arm}_{end}": step, f"{arm}_{end}_there": float(values.get(f"{arm}_{end}", step) < 400)}
    names |= values
    for end in ("least", "most"):
        for arm in ("plain", "scaled"):
            names.setdefault(f"{arm}_{end}_ratio", names[f"{arm}_{end}"] / names[f"additive_{end}"])
    return changed({}, **names)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ({}, "supported"),
        ({"scaled_least": 40}, "supported with a correction"),
        ({"plain_most": 130}, "not supported"),
        ({"scaled_most": 200}, "not supported"),
        ({"plain_least": 300}, "not supported"),
        ({"additive_most": 400}, "not supported"),
        ({"plain_most_ratio": Number(2.0, 1.2, 2.8)}, "not supported"),
        ({"scaled_most_ratio": Number(1.0, 0.4, 1.6)}, "not supported"),
        ({"scaled_least_ratio": Number(0.7, 0.6, 0.8)}, "supported with a correction"),
        ({"scaled_least_ratio": Number(0.9, 0.5, 1.3)}, "not supported"),
    ],
)
def test_additive_can_have_each_verdict(values, verdict):
    found = additive.CLAIM.finding(steps(**values))
    assert found.verdict == verdict
    assert "> 400" in found.reason.en or values.get("plain_most") == 130


def test_additive_in_its_small_form_shows_the_scale_at_work(measured):
    numbers = measured(additive).numbers
    assert numbers["scaled_most"].value < numbers["plain_most"].value
    assert numbers["scaled_most_there"].value == 1
    assert set(numbers) == set(additive.CLAIM.labels)


def test_the_three_scores_are_their_formulas():
    import torch

    task = additive._tasks([3], 2, 0)
    assert bool((task.keys_EBS == task.query_EB[..., None]).sum(-1).eq(1).all())
    outputs = {}
    for arm in ("additive", "plain", "scaled"):
        model = additive._Retrieval(arm, 4, [3])
        query = (model.symbols_EVI[0] @ model.to_query_EID[0])[task.query_EB[0, 0]]
        key = (model.symbols_EVI[0] @ model.to_key_EID[0])[task.keys_EBS[0, 0]]
        if arm == "additive":
            scores = torch.tanh(key + query) @ model.to_score_ED1[0, :, 0]
        else:
            scores = key @ query / (2.0 if arm == "scaled" else 1.0)
        value = scores.softmax(-1) @ model.values_ECU[0][task.values_EBS[0, 0]]
        outputs[arm] = value @ model.output_EUC[0]
        assert torch.allclose(model(task)[0, 0], outputs[arm], atol=1e-5)


@pytest.mark.parametrize("claim", [variance, saturation, additive])
def test_figures_are_drawn_in_both_languages(measured, claim):
    english, chinese = specs(claim, measured(claim))
    assert english and len(english) == len(chinese) and english != chinese


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_additive_holds_with_enough_steps():
    found = additive.CLAIM.judge(additive.CLAIM.measure(Trial("report")).numbers)
    assert found.verdict in ("supported", "supported with a correction")
