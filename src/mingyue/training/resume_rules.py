"""What becomes of a setting that is changed on a resume: it wins and is said, or it is refused. Never ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mingyue.config import TrainSettings
from mingyue.errors import SettingsError


@dataclass(frozen=True)
class Rule:
    """What a changed setting does to a resumed run."""

    wins: bool
    """It takes effect from the next step on; else the resume is refused."""
    why: str
    """Said to the user: what it changes, or why it cannot be changed."""


_TEXT = Rule(False, "the text and its cuts are already in data/")
_TOKENS = Rule(False, "the token ids of the whole run hang on it")
_SHAPE = Rule(False, "the weights of the run have the old shape or meaning")
_NOW = Rule(True, "from the next step on")
_PLAN = Rule(True, "the plan is made anew")
_ROUNDING = Rule(True, "sums are rounded otherwise from here on: no longer equal, bit for bit, to a run never stopped")
_OUTPUT = Rule(True, "weights are not touched by it")

RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("sources", "separator", "field", "encoding", "skip_bad", "held_out", "attend_across_documents"), _TEXT
    ),
    **dict.fromkeys(
        (
            "source",
            "target",
            "pairs",
            "valid_source",
            "valid_target",
            "valid_pairs",
            "source_field",
            "target_field",
            "keep_duplicates",
        ),
        _TEXT,
    ),
    "shared_vocabulary": _TOKENS,
    "bleu_lines": Rule(True, "evaluations follow it from here on"),
    "select": Rule(True, "the best step is chosen by it from here on"),
    "average_last": Rule(True, "the end of the run follows it"),
    **dict.fromkeys(("tokenizer", "tokenizer_size", "min_count"), _TOKENS),
    **dict.fromkeys(
        (
            "preset",
            "depth",
            "context",
            "d_model",
            "n_layers",
            "n_encoder_layers",
            "n_heads",
            "n_kv_heads",
            "d_head",
            "d_ff",
            "positions",
            "feedforward",
            "norm",
            "norm_placement",
            "qk_norm",
            "tied_output",
            "rotary_base",
            "window",
            "dropout",
            "attention_dropout",
            "initialisation",
        ),
        _SHAPE,
    ),
    **dict.fromkeys(("minutes", "steps", "epochs"), _PLAN),
    "batch_tokens": Rule(False, "which text a step sees is counted in steps of this size"),
    "micro_batch_tokens": _ROUNDING,
    "recipe": Rule(False, "it was laid over the settings when the run began: change those that it set"),
    "recompute": Rule(True, "memory for time from the next step on; the numbers stay the same"),
    "chunked_loss": _ROUNDING,
    "optimiser": Rule(False, "the momenta of the run belong to the other optimiser"),
    **dict.fromkeys(
        (
            "learning_rate",
            "muon_learning_rate",
            "weight_decay",
            "beta1",
            "beta2",
            "adam_eps",
            "muon_momentum",
            "clip",
            "label_smoothing",
            "unseen_share",
        ),
        _NOW,
    ),
    **dict.fromkeys(("schedule", "decay_share", "final_share"), _PLAN),
    "warmup": Rule(False, "the warm-up is where a run begins"),
    "out": Rule(False, "the run is where its folder is: move or copy the folder"),
    "seed": Rule(False, "the order of the text and every random choice hang on it"),
    **dict.fromkeys(("device", "dtype", "threads", "compile", "nproc", "parallel"), _ROUNDING),
    "restarts": Rule(True, "deaths of processes from here on are answered so"),
    **dict.fromkeys(("evaluate_every", "evaluate_tokens"), Rule(True, "evaluations follow it from here on")),
    **dict.fromkeys(("checkpoint_every", "keep", "sample_every", "sample_prompt", "watch", "tensorboard"), _OUTPUT),
    "patience": Rule(True, "counted from the evaluations so far"),
    "memory_check": _OUTPUT,
    "overwrite": Rule(False, "a resumed run goes on; to start anew, use `mingyue train --overwrite`"),
}


@dataclass(frozen=True)
class Change:
    """One setting that differs from what the run was started with."""

    name: str
    old: Any
    new: Any

    @property
    def rule(self) -> Rule:
        """What it does."""
        return RULES[self.name]

    def describe(self) -> str:
        """A sentence for the user."""
        return f"{self.name}: {_spell(self.old)} → {_spell(self.new)} ({self.rule.why})"


def changes_between(old: TrainSettings, new: TrainSettings) -> list[Change]:
    """The settings that differ, in the order of the groups."""
    before, after = _flat(old), _flat(new)
    return [Change(name, before[name], value) for name, value in after.items() if before[name] != value]


def check_changes(changes: list[Change]) -> None:
    """Raise `SettingsError` that names every changed setting which a resumed run cannot follow."""
    refused = [change for change in changes if not change.rule.wins]
    if refused:
        raise SettingsError(
            "a resumed run cannot change\n" + "\n".join(f"  {change.describe()}" for change in refused),
            advice="Leave them as they were, or start a new run with `mingyue train`.",
        )


def changed_settings(settings: TrainSettings, given: Mapping[str, object]) -> TrainSettings:
    """`settings` with what was given on a resume: a budget that is given puts the other two aside.

    Raises `SettingsError` for a name or value that is not known.
    """
    budgets = dict.fromkeys(("minutes", "steps", "epochs"))
    if any(given.get(name) is not None for name in budgets):
        given = {**budgets, **given}
    return settings.with_flat("the changed settings", **given)


def _flat(settings: TrainSettings) -> dict[str, Any]:
    return {name: value for group in settings.model_dump().values() for name, value in group.items()}


def _spell(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(str(part) for part in value) or "none"
    return "not given" if value is None else str(value)
