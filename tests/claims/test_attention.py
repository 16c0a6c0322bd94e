"""The claims of "Attention": what their small forms show, verdicts on numbers that contradict them, their figures."""

from __future__ import annotations

import pytest
import torch
from small_forms import CORRECTED, NOT_SUPPORTED, SUPPORTED, small, value

from mingyue.claims.attention import (
    context,
    distance,
    far,
    last_row,
    mask,
    parallel,
    quadratic,
    recurrent,
    reference,
    rows,
    senses,
)
from mingyue.claims.claim import Number, Trial
from mingyue.claims.training import tiny
from mingyue.nn import Taps

CLAIMS = {
    module.CLAIM.name: module.CLAIM
    for module in (rows, mask, parallel, last_row, quadratic, context, reference, far, distance)
}


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("rows", SUPPORTED),
        ("mask", CORRECTED),
        ("parallel", CORRECTED),
        ("last-row", CORRECTED),
    ],
)
def test_what_needs_no_long_training_is_decided_by_the_small_form(name, verdict):
    assert CLAIMS[name].judge(small(name).numbers).verdict == verdict


def test_quadratic_kept_bytes_and_counts_are_exact_whatever_the_clock_says():
    assert value("quadratic", "bytes_slope_explicit") == pytest.approx(2, abs=quadratic.BYTES_TOLERANCE)
    assert value("quadratic", "bytes_slope_fused") == pytest.approx(1, abs=0.01)
    assert value("quadratic", "bytes_slope_window") == pytest.approx(1, abs=0.01)
    assert value("quadratic", "products_over_n2d") == 2
    assert value("quadratic", "block_halves_at") == pytest.approx(6)


def test_context_is_in_the_vectors_and_not_in_the_embedding():
    for word in ("strike", "bank"):
        assert value("context", f"{word}_embedding_apart") == 0
        assert value("context", f"causal_{word}_apart") <= context.SAME
        assert value("context", f"{word}_untrained_cosine") < 0.9  # differs by its neighbours without any training
        assert value("context", f"{word}_translate") > value("context", f"{word}_untrained") + context.GAP
    assert value("context", "bank_causal") > value("context", "bank_causal_untrained") + context.GAP


def test_context_an_untrained_model_does_not_pass_for_one_that_knows_the_senses():
    for state in ("strike_untrained", "bank_untrained", "bank_causal_untrained", "strike_after_untrained"):
        assert abs(value("context", state)) < context.GAP


def test_sentences_of_other_wording_share_no_word_that_tells_their_sense():
    sentences = [(("a", "bank", "loan"), "money"), (("a", "bank", "cash"), "money"), (("a", "bank", "mud"), "river")]
    corpus = senses.corpus_of([*sentences, (("the", "bank", "loan"), "money")], "bank")
    others = senses.other_wording(corpus)
    assert others.tolist() == [
        [False, True, True, False],
        [True, False, True, True],
        [True, True, False, True],
        [False, True, True, False],
    ]


def test_reference_an_untrained_head_and_one_that_knows_no_meaning_prefer_neither_animal():
    assert value("reference", "preference_untrained") == pytest.approx(0.5, abs=0.01)
    assert value("reference", "preference") == pytest.approx(0.5, abs=0.1)  # few steps: it looks at animals
    assert value("reference", "weight") > 1.5 * value("reference", "uniform")


def test_reference_without_any_edge_to_its_noun_the_answer_is_lost():
    assert value("reference", "accuracy_tokens") < 0.1 < value("reference", "accuracy_whole")


def test_a_cut_edge_has_no_weight_and_no_other_edge_is_touched():
    model = tiny(5, context=4, n_layers=2, n_heads=4).eval()
    ids = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])
    edits = reference._cut(torch.tensor([0, 1]), [(0, 1), (0, 3)], first=2)
    taps = Taps(["blocks.0.attention.weights"], edits=edits)
    with torch.no_grad():
        model(ids, taps=taps)
    gone = taps.values["blocks.0.attention.weights"] == 0
    causal = torch.ones(4, 4).triu(1).bool()
    for row, target in ((0, 0), (1, 1)):
        for head in range(4):
            expected = causal.clone()
            if head in {1, 3}:
                expected[2:, target] = True
            assert torch.equal(gone[row, head], expected)


def test_far_the_gradient_vanishes_in_recurrent_nets_before_any_training():
    kept = {net: value("far", f"gradient_kept_{net}") for net in ("tanh", "lstm", "chrono", "transformer")}
    assert kept["tanh"] < 0.1 < kept["transformer"] and kept["lstm"] < kept["chrono"] < kept["transformer"]
    assert value("far", "parameters_apart") < 0.05


def test_far_every_net_learns_the_shortest_distance_in_a_few_steps():
    for net in ("tanh", "lstm", "chrono", "transformer"):
        assert value("far", f"accuracy_{net}_shortest") >= far.REACHES


@pytest.mark.parametrize(("longest", "least", "most"), [(None, 1.0, 1.0), (100, 0.0, 4.6)])
def test_gates_forget_slowly_and_take_in_as_slowly_where_a_distance_is_given(longest, least, most):
    net = recurrent.recurrent("lstm", 5, 8, 2000, seed=0)
    recurrent.forget_slowly(net, longest, seed=0)
    state = net.recurrent.bias_ih_l0 + net.recurrent.bias_hh_l0
    width = net.recurrent.hidden_size
    assert least <= state[width : 2 * width].min() and state[width : 2 * width].max() <= most
    if longest is not None:
        torch.testing.assert_close(state[:width], -state[width : 2 * width])
        assert state[:width].std() > 0.5


def test_distance_rotary_learns_a_distance_that_a_model_without_positions_does_not():
    assert value("distance", "steps_rotary_near") < value("distance", "steps_none_near")


@pytest.mark.parametrize("name", CLAIMS)
def test_each_number_has_words_and_the_figures_draw_in_both_languages(name):
    claim, measurement = CLAIMS[name], small(name)
    assert set(measurement.numbers) <= set(claim.labels)
    titles = []
    for language in ("en", "zh"):
        charts = claim.draw(measurement, language)
        assert 1 <= len(charts) <= 2
        assert all(chart.spec() for chart in charts)
        titles.append([chart.title for chart in charts])
    assert all(english != chinese for english, chinese in zip(*titles, strict=True))


GAPS = {f"{word}_{state}": gap for word in ("strike", "bank") for state, gap in (("guess", 0.02), ("translate", 0.9))}
UNTRAINED = ("strike_untrained", "bank_untrained", "bank_causal_untrained", "strike_causal", "strike_causal_untrained")

# Numbers with which each claim comes out as its name in the list says; changes make it another verdict.
GOOD: dict[str, tuple[str, dict[str, float]]] = {
    "rows": (
        SUPPORTED,
        {"tokens": 8, "score_rows": 8, "score_columns": 8, "sum_error": 1e-7, "least_weight": 1e-4, "outside": 0}
        | {"mixture_error": 1e-7, "lookup_error": 1e-7, "lookup_least_weight": 1e-14},
    ),
    "mask": (
        CORRECTED,
        {"mask_cells_that_differ": 0, "above_diagonal": 0, "first_row_error": 0, "constant_fp32": 0}
        | {"constant_fp16_overflows": 1, "future_changes_past": 0, "future_without_mask": 2},
    ),
    "parallel": (
        CORRECTED,
        {"prefix_error": 1e-6, "transformer_chain_a_token": 0, "recurrent_chain_a_token": 3}
        | {"transformer_chain_a_layer": 24, "passes_a_written_token": 1, "transformer_faster_from": 8}
        | {"transformer_faster_to": 64, "times_faster_at_most": 2},
    ),
    "last-row": (
        CORRECTED,
        {"cache_error": 1e-6, "other_rows_error": 0, "likelihood_error": 1e-7, "last_term_share": 0.05}
        | {"rows_all": 1, "rows_last": 0.05, "loss_all": 1.0, "loss_last": 2.0},
    ),
    "quadratic": (
        CORRECTED,
        {"time_slope_explicit": 2.1, "bytes_slope_explicit": 1.97, "time_slope_fused": 1.9, "bytes_slope_fused": 1.0}
        | {"time_slope_window": 1.1, "bytes_slope_window": 1.0, "products_over_n2d": 2, "block_halves_at": 6}
        | {"block_slope_at_d": 1.14},
    ),
    "context": (
        CORRECTED,
        {f"{word}_embedding_apart": 0 for word in ("strike", "bank")}
        | {f"causal_{word}_apart": 0 for word in ("strike", "bank")}
        | {f"{word}_untrained_cosine": 0.6 for word in ("strike", "bank")}
        | {"bank_causal": 1.0, "strike_after": 0.8, "strike_after_untrained": 0.0}
        | dict.fromkeys(UNTRAINED, 0.0)
        | GAPS,
    ),
    "reference": (
        SUPPORTED,
        {"weight": 0.9, "preference": 0.95, "uniform": 1 / 7, "accuracy_whole": 1, "accuracy_other": 1}
        | {"weight_untrained": 0.14, "preference_untrained": 0.5, "carriers": 3}
        | {"accuracy_head": 0.3, "accuracy_carriers": 0.2, "accuracy_tokens": 0.1},
    ),
    "far": (
        SUPPORTED,
        {"shortest_distance": 8, "middle_distance": 32, "distance": 128, "gradient_kept_transformer": 0.1}
        | {f"gradient_kept_{net}": 1e-20 for net in ("tanh", "lstm", "chrono")}
        | {f"accuracy_{net}{where}": 0.13 for net in ("tanh", "lstm", "chrono") for where in ("", "_middle")}
        | {f"accuracy_transformer{where}": 1 for where in ("", "_middle", "_shortest")}
        | {f"accuracy_{net}_shortest": 1 for net in ("tanh", "lstm", "chrono")},
    ),
    "distance": (
        SUPPORTED,
        {"limit": 400, "nearest": 1, "farthest": 12}
        | {f"steps_none_{where}": 400.0 for where in ("near", "far")}
        | {f"steps_{kind}_{where}": 100.0 for kind in ("learned", "sinusoidal", "rotary") for where in ("near", "far")},
    ),
}

OTHERWISE = [
    ("rows", {"sum_error": 0.01}, NOT_SUPPORTED),
    ("rows", {"least_weight": 0.0}, NOT_SUPPORTED),
    ("rows", {"outside": 0.1}, NOT_SUPPORTED),
    ("rows", {"score_columns": 7}, NOT_SUPPORTED),
    ("rows", {"lookup_error": 0.2}, NOT_SUPPORTED),
    ("mask", {"above_diagonal": 1e-9}, NOT_SUPPORTED),
    ("mask", {"future_changes_past": 0.1}, NOT_SUPPORTED),
    ("mask", {"future_without_mask": 0.0}, NOT_SUPPORTED),
    ("mask", {"constant_fp16_overflows": 0}, SUPPORTED),
    ("parallel", {"prefix_error": 0.1}, NOT_SUPPORTED),
    ("parallel", {"transformer_chain_a_token": 1}, NOT_SUPPORTED),
    ("parallel", {"recurrent_chain_a_token": 0}, NOT_SUPPORTED),
    ("parallel", {"passes_a_written_token": 0.1, "transformer_faster_from": 0}, SUPPORTED),
    ("last-row", {"other_rows_error": 0.5}, NOT_SUPPORTED),
    ("last-row", {"rows_all": 0.5}, NOT_SUPPORTED),
    ("last-row", {"loss_all": 3.0}, NOT_SUPPORTED),
    ("last-row", {"last_term_share": 1.0}, SUPPORTED),
    ("quadratic", {"time_slope_explicit": 1.0}, NOT_SUPPORTED),
    ("quadratic", {"bytes_slope_explicit": 1.0}, NOT_SUPPORTED),
    ("quadratic", {"time_slope_window": 2.0}, NOT_SUPPORTED),
    ("quadratic", {"bytes_slope_fused": 2.0}, SUPPORTED),
    ("context", {"strike_guess": 0.5, "bank_guess": 0.5}, CORRECTED),  # but blind at the beginning of a causal text
    ("context", {"strike_guess": 0.5, "bank_guess": 0.5, "causal_strike_apart": 0.5}, SUPPORTED),
    ("context", {"strike_translate": 0.05}, NOT_SUPPORTED),
    ("context", {"strike_untrained": 0.95}, NOT_SUPPORTED),
    ("context", {"bank_causal": 0.05}, NOT_SUPPORTED),
    ("context", {"bank_causal_untrained": 1.1}, NOT_SUPPORTED),
    ("context", {"strike_after": 0.05}, NOT_SUPPORTED),
    ("context", {"strike_embedding_apart": 0.1}, NOT_SUPPORTED),
    ("reference", {"weight": 0.2}, NOT_SUPPORTED),
    ("reference", {"accuracy_whole": 0.5}, NOT_SUPPORTED),
    ("reference", {"accuracy_other": 0.2}, NOT_SUPPORTED),
    ("reference", {"preference": 0.5}, NOT_SUPPORTED),  # a head that looks at any animal
    ("reference", {"preference_untrained": 0.96}, NOT_SUPPORTED),
    ("reference", {"accuracy_head": 1.0}, CORRECTED),
    ("reference", {"accuracy_head": 1.0, "accuracy_carriers": 1.0}, CORRECTED),
    ("reference", {"accuracy_head": 1.0, "accuracy_carriers": 1.0, "accuracy_tokens": 1.0}, NOT_SUPPORTED),
    ("far", {"accuracy_transformer": 0.2}, NOT_SUPPORTED),
    ("far", {"gradient_kept_transformer": 1e-9}, NOT_SUPPORTED),
    ("far", {"accuracy_tanh": 1.0, "accuracy_lstm": 1.0, "accuracy_chrono": 1.0}, NOT_SUPPORTED),
    ("far", {"accuracy_lstm": 1.0}, CORRECTED),
    ("far", {"gradient_kept_chrono": 0.07}, CORRECTED),
    ("far", {"accuracy_lstm_shortest": 0.3}, NOT_SUPPORTED),  # what was never learned is not forgotten
    ("distance", {"steps_rotary_far": 400}, NOT_SUPPORTED),
    ("distance", {"steps_none_far": 110}, NOT_SUPPORTED),
    ("distance", {"steps_none_near": 300}, CORRECTED),
]


@pytest.mark.parametrize(
    ("name", "changes", "verdict"), [(name, {}, verdict) for name, (verdict, _) in GOOD.items()] + OTHERWISE
)
def test_verdicts_follow_the_numbers(name, changes, verdict):
    numbers = {key: Number.exact(number) for key, number in (GOOD[name][1] | changes).items()}
    finding = CLAIMS[name].finding(numbers)
    assert finding.verdict == verdict
    assert finding.reason.en
    assert finding.reason.zh != finding.reason.en


# Means that are on one side of a limit, with an interval that reaches to the other.
UNSURE = [
    ("context", {"strike_translate": Number(0.9, 0.05, 1.7)}, NOT_SUPPORTED),
    ("context", {"bank_untrained": Number(0.0, -1.0, 1.0)}, NOT_SUPPORTED),
    ("context", {"strike_guess": Number(0.5, 0.05, 0.9), "bank_guess": Number.exact(0.5)}, CORRECTED),
    ("reference", {"weight": Number(0.9, 0.2, 1.0)}, NOT_SUPPORTED),
    ("reference", {"preference": Number(0.9, 0.6, 1.0)}, NOT_SUPPORTED),
    ("reference", {"accuracy_whole": Number(0.95, 0.8, 1.0)}, NOT_SUPPORTED),
    ("reference", {"accuracy_other": Number(0.95, 0.8, 1.0)}, NOT_SUPPORTED),
    ("reference", {"accuracy_head": Number(0.4, 0.2, 0.6)}, CORRECTED),
    ("far", {"accuracy_transformer": Number(1.0, 0.5, 1.0)}, NOT_SUPPORTED),
    ("far", {"accuracy_lstm": Number(0.13, 0.1, 0.9)}, CORRECTED),
    ("far", {"accuracy_tanh_shortest": Number(1.0, 0.2, 1.0)}, NOT_SUPPORTED),
]


@pytest.mark.parametrize(("name", "changes", "verdict"), UNSURE)
def test_the_ends_of_the_intervals_count_not_their_middles(name, changes, verdict):
    numbers = {key: Number.exact(number) for key, number in GOOD[name][1].items()} | changes
    assert CLAIMS[name].finding(numbers).verdict == verdict


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["reference", "far", "distance"])
def test_the_report_form_of_what_has_to_be_trained(name):
    claim = CLAIMS[name]
    assert claim.judge(claim.measure(Trial("report")).numbers).verdict != NOT_SUPPORTED
