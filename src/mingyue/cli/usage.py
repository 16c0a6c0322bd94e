"""What is wrong with a command line: messages in one form, and the name that was probably meant."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from mingyue.cli.invocation import ARGUMENTS
from mingyue.words import Words, tr

if TYPE_CHECKING:
    from cyclopts import CoercionError, CycloptsError

# The parser takes whatever begins with a dash for an option: `-` (standard input), and texts such as '- the river'.
# What cannot be an option is hidden from it behind a NUL, which no argument can hold.
HIDDEN = "\0"

_LONG = re.compile(r"(\S{40})\S{40,}(\S{20})")
"""A word of a message that is shortened, such as a number of thousands of digits."""


def explain(error: CycloptsError) -> tuple[str, str]:
    """Message and advice for invalid arguments."""
    from cyclopts import exceptions
    from pydantic import ValidationError

    from mingyue.config.numbers import said_of

    command = " ".join(["mingyue", *(error.command_chain or ())])
    message: str = str(error).replace(HIDDEN, "")
    advice: str = ""
    if isinstance(error, exceptions.UnusedCliTokensError):
        left = [token.replace(HIDDEN, "") for token in error.unused_tokens or ()]
        message = tr("{command}: unexpected argument {left}.", command, ", ".join(map(repr, left)))
        if left and (option := _repeatable_before(left[0], error)) is not None:
            advice = tr(
                "An option takes one value and is repeated for more: {option} … {option} {quoted}. ",
                option,
                _quoted(left[0]),
            )
    elif isinstance(error, exceptions.UnknownCommandError):
        known = _commands(error)
        message = tr(
            "{command}: there is no command {unused_tokens!r}.{guess}",
            command,
            (error.unused_tokens or [""])[0],
            _guess(error.unused_tokens, known),
        )
        advice = tr("The commands are {known}. ", ", ".join(known))
    elif isinstance(error, exceptions.UnknownOptionError):
        given = (error.token.keyword or error.token.value).partition("=")[0].replace(HIDDEN, "")
        known = [name for argument in error.argument_collection if argument.parse for name in argument.names]
        message = tr("{command}: there is no option {given}.{guess}", command, given, _guess([given], known))
    elif (
        isinstance(error, exceptions.CoercionError)
        and error.token is not None
        and (known := _choices(error.target_type))
    ):
        given = error.token.value.replace(HIDDEN, "")
        message = tr(
            "{command}: {keyword} is {given!r}, not one of {known}.",
            command,
            error.token.keyword or tr("the value"),
            given,
            ", ".join(known),
        )
        message = message + _guess([given], known)
    elif isinstance(error, exceptions.RepeatArgumentError):
        message = tr("{command}: {option} is given more than once.", command, error.token.keyword or tr("the value"))
    elif isinstance(error, exceptions.CoercionError) and error.token is not None:
        option, value = error.token.keyword or tr("the value"), error.token.value.replace(HIDDEN, "")
        message = tr("{command}: {option} is {value!r}, which is no {kind}.", command, option, value, _kind(error))
    elif isinstance(error, exceptions.MissingArgumentError) and error.argument is not None:
        name = error.keyword or error.argument.name
        what = tr("{name} needs a value", name) if name.startswith("--") else tr("{name} is missing", name)
        if name.startswith("--"):
            advice = tr("A value that begins with a dash is given as {name}='-…'. ", name)
        message = tr("{command}: {what}.", command, what)
    elif isinstance(error, exceptions.ValidationError) and isinstance(error.__cause__, ValidationError):
        refused = error.__cause__.errors()[0]
        name = "" if error.argument is None else error.argument.name
        message = tr("{name} {value}: {message}.", name, refused["input"], said_of(refused))
    return _shortened(message), tr("{advice}Run `{command} --help` for the list of options.", advice, command)


def _kind(error: CoercionError) -> Words:
    """What the value should have been."""
    kinds = (error.target_type, *get_args(error.target_type))
    return tr("whole number") if int in kinds else tr("number") if float in kinds else tr("value of this kind")


def _shortened(message: str) -> str:
    if isinstance(message, Words):
        return message.mapped(_shortened)
    return _LONG.sub(r"\1…\2", message)


def _quoted(text: str) -> str:
    return text if text.isalnum() else shlex.quote(text)


def _repeatable_before(token: str, error: CycloptsError) -> str | None:
    """The repeatable option whose second value `token` was meant to be: `--prompt a b`."""
    given = ARGUMENTS.get()
    before = list(given[: given.index(token)]) if token in given else []
    while before and not before[-1].startswith("--"):
        before.pop()
    if not before or error.target is None:
        return None
    option = before[-1].partition("=")[0]
    parameter = inspect.signature(error.target).parameters.get(option[2:].replace("-", "_"))
    several = parameter is not None and any(kind in str(parameter.annotation) for kind in ("list[", "tuple["))
    return option if several else None


def _commands(error: CycloptsError) -> list[str]:
    """The commands of the group that the error is about, all of them."""
    if error.app is None:
        return []
    names = [name for name in error.app if not name.startswith("-")]
    return [name for name in names if error.app[name].show]


def _choices(target: object) -> list[str]:
    """The values of the `Literal` in a type."""
    members = get_args(target)
    if get_origin(target) is Literal:
        return [str(member) for member in members]
    return [choice for member in members for choice in _choices(member)]


def _guess(given: Sequence[str] | None, known: Sequence[str]) -> str:
    from mingyue.config import nearest

    found = nearest(given[0], known) if given else None
    return tr(" Did you mean {found}?", found) if found else ""
