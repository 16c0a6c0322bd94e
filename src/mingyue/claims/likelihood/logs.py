"""Claim: the product of the probabilities of a text underflows; the sum of their logarithms does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from mingyue.charts import LineChart
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import seeds, tiny
from mingyue.runtime import derive_seed
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

VOCABULARY = 9000
CLOSE = 1e-4
"""Most that a sum of logs in fp32 may be away from the one in fp64, as a share of it."""
SOON = 100
"""The product must be 0 before a text has so many characters."""
_TEXT = 64
_SMALLEST = math.log(2.0**-149)
"""Logarithm of the smallest positive fp32 number."""


def measure(trial: Trial) -> Measurement:
    """Characters until the fp32 product is 0: for a model of 9,000 characters, and for better models."""
    model_texts = trial.pick(2, 8, 32)
    long_text = trial.pick(2_000, 10_000, 100_000)
    chosen = seeds(trial, 3, 10, 30)
    zero, wrong = list[float](), list[float]()
    for seed in chosen:
        logs_BT = _of_model(seed, model_texts)
        zero += [_characters_until_zero(logs_T) for logs_T in logs_BT]
    rows: list[dict[str, Any]] = []
    for nats in (0.5, 1.0, 2.0, 3.0, 4.5, 6.0, 7.5, math.log(VOCABULARY)):
        counts = []
        for seed in chosen:
            draw = np.random.default_rng(derive_seed(seed, f"logs {nats}"))
            logs_T = -draw.gamma(4.0, nats / 4.0, size=long_text)  # losses of tokens vary: mean `nats`, sd half of it
            counts.append(_characters_until_zero(logs_T))
            exact = float(logs_T.sum())
            wrong.append(abs(_sum_fp32(logs_T) - exact) / abs(exact))
        number = Number.mean(counts)
        rows.append({"nats": nats, "value": number.value, "low": number.low, "high": number.high})
    numbers = {
        "vocabulary": Number.exact(VOCABULARY),
        "zero_after": Number.median([float(count) for count in zero], "characters"),
        "predicted": Number.exact(math.ceil(-_SMALLEST / math.log(VOCABULARY)), "characters"),
        "text": Number.exact(long_text, "characters"),
        "sum_off": Number(max(wrong), min(wrong), max(wrong)),
        "sums_finite": Number.exact(float(all(math.isfinite(share) for share in wrong))),
        "worst_zero_after": Number.exact(max(row["high"] for row in rows), "characters"),
    }
    return Measurement(numbers, {"until_zero": rows})


@torch.no_grad()
def _of_model(seed: int, texts: int) -> NDArray[np.float64]:
    """log P of the tokens of random texts under a model with 9,000 characters that has learned nothing yet."""
    model = tiny(VOCABULARY, context=_TEXT, d_model=16, n_layers=1, n_heads=2, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(VOCABULARY, (texts, _TEXT), generator=draw)
    logs_BTV = model(ids_BT[:, :-1]).double().log_softmax(-1)
    return logs_BTV.gather(-1, ids_BT[:, 1:, None])[:, :, 0].numpy()


def _characters_until_zero(logs_T: NDArray[np.float64]) -> int:
    """Factors after which a running product in fp32 is 0; what never becomes 0 counts as one more than all.

    Rounded as IEEE 754 says, denormal numbers included: a processor may be told to take those for 0, and would then be
    at 0 a few characters earlier.
    """
    product = np.float64(1.0)
    for place, log in enumerate(logs_T, start=1):
        product = _round_to_fp32(product * _round_to_fp32(np.exp(log)))
        if product == 0:
            return place
    return len(logs_T) + 1


def _round_to_fp32(value: np.float64) -> np.float64:
    """A positive fp64 number rounded to the nearest fp32 number, and kept as fp64: no setting of the processor "
    "matters."""
    if value == 0:
        return value
    _, exponent = np.frexp(value)
    step = np.ldexp(1.0, max(int(exponent) - 24, -149))
    return np.float64(np.rint(value / step) * step)


def _sum_fp32(logs_T: NDArray[np.float64]) -> float:
    """The logs added one after another, each sum rounded to fp32."""
    return float(np.cumsum(logs_T.astype(np.float32), dtype=np.float32)[-1])


def judge(numbers: Numbers) -> Finding:
    """The product is 0 within a short text, the sum of logs right to its last thousands."""
    value = {name: number.value for name, number in numbers.items()}
    underflows = numbers["zero_after"].high <= SOON
    adds = value["sums_finite"] == 1 and value["sum_off"] <= CLOSE
    return Finding(
        "holds" if underflows and adds else "does not hold here",
        Words(
            f"With {value['vocabulary']:,.0f} equally likely characters the fp32 product is 0 after "
            f"{value['zero_after']:.0f} of them ({value['predicted']:.0f} expected). The sum of logs over "
            f"{value['text']:,.0f} characters is right to {value['sum_off']:.1g} of its value.",
            f"{value['vocabulary']:,.0f} 个字等概率时，fp32 的连乘在第 {value['zero_after']:.0f} 个字变成 0"
            f"（预计第 {value['predicted']:.0f} 个）。{value['text']:,.0f} 个字的对数之和，相对误差只有 "
            f"{value['sum_off']:.1g}。",
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """Characters until the product is 0, against how good the model is."""
    zh = language == "zh"
    return [
        LineChart(
            "fp32 连乘多少个字之后变成 0" if zh else "Characters after which the fp32 product is 0",
            measurement.tables["until_zero"],
            x="nats",
            y="value",
            low="low",
            high="high",
            x_title="每个字的平均损失（nat）" if zh else "mean loss of a character, in nats",
            y_title="字数" if zh else "characters",
            log_y=True,
            note=("最右一点：9000 个字等概率。色带为 95 % 区间。" if zh
                  else "The last point on the right: 9,000 equally likely characters. Band: 95 % interval."),
        )
    ]  # fmt: skip


CLAIM = Claim(
    name="logs",
    group="likelihood",
    claim=Words(
        "The product of the probabilities of all tokens is too small a number to compute with; so their logarithms "
        "are added.",
        "把所有 token 的概率连乘，数会小到无法计算；所以取对数相加。",
    ),
    prediction=Words(
        f"With a vocabulary of {VOCABULARY:,} characters the fp32 product is exactly 0 within {SOON} characters; the "
        f"sum of "
        f"logs of a text a hundred times as long is within {CLOSE:g} of the exact one.",
        f"词表为 {VOCABULARY:,} 字时，fp32 的连乘在 {SOON} 字以内就恰好等于 0；长百倍的文本，"
        f"其对数之和的相对误差不超过 {CLOSE:g}。",
    ),
    method=Words(
        f"A model of {VOCABULARY:,} characters that has learned nothing yet reads random texts; its probabilities are "
        "multiplied with the rounding of fp32 (IEEE 754). For better models, token losses are drawn at random around "
        "a mean. "
        "Sums of logs in fp32 are compared with fp64.",
        f"一个词表 {VOCABULARY:,} 字、尚未训练的模型读随机文本，其概率按 fp32（IEEE 754）的舍入连乘。"
        "更好的模型用随机生成的逐字损失代表。fp32 的对数和与 fp64 比较。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        "vocabulary": Words("characters of the vocabulary", "词表字数"),
        "zero_after": Words("product is 0 after (median, least, greatest)", "连乘变为 0 时的字数（中位、最小、最大）"),
        "predicted": Words("expected: 103.3 nats ÷ ln V", "预计：103.3 nat ÷ ln V"),
        "text": Words("length of the texts whose logs are added", "求对数和的文本长度"),
        "sum_off": Words("largest relative error of a sum of logs", "对数和的最大相对误差"),
        "sums_finite": Words("all sums are finite (1 = yes)", "所有的和都有限（1 = 是）"),
        "worst_zero_after": Words(
            "product is 0 after, with 0.5 nats a character", "每字 0.5 nat 时，连乘变为 0 的字数"
        ),
    },
)
