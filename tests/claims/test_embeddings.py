"""The claims of "Embeddings and positions": what their small forms show, verdicts on numbers that contradict them."""

from __future__ import annotations

import json
import math
from collections import defaultdict

import pytest
import torch
from small_forms import CORRECTED, NOT_SUPPORTED, SUPPORTED, judged, small, unsure, value

from mingyue.claims.claim import Number, Trial
from mingyue.claims.embeddings import (
    learned,
    longer,
    lookup,
    order,
    rotary,
    sinusoid,
    texts,
    trained_embedding,
    two_back,
    tying,
    villages,
)
from mingyue.claims.training import next_token_loss, tiny

CLAIMS = {
    module.CLAIM.name: module.CLAIM
    for module in (lookup, trained_embedding, tying, order, learned, sinusoid, rotary, longer)
}


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("lookup", SUPPORTED),
        ("order", CORRECTED),
        ("learned", SUPPORTED),
        ("sinusoid", CORRECTED),
        ("rotary", SUPPORTED),
        ("longer", NOT_SUPPORTED),
    ],
)
def test_the_small_form_gives_the_verdict_that_is_true(name, verdict):
    found = CLAIMS[name].finding(small(name).numbers)
    assert found.verdict == verdict, found.reason.en


def test_a_row_is_the_product_and_only_rows_that_were_read_learn_unless_the_table_is_tied():
    assert value("lookup", "apart") == 0
    assert 0 < value("lookup", "rows_read") == value("lookup", "rows_untied") < value("lookup", "vocab_size")
    assert value("lookup", "rows_tied") == value("lookup", "vocab_size")


def test_tying_saves_one_table_exactly_and_its_gradient_is_the_sum_of_two():
    assert value("tying", "saved") == value("tying", "vocab_size") * value("tying", "d_model")
    assert value("tying", "gradient_error") <= tying.ROUNDING


def test_a_few_steps_are_enough_to_see_that_plain_rotary_does_not_carry_and_a_window_carries_further():
    rise = {reader: value("longer", f"rise_{reader}") for reader in ("rotary", "scaled", "window")}
    assert rise["rotary"] > longer.TOLERANCE
    assert rise["rotary"] > rise["scaled"] > rise["window"]
    reach = {reader: value("longer", f"reach_{reader}") for reader in ("learned", "learned_window", "rotary", "window")}
    assert reach["learned"] == reach["learned_window"] == 1 < reach["rotary"] < reach["window"] == longer.TIMES
    assert value("longer", "within_window") == pytest.approx(value("longer", "within_rotary"), abs=1e-5)


TRAINED = {"gap": 0.05, "gap_random": 0.05, "end_to_end_cat_nearer": 0.5} | {
    f"{what}_{kind}": number
    for kind in ("animals", "numerals", "seasons")
    for what, number in (("end_to_end", 0.9), ("random", 0.1), ("more", 0.0))
}


@pytest.mark.parametrize(
    ("name", "changes", "verdict"),
    [
        ("lookup", {"apart": 1e-7}, NOT_SUPPORTED),
        ("lookup", {"rows_astray": 1}, NOT_SUPPORTED),
        ("lookup", {"rows_tied": 23}, NOT_SUPPORTED),
        ("trained-embedding", TRAINED, SUPPORTED),
        ("trained-embedding", TRAINED | {"gap": 0.002}, NOT_SUPPORTED),
        ("trained-embedding", TRAINED | {"gap": Number(0.05, -0.01, 0.11)}, NOT_SUPPORTED),
        ("trained-embedding", TRAINED | {"gap_random": 0.002}, CORRECTED),
        ("trained-embedding", TRAINED | {"gap_random": Number(0.05, 0.001, 0.1)}, CORRECTED),
        ("trained-embedding", TRAINED | {"more_animals": Number(-0.1, -0.2, -0.01)}, CORRECTED),
        ("trained-embedding", TRAINED | {"end_to_end_seasons": 0.03}, NOT_SUPPORTED),
        ("trained-embedding", TRAINED | {"end_to_end_seasons": Number(0.5, 0.03, 1.0)}, NOT_SUPPORTED),
        ("trained-embedding", TRAINED | {"random_seasons": 0.95}, NOT_SUPPORTED),
        ("trained-embedding", TRAINED | {"end_to_end_cat_nearer": -0.1}, NOT_SUPPORTED),
        ("trained-embedding", TRAINED | {"end_to_end_cat_nearer": Number(0.5, -0.1, 1.1)}, NOT_SUPPORTED),
        ("tying", {"worse": 0.0}, SUPPORTED),
        ("tying", {"worse": 0.2}, CORRECTED),
        ("tying", {"worse": Number(0.06, 0.01, 0.11)}, CORRECTED),
        ("tying", {"worse": Number(0.0, -0.1, 0.1)}, NOT_SUPPORTED),
        ("tying", {"saved": 4799}, NOT_SUPPORTED),
        ("tying", {"gradient_error": 0.01}, NOT_SUPPORTED),
        ("order", {"encoder_none": 1e-3}, NOT_SUPPORTED),
        ("order", {"encoder_rotary": 1e-6}, NOT_SUPPORTED),
        ("order", {"decoder_last_second_block": 1e-7}, SUPPORTED),
        ("order", {"decoder_last_first_block": 0.1}, SUPPORTED),
        ("learned", {"served": 0}, NOT_SUPPORTED),
        ("learned", {"refused": 0}, NOT_SUPPORTED),
        ("learned", {"rows_moved_beyond": 3}, NOT_SUPPORTED),
        ("learned", {"within": 0.1, "beyond_short": 0.2, "beyond_long": 0.1, "beyond_redrawn": 3.0}, NOT_SUPPORTED),
        ("learned", {"beyond_redrawn": 0.0}, NOT_SUPPORTED),
        ("sinusoid", {"map_error": 1e-3}, NOT_SUPPORTED),
        ("sinusoid", {"spread": 0.1}, NOT_SUPPORTED),
        ("sinusoid", {"nearest": 0.0}, NOT_SUPPORTED),
        ("sinusoid", {"circle_error": 0.5}, NOT_SUPPORTED),
        ("sinusoid", {"frequencies": 64}, SUPPORTED),
        ("rotary", {"score_error": 0.1}, NOT_SUPPORTED),
        ("rotary", {"length_error": 0.1}, NOT_SUPPORTED),
        ("rotary", {"query_turned": 0.0}, NOT_SUPPORTED),
        ("rotary", {"value_turned": 0.5}, NOT_SUPPORTED),
        ("rotary", {"angle_error": 0.5}, NOT_SUPPORTED),
        ("rotary", {"angles": 1}, NOT_SUPPORTED),
        ("rotary", {"logits_rotary": 0.1}, NOT_SUPPORTED),
        ("rotary", {"logits_learned": 0.0}, NOT_SUPPORTED),
        ("longer", {"rise_rotary": 0.0, "rise_learned": 1.0}, SUPPORTED),
        ("longer", {"rise_rotary": 0.0, "rise_learned": 0.0}, NOT_SUPPORTED),
        ("longer", {"rise_rotary": 0.0, "rise_learned": Number(1.0, 0.0, 2.0)}, NOT_SUPPORTED),
        ("longer", {"rise_rotary": Number(0.05, -0.1, 0.2), "rise_scaled": 0.5}, NOT_SUPPORTED),
        ("longer", {"rise_rotary": 1.0, "rise_scaled": 0.5, "rise_window": 0.0}, NOT_SUPPORTED),
        ("longer", {"rise_rotary": 1.0, "rise_scaled": 0.0, "rise_window": 0.5}, CORRECTED),
        ("longer", {"rise_rotary": 1.0, "rise_scaled": Number(0.05, -0.1, 0.2)}, NOT_SUPPORTED),
        ("longer", {"rise_rotary": 1.0, "rise_scaled": 0.5, "rise_window": 0.5}, NOT_SUPPORTED),
    ],
)
def test_numbers_that_contradict_a_claim_change_its_verdict(name, changes, verdict):
    assert judged(name, **changes) == verdict


@pytest.mark.parametrize("name", ["tying", "order", "learned", "rotary"])
def test_intervals_that_reach_everywhere_support_nothing(name):
    assert CLAIMS[name].judge(unsure(small(name).numbers)).verdict == NOT_SUPPORTED


@pytest.mark.parametrize("name", CLAIMS)
def test_each_number_has_words_and_the_figures_draw_in_both_languages(name):
    claim, measurement = CLAIMS[name], small(name)
    assert set(measurement.numbers) == set(claim.labels)
    json.dumps(measurement.tables, allow_nan=False)
    reason = claim.finding(measurement.numbers).reason
    assert "{" not in reason.en + reason.zh
    titles = []
    for language in ("en", "zh"):
        charts = claim.draw(measurement, language)
        assert 1 <= len(charts) <= 3
        for chart in charts:
            assert chart.spec() and chart.html()
        titles.append([chart.title for chart in charts])
    assert titles[0] != titles[1]


def test_small_forms_are_pure_functions_of_their_seed():
    assert CLAIMS["rotary"].measure(Trial("small")).numbers == small("rotary").numbers
    assert CLAIMS["rotary"].measure(Trial("small", seed=1)).numbers != small("rotary").numbers


def test_the_probabilities_of_sentences_are_what_they_are_said_to_be():
    chance_of: dict[tuple[str, ...], set[float]] = defaultdict(set)
    told = villages.villages(6000, seed=3)
    for sentence in told:
        chance_of[sentence.words].add(sentence.log_probability)
    assert all(len(chances) == 1 for chances in chance_of.values())  # one derivation each
    total: dict[str, float] = defaultdict(float)
    for words, (chance,) in ((words, tuple(chances)) for words, chances in chance_of.items()):
        total[words[1]] += math.exp(chance)
    # All 72 comparisons of numerals and all 30 sentences about the heavens occurred: each shape is a tenth.
    assert total["比"] == pytest.approx(0.1)
    assert total["非"] == pytest.approx(0.1)
    assert sum(total.values()) < 1
    for told_one in told[:50]:
        assert told_one.words[-1] == "。"
        assert len(told_one.words) < trained_embedding._LONGEST
        villages.LEXICON.ids(told_one.words)


def test_a_numeral_is_more_or_less_than_another():
    compared = {told.words for told in villages.villages(2000, seed=0) if told.words[1] == "比"}
    assert ("九", "比", "二", "多", "。") in compared
    assert ("二", "比", "九", "少", "。") in compared
    assert not any(words[0] == words[2] for words in compared)


def test_vectors_from_counts_put_words_of_one_company_together():
    table = trained_embedding.pretrained_vectors(villages.villages(3000, seed=0), 16)
    unit = torch.nn.functional.normalize(table, dim=1)

    def cosine(one: str, other: str) -> float:
        return float(unit[villages.LEXICON[one]] @ unit[villages.LEXICON[other]])

    assert table.shape == (len(villages.LEXICON), 16)
    assert cosine("二", "九") > 0.7 > 0.3 > cosine("二", "宇宙")


def test_vectors_from_counts_have_directions_of_one_strength_where_singular_values_do_not_weight_them():
    text = villages.villages(1000, seed=0)
    lengths = trained_embedding.pretrained_vectors(text, 16, power=0.0).norm(dim=0)
    torch.testing.assert_close(lengths, torch.ones(16))
    assert trained_embedding.pretrained_vectors(text, 16).norm(dim=0).std() > 0.1


def test_arms_differ_in_their_tables_and_frozen_ones_stay_as_they_were():
    text, check = villages.villages(60, seed=0), villages.villages(20, seed=1)
    begun = trained_embedding._arms(text, check, d_model=16, steps=0, seed=0)
    ended = trained_embedding._arms(text, check, d_model=16, steps=3, seed=0)
    moved = {
        arm: not torch.equal(begun[arm].embedding.weight, model.embedding.weight)
        for arm, model in ended.items()
        if arm in {"end_to_end", "random"}
    }
    assert moved == {"end_to_end": True, "random": False}
    spread = {arm: float(model.embedding.weight.detach().std()) for arm, model in begun.items()}
    assert spread["frozen"] == pytest.approx(spread["random"]) == pytest.approx(trained_embedding._SPREAD)
    assert torch.equal(begun["end_to_end"].output.weight, begun["random"].output.weight)


def test_what_fills_a_row_counts_for_nothing():
    model = tiny(len(villages.LEXICON), context=trained_embedding._LONGEST, tied_output=False)
    told = villages.villages(5, seed=0)
    rows = trained_embedding._rows(told)
    one_by_one = [next_token_loss(model, row[row >= 0][None]) * (row >= 0).sum().sub(1) for row in rows]
    together = trained_embedding._loss(model, rows) * (rows[:, 1:] >= 0).sum()
    torch.testing.assert_close(sum(one_by_one), together)


def test_a_symbol_follows_from_the_one_two_places_before_it():
    ids = two_back.two_back(200, 65, seed=0)
    assert torch.equal(ids, two_back.two_back(200, 65, seed=0))
    assert not torch.equal(ids, two_back.two_back(200, 65, seed=0, number=1))
    follows = ids[:, 2:] == (5 * ids[:, :-2] + 3) % 16
    assert float(follows.float().mean()) == pytest.approx(0.8 + 0.2 / 16, abs=0.02)
    by_hand = two_back.true_losses(torch.tensor([[3, 7, 2, 0]]))[0]  # 5·3 + 3 = 18 = 2; 5·7 + 3 = 38 = 6, not 0
    expected = [math.log(16), -math.log(0.8125), -math.log(0.0125)]
    torch.testing.assert_close(by_hand, torch.tensor(expected))
    assert float(two_back.true_losses(ids)[:, 1:].mean()) == pytest.approx(two_back.entropy(), abs=0.05)


def test_losses_token_by_token_are_those_of_training_and_windows_do_not_overlap():
    text = texts.Text(torch.arange(100), torch.arange(23), 100, 23)
    assert text.held_windows(5, 9).tolist() == [list(range(start, start + 5)) for start in (0, 5, 10, 15)]
    assert text.held_windows(5, 2).tolist() == [list(range(start, start + 5)) for start in (0, 10)]
    batch = text.batch(4, 10, seed=0, step=3)
    assert torch.equal(batch, text.batch(4, 10, seed=0, step=3))
    assert torch.equal(batch - batch[:, :1], torch.arange(10).expand(4, 10))
    model = tiny(100, context=16).eval()
    losses = texts.token_losses(model, batch, rows=3)
    assert losses.shape == (4, 9)
    torch.testing.assert_close(losses.mean(), next_token_loss(model, batch).detach())


def test_the_same_weights_can_be_read_in_another_way():
    model = tiny(16, context=16, positions="rotary").eval()
    ids = torch.randint(16, (1, 12), generator=torch.Generator().manual_seed(0))
    narrow = texts.changed(model, window=4)
    torch.testing.assert_close(narrow(ids)[:, :4], model(ids)[:, :4])
    assert not torch.allclose(narrow(ids)[:, 4:], model(ids)[:, 4:])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("lookup", SUPPORTED),
        ("trained-embedding", CORRECTED),
        ("order", CORRECTED),
        ("learned", SUPPORTED),
        ("sinusoid", CORRECTED),
        ("rotary", SUPPORTED),
        ("longer", NOT_SUPPORTED),
        ("tying", CORRECTED),
    ],
)
def test_the_form_for_the_report_gives_its_verdict(name, verdict):
    found = CLAIMS[name].finding(CLAIMS[name].measure(Trial("report")).numbers)
    assert found.verdict == verdict, found.reason.en
