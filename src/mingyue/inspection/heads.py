"""Heads labelled by their attention patterns on probe texts, with the loss when each head is switched off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mingyue.charts import Chart, MatrixChart, TextMark, WordGrid
from mingyue.inspection.ablation import Ablated, ablate_heads
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.command import FILE, SEED, SOURCE, STEP, TARGET, TEXTS, Command, Inspected, Progress, Text
from mingyue.inspection.head_labels import PartHeads, Source
from mingyue.inspection.head_patterns import (
    BACK,
    EARNED,
    PATTERN_NAMES,
    Pattern,
    Probe,
    Scores,
    random_probe,
    score_patterns,
)
from mingyue.inspection.labels import decimals, head_label, layer_label
from mingyue.inspection.parts import PART_NAMES, Part, attention_parts
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.view import View
from mingyue.words import Language, TextTable, Words

LOSS_ROWS = 2
"""Random sequences on which the loss is measured."""
MOST_TEXTS = 8
MOST_TOKENS = 1024
"""Tokens of all given texts together; further texts are left out, which the view reports."""

Floats = NDArray[np.float64]


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


@dataclass(frozen=True)
class HeadsView(View):
    """The label of each head with its score, and the loss without the head."""

    title: ClassVar[Words] = Words("Attention heads", "注意力头")  # pyrefly: ignore[bad-override]
    parts: tuple[PartHeads, ...]
    loss: float | None
    """Loss of the whole model on the measured texts, nats per token; None if there were none."""
    measured_on: Words
    """A sentence about the texts on which the loss was measured."""

    def part(self, name: Part) -> PartHeads:
        """The heads of one kind of attention. Raises `KeyError` for a kind that this model lacks."""
        return {part.part: part for part in self.parts}[name]

    def charts(self, language: Language = "en") -> list[Chart]:
        """For each kind of attention its labels, layers × heads; then the change of the loss without each head."""
        charts: list[Chart] = []
        for part in self.parts:
            charts.append(label_chart(part, language))
            if part.zero_LH is not None:
                charts.append(loss_chart(part, part.zero_LH, self.measured_on, language))
        return charts

    def tables(self, language: Language = "en") -> list[TextTable]:
        """A row for each head: label, score, threshold, score of uniform attention, change of the loss."""
        return [heads_table(part, self.loss, self.measured_on, language) for part in self.parts]

    def to_dict(self) -> dict[str, Any]:
        """By kind of attention: labels, scores by pattern, uniform, thresholds, `zero_LH`, `mean_LH`."""
        return {
            "loss": self.loss,
            "measured_on": self.measured_on.en,
            "parts": {part.part: _part_dict(part) for part in self.parts},
        }


def heads_view(
    subject: Subject, *, probes: Sequence[Text] | None = None, seed: int = 0, progress: Progress | None = None
) -> HeadsView:
    """Label all heads of a model and switch each of them off in turn.

    Labels are measured on a random sequence (by `seed`) that is repeated once, and on the texts `probes`, on which the
    loss is measured too; cross-attention is labelled on these alone. Without `probes` the loss is that of the repeated
    part of the random sequence; for an encoder-decoder model it is then not measured, and cross-attention is labelled
    on random pairs.

    Raises `GenerationError` for a model too small for probes, and as `Subject.read` does.
    """
    parts = attention_parts(subject)
    random = random_probe(subject, seed)
    texts, left_out = _own_texts(subject, probes or ())
    scores: dict[Part, dict[Source, Scores]] = {part.name: {} for part in parts}
    for part in parts:
        if part.name != "cross" or not texts:
            scores[part.name]["random"] = score_patterns(subject, part, [random])
        if texts:
            scores[part.name]["texts"] = score_patterns(subject, part, texts)
    measured = texts or ([] if subject.of_pairs else [_first_rows(random)])
    loss, ablated = ablate_heads(subject, parts, measured, progress) if measured else (None, [None] * len(parts))
    return HeadsView(
        parts=tuple(
            PartHeads(part.name, scores[part.name], *_changes(losses, loss))
            for part, losses in zip(parts, ablated, strict=True)
        ),
        loss=loss,
        measured_on=_measured_on(texts, left_out, subject.of_pairs),
    )


def _own_texts(subject: Subject, given: Sequence[Text]) -> tuple[list[Probe], int]:
    """The texts within the limits, and how many were left out. A text of one token has nothing to predict: skipped."""
    probes: list[Probe] = []
    n_tokens = n_given = 0
    for text in given:
        if isinstance(text, Reading):
            reading = text
        else:
            reading = subject.read(text) if isinstance(text, str) else subject.read(text[1], text[0])
        if not len(reading.targets_T):
            continue
        n_given += 1
        n_tokens += len(reading.ids_T)
        if probes and (len(probes) == MOST_TEXTS or n_tokens > MOST_TOKENS):
            continue
        source_BS = None if reading.source_ids_S is None else reading.source_ids_S[None]
        probes.append(Probe(reading.ids_T[None], reading.targets_T[None], source_BS))
    return probes, n_given - len(probes)


def _first_rows(probe: Probe) -> Probe:
    return replace(probe, ids_BT=probe.ids_BT[:LOSS_ROWS], targets_BT=probe.targets_BT[:LOSS_ROWS])


def _changes(losses: Ablated | None, loss: float | None) -> tuple[Floats | None, Floats | None]:
    if losses is None or loss is None:
        return None, None
    return losses.zero_LH - loss, losses.mean_LH - loss


def _measured_on(texts: Sequence[Probe], left_out: int, of_pairs: bool) -> Words:
    if texts:
        count = sum(probe.targets_BT.numel() for probe in texts)
        more = Words(f" ({left_out} more left out)", f"（另有 {left_out} 篇未用）") if left_out else Words("", "")
        tokens = "token" if count == 1 else "tokens"
        kind = "pair" if of_pairs else "text"
        plural = "" if len(texts) == 1 else "s"
        return Words(
            f"Loss on {len(texts)} given {kind}{plural}, {count:,} {tokens}{more.en}.",
            f"损失在给定的 {len(texts)} {'对' if of_pairs else '篇'}文本上测得，共 {count:,} 个 token{more.zh}。",
        )
    if of_pairs:
        return Words(
            "No pair of texts was given: the loss was not measured, and cross-attention is labelled on random tokens.",
            "未给文本对：没有测损失，交叉注意力在随机 token 上标注。",
        )
    return Words(
        "Loss on the repetition of a random sequence. Give a text to measure the loss on it.",
        "损失在随机 token 序列的第二遍上测得；给出文本即可测该文本的损失。",
    )


def _part_dict(part: PartHeads) -> dict[str, Any]:
    def lists(array: Floats | None) -> Any:  # noqa: ANN401
        return None if array is None else to_lists(array)

    return {
        "labels_LH": [list(row) for row in part.labels_LH],
        "scores": {
            source: {
                "patterns": list(scores.patterns),
                "scores_LHP": lists(scores.scores_LHP),
                "uniform_P": lists(scores.uniform_P),
                "thresholds_P": lists(scores.thresholds_P),
            }
            for source, scores in part.scores.items()
        },
        "zero_LH": lists(part.zero_LH),
        "mean_LH": lists(part.mean_LH),
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
    """A row for each head: label, score, threshold, score of uniform attention, change of the loss."""
    numbered = [Words("layer", "层"), Words("head", "头")]
    numbers = [Words("score", "得分"), Words("threshold", "阈值"), Words("uniform", "均匀")]
    changes = (Words("Δ loss, off", "关掉后 Δ 损失"), Words("Δ loss, mean", "取均值后 Δ 损失"))
    changed = () if part.zero_LH is None else changes
    rows = []
    for layer, head in np.ndindex(*part.shape):
        best = part.best(layer, head)
        row = [str(layer), str(head), _does(part, layer, head, language), _SOURCES[best.measured_on].of(language)]
        row += [decimals(value, 2) for value in (best.score, best.threshold, best.uniform)]
        if part.zero_LH is not None and part.mean_LH is not None:
            row += [_change(part.zero_LH[layer, head]), _change(part.mean_LH[layer, head])]
        rows.append(row)
    what = [Words("does", "作用"), Words("on", "测于")]
    return TextTable(
        title=PART_NAMES[part.part].of(language),
        columns=[words.of(language) for words in (*numbered, *what, *numbers, *changed)],
        rows=rows,
        right=[words.of(language) for words in (*numbered, *numbers, *changed)],
        note=_note(loss, measured_on, language),
    )


def _note(loss: float | None, measured_on: Words, language: Language) -> str:
    parts = [
        Words(
            "Score: share of a head's attention weight on the pattern, on a repeated random sequence or on the "
            f"text. The threshold of a label: the score of uniform attention + {EARNED} of the distance to 1.",
            "得分：头在重复一遍的随机 token 序列上或在文本上给该模式的权重占比。"
            f"标签的阈值：均匀注意力的得分 + 它到 1 的距离的 {EARNED}。",
        )
    ]
    if loss is not None:
        parts.append(
            Words(
                f"Δ loss: change from {loss:.3f} nats per token when the output of the head is 0 (off), or its mean "
                "over the text; above 0 = the head lowers the loss.",
                f"Δ 损失：头的输出置零（关掉）或换成全文均值时，每 token 损失较 {loss:.3f} nat 的变化；"
                "正数表示该头降低了损失。",
            )
        )
    parts.append(measured_on)
    return Words(" ".join(one.en for one in parts), "".join(one.zh for one in parts)).of(language)


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


def loss_chart(part: PartHeads, zero_LH: Floats, measured_on: Words, language: Language) -> Chart:
    """The change of the loss with each head switched off, layers × heads."""
    layers, heads = _titles(part, language)
    name = PART_NAMES[part.part]
    return MatrixChart(
        Words(
            f"{name.en}: Δ loss with a head off, nats per token",
            f"{name.zh}：关掉一个头后的 Δ 损失（每 token nat）",
        ).of(language),
        zero_LH,
        row_labels=layers,
        column_labels=heads,
        diverging=True,
        note=measured_on.of(language),
        language=language,
    )


def _heads_of_inspection(
    inspected: Inspected, *, texts: Sequence[str] = (), seed: int = 0, progress: Progress | None = None
) -> HeadsView:
    return heads_view(inspected.subject, probes=inspected.probes(texts) or None, seed=seed, progress=progress)


COMMAND = Command(
    _heads_of_inspection,
    options=(TEXTS, FILE, SOURCE, TARGET, STEP, SEED),
    texts="any number",
    slow=True,
)
