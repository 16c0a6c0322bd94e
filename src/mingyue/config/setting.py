"""All that is known about a training setting besides its type and help, declared with its default in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from pydantic import Field
from pydantic.fields import FieldInfo

from mingyue.words import tr

Kind = Literal["text", "pairs", "both"]
T = TypeVar("T")


@dataclass(frozen=True)
class ResumeRule:
    """What `mingyue resume` does with a changed setting."""

    allowed: bool
    """Whether the change takes effect; otherwise the resume is refused."""
    why: str
    """Shown to the user: what the change does, or why it is refused."""


def allowed(effect: str) -> ResumeRule:
    """The rule of a setting that may change on resume; `effect` says what the change does."""
    return ResumeRule(True, effect)


def refused(reason: str) -> ResumeRule:
    """The rule of a setting that must not change on resume."""
    return ResumeRule(False, reason)


DATA = refused(tr("data/ already holds the prepared text"))
TOKEN_IDS = refused(tr("it decides the token ids of the whole run"))
WEIGHTS = refused(tr("the shape or meaning of the saved weights depends on it"))
CONFIG = refused(tr("it is part of the config of the model, which is written once"))
NEXT_STEP = allowed(tr("takes effect from the next step"))
NEW_PLAN = allowed(tr("the plan is recomputed"))
ROUNDING = allowed(tr("sums are rounded differently from here on: not bit-identical to an uninterrupted run"))
NEXT_EVALUATION = allowed(tr("takes effect from the next evaluation"))
OUTPUT = allowed(tr("does not affect the weights"))


@dataclass(frozen=True)
class Needs:
    """What a setting has an effect with only. Without it, a value other than the default is refused."""

    what: str
    """In words, after "only": with another setting, or without one."""
    met: Callable[[Mapping[str, Any]], bool]
    """Whether it is the case; receives all settings of the run by name."""


@dataclass(frozen=True)
class Setting:
    """What `setting` declares; `setting_of` finds it in the metadata of a field."""

    resume: ResumeRule
    kinds: Kind = "both"
    """Which runs have a use for it: training on text, on pairs, or both."""
    auto: str = ""
    """Default in words, where the value of the default (None, or empty) does not say it."""
    common: bool = False
    """Whether `mingyue train --help` lists it first."""
    needs: Needs | None = None
    """What it has an effect with only."""


def setting(
    default: T,
    *,
    resume: ResumeRule,
    kinds: Kind = "both",
    auto: str = "",
    common: bool = False,
    needs: Needs | None = None,
) -> T:  # typed as the default, as `pydantic.Field` is, so that the default is checked against the annotation
    """The field of a training setting; its docstring is the help. For the arguments see `Setting`."""
    return cast("T", declare(default, Setting(resume, kinds, auto, common, needs)))


def declare(default: object, details: Setting, *, help: str | None = None) -> FieldInfo:
    """A pydantic field that carries `details`."""
    info: FieldInfo = cast("Any", Field(default, description=help))
    info.metadata.append(details)
    return info


def setting_of(info: FieldInfo) -> Setting | None:
    """What was declared with `setting`; None for any other field."""
    return next((one for one in info.metadata if isinstance(one, Setting)), None)


def meaning_of(info: FieldInfo) -> str:
    """What a field means, in one line, with what it needs."""
    details = setting_of(info)
    needs = tr(" Only {what}.", details.needs.what) if details is not None and details.needs is not None else ""
    return " ".join((info.description or "").split()) + needs
