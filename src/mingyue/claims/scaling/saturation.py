"""Claim: without scaling, softmax over many dimensions goes to one-hot and its gradient vanishes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mingyue.charts import LineChart
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import seeds
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

KEYS = 32
VANISHED = 1e-3
"""A Jacobian of a smaller norm lets nothing through."""
ONE_HOT = 0.95
"""A median largest weight above this is called one-hot."""
FALLS = 0.01
"""Without scaling the median Jacobian must fall to this share of what it is at the least width, or below."""
STAYS = 1.5
"""With scaling, medians may change by this factor at most."""
_ARMS = {"plain": Words("not scaled", "不缩放"), "scaled": Words("scaled by √d_k", "除以 √d_k")}
_TOP = 0.1
_PIECE = 512


def measure(trial: Trial) -> Measurement:
    """Largest weight, norm of the softmax Jacobian and of the gradient that reaches the query, by width and arm."""
    widths = trial.pick((4, 64, 1024), tuple(4**power for power in range(1, 7)), tuple(4**p for p in range(1, 8)))
    n_rows = trial.pick(512, 2048, 8192)
    chosen = seeds(trial, 3, 8, 16)
    rows: list[dict[str, Any]] = []
    numbers = {"least_width": Number.exact(widths[0]), "most_width": Number.exact(widths[-1])}
    for arm in _ARMS:
        for width in widths:
            found = [_medians(width, n_rows, arm == "scaled", seed) for seed in chosen]
            means = {name: Number.mean([one[name] for one in found]) for name in found[0]}
            row: dict[str, Any] = {"d_k": width, "arm": arm}
            for name, number in means.items():
                row |= {name: number.value, f"{name}_low": number.low, f"{name}_high": number.high}
            rows.append(row)
            for end, at in (("least", widths[0]), ("most", widths[-1])):
                if width == at:
                    numbers |= {f"{arm}_{name}_{end}": number for name, number in means.items()}
    return Measurement(numbers, {"rows": rows})


def _medians(width: int, n_rows: int, scaled: bool, seed: int) -> dict[str, float]:
    draw = torch.Generator().manual_seed(seed)
    factor = 1 / math.sqrt(width) if scaled else 1.0
    largest, jacobians, gradients = list[Tensor](), list[Tensor](), list[Tensor]()
    for start in range(0, n_rows, _PIECE):
        count = min(_PIECE, n_rows - start)
        query_ND = torch.randn(count, width, generator=draw)
        key_SD = torch.randn(KEYS, width, generator=draw)
        weights_NS = (factor * query_ND @ key_SD.T).double().softmax(-1)  # in fp32, 1 − p would be 0 too soon
        # ∂weights/∂scores = diag(p) − p pᵀ
        jacobian_NSS = torch.diag_embed(weights_NS) - weights_NS[:, :, None] * weights_NS[:, None, :]
        jacobians.append(jacobian_NSS.flatten(1).norm(dim=-1))
        # ‖J K‖² = Σ (J K Kᵀ) ∘ J: never a [S, D] matrix a row.
        products_SS = (key_SD @ key_SD.T).double()
        gradients.append(factor * ((jacobian_NSS @ products_SS) * jacobian_NSS).sum((1, 2)).clamp(min=0).sqrt())
        largest.append(weights_NS.amax(-1))
    jacobian_N, gradient_N = torch.cat(jacobians), torch.cat(gradients)
    ordered_N = gradient_N.sort(descending=True).values
    return {
        "largest": float(torch.cat(largest).median()),
        "jacobian": float(jacobian_N.median()),
        "vanished": float((jacobian_N < VANISHED).float().mean()),
        "gradient_median": float(gradient_N.median()),
        "gradient_mean": float(gradient_N.mean()),
        "top_share": float(ordered_N[: round(_TOP * n_rows)].sum() / ordered_N.sum()),
    }


def judge(numbers: Numbers) -> Finding:
    """Medians without scaling collapse and with scaling stay; if the mean does not collapse too, a correction."""
    value = {name: number.value for name, number in numbers.items()}
    one_hot = value["plain_largest_most"] >= ONE_HOT
    falls = value["plain_jacobian_most"] <= FALLS * value["plain_jacobian_least"]
    stays = (
        max(
            _factor(value["scaled_largest_least"], value["scaled_largest_most"]),
            _factor(value["scaled_jacobian_least"], value["scaled_jacobian_most"]),
        )
        <= STAYS
        and value["scaled_vanished_most"] == 0
    )
    mean_stays = value["plain_gradient_mean_most"] >= value["plain_gradient_mean_least"]
    verdict = "holds with a correction" if mean_stays else "holds"
    first, last = f"{value['least_width']:g}", f"{value['most_width']:g}"
    return Finding(
        verdict if one_hot and falls and stays else "does not hold here",
        Words(
            f"Without scaling, from d_k = {first} to {last}, the median largest weight goes from "
            f"{value['plain_largest_least']:.2f} to {value['plain_largest_most']:.3f}, the median ‖J‖ from "
            f"{value['plain_jacobian_least']:.2g} to {value['plain_jacobian_most']:.2g}; in "
            f"{value['plain_vanished_most']:.0%} of rows it is below {VANISHED:g}. Scaled, ‖J‖ is "
            f"{value['scaled_jacobian_least']:.2g} and {value['scaled_jacobian_most']:.2g}. The mean gradient at an "
            f"unscaled query goes from {value['plain_gradient_mean_least']:.2g} to "
            f"{value['plain_gradient_mean_most']:.2g}, and a tenth of the rows carry "
            f"{value['plain_top_share_most']:.0%} of it.",
            f"不缩放时，d_k 从 {first} 到 {last}，最大权重的中位数从 {value['plain_largest_least']:.2f} 升到 "
            f"{value['plain_largest_most']:.3f}，‖J‖ 的中位数从 {value['plain_jacobian_least']:.2g} 降到 "
            f"{value['plain_jacobian_most']:.2g}，{value['plain_vanished_most']:.0%} 的行低于 {VANISHED:g}。"
            f"缩放后 ‖J‖ 为 {value['scaled_jacobian_least']:.2g} 与 {value['scaled_jacobian_most']:.2g}。"
            f"不缩放时，查询处梯度的均值从 {value['plain_gradient_mean_least']:.2g} 变为 "
            f"{value['plain_gradient_mean_most']:.2g}，其中 {value['plain_top_share_most']:.0%} 集中在一成的行里。",
        ),
    )


def _factor(one: float, other: float) -> float:
    return max(one, other) / min(one, other) if min(one, other) > 0 else math.inf


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """Median Jacobian, and median and mean of the gradient at the query, against d_k."""
    zh = language == "zh"
    note = "色带为各随机种子的 95 % 区间。" if zh else "Bands: 95 % intervals over seeds."
    rows = [{**row, "arm": _ARMS[row["arm"]].of(language)} for row in measurement.tables["rows"]]
    kinds = {"gradient_median": "中位数" if zh else "median", "gradient_mean": "均值" if zh else "mean"}
    gradients = [
        {"d_k": row["d_k"], "series": f"{row['arm']}{'，' if zh else ', '}{word}", "value": row[kind],
         "low": row[f"{kind}_low"], "high": row[f"{kind}_high"]}
        for row in rows for kind, word in kinds.items()
    ]  # fmt: skip
    return [
        LineChart(
            "softmax 的雅可比矩阵：中位数" if zh else "The Jacobian of softmax: median over rows",
            rows, x="d_k", y="jacobian", series="arm", low="jacobian_low", high="jacobian_high",
            x_title="d_k", y_title="‖J‖", log_x=True, log_y=True, note=note,
        ),
        LineChart(
            "到达查询的梯度：多数行没有，少数行承担全部" if zh
            else "The gradient that reaches the query: most rows get none, a few carry all",
            gradients, x="d_k", y="value", series="series", low="low", high="high",
            x_title="d_k", y_title="‖∂p/∂q‖", log_x=True, log_y=True, note=note,
        ),
    ]  # fmt: skip


def _labels() -> dict[str, Words]:
    names = {
        "largest": Words("median largest weight", "最大权重的中位数"),
        "jacobian": Words("median ‖J‖", "‖J‖ 的中位数"),
        "vanished": Words(f"share of rows with ‖J‖ < {VANISHED:g}", f"‖J‖ < {VANISHED:g} 的行所占比例"),
        "gradient_median": Words("median ‖∂p/∂q‖", "‖∂p/∂q‖ 的中位数"),
        "gradient_mean": Words("mean ‖∂p/∂q‖", "‖∂p/∂q‖ 的均值"),
        "top_share": Words("share of ‖∂p/∂q‖ in a tenth of the rows", "一成的行占 ‖∂p/∂q‖ 的比例"),
    }
    ends = {"least": Words("at the least d_k", "d_k 最小时"), "most": Words("at the largest d_k", "d_k 最大时")}
    labels = {"least_width": Words("least d_k", "最小的 d_k"), "most_width": Words("largest d_k", "最大的 d_k")}
    for arm, arm_words in _ARMS.items():
        for name, words in names.items():
            for end, at in ends.items():
                labels[f"{arm}_{name}_{end}"] = Words(
                    f"{arm_words.en}: {words.en}, {at.en}", f"{arm_words.zh}：{words.zh}（{at.zh}）"
                )
    return labels


CLAIM = Claim(
    name="saturation",
    group="scaling",
    claim=Words(
        "Without the division by √d_k, a large d_k pushes softmax into a region where its gradient is close to 0.",
        "若不除以 √d_k，d_k 很大时 softmax 会落入梯度接近 0 的饱和区。",
    ),
    prediction=Words(
        f"Queries and keys of variance 1, {KEYS} keys. Without scaling, at the largest d_k: median largest weight at "
        f"least "
        f"{ONE_HOT}, median ‖J‖ at most {FALLS:g} of what it is at the least d_k. With scaling both change by a "
        f"factor of "
        f"{STAYS} at most, and no row has ‖J‖ < {VANISHED:g}. If the mean gradient does not fall too, the claim needs "
        f"a "
        "correction.",
        f"查询与键方差为 1，{KEYS} 个键。不缩放时，在最大的 d_k 处：最大权重的中位数不低于 {ONE_HOT}，‖J‖ "
        f"的中位数不超过最小 d_k "
        f"处的 {FALLS:g} 倍。缩放后两者的变化都不超过 {STAYS} 倍，且没有一行 ‖J‖ < {VANISHED:g}。"
        f"若梯度的均值并不随之下降，则需修正。",
    ),
    method=Words(
        "For random rows of scores, the weights p, the Frobenius norm of J = diag(p) − ppᵀ, and the norm of the "
        "gradient that "
        "reaches the query, J·K (times 1/√d_k where scaled).",
        "对随机的各行分数，计算权重 p、J = diag(p) − ppᵀ 的 Frobenius 范数，以及到达查询的梯度 J·K（缩放时再乘 "
        "1/√d_k）的范数。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels=_labels(),
    correction=Words(
        "It is the typical row that gets no gradient. The mean does not vanish: the keys are longer, too, and the few "
        "rows "
        "whose two largest scores are close carry nearly all of it. Training becomes jumpy and slow, not silent.",
        "得不到梯度的是典型的行。均值并不消失：键也变长了，少数“前两名分数接近”的行承担了几乎全部梯度。"
        "训练因此变得跳动而缓慢，而不是没有信号。",
    ),
)
