"""Settings as options: every field is one, only the given ones count, and they win over a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from mingyue.config import GenerateSettings, Settings, TrainSettings, setting_of
from mingyue.errors import SettingsError


@pytest.fixture
def trained(api, ended):
    """The settings that `mingyue train` handed to `api.train`."""
    seen = []

    def train(settings, *, observer, waited):
        seen.append(settings)
        return ended("finished")

    api.train = train
    return seen


@pytest.fixture
def settings_of(run, trained):
    def call(*arguments):
        code, _, err = run("train", *arguments)
        assert code == 0, err
        return trained[-1]

    return call


def fields_of(settings: type[Settings]) -> list[str]:
    names = []
    for name, info in settings.model_fields.items():
        inner = info.annotation
        names += fields_of(inner) if isinstance(inner, type) and issubclass(inner, Settings) else [name]
    return names


@pytest.mark.parametrize(
    ("verb", "settings", "without"),
    [
        ("train", TrainSettings, {"sources"}),
        ("resume", TrainSettings, {"sources", "out", "overwrite"}),
        ("generate", GenerateSettings, set()),
    ],
)
def test_every_setting_is_an_option_with_its_docstring(verb, settings, without):
    # A process of its own: a console remembers the width that it was made with.
    command = [sys.executable, "-m", "mingyue", verb, "--help"]
    environment = {**os.environ, "COLUMNS": "400", "PYTHONUTF8": "1"}
    shown = subprocess.run(command, env=environment, capture_output=True, check=True, encoding="utf-8")
    out = " ".join(shown.stdout.replace("│", " ").split())  # a help of several lines stands in a frame
    for name in fields_of(settings):
        offered = re.search(rf"--{name.replace('_', '-')}\b", out) is not None
        assert offered is (name not in without), name
    groups = [info.annotation for info in settings.model_fields.values() if isinstance(info.annotation, type)]
    for owner in [settings, *(group for group in groups if issubclass(group, Settings))]:
        for name, info in owner.model_fields.items():
            if name not in without and info.description:
                assert " ".join(info.description.split()) in out


def test_help_groups_the_settings_as_run_toml_does(run):
    _, out, _ = run("train", "--help")
    titles = re.findall(r"╭─ (\w+)", out)
    sections = [section.capitalize() for section in TrainSettings.model_fields]
    assert titles[-len(sections) :] == sections


def help_of(verb: str) -> str:
    """The help of a verb at 80 columns."""
    command = [sys.executable, "-m", "mingyue", *verb.split(), "--help"]
    environment = {**os.environ, "COLUMNS": "80", "PYTHONUTF8": "1"}
    return subprocess.run(command, env=environment, capture_output=True, check=True, encoding="utf-8").stdout


def test_help_of_train_begins_with_three_examples_and_the_common_options():
    shown = help_of("train")
    examples = [line for line in shown.splitlines() if line.startswith("mingyue train ")]
    assert len(examples) == 3
    panel = shown[shown.index("╭─ Common") : shown.index("╭─ Data")].splitlines()
    assert len(examples) + len(panel) <= 25
    common = {name for name, (_, info) in TrainSettings.fields().items() if setting_of(info).common}
    offered = {found.replace("-", "_") for line in panel for found in re.findall(r"^│ --([\w-]+)", line)}
    assert offered == common - {"sources"} | {"config"}
    assert "SOURCES" in "".join(panel)


def test_help_of_resume_has_the_settings_that_it_refuses_last():
    shown = help_of("resume")
    fixed = shown[shown.index("╭─ Fixed") :]
    refused = {name for name, (_, info) in TrainSettings.fields().items() if not setting_of(info).resume.allowed}
    offered = {found.replace("-", "_") for found in re.findall(r"^│ --([\w-]+)", fixed, flags=re.MULTILINE)}
    assert offered == refused - {"sources", "out", "overwrite"}


def test_help_of_demo_lists_what_a_demo_takes():
    offered = set(re.findall(r"^│ --([\w-]+)", help_of("demo"), flags=re.MULTILINE))
    assert offered == {"translate", "minutes", "steps", "epochs", "out", "seed", "device", "threads", "overwrite"}


@pytest.mark.parametrize("verb", ["train", "resume", "demo", "generate", "translate"])
def test_help_shows_defaults_in_words(verb):
    shown = " ".join(help_of(verb).replace("│", " ").split())
    assert not re.search(r"\[default: (None|False|True|)\]", shown)


def test_what_is_not_given_stays_at_its_default(settings_of):
    assert settings_of("a.txt", "b.txt") == TrainSettings.from_flat(sources=("a.txt", "b.txt"))


def test_options_reach_the_settings_they_name(settings_of):
    settings = settings_of(
        "a.txt", "--positions", "none", "--no-qk-norm", "--skip-bad", "--steps", "7", "--learning-rate", "1e-3",
        "--separator", "blank-line", "--d-model", "96", "--optimizer", "adamw",
    )  # fmt: skip
    expected = TrainSettings.from_flat(
        sources=("a.txt",), positions="none", qk_norm=False, skip_bad=True, steps=7, learning_rate=1e-3,
        separator="blank-line", d_model=96, optimiser="adamw",
    )  # fmt: skip
    assert settings == expected


def test_underscores_are_accepted_as_in_run_toml(settings_of):
    assert settings_of("a.txt", "--n_layers", "3").model.n_layers == 3


def test_a_dash_is_standard_input_and_text_after_two_dashes_is_text(settings_of):
    assert settings_of("-").data.sources == ("-",)
    assert settings_of("a.txt", "-", "--steps", "1").data.sources == ("a.txt", "-")
    assert settings_of("--steps", "1", "--", "--debug", "-").data.sources == ("--debug", "-")
    assert settings_of("a.txt", "--separator", "-").data.separator == "-"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        '[data]\nsources = ["诗.txt"]\nskip_bad = true\n[model]\nwindow = 64\ndepth = 3\n'
        "[budget]\nminutes = 5.0\n[optimiser]\nweight_decay = 0.0\n[run]\nseed = 7\n",
        encoding="utf-8",
    )
    return str(path)


def test_a_file_of_settings_replays_a_run(settings_of, config):
    expected = TrainSettings.from_flat(
        sources=("诗.txt",), skip_bad=True, window=64, depth=3, minutes=5.0, weight_decay=0.0, seed=7
    )
    assert settings_of("--config", config) == expected


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (["--seed", "1"], {"seed": 1}),  # 1 is the default: given all the same, so it wins
        (["--no-skip-bad"], {"skip_bad": False}),
        (["--weight-decay", "0.1"], {"weight_decay": 0.1}),
        (["--window", "none"], {"window": None}),
        (["--minutes", "1"], {"minutes": 1.0}),
        (["--steps", "9"], {"steps": 9, "minutes": None}),  # one budget puts the other aside
        (["--epochs", "2"], {"epochs": 2.0, "minutes": None}),
        (["b.txt"], {"sources": ("b.txt",)}),
    ],
)
def test_what_is_given_wins_over_the_file_and_nothing_else_does(settings_of, config, arguments, changes):
    file = {"sources": ("诗.txt",), "skip_bad": True, "window": 64, "depth": 3, "minutes": 5.0, "weight_decay": 0.0}
    expected = TrainSettings.from_flat(**{**file, "seed": 7, **changes})
    assert settings_of("--config", config, *arguments) == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[model]\ndept = 3\n", ["run.toml", "model.dept", "'depth'"]),
        (b"[modle]\ndepth = 3\n", ["run.toml", "'modle'", "'model'"]),
        (b"[model]\ndepth = 0\n", ["run.toml", "model.depth", "0"]),
        (b"[model\n", ["run.toml", "line 1"]),
        (b"[data]\nsources = ['\xff']\n", ["run.toml", "UTF-8", "byte 19"]),
    ],
)
def test_a_broken_file_of_settings_is_named_with_the_place(run, api, tmp_path, content, words):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    code, _, err = run("train", "--config", str(path))
    assert code == 2
    for word in words:
        assert word in err


def test_training_on_nothing_says_what_to_give(run, api):
    code, _, err = run("train")
    assert code == 2
    assert "python-docs" in err


def test_resume_hands_over_only_what_was_given(run, api, ended):
    seen = {}

    def resume(folder, *, changes, observer, waited):
        seen.update(folder=folder, changes=changes)
        return ended("finished")

    api.resume = resume
    assert run("resume", "runs/x", "--learning-rate", "0.5")[0] == 0
    assert seen == {"folder": "runs/x", "changes": {"learning_rate": 0.5}}
    assert run("resume", "runs/x", "--steps", "5")[0] == 0
    assert seen["changes"] == {"steps": 5, "minutes": None, "epochs": None}


def test_a_setting_of_a_config_that_is_refused_names_the_file(tmp_path):
    from mingyue.cli.options import train_settings

    with pytest.raises(SettingsError, match="cannot be read"):
        train_settings(str(tmp_path / "none.toml"), (), {})
