"""Every number of the settings has finite bounds, declared with its type; arguments are checked by the same types."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

import mingyue
from mingyue import config
from mingyue.config import Count, Seed, Settings, Workers, checked
from mingyue.errors import SettingsError

every_class = [
    value for value in vars(config).values() if isinstance(value, type) and issubclass(value, Settings)
]  # fmt: skip
HOSTILE = [-1, 2**31, 2**63, 10**5_000, math.nan, math.inf, 1.5, True, "1", ""]


def numbers(annotation: object, metadata: tuple[object, ...]) -> Iterator[tuple[type, dict[str, float]]]:
    """Each number in an annotation, with its bounds."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from numbers(inner[0], (*metadata, *inner[1:]))
    elif origin in (Union, UnionType):
        for one in inner:
            yield from numbers(one, metadata)
    elif annotation in (int, float):
        flat = [one for item in metadata for one in (item.metadata if isinstance(item, FieldInfo) else [item])]
        bounds = {key: getattr(one, key) for one in flat for key in ("ge", "gt", "le", "lt") if hasattr(one, key)}
        yield annotation, bounds


@pytest.mark.parametrize("cls", every_class, ids=lambda cls: cls.__name__)
def test_every_number_has_finite_bounds(cls):
    unbounded = [
        name
        for name, info in cls.model_fields.items()
        for _, bounds in numbers(info.annotation, tuple(info.metadata))
        if not ({"ge", "gt"} & set(bounds) and {"le", "lt"} & set(bounds) and all(map(math.isfinite, bounds.values())))
    ]
    assert unbounded == []


@pytest.mark.parametrize("cls", every_class, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, -1e4, 10**400], ids=str)
def test_no_number_takes_what_is_not_finite_or_far_beyond_every_use(cls, value):
    """Also where a message has to show the value."""
    for name, info in cls.model_fields.items():
        if any(numbers(info.annotation, tuple(info.metadata))):
            with pytest.raises(SettingsError, match=name):
                cls.read({name: value}, source="here")


@pytest.mark.parametrize("kind", [Count, Seed, Workers])
@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:20] if value != 10**5_000 else "5000 digits")
def test_arguments_are_checked_by_the_same_types(kind, value):
    if kind is Seed and value == 2**31:
        return
    with pytest.raises(SettingsError, match="argument ="):
        checked("argument", value, kind)


@pytest.mark.parametrize("name", ["threads", "step"])
@pytest.mark.parametrize("value", [-1, 2**63, 10**5_000], ids=["-1", "2^63", "5000 digits"])
def test_functions_of_python_refuse_the_numbers_that_the_command_line_refuses(name, value, tmp_path):
    with pytest.raises(SettingsError, match=name):
        mingyue.load(tmp_path, **{name: value})
