"""The paper's sinusoids: a shift is one linear map, distances depend on the shift alone, two numbers make a hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.nn import sinusoid_table
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

_LAST = 10_000
"""Largest position."""
ROUNDING = 1e-5
"""Differences up to this are the table's 32-bit rounding (6e-8 a number, over hundreds of numbers)."""
APART = 0.1
"""Two positions at least so far apart are two positions."""
_PICTURE_WIDTH, _PICTURE_POSITIONS = 64, 128


def _measure(trial: Trial) -> Measurement:
    widths = trial.pick((2, 8, 64), (2, 8, 64, 512), (2, 8, 64, 512, 1024))
    shifts = trial.pick(
        (1, 7, 100, 5000), (1, 2, 3, 7, 20, 100, 1000, 5000, 9000), (1, 2, 3, 7, *range(20, 10_000, 500))
    )
    width = max(size for size in widths if size <= 512)
    table_PM = sinusoid_table(_LAST + 1, width).double()
    spread = float(max(_spread(table_PM, shift) for shift in shifts))
    distance_K = _distances(table_PM)
    frequency_I = torch.atan2(table_PM[1, 0::2], table_PM[1, 1::2])  # the angle of one step, of each pair
    different = int((frequency_I.diff().abs() > 1e-9).sum()) + 1
    circle = (table_PM[:, 0::2].square() + table_PM[:, 1::2].square() - 1).abs().max()
    numbers = {
        "width": Number.exact(width),
        "map_error": Number.exact(max(_map_error(table_PM, shift) for shift in shifts)),
        "spread": Number.exact(spread),
        "nearest": Number.exact(float(distance_K.min())),
        "nearest_shift": Number.exact(int(distance_K.argmin()) + 1),
        "frequencies": Number.exact(different),
        "circle_error": Number.exact(float(circle)),
        "shortest": Number.exact(2 * math.pi / float(frequency_I.max())),
        "longest": Number.exact(2 * math.pi / float(frequency_I.min())),
    }
    return Measurement(
        numbers,
        {
            "nearest": [row for size in widths for row in _nearest_rows(size)],
            "picture": [
                {"position": position, "values": [round(value, 3) for value in values]}
                for position, values in enumerate(sinusoid_table(_PICTURE_POSITIONS, _PICTURE_WIDTH).tolist())
            ],
        },
    )


def _map_error(table_PM: Tensor, shift: int) -> float:
    """Largest error of M · PE(p) = PE(p + shift) over all p, for one M.

    M turns each pair; what it is made of are the two numbers that the pair has at position `shift`.
    """
    sine_PI, cosine_PI = table_PM[:-shift, 0::2], table_PM[:-shift, 1::2]
    sine_I, cosine_I = table_PM[shift, 0::2], table_PM[shift, 1::2]
    moved_PI = sine_PI * cosine_I + cosine_PI * sine_I, cosine_PI * cosine_I - sine_PI * sine_I
    return max(float((moved_PI[part] - table_PM[shift:, part::2]).abs().max()) for part in (0, 1))


def _spread(table_PM: Tensor, shift: int) -> float:
    """How much ‖PE(p) − PE(p + shift)‖ varies with p."""
    distance_P = (table_PM[shift:] - table_PM[:-shift]).norm(dim=1)
    return float(distance_P.max() - distance_P.min())


def _distances(table_PM: Tensor) -> Tensor:
    """‖PE(0) − PE(k)‖ for k = 1 … last."""
    return (table_PM[1:] - table_PM[0]).norm(dim=1)


def _nearest_rows(width: int) -> list[dict[str, Any]]:
    """Least distance of two positions that are up to k apart, for k on a logarithmic scale."""
    least_K = torch.cummin(_distances(sinusoid_table(_LAST + 1, width).double()), dim=0).values
    shifts = sorted({round(shift) for shift in np.geomspace(1, _LAST, 80).tolist()})
    return [{"width": width, "shift": shift, "nearest": float(least_K[shift - 1])} for shift in shifts]


def _judge(numbers: Numbers) -> Finding:
    error, spread, nearest, circle = (
        numbers[name].value for name in ("map_error", "spread", "nearest", "circle_error")
    )
    width, frequencies = int(numbers["width"].value), int(numbers["frequencies"].value)
    en = (
        f"Width {width}: a shift is one linear map to within {error:.0e}; the distance of two positions varies by "
        f"{spread:.0e} with where they stand, and is never below {nearest:.2g}. "
    )
    zh = (
        f"宽度 {width}：平移是一个固定的线性映射（误差 {error:.0e}）；"
        f"两个位置的距离随所在之处只变化 {spread:.0e}，最小为 {nearest:.2g}。"
    )
    if error > ROUNDING or spread > ROUNDING or nearest < APART or circle > ROUNDING:
        return Finding("does not hold here", Words(en.strip(), zh))
    shortest, longest = numbers["shortest"].value, numbers["longest"].value
    en += f"Its {frequencies} frequencies turn once in {shortest:.1f} to {longest:,.0f} positions"
    zh += f"最快的一根指针转一圈要 {shortest:.1f} 个位置，最慢的要 {longest:,.0f} 个；频率共 {frequencies} 个"
    if frequencies == width:
        return Finding("holds", Words(en + ": one for each dimension.", zh + "，每一维一个。"))
    return Finding(
        "holds with a correction",
        Words(
            en + f": not {width}. Dimensions come in pairs, the sine and the cosine of one hand.",
            zh + f"，而不是 {width} 个：两维一对，是同一根指针的正弦和余弦。",
        ),
    )


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    from mingyue.charts import LineChart, MatrixChart

    picture = measurement.tables["picture"]
    widths = Words("width {}", "宽度 {}").of(language)
    return [
        MatrixChart(
            Words(f"Sinusoidal positions, width {_PICTURE_WIDTH}", f"正余弦位置编码，宽度 {_PICTURE_WIDTH}").of(
                language
            ),
            np.array([row["values"] for row in picture]),
            row_labels=[str(row["position"]) for row in picture],
            column_labels=[str(dimension) for dimension in range(_PICTURE_WIDTH)],
            row_title=Words("position", "位置").of(language),
            column_title=Words("dimension", "维").of(language),
            low=-1.0,
            high=1.0,
            diverging=True,
            note=Words(
                "Fast hands on the left, slow ones on the right; columns 2i and 2i + 1 are one hand.",
                "左边的指针快，右边的慢；第 2i 与 2i + 1 列是同一根指针。",
            ).of(language),
        ),
        LineChart(
            Words("How near two positions come", "两个位置最近能有多近").of(language),
            [{**row, "width": widths.format(row["width"])} for row in measurement.tables["nearest"]],
            x="shift",
            y="nearest",
            series="width",
            x_title=Words("positions at most so far apart", "两个位置相隔不超过").of(language),
            y_title=Words("least distance of their vectors", "位置向量的最小距离").of(language),
            log_x=True,
            log_y=True,
            note=Words(
                "A single hand comes back almost to where it was (after 710 positions: 113 turns). More hands do not.",
                "只有一根指针时，它几乎会回到原处（710 个位置约等于 113 圈）；指针多了就不会。",
            ).of(language),
        ),
    ]


CLAIM = Claim(
    name="sinusoid",
    group="embeddings",
    claim=Words(
        "Sinusoidal positions are a clock with one hand a dimension, fast hands first and slow hands last: no two "
        "positions get the same vector. The vector of position p + k is a linear map of that of p, so distances are "
        "easy "
        "to learn.",
        "正余弦位置编码像一个时钟，每一维一根指针，前面的快，后面的慢：没有两个位置得到相同的向量。位置 p + k "
        "的向量是位置 p "
        "的向量的线性变换，因此相对距离容易学。",
    ),
    prediction=Words(
        f"For each k one matrix takes PE(p) to PE(p + k) for all p (error at most {ROUNDING:.0e}); ‖PE(p) − PE(p + k)‖ "
        f"varies with p by at most {ROUNDING:.0e} and is at least {APART} for all k up to 10,000. The frequencies are "
        "counted.",
        f"对每个 k，同一个矩阵把所有的 PE(p) 变成 PE(p + k)（误差不超过 {ROUNDING:.0e}）；‖PE(p) − PE(p + k)‖ 随 p "
        "的变化不超过 "
        f"{ROUNDING:.0e}，且对 10,000 以内的所有 k 至少为 {APART}。频率的个数由计数得出。",
    ),
    method=Words(
        "The table that the models use, 10,001 positions. The matrix for k is made of the numbers of PE(k): each pair "
        "is "
        "turned.",
        "取模型实际使用的表，共 10,001 个位置。k 的矩阵由 PE(k) 自身的数构成：每一对数转过一个角度。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "width": Words("width of the vectors", "向量宽度"),
        "map_error": Words("largest error of the linear map", "线性映射的最大误差"),
        "spread": Words("how much the distance at one shift varies with the place", "同一间隔的距离随位置的变化"),
        "nearest": Words("least distance of two positions", "两个位置的最小距离"),
        "nearest_shift": Words("at the shift (positions)", "出现在间隔（位置数）"),
        "frequencies": Words("different frequencies", "不同频率的个数"),
        "circle_error": Words("largest error of sin² + cos² = 1 in a pair", "一对之内 sin² + cos² = 1 的最大误差"),
        "shortest": Words("shortest turn (positions)", "最快的一圈（位置数）"),
        "longest": Words("longest turn (positions)", "最慢的一圈（位置数）"),
    },
    correction=Words(
        "A vector of width d has d/2 frequencies, not d: each has a sine and a cosine, and it is the pair that makes a "
        "shift linear. A sine alone would not do.",
        "宽度为 d 的向量只有 d/2 个频率：每个频率有一个正弦和一个余弦。正因为成对，平移才是线性的；单有正弦做不到。",
    ),
)
