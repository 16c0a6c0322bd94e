"""Typed settings: the docstring below a field is its help, and an unknown key is an error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from mingyue.config.numbers import said_of
from mingyue.errors import SettingsError
from mingyue.printable import shown
from mingyue.words import stacked, tr


class Settings(BaseModel):
    """Base of all settings: frozen, unknown names are errors, the docstring below a field is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())

    @classmethod
    def read(cls, values: Mapping[str, Any], *, source: str) -> Self:
        """Validate `values`, read from `source` (a file name, or words such as "the command line").

        Raises `SettingsError` that names each invalid key or value, and the nearest known name.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise SettingsError(_describe(cls, error, source)) from None

    def replace(self, **changes: object) -> Self:
        """A validated copy with some fields changed."""
        return type(self).read({**self.model_dump(), **changes}, source=tr("the changed settings"))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name` in spelling, if any is close."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return found[0] if found else None


def _describe(cls: type[Settings], error: ValidationError, source: str) -> str:
    lines: list[str] = []
    for problem in error.errors():
        path = [str(part) for part in problem["loc"]]
        name = ".".join(path) or cls.__name__
        if problem["type"] == "extra_forbidden":
            owner = _settings_at(cls, path[:-1])
            guess = nearest(path[-1], owner.model_fields)
            hint = (
                tr("; did you mean {guess!r}?", guess)
                if guess
                else tr("; known: {model_fields}", ", ".join(owner.model_fields))
            )
            lines.append(tr("{source}: there is no setting {name!r}{hint}", source, name, hint))
        elif problem["type"] == "value_error":
            (message,) = problem["ctx"]["error"].args
            lines.append(tr("{source}: {message}", source, message))
        elif not path:
            lines.append(tr("{source}: {message}", source, said_of(problem)))
        else:
            value, message = shown(problem["input"]), said_of(problem)
            lines.append(tr("{source}: {name} = {value}: {message}", source, name, value, message))
    return stacked(lines)


def _settings_at(cls: type[Settings], path: list[str]) -> type[Settings]:
    for part in path:
        field = cls.model_fields.get(part)
        annotation = None if field is None else field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Settings):
            cls = annotation
    return cls
