"""Reads the JSON and TOML of Mingyue's own files and of model folders: bounded in size and depth, checked in type.

A damaged or hostile file is a `FormatError`, never a fault: nesting would exhaust the stack of the parser and of
whatever walks the result, an integer of thousands of digits fits no number of the program, and a value of another type
(`"no"` where a bool belongs) would be taken for something else.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from mingyue.errors import FormatError
from mingyue.printable import shown
from mingyue.words import tr

MAX_BYTES = 64 * 2**20
"""Largest file; the largest tokenizer.json in use have half of it."""
_PIECE = 1 << 16
MAX_DEPTH = 100
"""Levels of lists and objects inside one another."""
_LEAST, _MOST = -(2**63), 2**64 - 1

T = TypeVar("T")
_NAMES = {
    bool: tr("true or false"),
    int: tr("an integer"),
    float: tr("a number"),
    str: tr("text"),
    list: tr("a list"),
    dict: tr("an object"),
}


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401  (any JSON value)
    """The value of a JSON text (bytes: UTF-8). Raises `FormatError` with line and column."""
    decoded = _decoded(text)
    try:
        value = json.loads(decoded)
    except json.JSONDecodeError as error:
        where = tr("line {lineno}, column {colno} of {n_decoded:,} characters", error.lineno, error.colno, len(decoded))
        raise FormatError(tr("not JSON: {msg} at {where}", error.msg, where)) from None
    except (RecursionError, ValueError) as error:  # ValueError: an integer with more digits than Python reads
        raise _beyond(error) from None
    return _bounded(value)


def parse_toml(text: str | bytes) -> dict[str, Any]:
    """The content of a TOML text (bytes: UTF-8). Raises `FormatError` with line and column."""
    try:
        value = tomllib.loads(_decoded(text))
    except tomllib.TOMLDecodeError as error:
        raise FormatError(tr("not TOML: {error}", error)) from None
    except (RecursionError, ValueError) as error:
        raise _beyond(error) from None
    _bounded(value)
    return value


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds. Raises `OSError` if it cannot be read, `FormatError` for any other content."""
    return as_object(parse_json(_content(path)))


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises as `read_json_object`."""
    return parse_toml(_content(path))


def as_object(value: object) -> dict[str, Any]:
    """`value`, which must be a JSON object. Raises `FormatError` otherwise."""
    if not isinstance(value, dict):
        raise FormatError(tr("a JSON object was expected, not {value}", shown(value)))
    return value


def take(values: Mapping[str, Any], key: str, kind: type[T], default: T | None = None) -> T:
    """`values[key]`, which must be of `kind` (an integer is also a float); `default`, if given, where it is missing.

    Raises `FormatError` that names the key.
    """
    if key not in values and default is not None:
        return default
    if key not in values:
        raise FormatError(tr("{key!r} is missing", key))
    value = values[key]
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise FormatError(tr("{key!r} is {value}, not {kind}", key, shown(value), _NAMES.get(kind, kind.__name__)))
    return value


def as_record(cls: type[T], value: object) -> T:
    """`value`, a JSON object, as the dataclass `cls`, each field of its declared type.

    Raises `FormatError` that names the first field that is missing, unknown or of another type.
    """
    from pydantic import TypeAdapter, ValidationError

    values = as_object(value)
    unknown = sorted(set(values) - set(cls.__dataclass_fields__))  # type: ignore[attr-defined]
    if unknown:
        raise FormatError(tr("{unknown!r} is unknown", unknown[0]))
    try:
        return TypeAdapter(cls).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FormatError(tr("{where!r} is {value}: {message}", where, shown(first["input"]), first["msg"])) from None


def _content(path: Path) -> bytes:
    content = bytearray()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):  # a read of MAX_BYTES would take their memory for the smallest file
            content += piece
            if len(content) > MAX_BYTES:
                raise FormatError(
                    tr("larger than {max_bytes} MiB, the most that is read of such a file", MAX_BYTES // 2**20)
                )
    return bytes(content)


def _decoded(text: str | bytes) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise FormatError(tr("not UTF-8: byte {start:,} is 0x{text:02x}", error.start, text[error.start])) from None


def _bounded(value: Any) -> Any:  # noqa: ANN401  (any JSON value)
    """`value`, after a check of its depth and integers, level by level: the check itself must not recurse."""
    depth, level = 0, [value]
    while level:
        if any(type(one) is int and not _LEAST <= one <= _MOST for one in level):
            raise FormatError(tr("an integer in it has more than 64 bits"))
        dicts: list[dict[str, Any]] = [one for one in level if isinstance(one, dict)]
        lists: list[list[Any]] = [one for one in level if isinstance(one, list)]
        if depth == MAX_DEPTH and (dicts or lists):
            raise _too_deep()
        level = [inside for one in dicts for inside in one.values()] + [inside for one in lists for inside in one]
        depth += 1
    return value


def _beyond(error: Exception) -> FormatError:
    if isinstance(error, RecursionError):
        return _too_deep()
    return FormatError(tr("an integer in it has thousands of digits") if "digits" in str(error) else str(error))


def _too_deep() -> FormatError:
    return FormatError(tr("lists and objects in it are nested more than {max_depth} levels deep", MAX_DEPTH))
