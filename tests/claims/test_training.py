"""What claims share: one way to train small models, and languages made by rules from a seed."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from mingyue.claims import grammar
from mingyue.claims.claim import Number, Trial
from mingyue.claims.training import accuracy, fit, next_token_loss, seeds, tiny
from mingyue.errors import SettingsError, TrainingError

IDS = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]])


def trained(seed=0, dropout=0.2, **options):
    model = tiny(8, context=8, n_layers=1, seed=3, dropout=dropout)
    return model, fit(model, lambda step: IDS, next_token_loss, learning_rate=1e-2, seed=seed, **options)


def test_a_fit_is_a_function_of_its_seed_and_leaves_the_generator_alone():
    model = tiny(8, context=8, n_layers=1, seed=3, dropout=0.2)
    torch.manual_seed(5)
    one = fit(model, lambda step: IDS, next_token_loss, steps=8, learning_rate=1e-2)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))
    assert trained(steps=8)[1].losses == one.losses
    assert trained(steps=8, seed=1)[1].losses != one.losses  # dropout
    assert len(one.losses) == one.steps == 8 and one.reached is None
    assert not model.training


def test_a_fit_stops_where_it_is_told_to():
    asked = []

    def until(model):
        asked.append(model.training)
        return len(asked) == 3

    _, found = trained(steps=100, until=until, check_every=4)
    assert (found.reached, found.steps, asked) == (12, 12, [False, False, False])


def test_a_small_model_learns_a_line_by_heart():
    model, found = trained(steps=120, dropout=0.0)
    assert found.losses[-1] < 0.1 < found.losses[0]
    assert accuracy(model(IDS[:, :-1]), IDS[:, 1:]) == 1.0


def test_a_loss_that_is_not_a_number_ends_the_training():
    model = nn.Linear(1, 1)
    with pytest.raises(TrainingError, match="step 0 is nan"):
        fit(model, lambda step: torch.ones(1), lambda m, x: m(x).sum() * float("nan"), steps=3, learning_rate=1e-3)


def test_the_rate_rises_and_falls():
    from mingyue.claims.training import _rate

    rates = [_rate(step, 100, 0.1, True) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10] == 1.0 and all(a >= b for a, b in itertools.pairwise(rates[10:])) and rates[-1] < 0.06
    assert {_rate(step, 100, 0.0, False) for step in range(100)} == {1.0}


def test_tiny_takes_fields_of_the_config_and_refuses_others():
    pairs = tiny(8, context=8, architecture="encoder-decoder", n_layers=1, positions="sinusoidal")
    assert pairs.config.n_encoder_layers == 1 and pairs.config.positions == "sinusoidal"
    with pytest.raises(SettingsError, match="positions"):
        tiny(8, context=8, positons="learned")


def test_ignored_targets_do_not_count():
    logits = torch.eye(3)
    assert accuracy(logits, torch.tensor([0, 2, -100])) == 0.5


def test_seeds_of_two_trials_do_not_meet():
    assert seeds(Trial("report", 0), 1, 3, 5) == [0, 1, 2]
    assert not set(seeds(Trial("full", 1), 1, 3, 5)) & set(seeds(Trial("full", 0), 1, 3, 5))


@pytest.mark.parametrize("language", [grammar.topics, grammar.banks, grammar.strikes, grammar.references])
def test_a_language_is_a_function_of_its_seed(language):
    assert language(20, 4) == language(20, 4) != language(20, 5)
    assert language(30, 4)[:20] == language(20, 4)


def test_what_a_pronoun_stands_for_is_one_of_two_animals_and_has_the_answer():
    found = grammar.references(2000, 1)
    assert len({len(one.words) for one in found}) == 1
    for one in found:
        noun, other = one.words[one.noun], one.words[one.other]
        assert one.words[one.pronoun] == "它" and grammar.TRAITS[noun] == one.answer
        assert noun != other and other in grammar.TRAITS


@pytest.mark.parametrize("at", [0, 1, 2, 4])
def test_no_single_word_tells_which_animal_a_pronoun_stands_for(at):
    found = grammar.references(4000, 1)
    for word in {one.words[at] for one in found}:
        first = [one.noun == 0 for one in found if one.words[at] == word]
        assert 0.35 < sum(first) / len(first) < 0.65
    told = {(one.words[1], one.words[4]): one.noun for one in found}
    assert all(told[one.words[1], one.words[4]] == one.noun for one in found)  # both together do


def test_wordings_of_one_sense_share_no_character():
    for words, endings in grammar.STRIKES.values():
        assert len(set("".join(words + endings))) == len("".join(words + endings))


def test_a_lexicon_numbers_words_in_their_order():
    words = grammar.Lexicon("明月明光")
    assert (len(words), words["光"], words.ids("月明")) == (3, 2, [1, 0])
    assert words.tensor(["明月", "光光"]).tolist() == [[0, 1], [2, 2]]
    assert words.stream(["明", "月光"]).tolist() == [0, 1, 2]
    with pytest.raises(KeyError):
        words.ids("床")


def test_intervals_are_those_of_students_t():
    number = Number.mean([1.0, 2.0, 3.0])
    assert (number.value, number.high) == (2.0, pytest.approx(2 + 4.303 / 3**0.5, abs=1e-3))
    assert Number.mean([4.0]) == Number.exact(4.0)
    assert Number.median([5.0, 1.0, 2.0]) == Number(2.0, 1.0, 5.0)
    with pytest.raises(ValueError, match="samples"):
        Number.mean([])
