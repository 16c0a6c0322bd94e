"""Recipes fill in what was not given; what was given, however, stays."""

from __future__ import annotations

import tomllib

import pytest

from mingyue.config import TrainSettings
from mingyue.errors import SettingsError
from mingyue.training import RunFolder
from mingyue.training.recipes import with_recipe
from mingyue.training.resume_rules import changes_between

PAIRS = {"source": "a.en", "target": "a.de"}
PAPER = {
    "optimiser": "adamw",
    "beta1": 0.9,
    "beta2": 0.98,
    "adam_eps": 1e-9,
    "weight_decay": 0.0,
    "clip": 0.0,
    "label_smoothing": 0.1,
    "schedule": "paper",
    "warmup": 4000,
    "average_last": 5,
}


def flat(settings):
    return {name: value for group in settings.model_dump().values() for name, value in group.items()}


def differences(one, other):
    before, after = flat(one), flat(other)
    return {name: value for name, value in after.items() if before[name] != value}


@pytest.mark.parametrize("source", [PAIRS, {"sources": ("a.txt",)}])
def test_the_paper_recipe_is_what_the_paper_says(source):
    """Sections 5.3, 5.4 and 6.1, for pairs and for text."""
    settings = flat(with_recipe(TrainSettings.from_flat(recipe="paper", **source)))
    assert {name: settings[name] for name in PAPER} == PAPER


def test_text_without_a_recipe_keeps_every_default():
    settings = TrainSettings.from_flat(sources=("a.txt",))
    assert with_recipe(settings) == settings
    assert settings.optimiser.label_smoothing == 0.0


@pytest.mark.parametrize("source", [PAIRS, {"pairs": "a.tsv"}])
def test_pairs_are_smoothed_and_cut_into_bpe_and_nothing_else(source):
    settings = TrainSettings.from_flat(**source)
    changed = differences(settings, with_recipe(settings))
    assert changed == {
        "label_smoothing": 0.1,
        "tokenizer": "bpe",
        "tokenizer_size": 4096,
        "muon_momentum": 0.95,
    }


# Each value is the default of its setting: given all the same, so it wins.
GIVEN = {
    "optimiser": "muon", "beta2": 0.95, "adam_eps": 1e-10, "weight_decay": 0.1, "clip": 1.0, "label_smoothing": 0.0,
    "schedule": "wsd", "warmup": 0.02, "average_last": 1, "tokenizer": "char", "tokenizer_size": 8192,
}  # fmt: skip


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("how", ["flat", "added later", "file", "beside a file"])
def test_what_is_given_wins_even_where_it_is_the_default(name, how):
    """T1: a value that was given by itself is never overruled, wherever it was given."""
    group = next(group for group, values in TrainSettings().model_dump().items() if name in values)
    recipe = {"recipe": "paper", **PAIRS}
    if how == "flat":
        settings = TrainSettings.from_flat(**{name: GIVEN[name]}, **recipe)
    elif how == "added later":
        settings = TrainSettings.from_flat(**recipe).with_flat(steps=3).with_flat(**{name: GIVEN[name]})
    else:
        text = f"[{group}]\n{name} = {GIVEN[name]!r}\n"
        settings = TrainSettings.read(tomllib.loads(text), source="run.toml").with_flat(**recipe)
        if how == "beside a file":
            settings = settings.with_flat(seed=4)
    done = flat(with_recipe(settings))
    assert done[name] == GIVEN[name]
    others = {other: value for other, value in PAPER.items() if other != name}
    assert {other: done[other] for other in others} == others


def test_a_recipe_is_laid_down_once(tmp_path):
    """T1: run.toml holds what the recipe set; read again, resumed or replayed, nothing changes a second time."""
    settings = with_recipe(TrainSettings.from_flat(recipe="paper", clip=1.0, **PAIRS))
    assert with_recipe(settings) == settings
    folder, _ = RunFolder.create(tmp_path / "run", settings)
    folder.unlock()
    again = RunFolder.open(tmp_path / "run").read_settings()
    assert changes_between(settings, again) == []
    assert changes_between(settings, with_recipe(again)) == []


def test_a_run_without_a_recipe_keeps_its_settings_when_replayed(tmp_path):
    """What a finished run wrote down counts as given: a replay trains with the same numbers."""
    settings = with_recipe(TrainSettings.from_flat(label_smoothing=0.0, **PAIRS))
    folder, _ = RunFolder.create(tmp_path / "run", settings)
    folder.unlock()
    again = RunFolder.open(tmp_path / "run").read_settings().with_flat(out="elsewhere")
    assert flat(with_recipe(again))["label_smoothing"] == 0.0


def test_an_unknown_recipe_is_refused():
    with pytest.raises(SettingsError, match="recipe = 'papre'"):
        TrainSettings.from_flat(recipe="papre")
