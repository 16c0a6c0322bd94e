"""The words of a claim, apart from its code: `NAME.en.toml` and `NAME.zh.toml` beside its module.

A text names what it is filled with: `{slope:.3f}` is a number of the measurement (`{gap.low:.3f}` the low end of its
interval), `{KEYS}` a constant of the claim's module (with or without a leading underscore there), and a value that
`judge` adds has the name that `judge` gives it. The lines of a text are joined: with a space in English, with nothing
in Chinese.
"""

from __future__ import annotations

import functools
import sys
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mingyue.parsing import read_toml
from mingyue.words import Language

_JOINED: dict[Language, str] = {"en": " ", "zh": ""}
_LISTED: dict[Language, str] = {"en": ", ", "zh": "，"}


class Phrase(str):
    """A value of a reason that is itself a text: its key among the reasons."""


class Wording:
    """The texts of one claim in one language, filled with its constants and with the values that are given."""

    def __init__(self, module: str, language: Language, values: Mapping[str, object] | None = None) -> None:
        self.language: Language = language
        self.texts = read_texts(module, language)
        self._module, self._values = module, values or {}

    def with_values(self, values: Mapping[str, object]) -> Wording:
        """The same texts, filled with more values."""
        return Wording(self._module, self.language, {**self._values, **values})

    def text(self, *path: str) -> str:
        """The text at `path`, filled; empty where there is none. Raises `KeyError` for a value that does not exist."""
        found: Any = self.texts
        for key in path:
            found = found.get(key, "")
        return found.format_map(ChainMap(dict(self._values), constants(self._module)))

    def reason(self, keys: Sequence[str], values: Mapping[str, object]) -> str:
        """The sentences of `keys`, one after another."""
        plain = {name: value for name, value in values.items() if not isinstance(value, Phrase)}
        filled = self.with_values(plain)
        phrases = {name: filled.text("reasons", value) for name, value in values.items() if isinstance(value, Phrase)}
        filled = filled.with_values(phrases)
        return _JOINED[self.language].join(filled.text("reasons", key) for key in keys)

    def name_of(self, column: str, value: object) -> object:
        """What a value of a table's column is called; itself where the column has no names.

        Raises `KeyError` where the column has names and this value has none.
        """
        names = self.texts.get("names", {}).get(column)
        if names is None:
            return value
        if str(value) not in names:
            raise KeyError(f"no name for {value!r} of the column {column}")
        return self.text("names", column, str(value))

    def listed(self, parts: Sequence[object]) -> str:
        """Several names as one."""
        return _LISTED[self.language].join(map(str, parts))


@functools.cache
def read_texts(module: str, language: Language) -> Mapping[str, Any]:
    """The file of words of a claim's module, lines joined. Raises `OSError` where it is missing."""
    source = sys.modules[module].__file__
    assert source is not None
    path = Path(source).with_suffix(f".{language}.toml")
    return _joined(read_toml(path), _JOINED[language])


def constants(module: str) -> dict[str, object]:
    """The constants of a claim's module by name, without leading underscores."""
    return {name.lstrip("_"): value for name, value in vars(sys.modules[module]).items() if name.isupper()}


def _joined(value: Any, glue: str) -> Any:  # noqa: ANN401  (what TOML holds)
    if isinstance(value, Mapping):
        return {key: _joined(one, glue) for key, one in value.items()}
    return glue.join(line.strip() for line in value.strip().splitlines())
