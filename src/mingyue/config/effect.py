"""Settings that were given and have no effect on the run: refused, since whoever gives them expects one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mingyue.config.setting import Needs, setting_of
from mingyue.config.train import TrainSettings
from mingyue.errors import SettingsError
from mingyue.words import stacked, tr


def unused(settings: TrainSettings, resolved: Mapping[str, object] | None = None) -> dict[str, Needs]:
    """Settings that differ from their default but have no effect, with what they need.

    `resolved`: values of settings that are decided elsewhere, such as the positions of a preset.
    """
    values = {name: getattr(getattr(settings, group), name) for name, (group, _) in settings.fields().items()}
    run = {**values, **(resolved or {})}
    return {
        name: details.needs
        for name, (_, info) in settings.fields().items()
        if (details := setting_of(info)) is not None
        and details.needs is not None
        and values[name] != info.default
        and not details.needs.met(run)
    }


def with_effective_defaults(settings: TrainSettings, source: str, values: Mapping[str, object]) -> TrainSettings:
    """A copy with the named fields set where they were not given, but for those that have no effect then."""
    without = unused(settings.with_defaults(source, **values))
    return settings.with_defaults(source, **{name: value for name, value in values.items() if name not in without})


def refuse_unused(
    settings: TrainSettings, resolved: Mapping[str, object], *, given: Collection[str] | None = None
) -> None:
    """Raise `SettingsError` for `unused` settings: all of them, or those in `given`."""
    found = {name: needs for name, needs in unused(settings, resolved).items() if given is None or name in given}
    if found:
        lines = [
            tr("--{name} has an effect only {what}", name.replace("_", "-"), needs.what)
            for name, needs in found.items()
        ]
        raise SettingsError(stacked(lines), advice=tr("Leave it out, or change what it needs."))


def refuse_other_kind(settings: TrainSettings) -> None:
    """Raise `SettingsError` for settings that were given and have no effect on this kind of run (text, or pairs)."""
    kind, other = ("pairs", "text") if settings.pairs.given else ("text", "pairs")
    names = {"pairs": tr("pairs"), "text": tr("text")}
    given = [
        f"--{name.replace('_', '-')}"
        for name, (group, info) in settings.fields().items()
        if (details := setting_of(info)) is not None
        and details.kinds == other
        and getattr(getattr(settings, group), name) != info.default
    ]
    if given:
        raise SettingsError(
            tr(
                "a run on {kind} cannot use settings for {other} only: leave {given} out",
                names[kind],
                names[other],
                ", ".join(given),
            )
        )
