"""Settings as options: every field of a settings class becomes one option, its docstring the help.

A verb that takes settings receives only the options that were given on the command line, so that a file of
settings can stand below them and defaults stay where they are declared.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from cyclopts import Group, Parameter
from pydantic.fields import FieldInfo

from mingyue.config import BudgetSettings, Settings, TrainSettings
from mingyue.errors import SettingsError

_ALIASES = {"optimiser": "--optimizer"}
_BUDGETS = tuple(BudgetSettings.model_fields)
COMMAND_LINE = "the command line"


def takes(settings: type[Settings], *, without: Collection[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """Give a verb one option for each field of `settings` (fields of its groups), except those in `without`.

    The verb must end in `**given: object`, which then holds the given options by field name.
    """

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(verb)
        hints = get_type_hints(verb, include_extras=True)
        own = [
            parameter.replace(annotation=hints.get(parameter.name, parameter.annotation))
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        options = [_option(name, info, group) for name, info, group in _fields(settings) if name not in without]
        verb.__signature__ = signature.replace(parameters=own + options)  # type: ignore[attr-defined]
        return verb

    return decorate


def _fields(settings: type[Settings]) -> list[tuple[str, FieldInfo, Group]]:
    """Every field with the panel of the help page that it stands in: one for each section, or one for all."""
    own = Group("Settings", help=inspect.getdoc(settings) or "")
    result: list[tuple[str, FieldInfo, Group]] = []
    for place, (section, info) in enumerate(settings.model_fields.items()):
        owner = info.annotation
        if isinstance(owner, type) and issubclass(owner, Settings):
            group = Group(section.capitalize(), help=inspect.getdoc(owner) or "", sort_key=place)
            result += [(name, field, group) for name, field in owner.model_fields.items()]
        else:
            result.append((section, info, own))
    return result


def _option(name: str, info: FieldInfo, group: Group) -> inspect.Parameter:
    default = info.get_default(call_default_factory=True)
    details = Parameter(
        help=info.description,
        group=group,
        alias=_ALIASES.get(name),
        negative_iterable=(),
        show_default=_shown(default),
    )
    annotation = Annotated[(info.annotation, *info.metadata, details)]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _shown(default: object) -> str | bool:
    return False if default is None or default is False or default in ("", (), []) else str(default)


def train_settings(config: str | None, sources: tuple[str, ...], given: Mapping[str, object]) -> TrainSettings:
    """Defaults, below a file of settings, below what was given on the command line.

    Raises `SettingsError` for a file that is not there, is not TOML, or holds a name or value that is refused.
    """
    settings = TrainSettings() if config is None else TrainSettings.read(read_toml(config), source=config)
    changes = dict(given)
    if sources:
        changes["sources"] = list(sources)
    return settings.with_flat(COMMAND_LINE, **one_budget(changes))


def one_budget(changes: Mapping[str, object]) -> dict[str, object]:
    """`changes`, where a budget that is given (say, steps) puts the other two aside."""
    if not any(changes.get(name) is not None for name in _BUDGETS):
        return dict(changes)
    return {**dict.fromkeys(_BUDGETS), **changes}


def read_toml(path: str) -> dict[str, Any]:
    """The content of a TOML file. Raises `SettingsError` with the line that is wrong."""
    import tomllib

    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        message, advice = f"cannot be read: {error.strerror}", "Give --config an existing file."
    except UnicodeDecodeError as error:
        message, advice = f"not UTF-8 at byte {error.start}", "Save the file as UTF-8."
    except tomllib.TOMLDecodeError as error:
        message, advice = f"not TOML: {error}", "run.toml of any run folder shows the form."
    raise SettingsError(f"{path}: {message}", advice=advice)
