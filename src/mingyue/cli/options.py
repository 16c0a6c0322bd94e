"""Settings as options: every field of a settings class becomes one option, its docstring the help.

A verb receives only the options that were given on the command line. What is not given comes from a file of settings or
from the defaults of the fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter
from pydantic.fields import FieldInfo

from mingyue import parsing
from mingyue.cli.app import shown_default
from mingyue.config import PairSettings, Setting, Settings, TrainSettings, meaning_of, one_budget, setting_of
from mingyue.errors import FormatError, SettingsError
from mingyue.files import reason_of
from mingyue.paths import path_of, restore_names
from mingyue.words import tr

_ALIASES = {"optimiser": "--optimizer"}
_KINDS = {"both": "", "text": " Text only.", "pairs": " Pairs only."}
COMMAND_LINE = tr("the command line")
COMMON = Group("Common", sort_key=-1)
"""The first panel of the help of `train`."""


def takes(
    settings: type[Settings],
    *,
    without: Collection[str] = (),
    panel: Callable[[Setting], Group | None] = lambda _: None,
    listed: Mapping[str, str] | None = None,
    default: str = "",
) -> Callable[[Callable[..., Any]], Any]:
    """Give a verb one option for each field of `settings` (fields of its groups), except those in `without`.

    The verb must end in `**given: object`, which then holds the given options by field name. `panel` returns the panel
    of the help page for a setting; None = the one of its group. `listed`: the options that the help lists, with
    the default that it shows ("" = that of the setting); the others are accepted but not listed. None = all are.
    `default`: the default that the help shows for every option.
    """

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(verb)
        hints = get_type_hints(verb, include_extras=True)
        own = [
            parameter.replace(annotation=hints.get(parameter.name, parameter.annotation))
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        options = [
            _option(name, info, group, panel, listed, default=default)
            for name, info, group in _fields(settings)
            if name not in without
        ]
        verb.__signature__ = signature.replace(parameters=own + options)  # type: ignore[attr-defined]
        return verb

    return decorate


def _fields(settings: type[Settings]) -> Iterator[tuple[str, FieldInfo, Group]]:
    """Every field with its panel of the help page: one panel for each group of settings, or one for all."""
    own = Group("Settings", help=inspect.getdoc(settings) or "")
    for order, (section, info) in enumerate(settings.model_fields.items()):
        owner = info.annotation
        if isinstance(owner, type) and issubclass(owner, Settings):
            group = Group(section.capitalize(), help=inspect.getdoc(owner) or "", sort_key=order)
            yield from ((name, field, group) for name, field in owner.model_fields.items())
        else:
            yield section, info, own


def _option(
    name: str,
    info: FieldInfo,
    group: Group,
    panel: Callable[[Setting], Group | None],
    listed: Mapping[str, str] | None,
    *,
    default: str,
) -> inspect.Parameter:
    text = meaning_of(info)
    shown: Callable[[Any], str | None] | str = shown_default
    if (details := setting_of(info)) is not None:
        group = panel(details) or group
        text += "" if name in PairSettings.model_fields else _KINDS[details.kinds]
        shown = details.auto or shown
    several = get_origin(info.annotation) in (list, tuple)
    if several and "epeatable" not in text:
        text += tr(" Repeatable.")
    parameter = Parameter(
        help=text,
        group=group,
        alias=_ALIASES.get(name),
        metavar="STR" if several else None,
        negative_iterable=(),
        show=listed is None or name in listed,
        show_choices=not all(choice in text for choice in _choices(info.annotation)),
        show_default=default or (listed or {}).get(name) or shown,
    )
    annotation = Annotated[(info.annotation, *info.metadata, parameter)]  # type: ignore[valid-type]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=info.get_default(call_default_factory=True), annotation=annotation
    )


def _choices(annotation: object) -> list[str]:
    """The values of the `Literal` in an annotation."""
    members = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [str(member) for member in members]
    return [choice for member in members for choice in _choices(member)]


def train_settings(config: str | None, sources: tuple[str, ...], given: Mapping[str, object]) -> TrainSettings:
    """Settings of a run: what was given on the command line, else from the file of settings, else the default.

    Raises `SettingsError` for a file that is missing, is not TOML, or holds an unknown name or an invalid value.
    """
    settings = TrainSettings() if config is None else TrainSettings.read(read_toml(config), source=config)
    changes = dict(given)
    if sources:
        changes["sources"] = list(sources)
    return settings.with_flat(COMMAND_LINE, **one_budget(changes))


def read_toml(path: str) -> dict[str, Any]:
    """The content of a TOML file. Raises `SettingsError` that names the first invalid line."""
    try:
        return restore_names(parsing.read_toml(path_of(path)))
    except OSError as error:
        message, advice = tr("cannot be read: {reason}", reason_of(error)), tr("Give --config an existing file.")
    except FormatError as error:
        message, advice = error.message, tr("See run.toml in any run folder for an example.")
    raise SettingsError(tr("{path}: {message}", path, message), advice=advice)
