"""The claim about LayerNorm: its statistics, verdicts on numbers that contradict it, its figures."""

from __future__ import annotations

import math

import pytest
import torch
from small_forms import CORRECTED, NOT_SUPPORTED, SUPPORTED, judged, small, value
from torch import nn

from mingyue.claims.blocks import layer_norm
from mingyue.claims.claim import Number, Trial
from mingyue.claims.registry import find


def test_the_norm_does_what_it_says_to_vectors_of_any_size():
    for name in ("mean", "variance", "scaled", "shifted", "rms_square", "rms_scaled"):
        assert value("layer-norm", name) <= layer_norm.EXACT
    assert value("layer-norm", "elsewhere") == 0
    assert value("layer-norm", "rms_shifted") > layer_norm.MOVED  # it does not subtract the mean


def test_without_norms_gradients_grow_with_depth_and_with_them_they_do_not():
    assert small("layer-norm").numbers["none_gradient"].low > layer_norm.KEEPS
    for arm in ("post", "pre", "rms"):
        assert small("layer-norm").numbers[f"{arm}_gradient"].high <= layer_norm.KEEPS


def test_the_model_without_norms_has_none():
    kinds = {type(module) for module in layer_norm._model("none", 7, 2, 32, 0).modules()}
    assert nn.LayerNorm not in kinds
    assert sum(isinstance(one, nn.LayerNorm) for one in layer_norm._model("pre", 7, 2, 32, 0).modules()) == 5
    assert sum(isinstance(one, nn.LayerNorm) for one in layer_norm._model("post", 7, 2, 32, 0).modules()) == 4


def test_frequencies_alone_give_the_entropy_of_words_and_diverging_counts_as_a_uniform_guess():
    assert layer_norm._entropy(torch.tensor([0, 1, 0, 1])) == pytest.approx(math.log(2))
    how = layer_norm._Training(2, 10, (1e6,))
    text = layer_norm._text(0)
    assert layer_norm._train("none", how, 1e6, 0, text) == pytest.approx(math.log(text[1]))


def test_verdicts_follow_the_numbers():
    kept, grown = Number(2.0, 1.0, 4.0), Number(1e4, 1e3, 1e5)
    higher, same = Number(10.0, 3.0, 30.0), Number(1.0, 1.0, 1.0)
    good = {"none_gradient": grown, "post_gradient": kept, "pre_gradient": kept, "post_times": higher,
            "pre_times": higher}  # fmt: skip
    assert judged("layer-norm", **good) == SUPPORTED
    assert judged("layer-norm", **{**good, "post_times": same}) == CORRECTED
    assert judged("layer-norm", **{**good, "post_gradient": grown}) == CORRECTED
    assert judged("layer-norm", **{**good, "pre_times": Number(10.0, 0.5, 200.0)}) == CORRECTED  # interval reaches 1
    assert judged("layer-norm", **{**good, "none_gradient": kept}) == CORRECTED
    assert (
        judged("layer-norm", **{**good, "none_gradient": kept, "post_times": same, "pre_times": same}) == NOT_SUPPORTED
    )
    for name in ("mean", "variance", "scaled", "shifted", "elsewhere"):
        assert judged("layer-norm", **good, **{name: 0.1}) == NOT_SUPPORTED


@pytest.mark.parametrize("language", ["en", "zh"])
def test_each_number_has_words_and_the_figures_draw(language):
    assert set(small("layer-norm").numbers) <= set(find("layer-norm").labels)
    charts = find("layer-norm").draw(small("layer-norm"), language)
    assert len(charts) == 3
    for chart in charts:
        assert chart.spec() and chart.html()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_report_form_finds_that_only_one_place_of_the_norm_tolerates_higher_rates():
    numbers = find("layer-norm").measure(Trial("report")).numbers
    assert find("layer-norm").judge(numbers).verdict == CORRECTED
    assert numbers["pre_times"].low > 1 >= numbers["post_times"].high
