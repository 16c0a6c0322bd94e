"""One word in several texts: its vectors layer by layer, from the same embedding to different contexts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mingyue.charts import Chart, LineChart, MatrixChart, MatrixGrid, ScatterChart
from mingyue.inspection.arrays import to_lists
from mingyue.inspection.command import FILE, SEED, STEP, TEXTS, Command, Option
from mingyue.inspection.labels import decimals, layer_ticks
from mingyue.inspection.subject import Subject
from mingyue.inspection.taps import tap_label
from mingyue.inspection.view import View
from mingyue.inspection.word_vectors import WordVectors, compare_word
from mingyue.words import Language, TextTable, Words

_WORD = Words("pairs of occurrences of the word", "这个词的各处之间")
_OTHERS = Words("random pairs of other tokens", "随机的其他 token 之间")
_MOST_PAIRS_LISTED = 6
_SAME = 1e-5  # vectors closer than this, relative to the largest distance, are equal but for rounding
_LEAST_SHARE = 0.01  # of the variance on the second direction of a PCA that is drawn


@dataclass(frozen=True, eq=False)
class VectorsView(WordVectors, View):
    """The vectors of one word in tables and charts."""

    title = Words("One word in several contexts", "同一个词，不同的语境")

    def charts(self, language: Language = "en") -> list[Chart]:
        """Cosines by layer, their matrices, the PCA."""
        return _charts(self, language)

    def tables(self, language: Language = "en") -> list[TextTable]:
        """Cosines by layer against the baseline, and the occurrences."""
        return _tables(self, language)

    def to_dict(self) -> dict[str, Any]:
        """Every field, by name."""
        arrays = (
            "text_N", "position_N", "token_N", "vectors_LNM", "cosines_LNN", "baseline_L3", "plane_N2", "explained_2",
        )  # fmt: skip
        plain = (
            "word", "pieces", "texts", "labels_N", "pieces_N", "places_L", "alike", "alike_apart", "causal", "found",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in plain},
            **{name: to_lists(getattr(self, name)) for name in arrays},
        }


def vectors_view(subject: Subject, word: str, texts: Sequence[str], *, seed: int = 0) -> VectorsView:
    """Compare the vectors of `word` wherever it occurs in `texts` (each read by itself), layer by layer.

    An encoder-decoder model reads the texts with its encoder. The vector of a word of several tokens is that of its
    last token, where the whole word has been read. `seed` draws random pairs of other tokens, the baseline of cosines.
    Raises `GenerationError` for a text without the word (naming it), fewer than two occurrences, more than 64 texts,
    and texts that `Subject.read` refuses.
    """
    return VectorsView(**vars(compare_word(subject, word, texts, seed)))


def _charts(view: VectorsView, language: Language) -> list[Chart]:
    """Cosines by layer, their matrices, the last one large, and the PCA plane."""
    word, labels = view.word, view.labels_N
    layers = [tap_label(tap, language) for tap in view.places_L]
    rows = []
    for tick, pairs_P, (mean, low, high) in zip(
        layer_ticks(layers), view.pair_cosines_LP(), view.baseline_L3.tolist(), strict=True
    ):
        own = {"mean": float(pairs_P.mean()), "low": float(pairs_P.min()), "high": float(pairs_P.max())}
        rows.append({"layer": tick, "which": _WORD.of(language), **own})
        if np.isfinite(mean):
            rows.append({"layer": tick, "which": _OTHERS.of(language), "mean": mean, "low": low, "high": high})
    by_layer = LineChart(
        Words(f'"{word}": cosine similarity of its vectors by layer', f"“{word}”：各层里向量的余弦相似度").of(language),
        rows,
        x="layer",
        y="mean",
        series="which",
        low="low",
        high="high",
        x_title=Words("layer, from the embedding table to the end of the model", "层，从嵌入表到模型末端").of(language),
        y_title=Words("cosine", "余弦").of(language),
        note=Words(
            "Lines are means; the band of the word spans minimum to maximum, that of the random pairs 5 % to 95 %.",
            "线为均值；该词的色带为最小值到最大值，随机对的色带为 5 % 到 95 %。",
        ).of(language),
    )
    note, low = _about(view, language), _low(view)
    grid = MatrixGrid(
        Words(f'"{word}": cosines between its occurrences by layer', f"“{word}”：各处出现之间的余弦，逐层").of(
            language
        ),
        view.cosines_LNN[None],
        row_titles=[""],
        column_titles=layers,
        row_labels=labels,
        column_labels=[str(number) for number in range(1, len(labels) + 1)],
        low=low,
        high=1.0,
        note=Words(
            "Rows and columns: the occurrences. Each layer has its own map, all on one scale.",
            "行和列：各处出现。每层一张图，共用一个色标。",
        ).of(language),
        language=language,
    )
    last = MatrixChart(
        Words(f'"{word}": cosines at the end of the model', f"“{word}”：模型末端的余弦").of(language),
        view.cosines_LNN[-1],
        row_labels=labels,
        column_labels=labels,
        low=low,
        high=1.0,
        language=language,
        note=note,
    )
    return [by_layer, grid, last, *([] if _no_plane(view) else [_plane(view, language)])]


def _low(view: VectorsView) -> float:
    """The lower end of the scale of cosines, such that differences are visible: they are often all above 0.9."""
    least = float(view.cosines_LNN.min())
    step = 0.1 if least < 0.95 else 0.01 if least < 0.995 else 0.001
    return math.floor(least / step + 1e-9) * step if least < 1 - step else 1 - step


def _no_plane(view: VectorsView) -> Words | None:
    """Why a PCA of the final vectors would show nothing; None if it shows something."""
    apart_NN = np.linalg.norm(view.vectors_LNM[-1][:, None] - view.vectors_LNM[-1], axis=-1)
    different = len({tuple(row) for row in (apart_NN <= _SAME * (1e-30 + apart_NN.max())).tolist()})
    if float(view.explained_2.sum()) < _SAME or different < 2:
        return Words("No PCA: the final vectors do not differ.", "不画 PCA：末端的向量没有差别。")
    if different < 3:
        return Words(
            "No PCA: two different vectors lie on a line, and their cosine says all.",
            "不画 PCA：只有两个不同的向量，它们在一条直线上，看余弦即可。",
        )
    if float(view.explained_2[1]) < _LEAST_SHARE:
        return Words(
            f"No PCA: the final vectors lie on a line ({view.explained_2[0]:.1%} of their variance).",
            f"不画 PCA：末端的向量几乎在一条直线上（占方差的 {view.explained_2[0]:.1%}）。",
        )
    return None


def _plane(view: VectorsView, language: Language) -> Chart:
    """The PCA of the final vectors. Equal vectors are one point with the numbers of all of them."""
    word = view.word
    first, second = view.explained_2.tolist()
    size = float(np.abs(view.plane_N2).max())
    places: dict[tuple[float, ...], list[int]] = {}
    for number, point in enumerate(view.plane_N2.tolist()):
        places.setdefault(tuple(round(value / size, 2) for value in point), []).append(number)
    points = []
    for numbers in places.values():
        x, y = view.plane_N2[numbers[0]].tolist()
        listed = ", ".join(str(number + 1) for number in numbers)
        points.append({"first": x, "second": y, "label": view.labels_N[numbers[0]] if len(numbers) == 1 else listed})
    return ScatterChart(
        Words(f'"{word}": PCA of its final vectors', f"“{word}”：末端向量的平面图（PCA）").of(language),
        points,
        x="first",
        y="second",
        label="label",
        x_title=Words(f"first direction, {first:.0%} of the variance", f"第一方向，占方差 {first:.0%}").of(language),
        y_title=Words(f"second direction, {second:.0%} of the variance", f"第二方向，占方差 {second:.0%}").of(language),
    )


def _tables(view: VectorsView, language: Language) -> list[TextTable]:
    """Cosines by layer with the baseline, and the occurrences with what they attend to."""
    columns = [
        Words("layer", "层"), Words("mean cosine", "平均余弦"), Words("minimum", "最小"), Words("maximum", "最大"),
        Words("random pairs: mean", "随机对：均值"), Words("5 %", "5 %"), Words("95 %", "95 %"),
    ]  # fmt: skip
    names = [column.of(language) for column in columns]
    rows = []
    for tap, pairs_P, baseline in zip(view.places_L, view.pair_cosines_LP(), view.baseline_L3.tolist(), strict=True):
        numbers = [float(pairs_P.mean()), float(pairs_P.min()), float(pairs_P.max()), *baseline]
        rows.append([tap_label(tap, language), *map(decimals, numbers)])
    by_layer = TextTable(
        Words(
            f'"{view.word}" at {len(view.labels_N)} positions: cosines of its vectors',
            f"“{view.word}”的 {len(view.labels_N)} 处：向量之间的余弦",
        ).of(language),
        names,
        rows,
        right=names[1:],
        note=_about(view, language),
    )
    headings = [
        column.of(language)
        for column in (
            Words("occurrence", "出现"), Words("text", "文本"), Words("position", "位置"), Words("token", "token"),
            Words("attends to", "能注意到"),
        )
    ]  # fmt: skip
    spots = [
        [label, str(row + 1), str(position), piece, _attends_to(view, position, language)]
        for label, row, position, piece in zip(
            view.labels_N, view.text_N.tolist(), view.position_N.tolist(), view.pieces_N, strict=True
        )
    ]
    where = TextTable(
        Words("Occurrences (texts from 1, positions from 0)", "出现之处（文本从 1 数，位置从 0 数）").of(language),
        headings,
        spots,
        right=headings[1:3],
    )
    return [by_layer, where]


def _about(view: VectorsView, language: Language) -> str:
    """Notes on how to read the figures."""
    notes: list[Words] = []
    if len(view.pieces) > 1:
        pieces = " + ".join(view.pieces)
        notes.append(
            Words(
                f"The word is {len(view.pieces)} tokens ({pieces}); its vector is that of the last one.",
                f"这个词由 {len(view.pieces)} 个 token 组成（{pieces}）；取最后一个 token 的向量。",
            )
        )
    if len(set(view.token_N.tolist())) > 1:
        notes.append(
            Words(
                "Its last token is not the same everywhere, so the vectors in the embedding table differ too.",
                "它在各处的末尾 token 并不相同，所以嵌入表里的向量也不同。",
            )
        )
    else:
        notes.append(
            Words("In the embedding table that token has a single vector.", "在嵌入表里这个 token 只有一个向量。")
        )
    notes.append(_attended(view))
    if view.found > len(view.labels_N):
        notes.append(
            Words(
                f"The first {len(view.labels_N)} of {view.found} occurrences are shown.",
                f"共出现 {view.found} 处，这里是前 {len(view.labels_N)} 处。",
            )
        )
    if not np.isfinite(view.baseline_L3).all():
        notes.append(Words("There are no other tokens to compare with.", "没有其他 token 可供比较。"))
    if (why := _no_plane(view)) is not None:
        notes.append(why)
    return ("" if language == "zh" else " ").join(note.of(language) for note in notes)


def _attended(view: VectorsView) -> Words:
    """The tokens that a token attends to in this model, and the occurrences that therefore cannot differ."""
    if view.causal:
        seen = Words(
            "In this model a token attends only to itself and to the tokens before it.",
            "在这个模型里，一个 token 只能注意到自己和前面的 token。",
        )
        why = Words("have the same tokens before them (or none)", "前面的 token 完全相同（或前面没有 token）")
        advice = Words(" Show the word after different words.", "请把这个词放在不同的词后面再看。")
    else:
        seen = Words(
            "In the encoder every token attends to the whole text.", "在编码器里，每个 token 都能注意到整段文本。"
        )
        why = Words("are at the same position in equal texts", "处在相同文本的相同位置")
        advice = Words("", "")
    if not view.alike:
        return seen
    few, more = view.alike[:_MOST_PAIRS_LISTED], len(view.alike) - _MOST_PAIRS_LISTED
    listed = Words(
        ", ".join(f"{one + 1} = {other + 1}" for one, other in few) + (f" and {more} more pairs" if more > 0 else ""),
        "、".join(f"{one + 1} = {other + 1}" for one, other in few) + (f" 等 {len(view.alike)} 对" if more > 0 else ""),
    )
    apart = f"{view.alike_apart:.0e}" if view.alike_apart else "0"
    return Words(
        f"{seen.en} Occurrences ({listed.en}) {why.en}: their vectors cannot differ, at any layer "
        f"(measured difference: {apart}).{advice.en}",
        f"{seen.zh}有几处（{listed.zh}）{why.zh}：它们的向量在任何一层都不可能不同（实测差 {apart}）。{advice.zh}",
    )


def _attends_to(view: VectorsView, position: int, language: Language) -> str:
    if not view.causal:
        return Words("the whole text", "整段文本").of(language)
    if position == 0:
        return Words("only itself", "只有自己").of(language)
    return Words(f"itself and {position} before it", f"自己和前面 {position} 个 token").of(language)


COMMAND = Command(
    vectors_view,
    options=(
        Option("word", str, "Word to follow through the layers."),
        Option("texts", list[str], "Texts that contain the word (same as --text, repeated)."),
        TEXTS,
        FILE,
        STEP,
        SEED,
    ),
    texts="compared",
)
