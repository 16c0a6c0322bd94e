"""Heads labelled by what they do on probe texts, with what the loss becomes when each of them is switched off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mingyue.errors import GenerationError
from mingyue.inspection.ablation import Ablated, Progress, ablate_heads
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.charts import Chart, TextMark, matrix_chart, word_grid
from mingyue.inspection.parts import PART_NAMES, Part, attention_parts
from mingyue.inspection.patterns import (
    EARNED,
    PATTERN_NAMES,
    Pattern,
    Probe,
    Scores,
    random_probe,
    score_patterns,
)
from mingyue.inspection.subject import Reading, Subject
from mingyue.inspection.view import View
from mingyue.inspection.words import Language, TextTable, Words

LOSS_ROWS = 4
"""Random sequences on which the loss is measured."""
MOST_TEXTS = 8
MOST_TOKENS = 1024
"""Of the texts given, all together; the rest is left out, and the view says so."""

Floats = NDArray[np.float64]
Text = Reading | str | tuple[str, str]
"""A text as it was read, or to be read: of a model of pairs (source, target)."""


@dataclass(frozen=True)
class PartHeads:
    """The heads of one kind of attention. Arrays are [L layers, H heads]."""

    part: Part
    scores: Scores
    zero_LH: Floats | None
    """Change of the loss, nats a token, when the head's output is 0; above 0 = the head helps. None: not measured."""
    mean_LH: Floats | None
    """The same when its output is its own mean over the text: what it owes to single tokens."""


@dataclass(frozen=True)
class HeadsView(View):
    """What each head does, the score that earned its label, and what it is worth."""

    title: ClassVar[Words] = Words("What the heads do", "各个头在做什么")  # pyrefly: ignore[bad-override]
    parts: tuple[PartHeads, ...]
    loss: float | None
    """Of the whole model on the texts of the loss, nats a token; None where there was no text for it."""
    measured_on: Words
    """A sentence: which texts."""

    def part(self, name: Part) -> PartHeads:
        """The heads of one kind of attention. Raises `KeyError` for a kind that this model lacks."""
        return {part.part: part for part in self.parts}[name]

    def charts(self, language: Language = "en") -> list[Chart]:
        """For each kind of attention its labels, layers × heads; then what each head is worth."""
        charts: list[Chart] = []
        for part in self.parts:
            charts.append(_label_chart(part, language))
            if part.zero_LH is not None:
                charts.append(_worth_chart(part, part.zero_LH, self.measured_on, language))
        return charts

    def tables(self, language: Language = "en") -> list[TextTable]:
        """A row for each head: label, score, threshold, what uniform attention scores, change of the loss."""
        return [_table(part, self, language) for part in self.parts]

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

    Self-attention is labelled on random tokens (by `seed`), written twice. `probes` are texts of one's own: on them the
    loss is measured, and cross-attention labelled. Without any, the loss is that of the second writing of the random
    tokens, which only looking back can foretell; of a model of pairs it is then not measured, and cross-attention is
    labelled on random pairs. Raises `GenerationError` for a model too small for probes, and as `Subject.read` does.
    """
    parts = attention_parts(subject)
    random = random_probe(subject, seed)
    texts, left_out = _own_texts(subject, probes or ())
    scores = {
        part.name: score_patterns(subject, part, texts if part.name == "cross" and texts else [random])
        for part in parts
    }
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
    """The texts within the caps, and how many were left out. Raises `GenerationError` where none can be foretold."""
    probes: list[Probe] = []
    n_tokens = n_given = 0
    for text in given:
        if isinstance(text, Reading):
            reading = text
        else:
            reading = subject.read(text) if isinstance(text, str) else subject.read(text[1], text[0])
        if not len(reading.targets_T):
            continue  # one token: nothing is foretold
        n_given += 1
        n_tokens += len(reading.ids_T)
        if probes and (len(probes) == MOST_TEXTS or n_tokens > MOST_TOKENS):
            continue
        source_BS = None if reading.source_ids_S is None else reading.source_ids_S[None]
        probes.append(Probe(reading.ids_T[None], reading.targets_T[None], source_BS))
    if given and not probes:
        raise GenerationError(
            "the texts have one token each, so there is no next token to foretell", advice="Give longer texts."
        )
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
        tokens = Words("token" if count == 1 else "tokens", "个词元")
        kind = "pair" if of_pairs else "text"
        plural = "" if len(texts) == 1 else "s"
        return Words(
            f"Loss on {len(texts)} given {kind}{plural}, {count:,} {tokens.en}{more.en}.",
            f"损失在给定的 {len(texts)} {'对' if of_pairs else '篇'}文本上测得，共 {count:,} 个词元{more.zh}。",
        )
    if of_pairs:
        return Words(
            "No pair of texts was given: the loss was not measured, and cross-attention is labelled on random tokens.",
            "未给文本对：没有测损失，交叉注意力在随机词元上标注。",
        )
    return Words(
        "Loss on the second writing of random tokens: give a text to see the loss on that.",
        "损失在随机词元序列的第二遍上测得；给出文本即可测该文本的损失。",
    )


def _best(part: PartHeads, layer: int, head: int) -> tuple[Pattern, float, float, float]:
    """The pattern furthest above uniform: its name, score, threshold and uniform."""
    best = int(part.scores.best_LH[layer, head])
    scores = part.scores
    return (
        scores.patterns[best],
        float(scores.scores_LHP[layer, head, best]),
        float(scores.thresholds_P[best]),
        float(scores.uniform_P[best]),
    )


def _does(part: PartHeads, layer: int, head: int, language: Language) -> str:
    label = part.scores.labels_LH[layer][head]
    if label != "mixed":
        return PATTERN_NAMES[label].of(language)
    most = PATTERN_NAMES[_best(part, layer, head)[0]]
    return Words(f"mixed (most: {most.en})", f"混合（最近于：{most.zh}）").of(language)


def _shape(part: PartHeads) -> tuple[int, int]:
    n_layers, n_heads, _ = part.scores.scores_LHP.shape
    return n_layers, n_heads


def _change(value: float) -> str:
    return f"{value:+.3f}".replace("-0.000", "+0.000")


def _table(part: PartHeads, view: HeadsView, language: Language) -> TextTable:
    numbers = [
        Words("score", "得分").of(language),
        Words("threshold", "门槛").of(language),
        Words("uniform", "均匀").of(language),
    ]
    worth = [Words("loss if 0", "置零后损失").of(language), Words("loss if mean", "取均值后损失").of(language)]
    place = [Words("layer", "层").of(language), Words("head", "头").of(language)]
    measured = part.zero_LH is not None and part.mean_LH is not None
    rows = []
    for layer, head in np.ndindex(*_shape(part)):
        _, score, threshold, uniform = _best(part, layer, head)
        row = [str(layer), str(head), _does(part, layer, head, language)]
        row += [f"{score:.2f}", f"{threshold:.2f}", f"{uniform:.2f}"]
        if part.zero_LH is not None and part.mean_LH is not None:
            row += [_change(part.zero_LH[layer, head]), _change(part.mean_LH[layer, head])]
        rows.append(row)
    right = [*place, *numbers, *(worth if measured else [])]
    does = Words("does", "作用").of(language)
    return TextTable(
        title=PART_NAMES[part.part].of(language),
        columns=[*place, does, *numbers, *(worth if measured else [])],
        rows=rows,
        right=right,
        note=_note(part, view, language),
    )


def _note(part: PartHeads, view: HeadsView, language: Language) -> str:
    found_on = (
        Words("the given pairs", "给定的文本对")
        if part.part == "cross" and view.loss is not None
        else Words("random tokens written twice", "写了两遍的随机词元")
    )
    parts = [
        Words(
            f"Score: share of its weight that a head gives to the pattern, on {found_on.en}. A label takes the "
            f"threshold: uniform attention + {EARNED} of what is left to 1.",
            f"得分：头在{found_on.zh}上给该模式的权重占比。达到门槛方得此名：均匀注意力 + 余下部分的 {EARNED}。",
        )
    ]
    if view.loss is not None:
        parts.append(
            Words(
                f"Loss columns: change in nats a token when the head gives 0, or its mean over the text, from "
                f"{view.loss:.3f}; above 0 = the head helps.",
                f"损失两列：头的输出置零或换成全文均值时，损失较 {view.loss:.3f} 的变化（奈特/词元），正数即该头有用。",
            )
        )
    parts.append(view.measured_on)
    return Words(" ".join(one.en for one in parts), "".join(one.zh for one in parts)).of(language)


def _titles(part: PartHeads, language: Language) -> tuple[list[str], list[str]]:
    n_layers, n_heads = _shape(part)
    layers = [Words(f"layer {layer}", f"第 {layer} 层").of(language) for layer in range(n_layers)]
    return layers, [Words(f"head {head}", f"头 {head}").of(language) for head in range(n_heads)]


def _label_chart(part: PartHeads, language: Language) -> Chart:
    layers, heads = _titles(part, language)
    scores = part.scores

    def mark(layer: int, head: int) -> TextMark:
        label = scores.labels_LH[layer][head]
        lines = [
            f"{PATTERN_NAMES[pattern].of(language)}: {score:.2f} ({uniform:.2f})"
            for pattern, score, uniform in zip(
                scores.patterns, scores.scores_LHP[layer, head], scores.uniform_P, strict=True
            )
        ]
        return TextMark(_SHORT[label].of(language), _best(part, layer, head)[1], lines)

    name = PART_NAMES[part.part]
    return word_grid(
        Words(f"{name.en}: what each head does", f"{name.zh}：各个头的作用").of(language),
        [[mark(layer, head) for head in range(len(heads))] for layer in range(len(layers))],
        row_labels=layers,
        column_labels=heads,
        low=0.0,
        high=1.0,
        legend=Words("share of its weight on the pattern", "给该模式的权重占比").of(language),
        note=Words(
            f"A label needs a score of uniform attention + {EARNED} of what is left to 1. Hover: all scores, "
            "in brackets those of uniform attention.",
            f"得名门槛 = 均匀注意力的得分 + 余下部分的 {EARNED}。悬停可见全部得分，括号内为均匀注意力的得分。",
        ).of(language),
    )


def _worth_chart(part: PartHeads, zero_LH: Floats, measured_on: Words, language: Language) -> Chart:
    layers, heads = _titles(part, language)
    name = PART_NAMES[part.part]
    return matrix_chart(
        Words(
            f"{name.en}: change of the loss with a head switched off, nats a token",
            f"{name.zh}：关掉一个头后损失的变化（奈特/词元）",
        ).of(language),
        zero_LH,
        row_labels=layers,
        column_labels=heads,
        diverging=True,
        note=measured_on.of(language),
        language=language,
    )


_SHORT: dict[Pattern, Words] = {
    "previous": Words("previous", "前一个"),
    "next": Words("next", "后一个"),
    "itself": Words("itself", "自身"),
    "earlier": Words("same, earlier", "先前同词"),
    "other": Words("same, other", "另处同词"),
    "first": Words("first", "首词元"),
    "end": Words("end mark", "结束标记"),
    "induction": Words("induction", "归纳"),
    "diagonal": Words("alignment", "对齐"),
    "mixed": Words("mixed", "混合"),
}


def _part_dict(part: PartHeads) -> dict[str, Any]:
    def lists(array: Floats | None) -> Any:  # noqa: ANN401
        return None if array is None else to_lists(array)

    scores = part.scores
    return {
        "labels_LH": [list(row) for row in scores.labels_LH],
        "patterns": list(scores.patterns),
        "scores_LHP": lists(scores.scores_LHP),
        "uniform_P": lists(scores.uniform_P),
        "thresholds_P": lists(scores.thresholds_P),
        "zero_LH": lists(part.zero_LH),
        "mean_LH": lists(part.mean_LH),
    }
