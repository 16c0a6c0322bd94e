"""Changed settings of a resumed run: each wins and is said, or is refused by name. None is ignored."""

from __future__ import annotations

import shutil

import pytest
import torch

from mingyue.config import TrainSettings
from mingyue.errors import CheckpointError, SettingsError
from mingyue.training import RULES, RunFolder, StopRequests, changed_settings, read_log

FIELDS = {name for group in TrainSettings().model_dump().values() for name in group}


def test_every_setting_has_a_rule():
    """T1: no field of TrainSettings is without a decision, and no rule is of a field that is gone."""
    assert set(RULES) == FIELDS
    assert all(rule.why for rule in RULES.values())


def stopped_at(bench, watcher, step, **settings):
    stop = StopRequests()
    run = bench(**settings)
    run.go(watcher=watcher(stop_after=step, stop=stop), stop=stop)
    return run


def other_value(name, settings):
    """A value that differs from what the run has, and is valid."""
    special = {
        "sources": ["other.txt"],
        "preset": "gpt2",
        "positions": "none",
        "feedforward": "relu",
        "norm": "layer",
        "norm_placement": "post",
        "optimiser": "adamw",
        "schedule": "cosine",
        "device": "cpu",
        "dtype": "fp32",
        "sample_prompt": "月",
        "tokenizer_size": 999,
        "epochs": 3.0,
        "minutes": 0.03,
        "tokenizer": "bpe",
        "recipe": "paper",
        "select": "bleu",
        "rotary_base": 500.0,
        "parallel": "sharded",
    }
    if name in special:
        return special[name]
    value = {key: value for group in settings.model_dump().values() for key, value in group.items()}[name]
    if isinstance(value, tuple):
        return (*value, "other.txt")
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, float):
        return value / 2 if value else 0.125
    if value is None:
        kinds = {
            "qk_norm": True,
            "tied_output": True,
            "field": "x",
            "encoding": "x",
            "out": "x",
            "init": "x",
            "dropout": 0.5,
        }
        return (kinds | {"attention_dropout": 0.5, "initialisation": "xavier", "compile": True}).get(name, 1)
    return value + 1


_ONE_TO_ONE = {"target": ("other.b",)}
NEEDS = {
    "source": _ONE_TO_ONE,
    "target": {"source": ("other.a",)},
    "valid_source": {"valid_target": ("valid.b",), "source": ("other.a",), **_ONE_TO_ONE},
    "valid_target": {"valid_source": ("valid.a",), "source": ("other.a",), **_ONE_TO_ONE},
    "valid_pairs": {"pairs": ("other.tsv",)},
}
"""What else has to be given with a setting, for the settings to be valid."""


def test_refused_change_is_named(bench, watcher):
    """T1: what a resumed run cannot follow is an error that names the setting, both values and the reason."""
    run = stopped_at(bench, watcher, 3, steps=6)
    for name in sorted(name for name in FIELDS if not RULES[name].allowed):
        value = other_value(name, run.settings)
        with pytest.raises(SettingsError) as caught:
            changed = run.settings.with_flat(**{name: value}, **NEEDS.get(name, {}))
            run.go(resume=True, settings=changed)
        assert f"\n  {name}: " in caught.value.message
        value = getattr(getattr(changed, TrainSettings.fields()[name][0]), name)
        spelled = ", ".join(value) if isinstance(value, tuple) else str(value)
        assert f" → {spelled} (" in caught.value.message, name
        assert RULES[name].why in caught.value.message, name
    assert run.go(resume=True)[1].reason == "finished"  # and a refusal harms nothing


def test_change_that_wins_is_said_and_stays(bench, watcher, monkeypatch):
    """T1: what wins is told, logged, written into run.toml, and the run ends by it."""
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compiled.append(module))  # noqa: PLW0108
    run = stopped_at(bench, watcher, 3, steps=6)
    stopped = run.path
    for name in sorted(name for name in FIELDS if RULES[name].allowed):
        run.path = stopped.with_name(name)
        shutil.copytree(stopped, run.path)
        changed = changed_settings(run.settings, {name: other_value(name, run.settings)})
        seen = watcher()
        _, result = run.go(resume=True, settings=changed, watcher=seen, sample=lambda: "text")
        assert result.reason in ("finished", "patience"), name
        assert any(note.startswith(f"{name}: ") for note in seen.notes), name
        (resumed,) = (event for event in read_log(run.path / "metrics.jsonl") if event["event"] == "resume")
        assert any(change.startswith(f"{name}: ") for change in resumed["changes"]), name
        assert RunFolder.open(run.path).read_settings() == changed, name
        again = watcher()
        run.go(resume=True, settings=changed, watcher=again)  # the end was saved with the new settings
        assert not any(note.startswith(f"{name}: ") for note in again.notes), name
    assert len(compiled) == 4  # two blocks, in the run with `compile` and in its second resume


def test_nothing_changed_nothing_said(bench, watcher):
    run = stopped_at(bench, watcher, 3, steps=6)
    seen = watcher()
    run.go(resume=True, watcher=seen)
    assert seen.notes == []


@pytest.mark.parametrize(
    ("change", "key", "factor"),
    [
        ({"learning_rate": 0.003}, "learning_rate", None),
        ({"muon_learning_rate": 0.001}, "muon_learning_rate", None),
    ],
)
def test_new_rate_is_the_rate_from_the_next_step(bench, watcher, change, key, factor):
    """T1: a new learning rate is what the next steps use, as the log shows."""
    run = stopped_at(bench, watcher, 3, steps=8, schedule="constant", warmup=0.0)
    run.go(resume=True, settings=changed_settings(run.settings, change))
    rates = [event[key] for event in read_log(run.path / "metrics.jsonl") if event["event"] == "train"]
    assert rates[-1] == pytest.approx(change[key])
    assert rates[0] != pytest.approx(change[key])


def test_extended_run_says_what_becomes_of_the_schedule(bench, watcher):
    """T1: more steps for a finished run: the schedule of the longer run, told with the rate before and after."""
    run = bench(steps=10)
    run.go()
    seen = watcher()
    _, result = run.go(resume=True, settings=changed_settings(run.settings, {"steps": 30}), watcher=seen)
    assert (result.step, result.plan.total_steps, result.plan.decay_from) == (30, 30, 15)
    note = next(note for note in seen.notes if note.startswith("The plan is"))
    assert "30 steps instead of 10" in note
    assert "1.000 of its peak" in note


def test_budget_of_another_kind_replaces_the_old_one(bench):
    settings = changed_settings(TrainSettings.from_flat(minutes=5.0), {"epochs": 2.0})
    assert (settings.budget.minutes, settings.budget.epochs) == (None, 2.0)


def test_edited_run_toml_is_a_change_too(bench, watcher):
    """T1: run.toml changed by hand between stop and resume is compared with what the checkpoint was made with."""
    run = stopped_at(bench, watcher, 3, steps=6)
    path = run.path / "run.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("clip = 1.0", "clip = 0.5"), encoding="utf-8")
    seen = watcher()
    run.go(resume=True, settings=RunFolder.open(run.path).read_settings(), watcher=seen)
    assert any(note.startswith("clip: 1.0 → 0.5") for note in seen.notes)


def test_other_text_is_refused(bench, watcher, corpus):
    """T1: the same settings over a text that has changed are refused."""
    run = stopped_at(bench, watcher, 3, steps=6)
    run.corpus = corpus(train=650)
    with pytest.raises(CheckpointError, match=r"train_tokens 700.*650"):
        run.go(resume=True)
