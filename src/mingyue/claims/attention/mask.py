"""Claim: the causal mask hides the future exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mingyue.charts import MatrixChart
from mingyue.claims.attention.figures import matrix_rows, worst
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import seeds, tiny
from mingyue.nn import CAUSAL, Attend, Taps, explicit_attention
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

ROUNDING = 1e-5
_CHARACTERS = "床前明月"
_WIDTH, _VOCABULARY = 16, 50
_LARGE = -1e9
"""The constant that is often added in place of −∞."""


def measure(trial: Trial) -> Measurement:
    """The 5 × 5 mask, what is added to scores and in which number format, and a model whose future is changed."""
    hidden_TS = torch.tensor([[int(key > query) for key in range(5)] for query in range(5)])  # 1 = hidden
    drawn = Attend.from_hidden(hidden_TS).matrix(5, 5) != CAUSAL.matrix(5, 5)
    above, constant, first = list[float](), list[float](), list[float]()
    future, without, sums = list[float](), list[float](), list[float]()
    chosen = seeds(trial, 2, 5, 20)
    for seed in chosen:
        scores_TS, weights_TS = _scores(seed)
        first.append(float((weights_TS[0] - torch.tensor([1.0, 0.0, 0.0, 0.0])).abs().max()))
        infinite_TS = _added(scores_TS, float("-inf"))
        above += [float(infinite_TS.triu(1).abs().max()), float(weights_TS.triu(1).abs().max())]
        constant.append(float((_added(scores_TS, _LARGE) - infinite_TS).abs().max()))
        for model, found in (("decoder-only", future), ("encoder-decoder", without)):
            before, after = _changed(model, seed)
            found.append(float((before - after).abs().max()))
        sums.append(float((scores_TS.sum(-1) - 1).abs().median()))
    half = torch.tensor(_LARGE).to(torch.float16)
    # A row that may see nothing: −∞ everywhere divides 0 by 0, a finite constant makes it look everywhere.
    empty = torch.zeros(1, 4)
    numbers = {
        "mask_cells_that_differ": Number.exact(float(drawn.sum())),
        "above_diagonal": worst(above),
        "first_row_error": worst(first),
        "constant_fp32": worst(constant),
        "constant_fp16_overflows": Number.exact(float(torch.isinf(half))),
        "empty_row_is_nan": Number.exact(float((empty + float("-inf")).softmax(-1).isnan().any())),
        "future_changes_past": worst(future),
        "future_without_mask": Number.median(without),
        "sum_of_scores_off": Number.median(sums),
    }
    scores_TS, weights_TS = _scores(trial.seed)
    tables = {"scores": matrix_rows(scores_TS.tolist()), "weights": matrix_rows(weights_TS.tolist())}
    return Measurement(numbers, tables)


def _scores(seed: int) -> tuple[Tensor, Tensor]:
    """(scores_TS before mask and softmax, weights_TS after both) of four random tokens under the causal mask."""
    draw = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(1, 1, len(_CHARACTERS), _WIDTH, generator=draw) for _ in range(3))
    taps = Taps(["scores", "weights"])
    explicit_attention(query, key, value, CAUSAL, taps=taps)
    return taps.values["scores"][0, 0], taps.values["weights"][0, 0]


def _added(scores_TS: Tensor, constant: float) -> Tensor:
    """Weights when `constant` is added to the scores above the diagonal."""
    hidden_TS = torch.ones_like(scores_TS).triu(1).bool()
    return (scores_TS + torch.zeros_like(scores_TS).masked_fill(hidden_TS, constant)).softmax(-1)


@torch.no_grad()
def _changed(architecture: str, seed: int) -> tuple[Tensor, Tensor]:
    """Vectors of the first half of a text, before and after its second half is replaced."""
    draw = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(_VOCABULARY, (4, 16), generator=draw)
    other_BT = ids_BT.clone()
    other_BT[:, 8:] = torch.randint(_VOCABULARY, (4, 8), generator=draw)
    if architecture == "decoder-only":
        model = tiny(_VOCABULARY, context=16, seed=seed, initialisation="xavier")
        return model(ids_BT)[:, :8], model(other_BT)[:, :8]
    pairs = tiny(_VOCABULARY, context=16, seed=seed, architecture="encoder-decoder", initialisation="xavier")
    return pairs.encode(ids_BT)[:, :8], pairs.encode(other_BT)[:, :8]


def judge(numbers: Numbers) -> Finding:
    """Hidden cells exactly 0 and no change of the past; the constant may need a correction."""
    value = {name: number.value for name, number in numbers.items()}
    exact = value["above_diagonal"] == 0 and value["mask_cells_that_differ"] == 0 and value["constant_fp32"] == 0
    shut = max(value["first_row_error"], value["future_changes_past"]) <= ROUNDING
    control = value["future_without_mask"] > 100 * ROUNDING
    overflows = value["constant_fp16_overflows"] == 1
    verdict = "holds with a correction" if overflows else "holds"
    return Finding(
        verdict if exact and shut and control else "does not hold here",
        Words(
            f"Weights above the diagonal are {value['above_diagonal']:g}; −1e9 in place of −∞ changes them by "
            f"{value['constant_fp32']:g} in fp32 and {'is −∞ itself' if overflows else 'stays finite'} in fp16. "
            f"Another future changes past logits by {value['future_changes_past']:.1g}; without the mask it changes "
            f"past vectors by {value['future_without_mask']:.2g}.",
            f"对角线以上的权重是 {value['above_diagonal']:g}；用 −1e9 代替 −∞，在 fp32 中相差 "
            f"{value['constant_fp32']:g}，在 fp16 中{'溢出成 −∞ 本身' if overflows else '仍是有限的数'}。换掉后面的字，"
            f"前面的 logit 变化 {value['future_changes_past']:.1g}；没有掩码时，前面的向量变化 "
            f"{value['future_without_mask']:.2g}。",
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """The same four characters before and after mask and softmax."""
    zh = language == "zh"
    titles = {
        "scores": "分数（score）：掩码与 softmax 之前" if zh else "Scores: before mask and softmax",
        "weights": "权重（weight）：掩码与 softmax 之后" if zh else "Weights: after mask and softmax",
    }
    return [
        MatrixChart(
            title,
            np.array([row["values"] for row in measurement.tables[name]]),
            row_labels=list(_CHARACTERS),
            column_labels=list(_CHARACTERS),
            row_title="谁在看" if zh else "who looks",
            column_title="看谁" if zh else "at whom",
            low=None if name == "scores" else 0.0,
            high=None if name == "scores" else 1.0,
            diverging=name == "scores",
            language=language,
        )
        for name, title in titles.items()
    ]


CLAIM = Claim(
    name="mask",
    group="attention",
    claim=Words(
        "A lower-triangular mask, added to the scores as −∞ (or −1e9) before softmax, makes the weights of all later "
        "tokens exactly 0: the first row becomes [1, 0, 0, 0], and no token sees its future.",
        "下三角掩码在 softmax 之前以 −∞（或 −1e9）加到分数上，后面各字的权重就恰好是 0：第一行成为 [1, 0, 0, 0]，没有"
        "一个字看得到未来。",
    ),
    prediction=Words(
        "Hidden weights exactly 0; −1e9 exactly as good in fp32; a changed future moves no past logit by more than "
        f"{ROUNDING:g}, where without the mask it moves vectors by more than {100 * ROUNDING:g}.",
        f"被遮的权重恰好为 0；在 fp32 中 −1e9 完全一样；换掉未来，过去的 logit 变化不超过 {ROUNDING:g}，而没有掩码时向"
        f"量的变化超过 {100 * ROUNDING:g}。",
    ),
    method=Words(
        "The 5 × 5 matrix with 1 = hidden is compared with the causal mask in use. Random scores of four tokens get "
        "−∞ and −1e9 added above the diagonal. In a small model with random weights the second half of a text is "
        "replaced; an encoder, which has no mask, is the control.",
        "把“1 = 遮挡”的 5 × 5 矩阵与实际使用的因果掩码比较。四个字的随机分数，在对角线以上分别加 −∞ 与 −1e9。在随机权"
        "重的小模型里换掉后半段文字；没有掩码的编码器作对照。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        "mask_cells_that_differ": Words("cells in which the two masks differ", "两种掩码不同的格子数"),
        "above_diagonal": Words("largest weight above the diagonal", "对角线以上最大的权重"),
        "first_row_error": Words("largest |first row − [1, 0, 0, 0]|", "第一行与 [1, 0, 0, 0] 的最大差"),
        "constant_fp32": Words("−1e9 against −∞ in fp32: largest difference", "fp32 中 −1e9 与 −∞ 的最大差"),
        "constant_fp16_overflows": Words("−1e9 overflows in fp16 (1 = yes)", "fp16 中 −1e9 溢出（1 = 是）"),
        "empty_row_is_nan": Words("a row of nothing but −∞ is NaN (1 = yes)", "全是 −∞ 的一行得到 NaN（1 = 是）"),
        "future_changes_past": Words("change of past logits by another future", "换掉未来，过去 logit 的变化"),
        "future_without_mask": Words("the same without a mask (vectors of an encoder)", "没有掩码时（编码器的向量）"),
        "sum_of_scores_off": Words("median |sum of a row of scores − 1|", "一行分数之和与 1 的差（中位数）"),
    },
    correction=Words(
        "`Score` is used for two things: the number before softmax (any size, rows sum to anything) and the weight "
        "after it (rows sum to 1). Here they are called score and weight. And −1e9 does not exist in fp16, whose "
        "largest number is 65504: it becomes −∞, and a row in which everything is hidden becomes NaN.",
        "“score”一词常指两样东西：softmax 之前的数（大小不限，行和任意）与之后的权重（行和为 1）。这里分别叫分数与权"
        "重。另外 fp16 的最大数是 65504，没有 −1e9：它会变成 −∞，全被遮住的一行就成了 NaN。",
    ),
)
