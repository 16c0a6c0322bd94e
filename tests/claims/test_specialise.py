"""The claim that heads specialise: its texts, how heads are chosen and switched off, its verdicts."""

from __future__ import annotations

import pytest
import torch
from small_forms import CORRECTED, NOT_SUPPORTED, SUPPORTED, judged, small

from mingyue.claims.claim import Number, Trial
from mingyue.claims.heads import specialise
from mingyue.claims.heads.clauses import RELATIONS, lexicon, texts
from mingyue.claims.registry import find
from mingyue.claims.training import tiny


def test_the_truth_of_each_text_is_what_its_links_say():
    made = texts(300, 0)
    assert len({len(text.words) for text in made}) == 1
    people = specialise_people()
    for text in made:
        word = {relation: [text.words[at] for at in (link.query, link.right, link.wrong, link.query + 1)]
                for relation, link in text.links.items()}  # fmt: skip
        query, subject, other, verb = word["syntax"]
        assert query == "often" and verb == ("sleep" if subject.endswith("s") else "sleeps") and other != subject
        pronoun, meant, person, deed = word["pronoun"]
        assert people[meant] == (pronoun, deed) and people[person][0] != pronoun
        query, mood, colour, verdict = word["sentiment"]
        assert query == "we" and (verdict == "praised") == (mood in ("lovely", "superb", "gentle", "witty"))
        assert colour in ("red", "blue", "green", "grey")
        assert all(link.right < link.query and link.wrong < link.query for link in text.links.values())


def specialise_people() -> dict[str, tuple[str, str]]:
    men = dict(zip(("tom", "jim", "bob", "sam"), ("sang", "swam", "cooked", "danced"), strict=True))
    women = dict(zip(("ann", "eve", "sue", "liz"), ("wrote", "ran", "painted", "slept"), strict=True))
    return {name: ("he", deed) for name, deed in men.items()} | {name: ("she", deed) for name, deed in women.items()}


def test_places_vary_so_that_no_distance_gives_a_relation_away():
    for relation in RELATIONS:
        links = [text.links[relation] for text in texts(300, 0)]
        assert len({link.query - link.right for link in links}) >= 3
        assert {link.query for link in links} == {7, 17, 27}  # the same for all: positions do not tell relations apart


def test_switching_off_all_heads_loses_what_only_they_can_carry():
    model = tiny(len(lexicon()), context=32, n_layers=2, n_heads=4, seed=0)
    test = specialise._Texts(64, 1)
    every = [(layer, head) for layer in range(2) for head in range(4)]
    lost_GR = specialise._lost(model, test, [[], every])
    assert lost_GR.shape == (2, 3) and not lost_GR[0].any()
    preferences_LHR = specialise._preferences(model, test)
    assert preferences_LHR.shape == (2, 4, 3) and float(preferences_LHR.abs().max()) < 0.05  # untrained: no preference


def test_the_head_is_chosen_on_one_half_and_measured_on_the_other(monkeypatch):
    halves = torch.zeros(2, 2, 4, 3)
    halves[0, 1, 2] = 0.9  # chosen here, for all relations
    halves[1, 1, 2], halves[1, 0, 0] = 0.2, 0.8
    given = iter(halves)
    monkeypatch.setattr(specialise, "_preferences", lambda model, texts: next(given))
    chosen, found_RR, _ = specialise._chosen(None, None, None)
    assert chosen == [(1, 2)] * 3
    assert found_RR.flatten().tolist() == pytest.approx([0.2] * 9)


def numbers(**changes: Number) -> dict[str, Number]:
    good = {
        "known": Number.exact(1.0),
        "preference": Number(0.8, 0.7, 0.9),
        "untrained": Number(0.0, -0.01, 0.01),
        "apart": Number(0.7, 0.6, 0.8),
        "lost": Number(0.8, 0.7, 0.9),
        "spilled": Number(0.05, 0.0, 0.1),
    }
    return {f"{relation}_{name}": number for relation in RELATIONS for name, number in good.items()} | changes


def test_verdicts_follow_the_numbers():
    assert judged("specialise", **numbers()) == SUPPORTED
    shared = {
        f"{relation}_apart": Number(0.4, 0.1, 0.7) for relation in RELATIONS
    }  # the interval is below what is asked
    assert judged("specialise", **numbers(**shared)) == CORRECTED
    useless = {f"{relation}_lost": Number(0.5, 0.1, 0.9) for relation in RELATIONS}
    assert judged("specialise", **numbers(**useless)) == CORRECTED
    assert judged("specialise", **numbers(**shared, **useless)) == NOT_SUPPORTED
    spread = {f"{relation}_spilled": Number(0.7, 0.5, 0.9) for relation in RELATIONS}
    assert judged("specialise", **numbers(**shared, **spread)) == NOT_SUPPORTED
    assert judged("specialise", **numbers(syntax_preference=Number(0.8, 0.2, 1.0))) == NOT_SUPPORTED
    assert judged("specialise", **numbers(pronoun_untrained=Number(0.8, 0.6, 1.0))) == NOT_SUPPORTED
    assert judged("specialise", **numbers(sentiment_known=Number.exact(0.6))) == NOT_SUPPORTED


@pytest.mark.parametrize("language", ["en", "zh"])
def test_each_number_has_words_and_the_figures_draw(language):
    assert set(small("specialise").numbers) <= set(find("specialise").labels)
    charts = find("specialise").draw(small("specialise"), language)
    assert len(charts) == 3
    for chart in charts:
        assert chart.spec() and chart.html()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_in_the_report_form_heads_follow_each_relation_and_do_not_divide_the_work():
    found = find("specialise").measure(Trial("report")).numbers
    for relation in RELATIONS:
        assert found[f"{relation}_preference"].low >= specialise.LOOKS > found[f"{relation}_untrained"].high
        assert found[f"{relation}_lost_all"].value > found[f"{relation}_lost"].value
    assert find("specialise").judge(found).verdict != SUPPORTED
