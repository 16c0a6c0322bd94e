"""Settings changed on resume: each takes effect and is reported, or is refused with a reason. None is ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mingyue.config import ResumeRule, TrainSettings, one_budget, setting_of
from mingyue.errors import SettingsError
from mingyue.words import stacked, tr

RULES: dict[str, ResumeRule] = {
    name: details.resume
    for name, (_, info) in TrainSettings.fields().items()
    if (details := setting_of(info)) is not None
}
"""The rule of every setting, as its field declares it."""


@dataclass(frozen=True)
class Change:
    """A setting that differs from what the run was started with."""

    name: str
    old: Any
    new: Any

    @property
    def rule(self) -> ResumeRule:
        """What the resume does with the change."""
        return RULES[self.name]

    def describe(self) -> str:
        """A sentence for the user."""
        old, new = _spell(self.old), _spell(self.new)
        return tr("{name}: {old} → {new} ({why})", self.name, old, new, self.rule.why)


def changes_between(old: TrainSettings, new: TrainSettings) -> list[Change]:
    """The settings that differ, in the order of the groups."""
    before, after = _flat(old), _flat(new)
    return [Change(name, before[name], value) for name, value in after.items() if before[name] != value]


def check_changes(changes: list[Change]) -> None:
    """Raise `SettingsError` that lists every changed setting which must not change on resume."""
    refused = [change for change in changes if not change.rule.allowed]
    if refused:
        raise SettingsError(
            tr("a resumed run cannot change\n") + stacked(["  " + change.describe() for change in refused]),
            advice=tr("Keep their old values, or start a new run with `mingyue train`."),
        )


def changed_settings(settings: TrainSettings, given: Mapping[str, object]) -> TrainSettings:
    """`settings` with what was given on resume; a budget that is given replaces the old one.

    Raises `SettingsError` for an unknown name or an invalid value.
    """
    return settings.with_flat("the changed settings", **one_budget(given))


def _flat(settings: TrainSettings) -> dict[str, Any]:
    return {name: value for group in settings.model_dump().values() for name, value in group.items()}


def _spell(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(str(part) for part in value) or tr("none")
    return tr("not given") if value is None else str(value)
