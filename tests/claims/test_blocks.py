"""The claims of "Blocks": what their small forms show, verdicts on numbers that contradict them, their figures."""

from __future__ import annotations

import pytest
import torch
from small_forms import CORRECTED, NOT_SUPPORTED, SUPPORTED, judged, small, unsure, value

from mingyue.claims.blocks import facts, feedforward, memory, parts, residual
from mingyue.claims.claim import Number, Trial
from mingyue.claims.training import tiny
from mingyue.nn import CAUSAL, Rotation

CLAIMS = {module.CLAIM.name: module.CLAIM for module in (residual, feedforward, facts, memory)}


def every_arm(measure: str, **values: float) -> dict[str, float]:
    return {f"{arm.replace('_', '-')}_{measure}": number for arm, number in values.items()}


@pytest.mark.parametrize(
    ("name", "verdict"),
    [("residual", CORRECTED), ("feedforward", SUPPORTED), ("facts", SUPPORTED), ("memory", CORRECTED)],
)
def test_the_small_form_gives_the_verdict_that_is_true(name, verdict):
    assert CLAIMS[name].judge(small(name).numbers).verdict == verdict


def test_without_norms_and_path_the_gradient_dies_out_and_without_the_path_alone_tokens_become_one():
    assert value("residual", "bare-plain_gradient") < 1e-3
    assert min(value("residual", f"{arm}-plain_cosine") for arm in ("pre", "post")) > 0.99
    # With norms the gradient arrives without the path; without norms the path lets vectors grow.
    assert min(value("residual", f"{arm}-plain_gradient") for arm in ("pre", "post")) > 0.1
    assert value("residual", "bare_growth") > 10 > value("residual", "pre_growth")
    assert value("residual", "pre_cosine") < value("residual", "post_cosine")


def test_a_training_that_diverges_keeps_its_last_finite_loss(monkeypatch):
    how, calls = residual._Training(1, 8, 6, 1e-2), []

    def loss(model, ids_BT):
        calls.append(1)
        return sum(weight.sum() for weight in model.parameters()) * 0 + (3.0 if len(calls) < 4 else float("nan"))

    monkeypatch.setattr(residual, "next_token_loss", loss)
    assert residual._train("bare_warm", how, 0) == [3.0] * 6


def test_a_block_without_residual_path_has_the_same_weights_and_no_way_past_its_sublayers():
    block = tiny(7, context=4, n_layers=1).every_block()[0]
    plain = parts.without_residual(block)
    assert {id(weight) for weight in plain.parameters()} == {id(weight) for weight in block.parameters()}
    with torch.no_grad():
        block.attention.output.weight.zero_()
        block.feedforward.output.weight.zero_()
        x_BTM = torch.randn(1, 4, 32)
        assert torch.equal(block(x_BTM, CAUSAL, Rotation()), x_BTM)
        assert not plain(x_BTM, CAUSAL, Rotation()).any()


def test_attention_alone_is_linear_at_one_position_and_the_linear_fit_is_the_least_error():
    assert value("feedforward", "given_weights") <= feedforward.LINEAR
    assert value("feedforward", "own_weights") > 0.1
    assert value("feedforward", "attention_ratio") == pytest.approx(1, abs=feedforward.AS_LINEAR)
    x = torch.randn(50, 1, 4)
    wanted = x[..., :1] * 3 - 1
    assert feedforward._error_of_linear_fit((x, wanted), (x, wanted)) == pytest.approx(0, abs=1e-9)


def test_wider_attention_has_as_many_weights_as_the_feed_forward_part_and_embeddings_stay():
    wide, attention = value("facts", "parameters_64"), value("facts", "parameters_attention")
    assert attention == pytest.approx(wide, rel=0.05)
    model = facts._model("16", 20, 0)
    assert not model.embedding.weight.requires_grad
    assert value("facts", "recalled_cut") < value("facts", "recalled_0") < value("facts", "recalled_64")
    # Without a feed-forward part and its weights: norms, and attention 4·d².
    assert value("facts", "parameters_0") >= 4 * 16**2


def test_the_memory_of_a_source_text_is_one_for_all_blocks_and_steps():
    for name in ("read", "memory", "logits", "query_own"):
        assert value("memory", name) <= memory.EQUAL
    assert value("memory", "query_previous") > memory.OTHER
    assert value("memory", "work") > 1


def test_verdicts_follow_the_numbers():
    assert judged("feedforward", attention_ratio=0.8) == NOT_SUPPORTED
    assert judged("feedforward", feedforward_ratio=0.9) == NOT_SUPPORTED
    assert judged("feedforward", attention_ratio=Number(1.0, 0.9, 1.1)) == NOT_SUPPORTED
    assert judged("feedforward", given_weights=0.1) == NOT_SUPPORTED
    assert judged("facts", recalled_0=0.2, recalled_16=0.5, recalled_64=0.9, recalled_attention=0.5) == SUPPORTED
    assert judged("facts", recalled_0=0.2, recalled_16=0.5, recalled_64=0.9, recalled_attention=0.9) == CORRECTED
    assert judged("facts", recalled_0=0.2, recalled_16=0.9, recalled_64=0.9, recalled_attention=0.5) == NOT_SUPPORTED
    wide = Number(0.5, 0.2, 0.8)
    assert judged("facts", recalled_0=0.2, recalled_16=wide, recalled_64=0.9, recalled_attention=0.5) == NOT_SUPPORTED
    assert judged("facts", recalled_0=0.2, recalled_16=0.5, recalled_64=0.9, recalled_attention=wide) == SUPPORTED
    stored = {"recalled_0": 0.2, "recalled_16": 0.5, "recalled_64": 0.9, "recalled_attention": 0.5}
    assert judged("facts", **stored, recalled_cut=0.5) == NOT_SUPPORTED  # not in the layer that was taken out
    assert judged("facts", recalled_0=0.7, recalled_16=0.8, recalled_64=0.9, recalled_attention=0.5) == NOT_SUPPORTED
    assert judged("memory", query_own=0.5, query_previous=0.0) == SUPPORTED
    assert judged("memory", query_own=0.5, query_previous=0.5) == NOT_SUPPORTED
    for name in ("read", "memory", "logits"):
        assert judged("memory", **{name: 0.01}) == NOT_SUPPORTED
        assert judged("memory", **{name: float("nan")}) == NOT_SUPPORTED


@pytest.mark.parametrize("name", CLAIMS)
def test_intervals_that_reach_everywhere_support_nothing(name):
    assert CLAIMS[name].judge(unsure(small(name).numbers)).verdict == NOT_SUPPORTED


def test_verdicts_on_the_residual_path():
    gradients = every_arm("gradient", pre=2, post=1, pre_plain=1e-4, post_plain=1e-4, bare=1, bare_plain=1e-4)
    cosines = every_arm("cosine", pre=0.3, post=0.4, pre_plain=0.99, post_plain=0.99, bare=0.5, bare_plain=0.99)
    losses = dict.fromkeys(("pre_warm", "pre_cold", "post_warm", "post_cold", "bare_warm", "bare-plain_warm"), 2.0)
    trained = {"trained_depth": 6, "untrained_loss": 5.0, **{f"{name}_loss": loss for name, loss in losses.items()}}
    failed, learned = ({**trained, "pre-plain_warm_loss": loss} for loss in (3.0, 2.05))

    def verdict(**changes: float | Number) -> str:
        return judged("residual", **{**gradients, **cosines, **changes})

    assert verdict() == SUPPORTED
    assert verdict(**failed) == SUPPORTED
    assert verdict(**learned) == NOT_SUPPORTED
    assert verdict(**{**failed, "pre-plain_warm_loss": Number(3.0, 1.9, 4.1)}) == NOT_SUPPORTED
    assert verdict(post_cosine=0.99) == CORRECTED
    assert verdict(bare_gradient=1e6) == CORRECTED
    assert verdict(**{"pre-plain_gradient": 1.0}) == CORRECTED  # with norms it arrives without the path
    assert verdict(**{"pre-plain_gradient": Number(0.05, 0.01, 2.0)}) == CORRECTED
    assert verdict(**{"bare-plain_gradient": 1.0}) == NOT_SUPPORTED  # it arrives with neither
    assert verdict(**{"pre-plain_gradient": 1.0, "pre-plain_cosine": 0.5}) == NOT_SUPPORTED
    assert verdict(pre_gradient=1e-3) == NOT_SUPPORTED
    assert verdict(pre_gradient=Number(5.0, 2.0, 20.0)) == NOT_SUPPORTED
    assert verdict(pre_cosine=0.95) == NOT_SUPPORTED
    assert verdict(pre_cosine=Number(0.8, 0.7, 0.95)) == NOT_SUPPORTED


@pytest.mark.parametrize("name", CLAIMS)
def test_each_number_has_words_and_the_figures_draw_in_both_languages(name):
    claim, measurement = CLAIMS[name], small(name)
    assert set(measurement.numbers) <= set(claim.labels)
    titles = []
    for language in ("en", "zh"):
        charts = claim.draw(measurement, language)
        assert charts
        for chart in charts:
            assert chart.spec() and chart.html()
        titles.append([chart.title for chart in charts])
    assert titles[0] != titles[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "verdict"), [("residual", CORRECTED), ("facts", SUPPORTED), ("feedforward", SUPPORTED)]
)
def test_the_report_form_of_what_is_trained_gives_the_same_verdict(name, verdict):
    assert CLAIMS[name].judge(CLAIMS[name].measure(Trial("report")).numbers).verdict == verdict
