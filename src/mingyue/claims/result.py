"""The result of testing a claim, saved as one JSON file per claim."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from mingyue.claims.claim import CORRECTED, NOT_SUPPORTED, SUPPORTED, Finding, Measurement, Number, Size, Verdict
from mingyue.errors import DataError, FormatError, SettingsError
from mingyue.files import write_text_atomically
from mingyue.parsing import read_json_object, take
from mingyue.words import Words, tr

_FORMAT = 1
_EARLIER = {"holds": SUPPORTED, "holds with a correction": CORRECTED, "does not hold here": NOT_SUPPORTED}
"""Verdicts as earlier versions saved them."""


@dataclass(frozen=True)
class Result:
    """One claim, tested once: a finding with its measurement, or an error."""

    name: str
    size: Size
    seed: int
    seconds: float
    """How long it took, of one thread."""
    machine: str
    """Processor, cores and versions, in one line."""
    measurement: Measurement | None = None
    finding: Finding | None = None
    error: str | None = None
    """Why there is no finding."""

    @property
    def failed(self) -> bool:
        """Whether the test of the claim failed (a claim that is not supported is no failure)."""
        return self.finding is None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON. Numbers that are not finite are words in `numbers`, and null in tables."""
        value: dict[str, Any] = {
            "format": _FORMAT,
            "claim": self.name,
            "size": self.size,
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
            "machine": self.machine,
            "error": self.error,
        }
        if self.finding is not None:
            value["verdict"] = self.finding.verdict
            value["reason"] = {"en": self.finding.reason.en, "zh": self.finding.reason.zh}
        if self.measurement is not None:
            value["numbers"] = {
                name: {
                    "value": _spelled(number.value),
                    "low": _spelled(number.low),
                    "high": _spelled(number.high),
                    "unit": number.unit,
                }
                for name, number in self.measurement.numbers.items()
            }
            value["tables"] = {
                name: [{column: _finite(cell) for column, cell in row.items()} for row in rows]
                for name, rows in self.measurement.tables.items()
            }
        return value

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Result:
        """What `to_dict` gave. Raises `DataError` for anything else."""
        try:
            if value["format"] != _FORMAT or value["size"] not in get_args(Size):
                raise ValueError(f"format {value['format']}, size {value['size']}")
            finding = measurement = None
            if "verdict" in value:
                verdict = _EARLIER.get(value["verdict"], value["verdict"])
                if verdict not in get_args(Verdict):
                    raise ValueError(f"verdict {verdict}")
                finding = Finding(cast(Verdict, verdict), Words(value["reason"]["en"], value["reason"]["zh"]))
            if "numbers" in value:
                numbers = {
                    name: Number(float(one["value"]), float(one["low"]), float(one["high"]), one["unit"])
                    for name, one in take(value, "numbers", dict).items()
                }
                measurement = Measurement(numbers, take(value, "tables", dict))
            return cls(
                name=take(value, "claim", str),
                size=cast(Size, value["size"]),
                seed=take(value, "seed", int),
                seconds=take(value, "seconds", float),
                machine=take(value, "machine", str),
                measurement=measurement,
                finding=finding,
                error=None if value["error"] is None else take(value, "error", str),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                tr("this is not the result of a claim ({error})", error),
                advice=tr("Run the claim again with this version."),
            ) from None

    def save(self, path: Path) -> None:
        """Write the file whole."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=1, allow_nan=False)
        write_text_atomically(path, text + "\n")

    @classmethod
    def load(cls, path: Path) -> Result:
        """Read it. Raises `DataError` for a file that is not one."""
        try:
            value = read_json_object(path)
        except (OSError, FormatError) as error:
            raise DataError(tr("{path} cannot be read: {error}", path, error)) from None
        try:
            result = cls.from_dict(value)
        except DataError as error:
            raise DataError(tr("{path}: {message}", path, error.message), advice=error.advice) from None
        if result.name != path.stem:
            raise DataError(tr("{path} is the result of the claim {name}, not of {stem}", path, result.name, path.stem))
        return result


def check_replaceable(path: Path) -> None:
    """Raise `SettingsError` for a file that is there and is not the result of a claim: it would be lost."""
    if path.exists():
        try:
            Result.load(path)
        except DataError as error:
            raise SettingsError(
                tr("{path} is there and is not the result of a claim", path), advice=tr("Choose another folder.")
            ) from error


def _spelled(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _finite(cell: Any) -> Any:  # noqa: ANN401  (any JSON value)
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell
