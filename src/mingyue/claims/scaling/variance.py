"""Claim: dot products of d_k components have variance d_k, and dividing by √d_k makes it 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mingyue.charts import LineChart
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import seeds
from mingyue.nn import EVERYONE, Taps, explicit_attention
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

RATIO = 0.1
"""Most that variance ÷ d_k, and the variance after scaling, may be away from 1."""
CENTRE = 0.05
"""Most that the mean may be away from 0, in standard deviations."""
_KINDS = {"normal": Words("normal", "正态分布"), "signs": Words("±1", "±1")}
_QUERIES, _KEYS = 64, 64
_NOTE = Words(
    "Bands: 95 % intervals over seeds. Dashed: components of ±1; their lines lie on those of normal ones.",
    "色带为各随机种子的 95 % 区间。虚线：分量为 ±1，与正态分布的线重合。",
)


def measure(trial: Trial) -> Measurement:
    """Variance and mean of q·k and of q·k/√d_k over random pairs, for each width, kind of components and seed."""
    widths = trial.pick((4, 64, 1024), tuple(2**power for power in range(2, 11)), tuple(2**p for p in range(2, 13)))
    chosen = seeds(trial, 3, 10, 30)
    rows: list[dict[str, Any]] = []
    ratios, scaled, centres = list[Number](), list[Number](), list[Number]()
    slopes: list[float] = []
    for kind in _KINDS:
        found = [[_moments(kind, width, seed) for width in widths] for seed in chosen]
        slopes += [_slope(widths, [variance for variance, _, _ in by_width]) for by_width in found]
        for place, width in enumerate(widths):
            plain = Number.mean([by_width[place][0] for by_width in found])
            after = Number.mean([by_width[place][1] for by_width in found])
            centres.append(Number.mean([by_width[place][2] / math.sqrt(width) for by_width in found]))
            ratios.append(Number(plain.value / width, plain.low / width, plain.high / width))
            scaled.append(after)
            for what, number in (("plain", plain), ("scaled", after)):
                rows.append({"d_k": width, "kind": kind, "what": what, **_ends(number)})
    numbers = {
        "least_width": Number.exact(widths[0]),
        "most_width": Number.exact(widths[-1]),
        "slope": Number.mean(slopes),
        "ratio_least": min(ratios, key=lambda number: number.value),
        "ratio_most": max(ratios, key=lambda number: number.value),
        "scaled_least": min(scaled, key=lambda number: number.value),
        "scaled_most": max(scaled, key=lambda number: number.value),
        "mean_most": max(centres, key=lambda number: abs(number.value)),
    }
    return Measurement(numbers, {"variance": rows})


def _ends(number: Number) -> dict[str, float]:
    return {"value": number.value, "low": number.low, "high": number.high}


def _moments(kind: str, width: int, seed: int) -> tuple[float, float, float]:
    """(variance of q·k, variance of the scores that attention makes of them, mean of q·k)."""
    draw = torch.Generator().manual_seed(seed)

    def components(count: int) -> Tensor:
        if kind == "normal":
            return torch.randn(1, 1, count, width, generator=draw)
        return torch.randint(2, (1, 1, count, width), generator=draw) * 2.0 - 1.0

    query_BHTD, key_BHSD = components(_QUERIES), components(_KEYS)
    taps = Taps("scores")
    explicit_attention(query_BHTD, key_BHSD, key_BHSD, EVERYONE, taps=taps)
    products = query_BHTD @ key_BHSD.transpose(-2, -1)
    return float(products.var()), float(taps.values["scores"].var()), float(products.mean())


def _slope(widths: Sequence[int], variances: Sequence[float]) -> float:
    """Slope of log variance against log d_k, by least squares."""
    x = torch.tensor(widths, dtype=torch.float64).log()
    y = torch.tensor(variances, dtype=torch.float64).log()
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def judge(numbers: Numbers) -> Finding:
    """Variance ÷ d_k and variance after scaling near 1 at every width, the mean near 0."""
    value = {name: number.value for name, number in numbers.items()}
    grows = max(abs(value["ratio_least"] - 1), abs(value["ratio_most"] - 1)) <= RATIO
    stays = max(abs(value["scaled_least"] - 1), abs(value["scaled_most"] - 1)) <= RATIO
    centred = abs(value["mean_most"]) <= CENTRE
    return Finding(
        "holds" if grows and stays and centred else "does not hold here",
        Words(
            f"From d_k = {value['least_width']:g} to {value['most_width']:g} the variance of q·k is between "
            f"{value['ratio_least']:.3f} and {value['ratio_most']:.3f} times d_k (slope {value['slope']:.3f} on "
            f"log-log "
            f"axes); after division by √d_k it is between {value['scaled_least']:.3f} and {value['scaled_most']:.3f}. "
            f"The mean is at most {abs(value['mean_most']):.3f} standard deviations from 0.",
            f"d_k 从 {value['least_width']:g} 到 {value['most_width']:g}，q·k 的方差是 d_k 的 "
            f"{value['ratio_least']:.3f} 到 "
            f"{value['ratio_most']:.3f} 倍（双对数坐标下斜率 {value['slope']:.3f}）；除以 √d_k 之后，方差在 "
            f"{value['scaled_least']:.3f} 与 {value['scaled_most']:.3f} 之间。均值偏离 0 不超过 "
            f"{abs(value['mean_most']):.3f} 个标准差。",
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """Variance against d_k, before and after scaling, for both kinds of components."""
    zh = language == "zh"
    what = {"plain": "q·k", "scaled": "q·k / √d_k"}
    rows = [
        {**row, "series": f"{what[row['what']]}，{_KINDS[row['kind']].zh}" if zh
         else f"{what[row['what']]}, {_KINDS[row['kind']].en}"}
        for row in measurement.tables["variance"]
    ]  # fmt: skip
    return [
        LineChart(
            "点积的方差随 d_k 增长；除以 √d_k 后不再增长" if zh else "The variance of dot products against d_k",
            rows,
            x="d_k",
            y="value",
            series="series",
            low="low",
            high="high",
            x_title="d_k",
            y_title="方差" if zh else "variance",
            log_x=True,
            log_y=True,
            dashed=[row["series"] for row in rows if row["kind"] == "signs"],
            note=_NOTE.of(language),
        )
    ]


CLAIM = Claim(
    name="variance",
    group="scaling",
    claim=Words(
        "If the components of q and k are independent with mean 0 and variance 1, then q·k has mean 0 and variance "
        "d_k; "
        "division by √d_k brings the variance back to 1.",
        "若 q 与 k 的各分量相互独立、均值为 0、方差为 1，则 q·k 的均值为 0、方差为 d_k；除以 √d_k 后方差回到 1。",
    ),
    prediction=Words(
        f"At every d_k, variance ÷ d_k and the variance after scaling are within {RATIO} of 1, and the mean is within "
        f"{CENTRE} standard deviations of 0.",
        f"对每个 d_k，方差 ÷ d_k 以及缩放后的方差与 1 相差不超过 {RATIO}，均值偏离 0 不超过 {CENTRE} 个标准差。",
    ),
    method=Words(
        "Random queries and keys, with normal components and, since the claim needs no normal distribution, with "
        f"components that are +1 or −1; {_QUERIES} queries by {_KEYS} keys for each seed. The scaled scores are those "
        f"that the "
        "attention of this library makes.",
        "随机生成查询与键：分量取正态分布；又因论断并不要求正态，另取 +1 或 −1。"
        f"每个种子 {_QUERIES} 个查询、{_KEYS} 个键。缩放后的分数取自本库的注意力。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        "least_width": Words("least d_k", "最小的 d_k"),
        "most_width": Words("largest d_k", "最大的 d_k"),
        "slope": Words("slope of log variance against log d_k", "log 方差对 log d_k 的斜率"),
        "ratio_least": Words("least variance ÷ d_k", "方差 ÷ d_k，最小值"),
        "ratio_most": Words("largest variance ÷ d_k", "方差 ÷ d_k，最大值"),
        "scaled_least": Words("least variance after scaling", "缩放后的方差，最小值"),
        "scaled_most": Words("largest variance after scaling", "缩放后的方差，最大值"),
        "mean_most": Words("mean furthest from 0, in standard deviations", "离 0 最远的均值（以标准差计）"),
    },
)
