"""Results in words, in both languages: verdicts, counts, numbers with their intervals."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mingyue.claims.claim import CORRECTED, NOT_SUPPORTED, SUPPORTED, Claim, Measurement, Number, Size, Verdict
from mingyue.claims.result import Result
from mingyue.words import Language, TextTable, Words

GROUP_TITLES = {
    "scaling": Words("Scaling by √d_k", "除以 √d_k"),
    "attention": Words("Attention", "注意力"),
    "heads": Words("Heads", "多头"),
    "blocks": Words("Blocks", "层的其他部分"),
    "embeddings": Words("Embeddings and positions", "嵌入与位置"),
    "likelihood": Words("Likelihood", "似然"),
}
FAILED = Words("could not be tested", "未能检验")
_VERDICTS: dict[Verdict, Words] = {
    SUPPORTED: Words(SUPPORTED, "成立"),
    CORRECTED: Words(CORRECTED, "修正后成立"),
    NOT_SUPPORTED: Words(NOT_SUPPORTED, "不成立"),
}
_SIZES: dict[Size, Words] = {
    "small": Words("small", "小型"),
    "report": Words("report", "报告"),
    "full": Words("full", "完整"),
}


def verdict_of(result: Result) -> Words:
    """The verdict in words, or that the claim could not be tested."""
    return FAILED if result.finding is None else _VERDICTS[result.finding.verdict]


def reason_of(result: Result) -> Words:
    """Why: the reason of the finding, or the error."""
    return Words(result.error or "", result.error or "") if result.finding is None else result.finding.reason


def correction_of(claim: Claim, result: Result) -> Words | None:
    """What is right instead, where the claim is not supported as it stands."""
    return None if result.finding is None or result.finding.verdict == SUPPORTED else claim.correction


def size_of(result: Result) -> Words:
    """The size of the trial."""
    return _SIZES[result.size]


def caution(results: Sequence[Result]) -> Words | None:
    """A caution where some results are of the small form; None where none is."""
    small = sum(result.size == "small" for result in results)
    if not small:
        return None
    english = "" if small == len(results) else f"{small} of {len(results)} are of the small form. "
    chinese = "" if small == len(results) else f"其中 {small} 条用的是小型。"
    return Words(
        f"{english}The small form is too short for some effects: the verdict may differ without --small.",
        f"{chinese}小型对有些效应来说太短：结论可能与不加 --small 时不同。",
    )


def left_behind(finished: int, folder: Path) -> Words:
    """What an interrupted run has saved, and how to write the report of it."""
    command = f"`mingyue claims report {shlex.quote(str(folder))}`"
    return Words(
        f"Finished before the interruption: {finished}, saved in {folder}. {command} writes the report of them.",
        f"停下之前已完成 {finished} 条，结果留在 {folder}。{command} 用已有的结果写出网页。",
    )


def how_to_test(count: int) -> Words:
    """The line below a list of claims."""
    return Words(
        f"{count} claims. `mingyue claims run NAME` tests one; `mingyue claims run all --report DIR` all.",
        f"共 {count} 条。`mingyue claims run NAME` 检验一条，`mingyue claims run all --report DIR` 检验全部。",
    )


def counts(results: Sequence[Result]) -> Words:
    """One line: how many claims have each verdict, and how many could not be tested."""
    found = Counter(verdict_of(result).en for result in results)
    kinds = [*_VERDICTS.values(), *([FAILED] if found[FAILED.en] else [])]
    english = ", ".join(f"{kind.en}: {found[kind.en]}" for kind in kinds)
    chinese = "，".join(f"{kind.zh} {found[kind.en]} 条" for kind in kinds)
    plural = "" if len(results) == 1 else "s"
    return Words(f"{len(results)} claim{plural} tested. {english}.", f"共检验 {len(results)} 条论断：{chinese}。")


def number_text(number: Number) -> str:
    """`0.998 [0.991, 1.005] nats`; without brackets for an exact number."""
    text, ends = _digits(number.value), (_digits(number.low), _digits(number.high))
    width = max(number.high - number.value, number.value - number.low)
    if ends != (text, text):
        text += f" [{ends[0]}, {ends[1]}]"
    elif width > 0:  # too narrow for the digits that are shown
        text += f" ± {width:.1g}"
    return f"{text} {number.unit}".rstrip()


def numbers_table(claim: Claim, measurement: Measurement, language: Language) -> TextTable:
    """What was measured: each number with its name in words and its interval."""
    rows = [
        (claim.labels[name].of(language) if name in claim.labels else name, number_text(number))
        for name, number in measurement.numbers.items()
    ]
    if language == "zh":
        return TextTable("测得的数", ("量", "值 [区间]"), rows)
    return TextTable("What was measured", ("quantity", "value [interval]"), rows)


def command_of(result: Result) -> str:
    """The command that tests the claim again in the same way."""
    size = {"small": " --small", "report": "", "full": " --full"}[result.size]
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
