"""How the vectors of one word are drawn, tabulated and put into words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mingyue.charts import Chart, LineChart, MatrixChart, MatrixGrid, ScatterChart
from mingyue.inspection.arrays import layer_ticks, place_label, shown
from mingyue.words import Language, TextTable, Words

if TYPE_CHECKING:
    from mingyue.inspection.vectors import VectorsView

_WORD = Words("pairs of this word's vectors", "这个词的各向量之间")
_OTHERS = Words("random pairs of other tokens", "随机的其他 token 之间")
_MOST_PAIRS_TOLD = 6


def charts(view: VectorsView, language: Language) -> list[Chart]:
    """Cosines by layer, their matrices, the last one large, the plane."""
    word, labels = view.word, view.labels_N
    places = [place_label(place, language) for place in view.places_L]
    rows = []
    for tick, pairs_P, (mean, low, high) in zip(
        layer_ticks(places), view.pair_cosines_LP(), view.baseline_L3.tolist(), strict=True
    ):
        own = {"mean": float(pairs_P.mean()), "low": float(pairs_P.min()), "high": float(pairs_P.max())}
        rows.append({"layer": tick, "which": _WORD.of(language), **own})
        if np.isfinite(mean):
            rows.append({"layer": tick, "which": _OTHERS.of(language), "mean": mean, "low": low, "high": high})
    by_layer = LineChart(
        Words(f'"{word}": how alike its vectors are, layer by layer', f"“{word}”：各层里它的向量有多相似").of(language),
        rows,
        x="layer",
        y="mean",
        series="which",
        low="low",
        high="high",
        x_title=Words("from the table to the end of the model", "从词表到模型末端").of(language),
        y_title=Words("cosine", "余弦").of(language),
        note=Words(
            "Lines are means; bands go from the least to the greatest pair of the word, and from 5 % to 95 % of the "
            "random pairs.",
            "线为均值；该词的色带从最小的一对到最大的一对，随机对的色带为 5 % 到 95 %。",
        ).of(language),
    )
    note = about(view, language)
    grid = MatrixGrid(
        Words(f'"{word}": cosines between its occurrences, at each place', f"“{word}”：各处出现之间的余弦，逐层").of(
            language
        ),
        view.cosines_LNN[None],
        row_titles=[""],
        column_titles=places,
        row_labels=labels,
        column_labels=labels,
        low=min(0.0, float(view.cosines_LNN.min())),
        high=1.0,
        language=language,
    )
    last = MatrixChart(
        Words(f'"{word}": cosines at the end of the model', f"“{word}”：模型末端的余弦").of(language),
        view.cosines_LNN[-1],
        row_labels=labels,
        column_labels=labels,
        low=math.floor(10 * float(view.cosines_LNN[-1].min())) / 10,  # the differences are what one looks for
        high=1.0,
        language=language,
        note=note,
    )
    first, second = view.explained_2.tolist()
    points = [
        {"first": x, "second": y, "label": label, "text": str(row + 1)}
        for (x, y), label, row in zip(view.plane_N2.tolist(), labels, view.text_N.tolist(), strict=True)
    ]
    plane = ScatterChart(
        Words(f'"{word}": its final vectors in a plane (PCA)', f"“{word}”：末端向量的平面图（PCA）").of(language),
        points,
        x="first",
        y="second",
        label="label",
        x_title=Words(f"first direction, {first:.0%} of the variance", f"第一方向，占方差 {first:.0%}").of(language),
        y_title=Words(f"second direction, {second:.0%} of the variance", f"第二方向，占方差 {second:.0%}").of(language),
    )
    return [by_layer, grid, last, plane]


def tables(view: VectorsView, language: Language) -> list[TextTable]:
    """Cosines by layer against the baseline, and the occurrences with what they see."""
    columns = [
        Words("place", "位置"), Words("mean cosine", "平均余弦"), Words("least", "最小"), Words("greatest", "最大"),
        Words("random pairs: mean", "随机对：均值"), Words("5 %", "5 %"), Words("95 %", "95 %"),
    ]  # fmt: skip
    names = [column.of(language) for column in columns]
    rows = []
    for place, pairs_P, baseline in zip(view.places_L, view.pair_cosines_LP(), view.baseline_L3.tolist(), strict=True):
        numbers = [float(pairs_P.mean()), float(pairs_P.min()), float(pairs_P.max()), *baseline]
        rows.append([place_label(place, language), *map(shown, numbers)])
    by_layer = TextTable(
        Words(
            f'"{view.word}" in {len(view.labels_N)} places: cosines of its vectors',
            f"“{view.word}”的 {len(view.labels_N)} 处：向量之间的余弦",
        ).of(language),
        names,
        rows,
        right=names[1:],
        note=about(view, language),
    )
    headings = [
        column.of(language)
        for column in (
            Words("occurrence", "出现"),
            Words("text", "文本"),
            Words("place", "位置"),
            Words("token", "token"),
            Words("it sees", "它看得见"),
        )
    ]
    spots = [
        [label, str(row + 1), str(position), piece, _sees(view, position, language)]
        for label, row, position, piece in zip(
            view.labels_N, view.text_N.tolist(), view.position_N.tolist(), view.pieces_N, strict=True
        )
    ]
    where = TextTable(
        Words("Where it stands (texts from 1, places from 0)", "它在哪里（文本从 1 数，位置从 0 数）").of(language),
        headings,
        spots,
        right=headings[1:3],
    )
    return [by_layer, where]


def about(view: VectorsView, language: Language) -> str:
    """What has to be known to read the pictures right."""
    said: list[Words] = []
    if len(view.pieces) > 1:
        pieces = " + ".join(view.pieces)
        said.append(
            Words(
                f"The word is {len(view.pieces)} tokens ({pieces}); its vector is that of the last one.",
                f"这个词由 {len(view.pieces)} 个 token 组成（{pieces}）；取最后一个 token 的向量。",
            )
        )
    if len(set(view.token_N.tolist())) > 1:
        said.append(
            Words(
                "It does not end in the same token everywhere, so the vectors in the table differ too.",
                "它在各处的末尾 token 并不相同，所以词表里的向量也不同。",
            )
        )
    else:
        said.append(
            Words(
                "In the table that token has one vector, the same everywhere.",
                "在词表里这个 token 只有一个向量，处处相同。",
            )
        )
    said.append(_what_it_sees(view))
    if view.found > len(view.labels_N):
        said.append(
            Words(
                f"The first {len(view.labels_N)} of {view.found} occurrences are shown.",
                f"共出现 {view.found} 处，这里是前 {len(view.labels_N)} 处。",
            )
        )
    if not np.isfinite(view.baseline_L3).all():
        said.append(Words("There are no other tokens to compare with.", "没有其他 token 可供比较。"))
    return ("" if language == "zh" else " ").join(one.of(language) for one in said)


def _what_it_sees(view: VectorsView) -> Words:
    if not view.causal:
        same = _told(view, Words("stand in equal texts at the same place", "处在相同文本的相同位置"))
        seen = Words("In the encoder every token sees its whole text.", "在编码器里，每个 token 都看得见整段文本。")
        return seen if same is None else Words(f"{seen.en} {same.en}", f"{seen.zh}{same.zh}")
    seen = Words(
        "In this model a token sees only itself and what stands before it.",
        "在这个模型里，一个 token 只看得见自己和它前面的内容。",
    )
    same = _told(view, Words("have the same tokens before them (or none)", "前面的 token 完全相同（或前面什么都没有）"))
    if same is None:
        return seen
    return Words(
        f"{seen.en} {same.en} Show the word after different words.",
        f"{seen.zh}{same.zh}请把这个词放在不同的词后面再看。",
    )


def _told(view: VectorsView, why: Words) -> Words | None:
    if not view.alike:
        return None
    pairs = [f"{one + 1}–{other + 1}" for one, other in view.alike]
    few = pairs[:_MOST_PAIRS_TOLD]
    more = len(pairs) - len(few)
    en = ", ".join(few) + (f" and {more} more" if more else "")
    zh = "、".join(few) + (f" 等 {len(pairs)} 对" if more else "")
    return Words(
        f"Occurrences {en} {why.en}: their vectors cannot differ, at any layer (measured: {view.alike_apart:.0e}).",
        f"第 {zh} 处{why.zh}：它们的向量在任何一层都不可能不同（实测差 {view.alike_apart:.0e}）。",
    )


def _sees(view: VectorsView, position: int, language: Language) -> str:
    if not view.causal:
        return Words("the whole text", "整段文本").of(language)
    if position == 0:
        return Words("only itself", "只有自己").of(language)
    return Words(f"itself and {position} before it", f"自己和前面 {position} 个 token").of(language)
