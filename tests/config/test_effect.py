"""A setting that has an effect only with another one is refused without it; the table of them is the fields' own."""

from __future__ import annotations

import pytest

from mingyue.config import TrainSettings, refuse_unused, setting_of, unused
from mingyue.errors import SettingsError
from mingyue.training.recipes import with_recipe

TEXT = {"sources": ["a"]}
PAIRS = {"source": ["s"], "target": ["t"]}
RECORDS = {"pairs": ["p.tsv"]}
VALID = {"valid_source": ["vs"], "valid_target": ["vt"]}
TABLE = {
    "held_out": ({**PAIRS, **VALID, "held_out": 0.2}, {**PAIRS, "held_out": 0.2}),
    "source_field": ({**PAIRS, "source_field": "en"}, {**RECORDS, "source_field": "en"}),
    "target_field": ({**PAIRS, "target_field": "de"}, {**RECORDS, "target_field": "de"}),
    "bleu_lines": ({**PAIRS, "held_out": 0.0, "bleu_lines": 5}, {**PAIRS, "held_out": 0.0, "bleu_lines": 0}),
    "tokenizer_size": ({**TEXT, "tokenizer_size": 1000}, {**TEXT, "tokenizer_size": 1000, "tokenizer": "bpe"}),
    "min_count": ({**TEXT, "min_count": 3, "tokenizer": "bpe"}, {**TEXT, "min_count": 3}),
    "rotary_base": (
        {**TEXT, "rotary_base": 500.0, "positions": "learned"},
        {**TEXT, "rotary_base": 500.0, "positions": "rotary"},
    ),
    "micro_batch_tokens": (
        {**TEXT, "micro_batch_tokens": 64, "batch_tokens": 32},
        {**TEXT, "micro_batch_tokens": 32, "batch_tokens": 64},
    ),
    "muon_learning_rate": (
        {**TEXT, "muon_learning_rate": 0.1, "optimiser": "adamw"},
        {**TEXT, "muon_learning_rate": 0.1},
    ),
    "muon_momentum": ({**TEXT, "muon_momentum": 0.9, "optimiser": "adamw"}, {**TEXT, "muon_momentum": 0.9}),
    "decay_share": ({**TEXT, "decay_share": 0.3, "schedule": "cosine"}, {**TEXT, "decay_share": 0.3}),
    "final_share": (
        {**TEXT, "final_share": 0.3, "schedule": "constant"},
        {**TEXT, "final_share": 0.3, "schedule": "cosine"},
    ),
    "parallel": ({**TEXT, "parallel": "sharded"}, {**TEXT, "parallel": "sharded", "nproc": 2}),
    "restarts": ({**TEXT, "restarts": 1}, {**TEXT, "restarts": 1, "nproc": 2}),
    "evaluate_tokens": ({**TEXT, "evaluate_tokens": 9, "held_out": 0.0}, {**TEXT, "evaluate_tokens": 9}),
    "patience": ({**TEXT, "patience": 3, "held_out": 0.0}, {**TEXT, "patience": 3}),
    "sample_prompt": ({**TEXT, "sample_prompt": "x", "sample_every": 0}, {**TEXT, "sample_prompt": "x"}),
}
"""By setting: a run in which it has no effect, and one in which it has."""


def test_the_table_has_every_setting_that_needs_another():
    needing = {name for name, (_, info) in TrainSettings.fields().items() if setting_of(info).needs is not None}
    assert needing == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_setting_without_effect_is_refused_by_name_with_what_it_needs(name):
    without, within = (TrainSettings.from_flat(**values) for values in TABLE[name])
    needs = setting_of(TrainSettings.fields()[name][1]).needs
    with pytest.raises(SettingsError) as caught:
        refuse_unused(without, {})
    assert caught.value.message == f"--{name.replace('_', '-')} has an effect only {needs.what}"
    refuse_unused(within, {})


def test_what_a_preset_decides_counts():
    settings = TrainSettings.from_flat(**TEXT, rotary_base=500.0)
    assert set(unused(settings, {"positions": "learned"})) == {"rotary_base"}
    assert unused(settings, {"positions": "rotary"}) == {}


def test_a_resume_refuses_only_what_is_given_with_it():
    """A run with a share of decay may take another schedule; a share that is given with it is an error."""
    settings = TrainSettings.from_flat(**TEXT, decay_share=0.3, schedule="cosine")
    refuse_unused(settings, {}, given={"schedule"})
    with pytest.raises(SettingsError, match="--decay-share"):
        refuse_unused(settings, {}, given={"schedule", "decay_share"})


@pytest.mark.parametrize("kind", [TEXT, PAIRS], ids=["text", "pairs"])
@pytest.mark.parametrize(
    "given", [{}, {"recipe": "paper"}, {"tokenizer": "char"}, {"tokenizer": "byte"}, {"optimiser": "adamw"}]
)
def test_run_toml_of_every_recipe_can_be_given_again(kind, given):
    """A recipe sets nothing without effect, or --config run.toml would be refused."""
    settings = with_recipe(TrainSettings.from_flat(**kind, **given))
    again = TrainSettings.read(settings.model_dump(mode="json", exclude_none=True), source="run.toml")
    assert unused(with_recipe(again)) == {}
