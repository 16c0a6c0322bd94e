"""Claim: dot-product attention equals additive attention at small d_k, and needs its scale to do so at large d_k."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.charts import BarChart
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import fit, seeds
from mingyue.nn import EVERYONE, explicit_attention
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

FACTOR = 1.5
"""Steps that differ by less than this factor are called alike."""
ACCURACY = 0.9
KEYS = 32
_SYMBOLS, _INPUT, _CLASSES, _VALUE = 64, 32, 8, 16
_CHECK_EVERY, _TEST = 10, 128
_ARMS = {
    "additive": Words("additive", "加性"),
    "plain": Words("dot product", "点积"),
    "scaled": Words("dot product ÷ √d_k", "点积 ÷ √d_k"),
}


@dataclass(frozen=True)
class _Task:
    """keys_EBS: different symbols; values_EBS: a class for each; query_EB: one of the keys; target_EB: its class.

    E counts seeds: models of several seeds are trained side by side, each with its own data.
    """

    keys_EBS: Tensor
    values_EBS: Tensor
    query_EB: Tensor
    target_EB: Tensor


def _tasks(chosen: Sequence[int], rows: int, step: int) -> _Task:
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for seed in chosen:
        draw = torch.Generator().manual_seed(1_000_003 * seed + step)
        keys_BS = torch.rand(rows, _SYMBOLS, generator=draw).argsort(-1)[:, :KEYS]
        values_BS = torch.randint(_CLASSES, (rows, KEYS), generator=draw)
        parts.append((keys_BS, values_BS, torch.randint(KEYS, (rows, 1), generator=draw)))
    keys_EBS, values_EBS, asked_EB1 = (torch.stack(part) for part in zip(*parts, strict=True))
    query_EB, target_EB = keys_EBS.gather(-1, asked_EB1)[..., 0], values_EBS.gather(-1, asked_EB1)[..., 0]
    return _Task(keys_EBS, values_EBS, query_EB, target_EB)


class _Retrieval(nn.Module):
    """One query looks at 32 keys and reads a value: logits of its class. Everything begins with variance 1."""

    def __init__(self, arm: str, width: int, chosen: Sequence[int]) -> None:
        super().__init__()
        self.arm = arm
        draws = [torch.Generator().manual_seed(seed) for seed in chosen]

        def normal(rows: int, columns: int, variance: float = 1.0) -> Tensor:
            return torch.stack([torch.randn(rows, columns, generator=draw) for draw in draws]) * math.sqrt(variance)

        self.register_buffer("symbols_EVI", normal(_SYMBOLS, _INPUT))
        self.to_query_EID = nn.Parameter(normal(_INPUT, width, 1 / _INPUT))
        self.to_key_EID = nn.Parameter(normal(_INPUT, width, 1 / _INPUT))
        self.to_score_ED1 = nn.Parameter(normal(width, 1, 1 / width)) if arm == "additive" else None
        self.values_ECU = nn.Parameter(normal(_CLASSES, _VALUE))
        self.output_EUC = nn.Parameter(normal(_VALUE, _CLASSES, 1 / _VALUE))

    def forward(self, task: _Task) -> Tensor:
        """logits_EBC."""
        seed_E1 = torch.arange(len(task.query_EB))[:, None]
        symbols_EVI = self.get_buffer("symbols_EVI")
        query_EBD = (symbols_EVI @ self.to_query_EID)[seed_E1, task.query_EB]
        key_EBSD = (symbols_EVI @ self.to_key_EID)[seed_E1[..., None], task.keys_EBS]
        value_EBSU = self.values_ECU[seed_E1[..., None], task.values_EBS]
        if self.arm == "scaled":  # this library's attention
            query_PHTD, key_PGSD = query_EBD.flatten(0, 1)[:, None, None], key_EBSD.flatten(0, 1)[:, None]
            heads_PHTU, _ = explicit_attention(query_PHTD, key_PGSD, value_EBSU.flatten(0, 1)[:, None], EVERYONE)
            return heads_PHTU[:, 0, 0].view(*query_EBD.shape[:2], -1) @ self.output_EUC
        if self.to_score_ED1 is not None:  # v·tanh(W q + U k): Bahdanau et al. 2015, section A.1.2
            mixed_EBSD = torch.tanh(key_EBSD + query_EBD[:, :, None])
            scores_EBS = (mixed_EBSD @ self.to_score_ED1[:, None])[..., 0]
        else:
            scores_EBS = (key_EBSD @ query_EBD[..., None])[..., 0]
        return (scores_EBS.softmax(-1)[:, :, None] @ value_EBSU)[:, :, 0] @ self.output_EUC


def _loss(model: _Retrieval, task: _Task) -> Tensor:
    logits_EBC = model(task)
    return len(logits_EBC) * F.cross_entropy(logits_EBC.flatten(0, 1), task.target_EB.flatten())  # a mean for each seed


def _steps_needed(
    arm: str, width: int, rate: float, *, chosen: Sequence[int], steps: int, rows: int
) -> list[tuple[int, float]]:
    """For each seed the step at which its accuracy is first 90 % (`steps` if it never is), and its last accuracy."""
    model, test = _Retrieval(arm, width, chosen), _tasks(chosen, _TEST, -1)
    reached: list[int | None] = [None] * len(chosen)
    last = [0.0] * len(chosen)
    asked = 0

    def until(model: _Retrieval) -> bool:
        nonlocal asked
        asked += _CHECK_EVERY
        last[:] = (model(test).argmax(-1) == test.target_EB).float().mean(-1).tolist()
        for place, right in enumerate(last):
            if reached[place] is None and right >= ACCURACY:
                reached[place] = asked
        return None not in reached

    fit(model, lambda step: _tasks(chosen, rows, step), _loss, steps=steps, learning_rate=rate, warmup=0.0,
        decay=False, clip=0.0, until=until, check_every=_CHECK_EVERY)  # fmt: skip
    return [(steps if step is None else step, right) for step, right in zip(reached, last, strict=True)]


def measure(trial: Trial) -> Measurement:
    """Steps to 90 % for three ways to score, by width: the best of several learning rates for each."""
    widths = trial.pick((16, 128), (8, 64, 256), (8, 64, 256, 512))
    rates = trial.pick((2e-2,), (3e-3, 1e-2, 3e-2), (1e-3, 3e-3, 1e-2, 3e-2))
    steps, rows = trial.pick((120, 32), (400, 32), (1500, 32))
    chosen = seeds(trial, 1, 5, 10)
    table: list[dict[str, Any]] = []
    numbers = {
        "least_width": Number.exact(widths[0]),
        "most_width": Number.exact(widths[-1]),
        "steps": Number.exact(steps, "steps"),
    }
    for width in widths:
        for arm in _ARMS:
            tried = {rate: _steps_needed(arm, width, rate, chosen=chosen, steps=steps, rows=rows) for rate in rates}
            rate = min(tried, key=lambda rate, tried=tried: _worth(tried[rate]))
            needed = Number.median([float(step) for step, _ in tried[rate]], "steps")
            there = sum(step < steps or right >= ACCURACY for step, right in tried[rate])
            table.append({"d_k": str(width), "arm": arm, "value": needed.value, "low": needed.low, "high": needed.high,
                          "rate": rate})  # fmt: skip
            for end, at in (("least", widths[0]), ("most", widths[-1])):
                if width == at:
                    numbers[f"{arm}_{end}"] = needed
                    numbers[f"{arm}_{end}_there"] = Number.exact(there / len(chosen))
    return Measurement(numbers, {"steps": table})


def _worth(found: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Smaller is better: the median of steps, then, where most never got there, what they got wrong."""
    return statistics.median(step for step, _ in found), -statistics.fmean(right for _, right in found)


def judge(numbers: Numbers) -> Finding:
    """At large d_k plain dot products are behind and scaled ones are not; at small d_k none is behind."""
    value = {name: number.value for name, number in numbers.items()}
    behind = value["plain_most"] >= FACTOR * value["additive_most"]
    kept = value["scaled_most"] <= FACTOR * value["additive_most"]
    ratios = [value[f"{arm}_least"] / value["additive_least"] for arm in ("plain", "scaled")]
    small = max(ratios) <= FACTOR
    alike = small and min(ratios) >= 1 / FACTOR
    long_enough = max(value["additive_least"], value["additive_most"]) < value["steps"]
    verdict = "holds" if alike else "holds with a correction"

    def told(end: str, comma: str) -> str:
        parts = []
        for arm in _ARMS:
            never = value[f"{arm}_{end}"] >= value["steps"] and value[f"{arm}_{end}_there"] <= 0.5
            parts.append(f"{'> ' if never else ''}{value[f'{arm}_{end}']:.0f}")
        return comma.join(parts)

    return Finding(
        verdict if behind and kept and small and long_enough else "does not hold here",
        Words(
            f"Median steps to {ACCURACY:.0%} for additive, dot-product and scaled dot-product attention: "
            f"{told('least', ', ')} at d_k = {value['least_width']:g}; {told('most', ', ')} at "
            f"d_k = {value['most_width']:g}."
            + ("" if alike or not small else " At small d_k they are not alike: the scaled one is faster.")
            + ("" if long_enough else " The training was too short for additive attention to get there."),
            f"达到 {ACCURACY:.0%} 的步数（中位数），加性、点积、缩放点积依次为：d_k = {value['least_width']:g} 时 "
            f"{told('least', '、')}；d_k = {value['most_width']:g} 时 {told('most', '、')}。"
            + ("" if alike or not small else "d_k 小时三者并不相近：缩放点积更快。")
            + ("" if long_enough else "训练太短，加性注意力没有达到。"),
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """Steps to 90 % by width and way."""
    zh = language == "zh"
    rows = [{**row, "arm": _ARMS[row["arm"]].of(language)} for row in measurement.tables["steps"]]
    most = measurement.numbers["steps"].value
    return [
        BarChart(
            f"达到 {ACCURACY:.0%} 正确率的步数" if zh else f"Steps to an accuracy of {ACCURACY:.0%}",
            rows,
            x="d_k",
            y="value",
            series="arm",
            low="low",
            high="high",
            x_title="d_k",
            y_title="步数" if zh else "steps",
            rules=[(most, "训练到此为止" if zh else "training ends")],
            note="中位数与各随机种子的最小、最大值；到顶的表示没有达到。" if zh
            else "Medians, with least and greatest over seeds; what reaches the line never got there.",
        )
    ]  # fmt: skip


CLAIM = Claim(
    name="additive",
    group="scaling",
    claim=Words(
        "At small d_k additive and dot-product attention do equally well; at large d_k unscaled dot products fall "
        "behind, and "
        "the division by √d_k brings them back.",
        "d_k 小时，加性注意力与点积注意力表现相近；d_k 大时，不缩放的点积落后，除以 √d_k 后又赶上来。",
    ),
    prediction=Words(
        f"Steps to {ACCURACY:.0%} at the largest d_k: plain dot products need at least {FACTOR:g} times those of "
        f"additive "
        f"attention, scaled ones at most {FACTOR:g} times. At the least d_k all are within a factor of {FACTOR:g}; if "
        f"dot "
        "products are faster there, the claim needs a correction.",
        f"在最大的 d_k 处，达到 {ACCURACY:.0%} 所需步数：不缩放的点积至少是加性的 {FACTOR:g} 倍，缩放的至多 "
        f"{FACTOR:g} 倍。"
        f"在最小的 d_k 处，三者相差不超过 {FACTOR:g} 倍；若点积在那里更快，则需修正。",
    ),
    method=Words(
        f"One query looks for its own symbol among {KEYS} of {_SYMBOLS}, and reads the value beside it. Queries, keys "
        f"and values "
        "are learned projections that begin with variance 1. Trained with AdamW; for each way and width the best of "
        "several "
        "learning rates counts.",
        f"一个查询在 {KEYS} 个键（共 {_SYMBOLS} 种符号）里找与自己相同的符号，读出旁边的值。查询、键、"
        f"值都是学习的投影，初始方差为 1。"
        "用 AdamW 训练；每种方式、每种宽度取若干学习率中最好的。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        "least_width": Words("least d_k", "最小的 d_k"),
        "most_width": Words("largest d_k", "最大的 d_k"),
        "steps": Words("steps of training, at most", "训练步数上限"),
        **{
            f"{arm}_{end}": Words(f"{words.en}, {at.en}: steps to 90 %", f"{words.zh}，{at.zh}：到 90 % 的步数")
            for arm, words in _ARMS.items()
            for end, at in (("least", Words("least d_k", "最小 d_k")), ("most", Words("largest d_k", "最大 d_k")))
        },
        **{
            f"{arm}_{end}_there": Words(f"{words.en}, {at.en}: share of seeds", f"{words.zh}，{at.zh}：达到的种子比例")
            for arm, words in _ARMS.items()
            for end, at in (("least", Words("least d_k", "最小 d_k")), ("most", Words("largest d_k", "最大 d_k")))
        },
    },
    correction=Words(
        "At small d_k the two are not quite alike here: dot products learn this look-up in fewer steps than additive "
        "attention "
        "does. What the scale does at large d_k is as claimed.",
        "d_k 小时，两者在这里并不完全相近：学这种查找，点积所需的步数比加性少。缩放在 d_k 大时的作用与论断一致。",
    ),
)
