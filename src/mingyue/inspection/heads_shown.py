"""Heads in tables and charts: labels with the scores that earned them, and what each head is worth."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mingyue.charts import Chart, MatrixChart, TextMark, WordGrid
from mingyue.inspection.labels import PartHeads, Source
from mingyue.inspection.parts import PART_NAMES
from mingyue.inspection.patterns import BACK, EARNED, PATTERN_NAMES, Pattern
from mingyue.words import Language, TextTable, Words

Floats = NDArray[np.float64]

_SOURCES: Mapping[Source, Words] = {"random": Words("random", "随机"), "texts": Words("text", "文本")}
_SHORT: dict[Pattern, Words] = {
    "previous": Words("previous", "前一个"),
    "next": Words("next", "后一个"),
    "itself": Words("itself", "自身"),
    "earlier": Words("same, earlier", "先前同词"),
    "other": Words("same, other", "另处同词"),
    "first": Words("first", "首 token"),
    "end": Words("end mark", "结束标记"),
    "induction": Words("induction", "归纳"),
    "diagonal": Words("alignment", "对齐"),
    "mixed": Words("mixed", "混合"),
    **{name: Words(f"{steps} back", f"前第 {steps} 个") for name, steps in BACK.items()},
}


def _does(part: PartHeads, layer: int, head: int, language: Language) -> str:
    best = part.best(layer, head)
    name = PATTERN_NAMES[best.pattern]
    if best.earned:
        return name.of(language)
    if not best.stands_out:
        return PATTERN_NAMES["mixed"].of(language)
    return Words(f"mixed (most: {name.en})", f"混合（最接近：{name.zh}）").of(language)


def _change(value: float) -> str:
    return f"{value:+.3f}".replace("-0.000", "+0.000")


def heads_table(part: PartHeads, loss: float | None, measured_on: Words, language: Language) -> TextTable:
    """A row for each head: label, score, threshold, what uniform attention scores, change of the loss."""
    place = [Words("layer", "层"), Words("head", "头")]
    numbers = [Words("score", "得分"), Words("threshold", "门槛"), Words("uniform", "均匀")]
    changes = (Words("Δ loss, off", "关掉后 Δ 损失"), Words("Δ loss, mean", "取均值后 Δ 损失"))
    worth = () if part.zero_LH is None else changes
    rows = []
    for layer, head in np.ndindex(*part.shape):
        best = part.best(layer, head)
        row = [str(layer), str(head), _does(part, layer, head, language), _SOURCES[best.measured_on].of(language)]
        row += [f"{value:.2f}" for value in (best.score, best.threshold, best.uniform)]
        if part.zero_LH is not None and part.mean_LH is not None:
            row += [_change(part.zero_LH[layer, head]), _change(part.mean_LH[layer, head])]
        rows.append(row)
    what = [Words("does", "作用"), Words("on", "测于")]
    return TextTable(
        title=PART_NAMES[part.part].of(language),
        columns=[words.of(language) for words in (*place, *what, *numbers, *worth)],
        rows=rows,
        right=[words.of(language) for words in (*place, *numbers, *worth)],
        note=_note(loss, measured_on, language),
    )


def _note(loss: float | None, measured_on: Words, language: Language) -> str:
    parts = [
        Words(
            "Score: share of its weight that a head gives to the pattern, on random tokens written twice or on the "
            f"text. A label takes the threshold: uniform attention + {EARNED} of what is left to 1.",
            "得分：头在写了两遍的随机 token 上或在文本上给该模式的权重占比。"
            f"达到门槛方得此名：均匀注意力 + 余下部分的 {EARNED}。",
        )
    ]
    if loss is not None:
        parts.append(
            Words(
                f"Δ loss: change from {loss:.3f} nats a token when the head gives 0 (off), or its mean over the "
                "text; above 0 = the head helps.",
                f"Δ 损失：头的输出置零（关掉）或换成全文均值时，每 token 损失较 {loss:.3f} nat 的变化；"
                "正数即该头有用。",
            )
        )
    parts.append(measured_on)
    return Words(" ".join(one.en for one in parts), "".join(one.zh for one in parts)).of(language)


def _titles(part: PartHeads, language: Language) -> tuple[list[str], list[str]]:
    n_layers, n_heads = part.shape
    layers = [Words(f"layer {layer}", f"第 {layer} 层").of(language) for layer in range(n_layers)]
    return layers, [Words(f"head {head}", f"头 {head}").of(language) for head in range(n_heads)]


def label_chart(part: PartHeads, language: Language) -> Chart:
    """Labels, layers × heads, coloured by score."""
    layers, heads = _titles(part, language)

    def mark(layer: int, head: int) -> TextMark:
        lines = [
            f"{_SOURCES[source].of(language)}, {PATTERN_NAMES[pattern].of(language)}: {score:.2f} ({uniform:.2f})"
            for source, scores in part.scores.items()
            for pattern, score, uniform in zip(
                scores.patterns, scores.scores_LHP[layer, head], scores.uniform_P, strict=True
            )
            if not np.isnan(score)
        ]
        return TextMark(_SHORT[part.label(layer, head)].of(language), part.best(layer, head).score, lines)

    name = PART_NAMES[part.part]
    return WordGrid(
        Words(f"{name.en}: what each head does", f"{name.zh}：各个头的作用").of(language),
        [[mark(layer, head) for head in range(len(heads))] for layer in range(len(layers))],
        row_labels=layers,
        column_labels=heads,
        low=0.0,
        high=1.0,
        legend=Words("score", "得分").of(language),
        note=Words(
            "Score: share of its weight that a head gives to the pattern it is nearest to. It gets the name at uniform "
            f"attention + {EARNED} of what is left to 1.",
            f"得分：头给最接近的模式的权重占比。达到均匀注意力 + 余下部分的 {EARNED}，方得此名。",
        ).of(language),
        page_note=Words(
            "Hover: all scores, in brackets those of uniform attention.", "悬停可见全部得分，括号内为均匀注意力。"
        ).of(language),
    )


def worth_chart(part: PartHeads, zero_LH: Floats, measured_on: Words, language: Language) -> Chart:
    """The change of the loss with each head switched off, layers × heads."""
    layers, heads = _titles(part, language)
    name = PART_NAMES[part.part]
    return MatrixChart(
        Words(
            f"{name.en}: Δ loss with a head off, nats a token",
            f"{name.zh}：关掉一个头后的 Δ 损失（每 token nat）",
        ).of(language),
        zero_LH,
        row_labels=layers,
        column_labels=heads,
        diverging=True,
        note=measured_on.of(language),
        language=language,
    )
