"""Tables and charts of heads: the label of each with its score, and the change of the loss without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mingyue.charts import Chart, TextMark, WordGrid
from mingyue.inspection.head_labels import PartHeads, Source
from mingyue.inspection.head_patterns import BACK, EARNED, PATTERN_NAMES, Pattern
from mingyue.inspection.labels import decimals, head_label, layer_label
from mingyue.inspection.parts import PART_NAMES
from mingyue.words import Language, TextTable, Words

FEWEST_TOKENS = 300
"""Changes of the loss on fewer tokens are not coloured: they are mostly noise."""
CLEAR = 3
"""A change of the loss is coloured from this many standard errors on."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """What the loss was measured on."""

    loss: float | None
    """Loss of the whole model, nats per token; None: not measured."""
    tokens: int
    about: Words
    """A sentence about the texts."""

    @property
    def enough(self) -> bool:
        """Whether there are enough tokens to tell heads apart."""
        return self.tokens >= FEWEST_TOKENS

    def clear(self, change: float, error: float) -> bool:
        """Whether a change of the loss is far enough from 0 to mean something."""
        return self.enough and abs(change) > CLEAR * error  # NaN is not

    def notes(self) -> list[Words]:
        """How to read the changes of the loss."""
        if self.loss is None:
            return [self.about]
        notes = [
            Words(
                "After ± is the standard error of the change (paired: the same tokens with and without the head).",
                "± 后面是变化量的标准误（配对：同样的 token，有这个头和没有这个头）。",
            ),
            self.about,
        ]
        if self.enough:
            return notes
        return [
            *notes,
            Words(
                f"{self.tokens:,} tokens are too few to tell heads apart: no change is marked or coloured below "
                f"{FEWEST_TOKENS}. Give more text.",
                f"{self.tokens:,} 个 token 太少，分不清各个头：少于 {FEWEST_TOKENS} 个时不标记、不着色。"
                "请给出更多文本。",
            ),
        ]


_SOURCES: Mapping[Source, Words] = {"random": Words("random", "随机"), "texts": Words("text", "文本")}
_SHORT: dict[Pattern, Words] = {
    "previous": Words("previous", "前一个"),
    "next": Words("next", "后一个"),
    "itself": Words("itself", "自身"),
    "earlier": Words("same, earlier", "先前同词"),
    "other": Words("same, other", "另处同词"),
    "first": Words("first", "首 token"),
    "end": Words("EOS", "EOS"),
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


def _change(value: float, error: float | None = None) -> str:
    change = f"{value:+.3f}".replace("-0.000", "+0.000")
    return change if error is None else f"{change} ± {decimals(error)}"


def heads_table(part: PartHeads, measured: Measured, language: Language, *, explained: bool = True) -> TextTable:
    """A row for each head: label, score, threshold, score of uniform attention, change of the loss.

    `explained`: with the note on how to read it, which is the same for all kinds of attention.
    """
    numbered = [Words("layer", "层"), Words("head", "头")]
    numbers = [Words("score", "得分"), Words("threshold", "阈值"), Words("uniform", "均匀")]
    changes = (Words("Δ loss, off", "关掉后 Δ 损失"), Words("Δ loss, mean", "取均值后 Δ 损失"))
    changed = () if part.zero_LH is None else changes
    rows = []
    for layer, head in np.ndindex(*part.shape):
        best = part.best(layer, head)
        row = [str(layer), str(head), _does(part, layer, head, language), _SOURCES[best.measured_on].of(language)]
        row += [decimals(value, 2) for value in (best.score, best.threshold, best.uniform)]
        for change_LH, error_LH in ((part.zero_LH, part.zero_error_LH), (part.mean_LH, part.mean_error_LH)):
            if change_LH is not None and error_LH is not None:
                change, error = float(change_LH[layer, head]), float(error_LH[layer, head])
                row.append(("* " if measured.clear(change, error) else "") + _change(change, error))
        rows.append(row)
    what = [Words("does", "作用"), Words("on", "测于")]
    name = PART_NAMES[part.part]
    return TextTable(
        title=Words(f"{name.en}: what each head does", f"{name.zh}：各个头的作用").of(language),
        columns=[words.of(language) for words in (*numbered, *what, *numbers, *changed)],
        rows=rows,
        right=[words.of(language) for words in (*numbered, *numbers, *changed)],
        note=_note(measured, language) if explained else "",
    )


def _note(measured: Measured, language: Language) -> str:
    notes = [
        Words(
            "Score: share of a head's attention weight on the pattern, on a repeated random sequence or on the "
            f"text. The threshold of a label: the score of uniform attention + {EARNED} of the distance to 1.",
            "得分：头在重复一遍的随机 token 序列上或在文本上给该模式的权重占比。"
            f"标签的阈值：均匀注意力的得分 + 它到 1 的距离的 {EARNED}。",
        )
    ]
    if measured.loss is not None:
        notes.append(
            Words(
                f"Δ loss: change from {measured.loss:.3f} nats per token when the output of the head is 0 (off), or "
                "its mean over the text; above 0 = the head lowers the loss.",
                f"Δ 损失：头的输出置零（关掉）或换成全文均值时，每 token 损失较 {measured.loss:.3f} nat 的变化；"
                "正数表示该头降低了损失。",
            )
        )
        if measured.enough:
            clear = f"* = more than {CLEAR} standard errors from 0."
            notes.append(Words(clear, f"* 表示与 0 相差超过 {CLEAR} 个标准误。"))
    return _joined([*notes, *measured.notes()], language)


def _joined(notes: Sequence[Words], language: Language) -> str:
    return ("" if language == "zh" else " ").join(note.of(language) for note in notes)


def _titles(part: PartHeads, language: Language) -> tuple[list[str], list[str]]:
    n_layers, n_heads = part.shape
    layers = [layer_label(layer, language) for layer in range(n_layers)]
    return layers, [head_label(head, language) for head in range(n_heads)]


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
        Words(f"{name.en}: label of each head", f"{name.zh}：各个头的标签").of(language),
        [[mark(layer, head) for head in range(len(heads))] for layer in range(len(layers))],
        row_labels=layers,
        column_labels=heads,
        low=0.0,
        high=1.0,
        legend=Words("score", "得分").of(language),
        note=Words(
            "Score: share of a head's attention weight on its nearest pattern. The threshold of a label: the score "
            f"of uniform attention + {EARNED} of the distance from there to 1.",
            f"得分：头给最接近的模式的权重占比。标签的阈值：均匀注意力的得分 + 它到 1 的距离的 {EARNED}。",
        ).of(language),
        page_note=Words(
            "Hover for all scores, with those of uniform attention in brackets.",
            "悬停可见全部得分，括号内为均匀注意力的得分。",
        ).of(language),
    )


def loss_chart(part: PartHeads, measured: Measured, language: Language) -> Chart:
    """The change of the loss with each head switched off, layers × heads; coloured where it is clear of noise."""
    layers, heads = _titles(part, language)
    assert part.zero_LH is not None and part.zero_error_LH is not None
    zero_LH, error_LH = part.zero_LH, part.zero_error_LH

    def mark(layer: int, head: int) -> TextMark:
        change, error = float(zero_LH[layer, head]), float(error_LH[layer, head])
        clear = measured.clear(change, error)
        lines = [
            Words(f"{_change(change, error)} nats per token", f"每 token {_change(change, error)} nat").of(language)
        ]
        return TextMark(_change(change), change if clear else None, lines)

    marks = [[mark(layer, head) for head in range(len(heads))] for layer in range(len(layers))]
    name = PART_NAMES[part.part]
    colours = Words(
        f"Not coloured: within {CLEAR} standard errors of 0. Darker: the head lowers the loss by more.",
        f"不着色：与 0 相差不到 {CLEAR} 个标准误。颜色越深，该头降低的损失越多。",
    )
    return WordGrid(
        Words(
            f"{name.en}: Δ loss with a head off, nats per token", f"{name.zh}：关掉一个头后的 Δ 损失（每 token nat）"
        ).of(language),
        marks,
        row_labels=layers,
        column_labels=heads,
        low=0.0,
        high=max((mark.value for row in marks for mark in row if mark.value is not None), default=0.0) or 1.0,
        legend=Words("Δ loss, nats", "Δ 损失（nat）").of(language),
        note=_joined([*([colours] if measured.enough else []), *measured.notes()[1:]], language),
        page_note=Words("Hover for the standard errors.", "悬停可见标准误。").of(language),
    )
