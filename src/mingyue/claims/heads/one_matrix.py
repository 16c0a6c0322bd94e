"""The projections of all heads as one matrix: the same result, in less time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.charts import Chart, LineChart
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.timing import alternating, times_as_long
from mingyue.nn import CAUSAL, MultiHeadAttention, Rotation, Taps
from mingyue.runtime import derive_seed
from mingyue.words import Language, Words

EQUAL = 1e-5
"""Largest difference that counts as rounding, where the largest value is 1."""


@torch.inference_mode()
def _measure(trial: Trial) -> Measurement:
    d_model, n_heads = 512, 8
    n_tokens, turns = trial.pick(((1, 64), 7), ((1, 16, 128, 1024), 31), ((1, 4, 16, 64, 256, 1024, 4096), 61))
    generator = torch.Generator().manual_seed(derive_seed(trial.seed, "one-matrix"))
    attention = MultiHeadAttention(d_model, n_heads, n_heads, d_model // n_heads).eval()
    attention.qkv.weight.normal_(std=d_model**-0.5, generator=generator)
    weight = attention.qkv.weight.detach()
    # Rows are [Q; K; V], each of h heads: 3·h matrices of one head, or three of all heads, cut out and laid apart.
    by_head = [part.clone() for part in weight.chunk(3 * n_heads)]
    by_kind = [part.clone() for part in weight.chunk(3)]
    rows: list[dict[str, Any]] = []
    ratios: list[Number] = []
    apart: list[float] = []
    for count in n_tokens:
        x_BTM = torch.randn(1, count, d_model, generator=generator)

        def one(x_BTM: Tensor = x_BTM) -> Tensor:
            return attention.qkv(x_BTM)

        def three(x_BTM: Tensor = x_BTM) -> list[Tensor]:
            return [F.linear(x_BTM, part) for part in by_kind]

        def each(x_BTM: Tensor = x_BTM) -> list[Tensor]:
            return [F.linear(x_BTM, part) for part in by_head]

        taps = Taps(("query", "key", "value"))
        attention(x_BTM, CAUSAL, Rotation(), taps=taps)
        used_BNTD = torch.cat([taps.values[name] for name in ("query", "key", "value")], dim=1)
        apart.append(float((used_BNTD - torch.stack(each(), dim=1)).abs().max() / used_BNTD.abs().max()))
        times = alternating({"one": one, "three": three, "each": each}, turns=turns)
        for name in ("three", "each"):
            ratio = times_as_long(times[name], times["one"])
            rows.append({"tokens": count, "way": name, "ratio": ratio.value, "low": ratio.low, "high": ratio.high})
        ratios.append(times_as_long(times["each"], times["one"]))
    numbers = {
        "apart": Number.exact(float(torch.tensor(apart).max())),
        "sizes": Number.exact(len(n_tokens)),
        "faster": Number.exact(sum(ratio.low > 1 for ratio in ratios)),
        "one_token": ratios[0],
        "most_tokens": ratios[-1],
        "width": Number.exact(weight.shape[0]),
    }
    return Measurement(numbers, {"times": rows})


def _judge(numbers: Numbers) -> Finding:
    apart, faster, n_sizes = numbers["apart"].value, numbers["faster"].value, numbers["sizes"].value
    if not apart <= EQUAL:
        return Finding(
            "does not hold here",
            Words(
                f"The results differ by {apart:.1e}, more than {EQUAL:.0e}.",
                f"结果相差 {apart:.1e}，超过 {EQUAL:.0e}。",
            ),
        )
    equal = (
        Words(f"equal to {apart:.1e}", f"相差不超过 {apart:.1e}")
        if apart
        else Words("equal to the last bit", "完全相同")
    )
    one, most = numbers["one_token"].value, numbers["most_tokens"].value
    times = Words(
        f"The results are {equal.en}. Head by head took {one:.2f} times as long for one token, "
        f"{most:.2f} times for the longest text",
        f"结果{equal.zh}。逐头计算的用时：单个 token 时为 {one:.2f} 倍，最长文本时为 {most:.2f} 倍",
    )
    if faster == n_sizes:
        return Finding("holds", Words(f"{times.en}.", f"{times.zh}。"))
    if faster:
        return Finding(
            "holds with a correction",
            Words(
                f"{times.en}; one matrix is faster at {faster:.0f} of {n_sizes:.0f} lengths, not at all of them.",
                f"{times.zh}；{n_sizes:.0f} 种长度中，合并的矩阵在 {faster:.0f} 种上更快，并非总是如此。",
            ),
        )
    return Finding(
        "does not hold here",
        Words(f"{times.en}: not faster at any length.", f"{times.zh}：哪种长度都没有更快。"),
    )


_NAMES = {
    "three": Words("three matrices: Q, K, V", "三个矩阵：Q、K、V"),
    "each": Words("24 matrices: each head its own", "24 个矩阵：每头各自一套"),
}


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    rows = [{**row, "way": _NAMES[row["way"]].of(language)} for row in measurement.tables["times"]]
    return [
        LineChart(
            Words("Time beside one matrix for all heads", "与一个合并矩阵相比的用时").of(language),
            rows,
            x="tokens",
            y="ratio",
            series="way",
            low="low",
            high="high",
            x_title=Words("tokens projected at once", "一次投影的 token 数").of(language),
            y_title=Words("times as long", "用时倍数").of(language),
            log_x=True,
            rules=[(1.0, Words("one matrix", "一个矩阵").of(language))],
            note=Words("Bands: quartiles of paired times.", "色带：成对计时的四分位区间。").of(language),
        )
    ]


CLAIM = Claim(
    name="one-matrix",
    group="heads",
    claim=Words(
        "The projections of all heads can be one matrix: the result is the same, and it is faster.",
        "所有头的投影可以合成一个大矩阵：结果相同，而且更快。",
    ),
    prediction=Words(
        f"Queries, keys and values differ by at most {EQUAL:.0e} of the largest. The lower quartile of the time "
        "ratio is above 1 at every length (holds), at some (with a correction), at none (does not hold).",
        f"Q、K、V 的差不超过最大值的 {EQUAL:.0e}。用时比的下四分位数若在每种长度上都大于 1，则成立；只在部分长度上如"
        "此，则需修正；都不大于 1，则不成立。",
    ),
    method=Words(
        "Width 512, 8 heads. The weight of this library's projection, [3·512, 512], is cut into 24 matrices of one "
        "head each; both ways project the same vectors, and take turns being timed. What the heads really use is read "
        "by taps.",
        "宽度 512，8 个头。把本库投影层的权重 [3·512, 512] 切成 24 个单头矩阵，对同样的向量各做一遍，交替计时；"
        "各头实际用到的 Q、K、V 由 taps 读出。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "apart": Words("largest difference of the results", "结果的最大差"),
        "sizes": Words("lengths of text tried", "试过的文本长度种数"),
        "faster": Words("lengths at which one matrix is faster", "合并矩阵更快的长度种数"),
        "one_token": Words("time head by head, one token (quartiles)", "逐头用时，单个 token（四分位）"),
        "most_tokens": Words("time head by head, longest text (quartiles)", "逐头用时，最长文本（四分位）"),
        "width": Words("rows of the one matrix: 3 · d_model", "合并矩阵的行数：3 · d_model"),
    },
)
