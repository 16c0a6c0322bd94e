"""The claims of "Heads": what their small forms show, verdicts on numbers that contradict them, their figures."""

from __future__ import annotations

import pytest
import torch
from small_forms import CORRECTED, NOT_SUPPORTED, SUPPORTED, judged, small, unsure, value

from mingyue.claims.claim import Number, Trial
from mingyue.claims.heads import dataflow, many_relations, one_matrix, orthogonal_heads, own_slice, same_cost
from mingyue.claims.timing import alternating, times_as_long

CLAIMS = {
    module.CLAIM.name: module.CLAIM
    for module in (same_cost, one_matrix, own_slice, many_relations, orthogonal_heads, dataflow)
}


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("same-cost", CORRECTED),
        ("own-slice", CORRECTED),
        ("many-relations", SUPPORTED),
        ("orthogonal-heads", NOT_SUPPORTED),
        ("dataflow", CORRECTED),
    ],
)
def test_the_small_form_gives_the_verdict_that_is_true(name, verdict):
    assert CLAIMS[name].judge(small(name).numbers).verdict == verdict


def test_many_heads_cost_the_products_of_one_and_more_scores():
    assert value("same-cost", "parameters_apart") == value("same-cost", "formula_apart") == 0
    assert value("same-cost", "multiply_adds_apart") == 0
    # By hand, d = 64 and T = 64: projections 4·T·d², both products of attention 2·T²·d.
    assert value("same-cost", "multiply_adds") == 4 * 64 * 64**2 + 2 * 64**2 * 64
    assert value("same-cost", "score_ratio") == 8


def test_one_matrix_gives_what_many_give_whatever_the_clock_says():
    assert value("one-matrix", "apart") <= one_matrix.EQUAL
    assert value("one-matrix", "width") == 3 * 512


def test_a_head_is_moved_by_its_own_slice_alone():
    assert value("own-slice", "elsewhere") == 0
    rows = small("own-slice").tables["changes"]
    projected = {(row["part"], row["slice"]): row["change"] for row in rows if row["arm"] == "projected"}
    assert all((change > 0.1) == (part == place) for (part, place), change in projected.items())


def test_both_models_of_the_relations_have_equally_many_parameters_and_two_heads_look_at_two_places():
    assert value("many-relations", "parameters_apart") == 0
    rows = small("many-relations").tables["weights"]
    best = {
        head: max((row for row in rows if (row["heads"], row["head"]) == (2, head)), key=lambda row: row["weight"])
        for head in range(2)
    }
    assert {best[0]["before"], best[1]["before"]} == {1, 5}


def test_a_mixture_is_both_values_with_their_order_guessed():
    draw = torch.Generator().manual_seed(0)
    wanted = torch.randint(128, (20_000, 2), generator=draw)
    swapped = torch.rand(len(wanted), 1, generator=draw) < 0.5
    guess = torch.where(swapped, wanted.flip(1), wanted)
    assert float((guess == wanted).float().mean()) == pytest.approx(many_relations.MIXTURE, abs=0.01)
    logits = torch.nn.functional.one_hot(guess, 128).float()
    assert many_relations._either(logits, wanted) == 1.0
    assert many_relations._either(logits.roll(1, 0), wanted) < 0.05
    assert value("many-relations", "one_head_either") > 0.9 > 0.6 > value("many-relations", "one_head")


def test_the_overlap_of_subspaces_is_what_it_is_by_hand():
    numbers = small("orthogonal-heads").numbers
    assert numbers["control_overlap"].value == pytest.approx(0, abs=1e-10)
    assert numbers["random_overlap"].value == pytest.approx(numbers["expected"].value, rel=0.1)
    weight = torch.eye(4).repeat(2, 1)  # two heads that read the same: every principal angle is 0
    assert orthogonal_heads._cosines(orthogonal_heads._subspaces(weight, 2)).tolist() == [[pytest.approx(1.0)] * 4]


def test_the_eight_shapes_are_those_of_the_running_code():
    rows = [row for row in small("dataflow").tables["steps"] if row["way"] == "fused"]
    assert [row["shape"] for row in rows] == [
        [2, 16, 512],
        [2, 16, 1536],
        [2, 16, 8, 64],
        [2, 8, 16, 64],
        [2, 8, 16, 64],
        [2, 16, 8, 64],
        [2, 16, 512],
        [2, 16, 512],
    ]
    assert value("dataflow", "copied_explicit") == 4 * 2 * 16 * 512
    assert value("dataflow", "split_bytes") == 0


def test_verdicts_follow_the_numbers():
    assert judged("same-cost", parameters_apart=1) == NOT_SUPPORTED
    assert judged("same-cost", multiply_adds_apart=64) == NOT_SUPPORTED
    assert judged("same-cost", formula_apart=1) == NOT_SUPPORTED
    assert judged("same-cost", score_ratio=1) == SUPPORTED
    assert judged("same-cost", score_ratio=3) == NOT_SUPPORTED
    assert judged("one-matrix", faster=2, sizes=2) == SUPPORTED
    assert judged("one-matrix", faster=1, sizes=2) == CORRECTED
    assert judged("one-matrix", faster=0, sizes=2) == NOT_SUPPORTED
    assert judged("one-matrix", faster=2, sizes=2, apart=1e-3) == NOT_SUPPORTED
    assert judged("one-matrix", faster=2, sizes=2, apart=float("nan")) == NOT_SUPPORTED
    assert judged("own-slice", elsewhere=1e-9) == NOT_SUPPORTED
    assert judged("own-slice", own=0) == NOT_SUPPORTED
    assert judged("own-slice", convolution_elsewhere=0) == NOT_SUPPORTED
    assert judged("own-slice", input_elsewhere=0) == SUPPORTED
    assert judged("many-relations", one_head=0.5, two_heads=0.99) == SUPPORTED
    assert judged("many-relations", one_head=0.8, two_heads=0.99) == CORRECTED
    assert judged("many-relations", one_head=0.98, two_heads=0.99) == NOT_SUPPORTED
    assert judged("many-relations", one_head=0.5, two_heads=0.6) == NOT_SUPPORTED
    assert judged("many-relations", one_head=Number(0.55, 0.5, 0.8), two_heads=0.99) == CORRECTED
    assert judged("many-relations", one_head=Number(0.55, 0.5, 0.96), two_heads=0.99) == NOT_SUPPORTED
    assert judged("many-relations", one_head=0.5, two_heads=Number(0.99, 0.9, 1.0)) == NOT_SUPPORTED
    assert judged("dataflow", shapes=7) == NOT_SUPPORTED
    assert judged("dataflow", split_bytes=64) == NOT_SUPPORTED
    assert judged("dataflow", view_refused=0, copied_explicit=0) == SUPPORTED


@pytest.mark.parametrize("name", ["many-relations", "orthogonal-heads"])
def test_intervals_that_reach_everywhere_support_nothing(name):
    assert CLAIMS[name].judge(unsure(small(name).numbers)).verdict == NOT_SUPPORTED


def test_heads_count_as_orthogonal_only_far_below_chance():
    chance = Number(0.25, 0.24, 0.26)

    def verdict(query: Number, key: Number) -> str:
        return judged("orthogonal-heads", random_overlap=chance, query_overlap=query, key_overlap=key)

    near, below = Number(0.02, 0.01, 0.03), Number(0.2, 0.19, 0.21)
    assert verdict(near, near) == SUPPORTED
    assert verdict(near, Number(0.05, 0.03, 0.07)) != SUPPORTED  # not surely near
    assert verdict(below, near) == CORRECTED
    assert verdict(below, Number(0.2, 0.1, 0.3)) == NOT_SUPPORTED  # the interval reaches chance
    assert verdict(chance, near) == NOT_SUPPORTED


@pytest.mark.parametrize("name", CLAIMS)
def test_each_number_has_words_and_the_figures_draw_in_both_languages(name):
    claim, measurement = CLAIMS[name], small(name)
    assert set(measurement.numbers) <= set(claim.labels)
    titles = []
    for language in ("en", "zh"):
        charts = claim.draw(measurement, language)
        assert 1 <= len(charts) <= 2
        for chart in charts:
            assert chart.spec() and chart.html()
        titles.append([chart.title for chart in charts])
    assert titles[0] != titles[1]


def test_times_of_two_ways_are_compared_turn_by_turn():
    calls: list[str] = []
    times = alternating({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, turns=3, least_seconds=0.0)
    assert {name: len(found) for name, found in times.items()} == {"a": 3, "b": 3}
    ratio = times_as_long([2.0, 4.0, 9.0], [1.0, 1.0, 3.0])
    assert (ratio.low, ratio.value, ratio.high) == (2.5, 3.0, 3.5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_report_form_of_what_is_trained_gives_the_same_verdicts():
    for name, verdict in (("many-relations", CORRECTED), ("orthogonal-heads", NOT_SUPPORTED)):
        assert CLAIMS[name].judge(CLAIMS[name].measure(Trial("report")).numbers).verdict == verdict
