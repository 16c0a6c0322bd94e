"""Types of the numbers in settings and arguments. Each has finite bounds, so that no value overflows, hangs or aborts.

The bounds are far beyond every use, and below what makes a program fail: a batch of 2⁶³ tokens, 10⁹ threads, a rate of
10⁻³²⁰ (which the processor takes for 0).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from mingyue.errors import SettingsError

_MOST = 1_000_000_000
_LEAST = 1e-12
T = TypeVar("T")

Count = Annotated[int, Field(ge=0, le=_MOST)]
Positive = Annotated[int, Field(ge=1, le=_MOST)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Workers = Annotated[int, Field(ge=1, le=1024)]
"""Threads or processes on one machine."""

Layers = Annotated[int, Field(ge=1, le=10_000)]
Heads = Annotated[int, Field(ge=1, le=10_000)]
Width = Annotated[int, Field(ge=1, le=10_000_000)]
Context = Annotated[int, Field(ge=1, le=2**24)]
Vocabulary = Annotated[int, Field(ge=1, le=10_000_000)]

PositiveFloat = Annotated[float, Field(ge=_LEAST, le=_MOST, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, le=_MOST, allow_inf_nan=False)]
LearningRate = Annotated[float, Field(ge=_LEAST, le=1e20, allow_inf_nan=False)]
"""Rates that are far too high are possible, and end in an error of training that says so."""
Epsilon = Annotated[float, Field(ge=1e-30, le=1.0, allow_inf_nan=False)]
"""What is added to a divisor; well within fp32."""
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Nucleus = Annotated[float, Field(ge=_LEAST, le=1.0, allow_inf_nan=False)]
"""A share that is not 0."""
Probability = Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)]


def checked(name: str, value: T, kind: Any) -> T:  # noqa: ANN401  (one of the types above)
    """`value` of an argument that is no field of settings, if it is of `kind`. Raises `SettingsError` otherwise."""
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        raise SettingsError(f"{name} = {shown(value)}: {error.errors()[0]['msg']}") from None
    return value


def checked_texts(name: str, value: object) -> list[str]:
    """A text, or several, as a list. Raises `SettingsError` for anything else, naming the first that is none."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Iterable):
        raise SettingsError(f"{name} is {shown(value)}, not a text", advice="Give a str, or a list of them.")
    found = list(texts)
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise SettingsError(
                f"{name}: item {number} is {shown(text)}, not a text", advice="Give a str, or a list of them."
            )
    return found


def checked_text(name: str, value: object) -> str:
    """A single text. Raises `SettingsError` for anything else."""
    if not isinstance(value, str):
        raise SettingsError(f"{name} is {shown(value)}, not a text", advice="Give a str.")
    return value


def shown(value: object) -> str:
    """A value in a message: its representation, shortened in the middle."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:40]}…{text[-20:]}"
