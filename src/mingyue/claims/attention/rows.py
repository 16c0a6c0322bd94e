"""Claim: attention gives each query a convex mixture of the values, and can be an exact look-up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mingyue.charts import LineChart, MatrixChart
from mingyue.claims.attention.figures import interval, matrix_rows, worst
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import seeds
from mingyue.nn import EVERYONE, Taps, explicit_attention, fused_attention
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

ROUNDING = 1e-5
"""Largest error of sums and mixtures of numbers of size 1 in fp32."""
_HEADS, _WIDTH, _DIRECTIONS = 4, 16, 64
_GAPS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Scores of the right key above the others, in the look-up."""
_LOOKUP_GAP = 32


def measure(trial: Trial) -> Measurement:
    """Random queries, keys and values; then a dictionary with orthonormal keys."""
    n_tokens, chosen = trial.pick(16, 64, 512), seeds(trial, 3, 10, 50)
    sums, least, outside, mixture = list[float](), list[float](), list[float](), list[float]()
    shapes = list[tuple[int, ...]]()
    for seed in chosen:
        query, key, value = _random(seed, n_tokens)
        taps = Taps(["scores", "weights"])
        explicit_attention(query, key, value, EVERYONE, taps=taps)
        weights_HTS, value_HSD = taps.values["weights"][0], value[0]
        out_HTD = fused_attention(query, key, value, EVERYONE)[0]
        shapes.append(tuple(taps.values["scores"].shape[-2:]))
        sums.append(float((weights_HTS.sum(-1) - 1).abs().max()))
        least.append(float(weights_HTS.min()))
        mixture.append(float((weights_HTS @ value_HSD - out_HTD).abs().max()))
        outside.append(_outside(out_HTD, value_HSD, seed))
    errors = {gap: [_look_up(seed, float(gap)) for seed in chosen] for gap in _GAPS}
    numbers = {
        "tokens": Number.exact(n_tokens),
        "score_rows": Number.median([shape[0] for shape in shapes]),
        "score_columns": Number.median([shape[1] for shape in shapes]),
        "sum_error": worst(sums),
        "least_weight": Number(min(least), min(least), max(least)),
        "outside": worst(outside),
        "mixture_error": worst(mixture),
        "lookup_error": worst(error for error, _ in errors[_LOOKUP_GAP]),
        "lookup_least_weight": Number.median([weight for _, weight in errors[_LOOKUP_GAP]]),
        "gap_of_zero": Number.exact(_gap_of_zero(), "nats"),
    }
    lookup = [interval(Number.median([error for error, _ in found]), gap=gap) for gap, found in errors.items()]
    query, key, value = _random(trial.seed, 8)
    weights_TS = explicit_attention(query, key, value, EVERYONE)[1][0, 0]
    return Measurement(numbers, {"lookup": lookup, "weights": matrix_rows(weights_TS.tolist())})


def _random(seed: int, n_tokens: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(1, _HEADS, n_tokens, _WIDTH, generator=draw) for _ in range(3)]


def _outside(out_HTD: Tensor, value_HSD: Tensor, seed: int) -> float:
    """How far the furthest output lies outside the convex hull of the values, along random directions."""
    directions_DK = torch.randn(_WIDTH, _DIRECTIONS, generator=torch.Generator().manual_seed(seed))
    directions_DK /= directions_DK.norm(dim=0)
    reached_HTK, hull_H1K = out_HTD @ directions_DK, (value_HSD @ directions_DK).amax(1, keepdim=True)
    return float((reached_HTK - hull_H1K).clamp(min=0).max())


def _look_up(seed: int, gap: float) -> tuple[float, float]:
    """Largest error of fetching each value of a dictionary by its key, and the least weight."""
    draw = torch.Generator().manual_seed(seed)
    key_SD = torch.linalg.qr(torch.randn(_WIDTH, _WIDTH, generator=draw))[0]
    value_SD = torch.randn(_WIDTH, _WIDTH, generator=draw)
    query_TD = key_SD * (gap * math.sqrt(_WIDTH))  # the scale of attention divides it away again
    found, weights = explicit_attention(query_TD[None, None], key_SD[None, None], value_SD[None, None], EVERYONE)
    return float((found[0, 0] - value_SD).abs().max()), float(weights.min())


def _gap_of_zero() -> int:
    """How many nats below the best a score is when its fp32 weight is exactly 0."""
    for gap in range(60, 130):
        key = torch.tensor([float(gap), 0.0]).view(1, 1, 2, 1)
        _, weights = explicit_attention(torch.ones(1, 1, 1, 1), key, key, EVERYONE)
        if float(weights.min()) == 0.0:
            return gap
    return 130


def judge(numbers: Numbers) -> Finding:
    """Shape, sums, positive weights, mixtures, look-up: all within rounding, or the claim fails."""
    value = {name: number.value for name, number in numbers.items()}
    errors = {name: value[name] for name in ("sum_error", "outside", "mixture_error", "lookup_error")}
    square = value["score_rows"] == value["score_columns"] == value["tokens"]
    positive = value["least_weight"] > 0 and value["lookup_least_weight"] > 0
    n_tokens, rows, columns = (f"{value[name]:.0f}" for name in ("tokens", "score_rows", "score_columns"))
    return Finding(
        "holds" if square and positive and max(errors.values()) <= ROUNDING else "does not hold here",
        Words(
            f"Scores of {n_tokens} tokens are {rows} × {columns}; rows of weights sum to 1 within "
            f"{errors['sum_error']:.1g}; outputs are the mixtures of values within {errors['mixture_error']:.1g} and "
            f"leave their hull by at most {errors['outside']:.1g}; the least weight is {value['least_weight']:.1g}. "
            f"With orthonormal keys a value is fetched within {errors['lookup_error']:.1g}, the least weight being "
            f"{value['lookup_least_weight']:.1g}.",
            f"{n_tokens} 个 token 的分数矩阵是 {rows} × {columns}；每行权重之和与 1 相差不超过 "
            f"{errors['sum_error']:.1g}；输出与“值”的加权和相差不超过 {errors['mixture_error']:.1g}，超出凸包不超过 "
            f"{errors['outside']:.1g}；最小的权重是 {value['least_weight']:.1g}。键互相正交时，取出的值误差不超过 "
            f"{errors['lookup_error']:.1g}，此时最小的权重是 {value['lookup_least_weight']:.1g}。",
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """The weights of eight tokens; the error of the look-up against the gap of scores."""
    values_TS = np.array([row["values"] for row in measurement.tables["weights"]])
    names = [str(number) for number in range(len(values_TS))]
    zh = language == "zh"
    return [
        MatrixChart(
            "八个随机向量的注意力权重：每行之和为 1" if zh else "Weights of eight random tokens: each row sums to 1",
            values_TS,
            row_labels=names,
            column_labels=names,
            row_title="查询" if zh else "query",
            column_title="键" if zh else "key",
            low=0.0,
        ),
        LineChart(
            "键互相正交：注意力成为查字典" if zh else "Orthonormal keys: attention becomes a look-up",
            # An error of exactly 0 has no place on a logarithmic axis.
            [{**row, **{end: max(row[end], 1e-9) for end in ("value", "low", "high")}}
             for row in measurement.tables["lookup"]],
            x="gap",
            y="value",
            low="low",
            high="high",
            x_title="正确的键高出的分数（nat）" if zh else "score of the right key above the others (nats)",
            y_title="取出的值的最大误差" if zh else "largest error of the fetched value",
            log_x=True,
            log_y=True,
            note="恰好为 0 的误差画在 1e-9 处。" if zh else "Errors of exactly 0 are drawn at 1e-9.",
        ),
    ]  # fmt: skip


CLAIM = Claim(
    name="rows",
    group="attention",
    claim=Words(
        "Attention compares every token with every token (QKᵀ is n × n), turns each row into weights that sum to 1, "
        "and gives each token a mixture of the value rows. It ignores a token by giving it a small weight, not by "
        "leaving it out. Query, key and value are named after looking something up.",
        "注意力让每个 token 与每个 token 比较（QKᵀ 是 n × n），把每一行变成和为 1 的权重，再给每个 token 一份“值”的混"
        "合。它忽略一个 token，靠的是给它很小的权重，而不是把它去掉。“查询、键、值”的名字来自查找。",
    ),
    prediction=Words(
        f"Sums, mixtures and hull within {ROUNDING:g}; every weight above 0; with orthonormal keys and the right score "
        f"{_LOOKUP_GAP} nats above the others, each value is fetched within {ROUNDING:g} and weights are still above "
        "0.",
        f"行和、混合、凸包的误差都不超过 {ROUNDING:g}；每个权重都大于 0；键互相正交、正确的分数高出 {_LOOKUP_GAP} nat "
        f"时，取出的值误差不超过 {ROUNDING:g}，而权重仍都大于 0。",
    ),
    method=Words(
        "Queries, keys and values of unit variance, four heads of width 16. The weights come from attention written "
        "out, the outputs from the fused kernel, which shows no weights. Convexity: along random directions no output "
        "goes further than the furthest value.",
        "方差为 1 的随机查询、键、值，四个头，每头 16 维。权重来自逐步写出的注意力，输出来自不显示权重的融合核。凸性："
        "沿随机方向，没有一个输出比最远的“值”更远。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        "tokens": Words("tokens", "token 数"),
        "score_rows": Words("rows of the scores", "分数矩阵的行数"),
        "score_columns": Words("columns of the scores", "分数矩阵的列数"),
        "sum_error": Words("largest |sum of a row − 1| (bounds: over seeds)", "行和与 1 的最大差（各种子的范围）"),
        "least_weight": Words("least weight (bounds: over seeds)", "最小的权重（各种子的范围）"),
        "outside": Words("furthest outside the hull of the values", "超出“值”的凸包的最大距离"),
        "mixture_error": Words("largest |output − weights · values|", "输出与加权和的最大差"),
        "lookup_error": Words(f"error of the look-up at {_LOOKUP_GAP} nats", f"高出 {_LOOKUP_GAP} nat 时查找的误差"),
        "lookup_least_weight": Words(f"least weight at {_LOOKUP_GAP} nats", f"高出 {_LOOKUP_GAP} nat 时最小的权重"),
        "gap_of_zero": Words(
            "gap of scores from which an fp32 weight is rounded to exactly 0",
            "分数相差多少时，fp32 的权重被舍入成恰好 0",
        ),
    },
)
