"""Settings: a wrong key or value is an error that names it, its place and the nearest right one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from mingyue import config
from mingyue.config import (
    BudgetSettings,
    DataSettings,
    EncoderDecoderConfig,
    GenerateSettings,
    ModelConfig,
    ModelSettings,
    RotaryScaling,
    Settings,
    SizeSettings,
    TrainSettings,
    nearest,
    one_budget,
    refuse_other_kind,
    setting_of,
)
from mingyue.errors import SettingsError

SIZES = {
    "vocab_size": 10, "context": 8, "d_model": 8, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "d_head": 4, "d_ff": 8,
}  # fmt: skip
every_class = [
    value for value in vars(config).values() if isinstance(value, type) and issubclass(value, Settings)
]  # fmt: skip


@pytest.mark.parametrize("cls", every_class, ids=lambda cls: cls.__name__)
def test_every_field_says_what_it_is(cls):
    """The docstring below a field is its --help."""
    if cls is TrainSettings:
        return  # its fields are the groups
    missing = [name for name, field in cls.model_fields.items() if not field.description]
    assert missing == []


@pytest.mark.parametrize(
    ("cls", "values", "words"),
    [
        (ModelSettings, {"dropuot": 0.1}, r"run.toml: there is no setting 'dropuot'; did you mean 'dropout'\?"),
        (BudgetSettings, {"xyz": 1}, "run.toml: there is no setting 'xyz'; known: minutes, steps, epochs"),
        (TrainSettings, {"model": {"dept": 2}}, r"there is no setting 'model.dept'; did you mean 'depth'\?"),
        (TrainSettings, {"modle": {}}, r"there is no setting 'modle'; did you mean 'model'\?"),
        (ModelSettings, {"depth": 0}, "run.toml: depth = 0: Input should be greater than or equal to 1"),
        (ModelSettings, {"positions": "rotarry"}, "run.toml: positions = 'rotarry': Input should be 'none', 'learned'"),
        (TrainSettings, {"model": {"depth": "two"}}, "run.toml: model.depth = 'two': Input should be a valid integer"),
        (BudgetSettings, {"minutes": 1, "steps": 2}, "run.toml: give one budget, not 2: minutes, steps"),
        (DataSettings, {"held_out": 1.0}, "held_out = 1.0: Input should be less than 1"),
        (ModelConfig, {}, "run.toml: vocab_size = .*: Field required"),
        (ModelConfig, {**SIZES, "n_kv_heads": 3}, "n_heads 4 is not a multiple of n_kv_heads 3"),
        (ModelConfig, {**SIZES, "d_head": 3}, "d_head 3 must be even"),
        (ModelConfig, {**SIZES, "positions": "none", "rotary_scaling": {}}, "rotary_scaling needs positions rotary"),
        (RotaryScaling, {"kind": "llama3"}, "llama3 needs original_context"),
        (
            RotaryScaling,
            {"kind": "llama3", "original_context": 8, "low_frequency_factor": 4.0},
            "low_frequency_factor 4.0 must be above 0 and below high_frequency_factor 4.0",
        ),
        (GenerateSettings, {"top_p": 1.5}, "top_p = 1.5: Input should be less than or equal to 1"),
        (GenerateSettings, {"temperature": -0.1}, "temperature = -0.1: Input should be greater than or equal to 0"),
        (GenerateSettings, {"min_new_tokens": 9, "max_new_tokens": 3}, "min_new_tokens 9 is above max_new_tokens 3"),
        (GenerateSettings, {"stop": ["。", ""]}, "a stop text is empty"),
    ],
)
def test_a_wrong_setting_is_named_with_its_source_and_what_was_meant(cls, values, words):
    with pytest.raises(SettingsError, match=words):
        cls.read(values, source="run.toml")


def test_every_wrong_setting_is_named_at_once():
    with pytest.raises(SettingsError) as caught:
        ModelSettings.read({"depth": 0, "dropout": 2, "widht": 3}, source="x")
    assert len(str(caught.value).splitlines()) == 3


def test_settings_do_not_change_but_have_changed_copies():
    settings = ModelSettings(depth=3)
    with pytest.raises(ValidationError):
        settings.depth = 4  # pyrefly: ignore
    assert settings.replace(depth=4) == ModelSettings(depth=4)
    assert settings.depth == 3
    with pytest.raises(SettingsError, match="the changed settings: there is no setting 'dept'"):
        settings.replace(dept=4)


def test_nearest():
    assert nearest("learning_rat", ["learning_rate", "muon_learning_rate"]) == "learning_rate"
    assert nearest("zzz", ["depth"]) is None


def test_names_are_unique_over_all_groups_so_that_the_command_line_needs_no_prefixes():
    names = [name for group in TrainSettings().model_dump().values() for name in group]
    assert len(names) == len(set(names))


def test_flat_names_find_their_group():
    settings = TrainSettings.from_flat(depth=3, minutes=2.0, sources=["a.txt"], seed=7)
    assert (settings.model.depth, settings.budget.minutes, settings.run.seed) == (3, 2.0, 7)
    assert list(settings.data.sources) == ["a.txt"]
    changed = settings.with_flat(depth=5)
    assert (changed.model.depth, changed.run.seed, settings.model.depth) == (5, 7, 3)
    with pytest.raises(SettingsError, match=r"the arguments: there is no setting 'minuts'; did you mean 'minutes'\?"):
        TrainSettings.from_flat(minuts=3)
    with pytest.raises(SettingsError, match="there is no setting 'model'"):
        TrainSettings.from_flat(model={"depth": 3})
    with pytest.raises(SettingsError, match=r"the command line: run.seed = -1"):
        settings.with_flat("the command line", seed=-1)


def test_a_config_survives_json():
    scaling = {"kind": "llama3", "factor": 8.0, "original_context": 32}
    model = ModelConfig(**SIZES, rotary_scaling=RotaryScaling(**scaling))
    again = ModelConfig.read(json.loads(json.dumps(model.model_dump(mode="json"))), source="config.json")
    assert again == model


@pytest.mark.parametrize("name", TrainSettings.fields())
def test_every_setting_declares_its_kinds_its_default_and_what_a_resume_does(name):
    """All that is known of a setting is in its field: nothing else lists settings by name."""
    _, info = TrainSettings.fields()[name]
    details = setting_of(info)
    assert details is not None
    assert details.kinds in ("text", "pairs", "both")
    assert details.resume.why
    assert info.default is not None or details.auto, "the help must say what happens where nothing is given"


def test_the_parts_of_a_model_are_declared_once_for_its_config_and_for_a_run():
    """In a run each may be left open; in a config each has a value. The sizes are left open in a run alone."""
    shared = set(ModelSettings.model_fields) - set(SizeSettings.model_fields)
    assert {"positions", "dropout", "window"} <= shared <= set(ModelConfig.model_fields)
    for name in shared:
        ours, theirs = ModelSettings.model_fields[name], ModelConfig.model_fields[name]
        assert ours.description == theirs.description
        assert setting_of(ours) == setting_of(theirs)
        assert ours.default is None
    assert ModelSettings(dropout=None).dropout is None
    for values in ({"dropout": None}, {"dropout": 1.5}, {"positions": None}):
        with pytest.raises(SettingsError):
            ModelConfig.read({**SIZES, **values}, source="config.json")
    with pytest.raises(SettingsError, match="there is no setting 'window'"):
        EncoderDecoderConfig.read({**SIZES, "n_encoder_layers": 1, "window": 4}, source="config.json")


def test_a_setting_of_the_other_kind_is_refused_by_name():
    refuse_other_kind(TrainSettings.from_flat(sources=["a"], separator="line", window=4))
    refuse_other_kind(TrainSettings.from_flat(source=["a"], target=["b"], n_encoder_layers=2))
    with pytest.raises(SettingsError, match=r"a run on pairs cannot use .* text only: --separator, --window"):
        refuse_other_kind(TrainSettings.from_flat(source=["a"], target=["b"], separator="line", window=4))
    with pytest.raises(SettingsError, match=r"a run on text cannot use .* pairs only: --select"):
        refuse_other_kind(TrainSettings.from_flat(sources=["a"], select="bleu"))


def test_a_budget_that_is_given_replaces_the_others():
    assert one_budget({"steps": 3, "seed": 1}) == {"steps": 3, "seed": 1, "minutes": None, "epochs": None}
    assert one_budget({"seed": 1}) == {"seed": 1}
    assert one_budget({"steps": None}) == {"steps": None}


def test_defaults_yield_to_what_was_given():
    settings = TrainSettings.from_flat(clip=1.0).with_defaults("the recipe", clip=0.0, beta2=0.98)
    assert (settings.optimiser.clip, settings.optimiser.beta2) == (1.0, 0.98)


def test_settings_are_imported_without_torch():
    code = "import sys, mingyue.config; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
