"""Types of the numbers in settings and arguments. Each has finite bounds, so that no value overflows, hangs or aborts.

The bounds are far beyond every use, and below what makes a program fail: a batch of 2⁶³ tokens, 10⁹ threads, a rate of
10⁻³²⁰ (which the processor takes for 0).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from mingyue.errors import SettingsError
from mingyue.printable import shown
from mingyue.words import Words, tr

_MOST = 1_000_000_000
_LEAST = 1e-12
T = TypeVar("T")

_PROBLEMS = {
    "bool_parsing": tr("Input should be a valid boolean, unable to interpret input"),
    "bool_type": tr("Input should be a valid boolean"),
    "finite_number": tr("Input should be a finite number"),
    "float_parsing": tr("Input should be a valid number, unable to parse string as a number"),
    "float_type": tr("Input should be a valid number"),
    "greater_than": tr("Input should be greater than {gt}"),
    "greater_than_equal": tr("Input should be greater than or equal to {ge}"),
    "int_from_float": tr("Input should be a valid integer, got a number with a fractional part"),
    "int_parsing": tr("Input should be a valid integer, unable to parse string as an integer"),
    "int_type": tr("Input should be a valid integer"),
    "less_than": tr("Input should be less than {lt}"),
    "less_than_equal": tr("Input should be less than or equal to {le}"),
    "literal_error": tr("Input should be {expected}"),
    "missing": tr("Field required"),
    "list_type": tr("Input should be a valid list"),
    "dict_type": tr("Input should be a valid dictionary"),
    "model_type": tr("Input should be a valid object"),
    "model_attributes_type": tr("Input should be a valid object"),
    "too_long": tr("It should have at most {max_length} items"),
    "too_short": tr("It should have at least {min_length} items"),
    "string_pattern_mismatch": tr("String should match pattern '{pattern}'"),
    "string_too_long": tr("String should have at most {max_length} characters"),
    "string_too_short": tr("String should have at least {min_length} characters"),
    "string_type": tr("Input should be a valid string"),
    "tuple_type": tr("Input should be a valid tuple"),
}
"""What pydantic says of an invalid value, by the type of the problem."""

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
        message = said_of(error.errors()[0])
        raise SettingsError(tr("{name} = {value}: {message}", name, shown(value), message)) from None
    return value


def said_of(problem: Mapping[str, Any]) -> str:
    """What pydantic says of an invalid value, in both languages; `problem` is one of `ValidationError.errors()`."""
    known, values = _PROBLEMS.get(problem["type"]), problem.get("ctx", {})
    message: str = problem["msg"]
    return message if known is None else Words(message, lambda: known.zh.format_map(values))


def checked_texts(name: str, value: object) -> list[str]:
    """A text, or several, as a list. Raises `SettingsError` for anything else, naming the first that is none."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Iterable):
        raise SettingsError(
            tr("{name} is {value}, not a text", name, shown(value)), advice=tr("Give a str, or a list of them.")
        )
    found = list(texts)
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise SettingsError(
                tr("{name}: item {number} is {text}, not a text", name, number, shown(text)),
                advice=tr("Give a str, or a list of them."),
            )
    return found


def checked_text(name: str, value: object) -> str:
    """A single text. Raises `SettingsError` for anything else."""
    if not isinstance(value, str):
        raise SettingsError(tr("{name} is {value}, not a text", name, shown(value)), advice=tr("Give a str."))
    return value
