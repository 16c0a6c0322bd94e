"""Rows for the figures of this group's claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mingyue.claims.claim import Number, Table
from mingyue.words import Language, Words


def interval(number: Number, **columns: Any) -> dict[str, Any]:  # noqa: ANN401  (plain JSON values)
    """A row of a figure: `columns`, and the number as `value` with its `low` and `high`."""
    return {**columns, "value": number.value, "low": number.low, "high": number.high}


def named(table: Table, column: str, names: Mapping[str, Words], language: Language) -> list[dict[str, Any]]:
    """The rows of a table whose `column` is one of `names`, under that name, in the order of `names`."""
    return [{**row, column: words.of(language)} for key, words in names.items() for row in table if row[column] == key]


def worst(samples: Iterable[float]) -> Number:
    """The largest of errors, with the least and the largest of them as its bounds."""
    found = list(samples)
    return Number(max(found), min(found), max(found))


def matrix_rows(values: Sequence[Sequence[float]]) -> Table:
    """A matrix as rows of a table."""
    return [{"row": number, "values": list(row)} for number, row in enumerate(values)]
