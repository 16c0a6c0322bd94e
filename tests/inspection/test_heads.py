"""Labels of heads, on models whose heads are known and on heads that do nothing; and what a head is worth."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mingyue.errors import GenerationError
from mingyue.inspection import Subject
from mingyue.inspection import heads as heads_module
from mingyue.inspection.ablation import FEWEST_TEXTS, ablate_heads, standard_error
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.head_labels import PartHeads
from mingyue.inspection.head_patterns import Probe, Scores, masks, random_probe, score_patterns
from mingyue.inspection.head_tables import CLEAR, FEWEST_TOKENS, Measured, heads_table
from mingyue.inspection.heads import HeadsView, heads_view
from mingyue.inspection.interventions import edited_logits, switch_off
from mingyue.inspection.parts import attention_part, attention_parts
from mingyue.nn import Taps
from mingyue.text import train_char
from mingyue.words import Words

UNMEASURED = Measured(None, 0, Words("", ""))


@pytest.fixture(scope="module")
def known_view(known):
    return heads_view(known)


def test_heads_made_by_hand_get_their_labels_and_idle_ones_are_mixed(known_view):
    part = known_view.part("self")
    scores = part.scores["random"]
    assert part.labels_LH == (
        ("previous", "itself", "first", "mixed"),
        ("induction", "earlier", "mixed", "mixed"),
    )
    by_name = dict(zip(scores.patterns, scores.scores_LHP.transpose(2, 0, 1), strict=True))
    assert by_name["previous"][0, 0] == pytest.approx(1.0, abs=1e-3)
    # 19 tokens, twice; the first token saw none before it but itself, so of its two keys each gets a half.
    assert by_name["induction"][1, 0] == pytest.approx(18.5 / 19, abs=1e-3)
    np.testing.assert_allclose(scores.scores_LHP[0, 3], scores.uniform_P, atol=1e-6)


def test_a_label_takes_the_threshold_that_is_stated(known_view):
    part = known_view.part("self")
    scores = part.scores["random"]
    np.testing.assert_allclose(scores.thresholds_P, scores.uniform_P + 0.4 * (1 - scores.uniform_P))
    for layer, head in np.ndindex(2, 4):
        best = part.best(layer, head)
        assert best.threshold == scores.thresholds_P[scores.patterns.index(best.pattern)]
        assert best.earned == (best.score >= best.threshold) == (part.label(layer, head) != "mixed")


def test_switching_off_costs_what_a_head_is_worth(known, known_view):
    view = known_view
    zero_LH = view.part("self").zero_LH
    assert view.loss == pytest.approx(math.log(2) / 18, abs=5e-3), "of 18 tokens all but the first are certain"
    assert zero_LH[0, 0] > 3, "without the previous-token head induction finds nothing"
    assert zero_LH[1, 0] == pytest.approx(math.log(known.module.config.vocab_size) - view.loss, abs=1e-3)
    idle = [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    assert all(abs(zero_LH[place]) < 1e-4 for place in idle)
    mean_LH = view.part("self").mean_LH
    assert mean_LH[1, 0] > 1, "its mean over the text knows no token"


def test_pairs_get_labels_in_all_three_kinds_of_attention(known_pairs):
    pairs = [("abcdefgh", "ijklmnop"), ("qrstuvwxyz", "jihgfedcba")]
    view = heads_view(known_pairs, probes=[(source, target) for source, target in pairs])
    labels = {part.part: part.labels_LH for part in view.parts}
    assert set(view.part("cross").scores) == {"texts"}, "alignment is not looked for in noise"
    assert labels["encoder"] == (("next", "end", "mixed", "mixed"),)
    assert labels["decoder"] == (("previous", "first", "mixed", "mixed"),)
    assert labels["cross"] == (("diagonal", "end", "mixed", "mixed"),)


def test_pairs_without_texts_are_labelled_but_no_loss_is_claimed(known_pairs):
    view = heads_view(known_pairs)
    assert view.loss is None
    assert all(part.zero_LH is None for part in view.parts)
    assert "No pair of texts was given" in view.tables()[-1].note
    assert "Δ loss, off" not in view.tables()[0].columns
    assert len(view.charts()) == 3


@pytest.mark.parametrize("changes", [{}, {"starts_with_bos": True}, {"window": 9}])
def test_uniform_attention_scores_what_is_called_uniform(lively, changes):
    subject = lively(**changes)
    with torch.no_grad():
        for block in subject.module.every_block():
            block.attention.qkv.weight.zero_()
    part = heads_view(subject, probes=["abcdefabcdef" * 2]).part("self")
    for scores in part.scores.values():
        expected_LHP = np.broadcast_to(scores.uniform_P, scores.scores_LHP.shape)
        np.testing.assert_allclose(scores.scores_LHP, expected_LHP, atol=1e-6)
    assert {label for row in part.labels_LH for label in row} == {"mixed"}
    assert len(part.scores) == 2


def test_probes_are_random_tokens_written_twice_by_the_seed(lively, lively_pairs):
    subject = lively(starts_with_bos=True)
    probe = random_probe(subject, 3)
    n = 15  # of a context of 32, with the start mark
    assert probe.ids_BT.shape == (8, 31)
    assert (probe.ids_BT[:, 0] == subject.tokenizer.bos_id).all()
    np.testing.assert_allclose(probe.ids_BT[:, 1 : n + 1], probe.ids_BT[:, n + 1 :])
    assert all(len(set(row.tolist())) == n for row in probe.ids_BT[:, 1 : n + 1])
    np.testing.assert_allclose(random_probe(subject, 3).ids_BT, probe.ids_BT)
    assert not torch.equal(random_probe(subject, 4).ids_BT, probe.ids_BT)
    spelled = {subject.tokenizer.token_text(int(token)) for token in probe.ids_BT[:, 1:].flatten()}
    assert spelled <= set("abcdefghijklmnopqrstuvwxyz"), "no marks, no parts of characters"
    first_counted = probe.targets_BT[:, probe.counted_from]
    np.testing.assert_allclose(first_counted, probe.ids_BT[:, 2], err_msg="the second token of the second writing")
    pairs = random_probe(lively_pairs(), 3)
    assert pairs.source_ids_BS is not None
    assert (pairs.source_ids_BS[:, -1] == subject.tokenizer.eos_id).all()
    assert not torch.equal(pairs.source_ids_BS[:, :-1], pairs.ids_BT[:, 1:])


def test_a_model_too_small_for_probes_says_so_with_its_numbers(lively):
    with pytest.raises(
        GenerationError, match=r"context of 6 tokens \(window 6\).*sequence of 2; at least 3 are needed"
    ):
        heads_view(lively(context=6))
    heads_view(lively(context=7))


def test_masks_name_the_key_that_each_pattern_means(lively):
    (part,) = attention_parts(lively())
    ids_1T = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8]])
    found = {name: mask[0].nonzero().tolist() for name, mask in masks(part, ids_1T, ids_1T).items()}
    # Of token 4 the earlier occurrence is the first token, of token 1 the previous one is: neither counts.
    assert found["earlier"] == [[t, t - 4] for t in (5, 6, 7)]
    assert found["induction"] == [[t, t - 3] for t in (4, 5, 6, 7)]
    assert found["previous"] == [[t, t - 1] for t in range(2, 8)]
    assert found["itself"] == [[t, t] for t in range(1, 8)]
    assert found["first"] == [[t, 0] for t in (2, 3, 5, 6, 7)]


def test_a_fixed_distance_counts_where_no_occurrence_stands_there(lively):
    (part,) = attention_parts(lively())
    ids_1T = torch.tensor([[5, 6, 7, 8, 5, 9, 10]])
    found = {name: mask[0].nonzero().tolist() for name, mask in masks(part, ids_1T, ids_1T).items()}
    assert found["back2"] == [[t, t - 2] for t in (3, 4, 5, 6)], "of token 2 it is the first token"
    assert found["back3"] == [[t, t - 3] for t in (5, 6)], "of token 4 it is what followed the other 5"
    assert found["back4"] == [[t, t - 4] for t in (5, 6)]


def test_a_head_of_a_fixed_distance_is_named_by_it(five_back):
    part = heads_view(five_back).part("self")
    assert part.labels_LH == (("back5", "mixed", "mixed", "mixed"),)
    assert heads_view(five_back).tables()[0].rows[0][2] == "5 tokens back"


def test_a_token_written_three_times_has_all_its_earlier_occurrences(lively):
    (part,) = attention_parts(lively())
    ids_1T = torch.tensor([[9, 5, 6, 7, 5, 7, 6, 5]])
    found = {name: mask[0].nonzero().tolist() for name, mask in masks(part, ids_1T, ids_1T).items()}
    assert found["earlier"] == [[4, 1], [5, 3], [6, 2], [7, 1], [7, 4]]
    assert found["induction"] == [[4, 2], [6, 3], [7, 2], [7, 5]], "after 5's occurrence comes its previous token"
    assert [5, 4] not in found["previous"]


def test_in_an_encoder_occurrences_stand_on_both_sides_and_the_end_mark_follows_none(lively_pairs):
    part = attention_part(lively_pairs(), "encoder")
    ids_1T = torch.tensor([[5, 6, 7, 5, 6, 7, 2]])
    found = {name: mask[0].nonzero().tolist() for name, mask in masks(part, ids_1T, ids_1T).items()}
    assert found["other"] == [[0, 3], [1, 4], [2, 5], [4, 1], [5, 2]], "that of token 3 is the first token"
    assert found["induction"] == [[0, 4], [1, 5], [3, 1], [4, 2], [5, 3]], "token 5 is followed by the end mark"
    assert found["next"] == [[t, t + 1] for t in range(5)]
    assert found["end"] == [[t, 6] for t in range(6)]


def test_no_key_counts_for_two_patterns_and_no_query_without_a_choice_counts(lively, lively_pairs):
    generator = torch.Generator().manual_seed(0)
    for subject in (lively(), lively(window=5), lively_pairs()):
        for part in attention_parts(subject):
            keys_BS = torch.randint(3, 8, (4, 9), generator=generator)
            queries_BT = torch.randint(3, 8, (4, 6), generator=generator) if part.name == "cross" else keys_BS
            stacked_PBTS = torch.stack(list(masks(part, queries_BT, keys_BS).values()))
            assert int(stacked_PBTS.sum(0).max()) == 1
            allowed_TS = part.allowed(queries_BT.shape[1], 9)
            assert not bool((stacked_PBTS & ~allowed_TS).any())
            assert not bool(stacked_PBTS[:, :, allowed_TS.sum(-1) < 2].any())


def test_scores_of_several_texts_weigh_every_query_alike(lively_pairs):
    subject = lively_pairs()
    part = attention_part(subject, "cross")
    readings = [subject.read("abcdefghijklm", "hijklmnopq"), subject.read("xyzwabcdef", "klmnopqrstuvw")]
    probes = [Probe(reading.ids_T[None], reading.targets_T[None], reading.source_ids_S[None]) for reading in readings]
    each = [score_patterns(subject, part, [probe]) for probe in probes]
    both = score_patterns(subject, part, probes)
    end = both.patterns.index("end")
    counts = [int(masks(part, *probe.sides(part))["end"].any(-1).sum()) for probe in probes]
    expected = sum(count * one.scores_LHP[..., end] for count, one in zip(counts, each, strict=True)) / sum(counts)
    np.testing.assert_allclose(both.scores_LHP[..., end], expected, atol=1e-6)


def test_what_hardly_occurs_is_not_measured(lively):
    subject = lively()
    part = heads_view(subject, probes=["abcdefghijkl"]).part("self")
    scores = part.scores["texts"]
    unmeasured = {name for name, value in zip(scores.patterns, scores.scores_LHP[0, 0], strict=True) if np.isnan(value)}
    # 12 letters that differ: of `back3` there are 8 queries (tokens 4 to 11), of `back4` 7.
    assert unmeasured == {"earlier", "induction", "back4", "back5", "back6", "back7", "back8"}
    json.dumps(to_lists(scores.scores_LHP), allow_nan=False)


def test_a_label_is_earned_where_the_head_is_furthest_above_uniform():
    def scores(*values):
        uniform_P = np.array([0.1, 0.2])
        return Scores(("first", "previous"), np.array([[values]]), uniform_P, uniform_P + 0.4 * (1 - uniform_P))

    part = PartHeads("self", {"random": scores(0.3, 0.5), "texts": scores(0.1, 0.7)})
    best = part.best(0, 0)
    assert (best.pattern, best.measured_on, best.score, best.earned) == ("previous", "texts", 0.7, True)
    assert part.best(0, 0).threshold == pytest.approx(0.52)
    weak = PartHeads("self", {"random": scores(0.3, 0.5), "texts": scores(np.nan, np.nan)})
    assert weak.best(0, 0).measured_on == "random"
    assert weak.labels_LH == (("mixed",),)
    assert weak.best(0, 0).stands_out
    assert heads_table(weak, UNMEASURED, "zh").rows[0][2] == "混合（最接近：前一个 token）"
    idle = PartHeads("self", {"random": scores(0.1, 0.19)})
    for language, name in (("en", "mixed"), ("zh", "混合")):  # nearest to nothing: it looks everywhere alike
        assert heads_table(idle, UNMEASURED, language).rows[0][2] == name


def test_what_only_a_page_can_do_is_not_said_in_a_picture(known_view):
    labels = known_view.charts("en")[0]
    assert "Hover" in labels.html()
    assert "Hover" not in json.dumps(labels.spec())


@pytest.mark.parametrize("part_name", ["self", "encoder", "decoder", "cross"])
@pytest.mark.parametrize("norm_placement", ["pre", "post"])
def test_heads_switched_off_side_by_side_are_those_of_an_edit_of_the_whole_model(
    lively, lively_pairs, part_name, norm_placement
):
    own = {"norm_placement": norm_placement}
    if part_name == "self":
        subject = lively(window=6, **own)
        reading = subject.read("abcabcxyzab")
        source = None
    else:
        subject = lively_pairs(**own)
        reading = subject.read("abcabc", "xyzuvw")
        source = reading.source_ids_S[None]
    part = attention_part(subject, part_name)
    probe = Probe(reading.ids_T[None], reading.targets_T[None], source)
    loss, (losses,) = ablate_heads(subject, [part], [probe])

    def loss_of(logits_TV):
        return float(F.cross_entropy(logits_TV[: len(reading.targets_T)], reading.targets_T))

    with torch.no_grad():
        assert loss == pytest.approx(loss_of(subject.logits(reading)), abs=1e-5)
        assert np.abs(losses.zero_LH).min() > 1e-4, "every head must matter, or this shows nothing"
        for layer, head in np.ndindex(part.n_layers, part.n_heads):
            off = edited_logits(subject, reading, switch_off(layer, head, part_name))
            assert loss + losses.zero_LH[layer, head] == pytest.approx(loss_of(off), abs=1e-5)
        taps = Taps(part.tap(1, "heads"))
        subject.logits(reading, taps)
        mean_D = taps.values[part.tap(1, "heads")][0, 2].mean(0)

        def mean_of_head_2(heads_BHTD):
            edited = heads_BHTD.clone()
            edited[:, 2] = mean_D
            return edited

        with_mean = edited_logits(subject, reading, {part.tap(1, "heads"): mean_of_head_2})
        assert loss + losses.mean_LH[1, 2] == pytest.approx(loss_of(with_mean), abs=1e-5)


def test_small_batches_and_several_texts_change_nothing(lively, monkeypatch):
    subject = lively()
    parts = attention_parts(subject)
    readings = [subject.read("abcabcxyz"), subject.read("hello")]
    probes = [Probe(reading.ids_T[None], reading.targets_T[None]) for reading in readings]
    loss, (losses,) = ablate_heads(subject, parts, probes)
    monkeypatch.setattr("mingyue.inspection.ablation.MOST_LOGITS", 1)
    loss_again, (again,) = ablate_heads(subject, parts, probes)
    assert loss_again == pytest.approx(loss, abs=1e-6)
    np.testing.assert_allclose(again.zero_LH, losses.zero_LH, atol=1e-5)
    np.testing.assert_allclose(again.mean_LH, losses.mean_LH, atol=1e-5)
    alone = [ablate_heads(subject, parts, [probe])[0] for probe in probes]
    assert loss == pytest.approx((8 * alone[0] + 4 * alone[1]) / 12, abs=1e-6)


def test_the_model_itself_is_left_as_it_was(lively_pairs):
    subject = lively_pairs()
    reading = subject.read("abcd", "xyz")
    with torch.no_grad():
        before = subject.logits(reading)
        heads_view(subject, probes=[reading])
        assert torch.equal(subject.logits(reading), before)
    assert len(subject.module.every_block()) == 5


def test_progress_reaches_its_end(lively, lively_pairs):
    told = []
    heads_view(lively(), progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 2), (2, 2)]
    told.clear()
    pairs = [("abc", "xyz"), ("def", "uvw")]
    heads_view(lively_pairs(), probes=pairs, progress=lambda done, of: told.append((done, of)))
    assert told[-1] == (14, 14)
    assert [done for done, _ in told] == list(range(1, 15))


def test_own_texts_are_what_the_loss_is_measured_on_within_the_cap(lively, monkeypatch):
    subject = lively()
    view = heads_view(subject, probes=["abcd", "hello"])
    assert "the given texts (2), 7 tokens" in view.tables()[0].note
    monkeypatch.setattr(heads_module, "MOST_TEXTS", 1)
    view = heads_view(subject, probes=["abcd", "hello"])
    assert "the given texts (1), 3 tokens (1 more left out)" in view.tables()[0].note
    assert "另有 1 篇未用" in view.tables("zh")[0].note
    assert heads_view(subject, probes=["a"]).measured == heads_view(subject).measured, "nothing follows one token"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_tables_charts_and_json_say_the_same(known_view, language):
    view = known_view
    (table,) = view.tables(language)
    assert len(table.rows) == 8
    assert set(table.right) < set(table.columns)
    assert table.rows[4][2].startswith("induction" if language == "en" else "归纳")
    labels, worth = view.charts(language)
    assert labels.to_dict()["kind"] == "word_grid"
    assert worth.to_dict()["kind"] == "word_grid"
    assert labels.html()
    assert worth.html()
    read = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    assert read["parts"]["self"]["labels_LH"][1][0] == "induction"
    assert read["parts"]["self"]["zero_LH"][1][0] == pytest.approx(view.part("self").zero_LH[1, 0], rel=1e-5)


def test_a_source_with_a_vocabulary_of_its_own_gets_probes_from_it(lively_pairs):
    digits = train_char(["0123456789"])
    subject = lively_pairs(source_vocab_size=digits.vocab_size)
    subject = Subject(subject.module, subject.tokenizer, digits)
    probe = random_probe(subject, 0)
    assert set(digits.decode(probe.source_ids_BS[0].tolist())) <= set("0123456789")
    assert probe.source_ids_BS.shape == (8, 21), "ten digits, twice, and the end mark"
    view = heads_view(subject, probes=[("0123456789", "abcdefghij")])
    assert {part.part: part.labels_LH and part.shape for part in view.parts} == {
        "encoder": (3, 4),
        "decoder": (2, 4),
        "cross": (2, 4),
    }


def test_the_standard_error_is_that_of_means_over_texts():
    """V1: with few texts that of independent tokens; with many, tokens of one text count once."""
    generator = torch.Generator().manual_seed(0)
    values_N = torch.randn(40, generator=generator, dtype=torch.float64)
    one_text = torch.zeros(40, dtype=torch.long)
    plain = float(values_N.std() / 40**0.5)
    assert float(standard_error(values_N, one_text)) == pytest.approx(plain)
    assert float(standard_error(values_N, torch.arange(40))) == pytest.approx(plain)
    repeated_N, text_N = values_N.repeat_interleave(10), torch.arange(40).repeat_interleave(10)
    assert float(standard_error(repeated_N, text_N)) == pytest.approx(plain), "repetitions are no new observations"
    few = torch.arange(FEWEST_TEXTS - 1).repeat_interleave(10)
    assert float(standard_error(repeated_N[: len(few)], few)) == pytest.approx(
        float(repeated_N[: len(few)].std() / len(few) ** 0.5)
    )
    assert math.isnan(float(standard_error(torch.ones(1), torch.zeros(1, dtype=torch.long))))
    means = values_N.view(8, 5).mean(1)
    assert float(standard_error(values_N, torch.arange(8).repeat_interleave(5))) == pytest.approx(
        float(means.std() / 8**0.5)
    )


def test_errors_are_paired_and_those_of_the_differences(lively):
    """V1: the spread of what changes, not that of the losses."""
    subject = lively()
    reading = subject.read("abcabcxyzabqrs")
    loss, (changes,) = ablate_heads(
        subject, attention_parts(subject), [Probe(reading.ids_T[None], reading.targets_T[None])]
    )

    def nats_of(logits_TV):
        return F.cross_entropy(logits_TV[:-1], reading.targets_T, reduction="none").double()

    with torch.no_grad():
        plain_N = nats_of(subject.logits(reading))
        for layer, head in np.ndindex(2, 4):
            apart_N = nats_of(edited_logits(subject, reading, switch_off(layer, head))) - plain_N
            assert changes.zero_LH[layer, head] == pytest.approx(float(apart_N.mean()), abs=1e-5)
            error = float(apart_N.std() / len(apart_N) ** 0.5)
            assert changes.zero_error_LH[layer, head] == pytest.approx(error, rel=1e-3)
    assert loss == pytest.approx(float(plain_N.mean()), abs=1e-5)


def coloured(view):
    return [
        mark.value for chart in view.charts()[1::2] for row in chart.cells for mark in row if mark.value is not None
    ]


def marked(view):
    return [cell for table in view.tables() for row in table.rows for cell in row[-2:] if cell.startswith("*")]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_short_text_colours_nothing_and_says_so(lively, language):
    """V1: the change of the loss on one poem of 24 tokens is noise, and was coloured as a result."""
    subject = lively()
    short = heads_view(subject, probes=["abcdefghijklmnopqrstuvwx"])
    assert not coloured(short) and not marked(short)
    assert "23" in short.tables(language)[0].note and str(FEWEST_TOKENS) in short.tables(language)[0].note
    assert all("±" in cell for row in short.tables(language)[0].rows for cell in row[-2:])
    assert str(FEWEST_TOKENS) in short.charts(language)[1].note


def test_only_changes_clear_of_their_error_are_coloured_and_marked(known, known_view):
    """V1: of the heads made by hand the two that copy, and none of the idle ones."""
    assert known_view.measured.tokens >= FEWEST_TOKENS, "the random sequences are enough"
    part = known_view.part("self")
    clear = {(0, 0), (1, 0)}
    for layer, head in np.ndindex(2, 4):
        change, error = part.zero_LH[layer, head], part.zero_error_LH[layer, head]
        assert known_view.measured.clear(change, error) == ((layer, head) in clear) == (abs(change) > CLEAR * error)
    worth = known_view.charts()[1]
    assert {
        (r, c) for r, row in enumerate(worth.cells) for c, mark in enumerate(row) if mark.value is not None
    } == clear
    assert worth.low == 0


def test_changes_of_the_loss_have_one_scale_in_all_kinds_of_attention(lively_pairs):
    """V3: +0.008 of one kind was darker than +0.064 of another."""
    view = heads_view(lively_pairs(), probes=[("abcdefgh", "hgfedcba")])
    sizes = dict(zip(("encoder", "decoder", "cross"), (0.004, 0.5, -0.7), strict=True))
    parts = tuple(
        replace(part, zero_LH=np.full(part.shape, sizes[part.part]), zero_error_LH=np.full(part.shape, 0.0001))
        for part in view.parts
    )
    measured = Measured(1.0, FEWEST_TOKENS, Words("", ""))
    charts = HeadsView(parts, measured).charts()[1::2]
    assert [chart.high for chart in charts] == [0.5] * 3
    assert HeadsView(parts, replace(measured, tokens=1)).charts()[1].high == 1.0, "nothing is coloured"


def test_held_out_texts_stand_in_where_none_is_given(lively):
    """V1: and the view says what it measured on."""
    subject = lively()
    held_out = [subject.read("abcdefghijklmnopqrstuvwxyz") for _ in range(13)]
    view = heads_view(subject, held_out=held_out)
    assert (view.measured.tokens, set(view.part("self").scores)) == (325, {"random", "texts"})
    assert "held-out texts of the run (13), 325 tokens" in view.tables()[0].note
    assert "留出" in view.tables("zh")[0].note
    own = heads_view(subject, probes=["abc"], held_out=held_out)
    assert own.measured.tokens == 2, "texts that are given come first"
    alone = heads_view(subject)
    assert "no held-out text of the run is at hand" in alone.tables()[0].note
