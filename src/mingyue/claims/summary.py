"""Results in words, in both languages: verdicts, counts, numbers with their intervals.

The texts are in `summary.en.toml` and `summary.zh.toml`, those of the report and of `mingyue claims` included.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from mingyue.claims.claim import SUPPORTED, Claim, Measurement, Number, Verdict
from mingyue.claims.result import Result
from mingyue.claims.wording import Wording
from mingyue.words import Language, TextTable, Words

_MACHINE = re.compile(
    r"(?P<processor>.*), (?P<cores>\d+) cores, (?P<threads>one|\d+) threads? a claim; (?P<versions>.*)"
)


def text_of(*path: str, **values: object) -> Words:
    """A text of `summary.en.toml` and `summary.zh.toml`, filled with values (of `Words`, the same language).

    Raises `KeyError` for a text or a value that does not exist.
    """
    return Words(_text("en", path, values), _text("zh", path, values))


def _text(language: Language, path: Sequence[str], values: dict[str, object]) -> str:
    own = {name: value.of(language) if isinstance(value, Words) else value for name, value in values.items()}
    text = Wording(__name__, language, own).text(*path)
    if not text:
        raise KeyError(f"no text {'.'.join(path)} in the words of the summary")
    return text


def columns_of(table: str, *names: str) -> tuple[Words, ...]:
    """The headings of the columns of a table."""
    return tuple(text_of("tables", table, "columns", name) for name in names)


def verdict_of(result: Result) -> Words:
    """The verdict in words, or that the claim could not be tested."""
    return text_of("verdicts", "failed" if result.finding is None else result.finding.verdict)


def reason_of(result: Result) -> Words:
    """The reason of the finding, or the error."""
    return Words(result.error or "", result.error or "") if result.finding is None else result.finding.reason


def correction_of(claim: Claim, result: Result) -> Words | None:
    """What is right instead, where the claim is not supported as it stands."""
    return None if result.finding is None or result.finding.verdict == SUPPORTED else claim.correction


def line_of(result: Result) -> Words:
    """One line: name, verdict, size, time, reason."""
    return text_of(
        "line",
        name=result.name,
        verdict=verdict_of(result),
        size=text_of("sizes", result.size),
        seconds=result.seconds,
        reason=reason_of(result),
    )


def caution(results: Sequence[Result]) -> Words | None:
    """A caution where some results are of the small size; None where none is."""
    small = sum(result.size == "small" for result in results)
    if not small:
        return None
    general = text_of("small_all")
    if small == len(results):
        return general
    return text_of("small_some", small=small, count=len(results), small_all=general)


def saved_before_interruption(finished: int, folder: Path) -> Words:
    """How many results an interrupted run has saved, and the command that writes a report of them."""
    command = f"mingyue claims report {shlex.quote(str(folder))}"
    return text_of("interrupted", finished=finished, folder=folder, command=command)


def counts(results: Sequence[Result]) -> Words:
    """One line: how many claims have each verdict, and how many could not be tested."""
    found = Counter("failed" if result.finding is None else result.finding.verdict for result in results)
    kinds = [*get_args(Verdict), *(["failed"] if found["failed"] else [])]
    parts = [text_of("verdict_count", verdict=text_of("verdicts", kind), count=found[kind]) for kind in kinds]
    listed = Words(", ".join(part.en for part in parts), "，".join(part.zh for part in parts))
    return text_of("tested_one" if len(results) == 1 else "tested", count=len(results), verdicts=listed)


def machine_of(result: Result) -> Words:
    """The machine of a result, which is stored as `describe_machine` says it, in English."""
    found = _MACHINE.fullmatch(result.machine)
    if found is None:
        return Words(result.machine, result.machine)
    return text_of("machine", "one" if found["threads"] == "one" else "several", **found.groupdict())


def number_text(number: Number, language: Language = "en") -> str:
    """`0.998 [0.991, 1.005] nats`; without brackets for an exact number."""
    text, ends = _digits(number.value), (_digits(number.low), _digits(number.high))
    width = max(number.high - number.value, number.value - number.low)
    if ends != (text, text):
        text += f" [{ends[0]}, {ends[1]}]"
    elif width > 0:  # too narrow for the digits that are shown
        text += f" ± {width:.1g}"
    unit = Wording(__name__, language).text("units", number.unit)  # signs such as × are alike in both languages
    return f"{text} {unit or number.unit}".rstrip()


def numbers_table(claim: Claim, measurement: Measurement, language: Language) -> TextTable:
    """Each number of the measurement with its label and its interval."""
    rows = [
        (claim.labels[name].of(language) if name in claim.labels else name, number_text(number, language))
        for name, number in measurement.numbers.items()
    ]
    columns = [column.of(language) for column in columns_of("numbers", "quantity", "value")]
    return TextTable(text_of("tables", "numbers", "title").of(language), columns, rows)


def command_of(result: Result) -> str:
    """The command that repeats the test with the same size and seed."""
    size = "" if result.size == "report" else f" --{result.size}"
    return f"mingyue claims run {result.name}{size} --seed {result.seed}"


def _digits(value: float) -> str:
    """Three significant digits, or a whole number."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if value == 0 or (value == round(value) and size < 1e7):
        return f"{value:,.0f}"
    if not 1e-3 <= size < 1e7:
        return f"{value:.2g}"
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
