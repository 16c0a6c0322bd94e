"""Given its weights, attention is linear in the values: what bends is the feed-forward part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.charts import Chart, LineChart
from mingyue.claims.blocks.parts import Nothing
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import fit, seeds
from mingyue.nn import EVERYONE, MultiHeadAttention, PreNormBlock, Rotation, Taps, make_feedforward
from mingyue.runtime import derive_seed
from mingyue.words import Language, Words

LINEAR = 1e-5
"""A sum of inputs gives the sum of outputs to this share: rounding."""
AS_LINEAR = 0.05
"""Errors that differ by at most this share count as equal."""
LOWER = 0.5
"""With the feed-forward part the error is at most this share of that of the best linear fit."""

_WIDTH, _N_INPUTS = 32, 4
_ARMS = ("attention", "feedforward")


class _Stack(nn.Module):
    """Blocks of this library, without norms, on continuous inputs: [B, T, inputs] → [B, T, 1]."""

    def __init__(self, *, with_feedforward: bool, n_layers: int, generator: torch.Generator) -> None:
        super().__init__()
        self.into = nn.Linear(_N_INPUTS, _WIDTH)
        self.blocks = nn.ModuleList(
            PreNormBlock(
                MultiHeadAttention(_WIDTH, 4, 4, _WIDTH // 4),
                nn.Identity(),
                make_feedforward("relu", _WIDTH, 4 * _WIDTH, bias=True) if with_feedforward else Nothing(),
                nn.Identity(),
            )
            for _ in range(n_layers)
        )
        self.out = nn.Linear(_WIDTH, 1)
        with torch.no_grad():
            for weight in self.parameters():
                if weight.ndim == 2:
                    weight.normal_(std=(2 * n_layers * weight.shape[1]) ** -0.5, generator=generator)
                else:
                    weight.zero_()

    def forward(self, x_BTN: Tensor) -> Tensor:
        """[B, T, inputs] → [B, T, 1]."""
        x_BTM = self.into(x_BTN)
        for block in self.blocks:
            x_BTM = block(x_BTM, EVERYONE, Rotation())
        return self.out(x_BTM)


def _wanted(x: Tensor) -> Tensor:
    """What is to be learned of inputs [..., 4]: one part linear, two that bend, with variance 1 in all."""
    bent = x[..., 1:2] * x[..., 2:3] + 2**0.5 * torch.cos(2 * x[..., 3:4])
    return (x[..., :1] + bent) / 3**0.5


def _inputs(count: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """(inputs at one position [count, 1, 4], what is wanted of them [count, 1, 1])."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "feedforward", step))
    x_BTN = torch.randn(count, 1, _N_INPUTS, generator=generator)
    return x_BTN, _wanted(x_BTN)


def _error_of_linear_fit(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> float:
    """Mean squared error on `test` of the least squares fit (with a constant) to `train`."""
    (x, y), (x_new, y_new) = ((F.pad(given[:, 0], (0, 1), value=1.0), wanted[:, 0]) for given, wanted in (train, test))
    return float(F.mse_loss(x_new @ torch.linalg.lstsq(x, y).solution, y_new))


@torch.no_grad()
def _superposition(seed: int, *, frozen: bool) -> float:
    """How far attention of a sum of two inputs is from the sum of its outputs, beside the sum.

    `frozen`: all three passes use the weights of the first; else each makes its own.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "superposition"))
    attention = MultiHeadAttention(_WIDTH, 4, 4, _WIDTH // 4).eval()
    attention.qkv.weight.normal_(std=_WIDTH**-0.5, generator=generator)
    attention.output.weight.normal_(std=_WIDTH**-0.5, generator=generator)
    first, second = (torch.randn(4, 16, _WIDTH, generator=generator) for _ in range(2))
    taps = Taps("weights")
    of_first = attention(first, EVERYONE, Rotation(), taps=taps)
    given = Taps((), {"weights": lambda _: taps.values["weights"]}) if frozen else None
    of_second, of_sum = (attention(x, EVERYONE, Rotation(), taps=given) for x in (second, first + second))
    return float((of_sum - of_first - of_second).norm() / (of_first + of_second).norm())


def _measure(trial: Trial) -> Measurement:
    n_layers, steps, rows = trial.pick((1, 200, 64), (2, 600, 128), (2, 5000, 256))
    errors: dict[str, list[float]] = {arm: [] for arm in ("linear", *_ARMS)}
    ratios: dict[str, list[float]] = {arm: [] for arm in _ARMS}
    curves: dict[str, list[list[float]]] = {arm: [] for arm in _ARMS}
    given: dict[bool, list[float]] = {True: [], False: []}
    for seed in seeds(trial, 2, 5, 5):
        test = _inputs(8192, seed, -1)
        errors["linear"].append(_error_of_linear_fit(_inputs(65536, seed, -2), test))
        for arm in _ARMS:
            generator = torch.Generator().manual_seed(derive_seed(seed, "weights"))
            model = _Stack(with_feedforward=arm == "feedforward", n_layers=n_layers, generator=generator)
            went = fit(
                model,
                lambda step: _inputs(rows, seed, step),  # noqa: B023
                lambda model, data: F.mse_loss(model(data[0]), data[1]),
                steps=steps,
                learning_rate=5e-3,
                seed=seed,
            )
            with torch.no_grad():
                errors[arm].append(float(F.mse_loss(model(test[0]), test[1])))
            ratios[arm].append(errors[arm][-1] / errors["linear"][-1])
            curves[arm].append(went.losses)
        for frozen, apart in given.items():
            apart.append(_superposition(seed, frozen=frozen))
    numbers = {f"{arm}_error": Number.mean(values) for arm, values in errors.items()}
    numbers |= {f"{arm}_ratio": Number.mean(values, "×") for arm, values in ratios.items()}
    numbers["given_weights"] = Number.exact(max(given[True]))
    numbers["own_weights"] = Number.mean(given[False])
    return Measurement(numbers, {"errors": _smoothed(curves, steps)})


def _smoothed(curves: dict[str, list[list[float]]], steps: int) -> list[dict[str, Any]]:
    """Errors of training, each the mean of a stretch of steps."""
    stretch = max(1, steps // 40)
    rows: list[dict[str, Any]] = []
    for arm, runs in curves.items():
        for begin in range(0, steps, stretch):
            mean = Number.mean([sum(run[begin : begin + stretch]) / len(run[begin : begin + stretch]) for run in runs])
            rows.append(
                {
                    "arm": arm,
                    "step": begin + stretch / 2,
                    "error": mean.value,
                    "low": max(0.0, mean.low),
                    "high": mean.high,
                }
            )
    return rows


def _judge(numbers: Numbers) -> Finding:
    given, alone, with_it = (numbers[name].value for name in ("given_weights", "attention_ratio", "feedforward_ratio"))
    reason = Words(
        f"With given weights a sum of inputs gives the sum of outputs to {given:.0e}. At one position, attention "
        f"alone errs {alone:.2f} times as much as the best linear fit, with the feed-forward part {with_it:.2g} times.",
        f"给定权重时，输入之和的输出等于输出之和，相差 {given:.0e}。在单个位置上，只有注意力的误差是最佳线性拟合的 "
        f"{alone:.2f} 倍，加上前馈层后为 {with_it:.2g} 倍。",
    )
    holds = given <= LINEAR and abs(alone - 1) <= AS_LINEAR and with_it <= LOWER
    return Finding("holds" if holds else "does not hold here", reason)


_NAMES = {
    "attention": Words("attention alone", "只有注意力"),
    "feedforward": Words("with feed-forward", "加上前馈层"),
}


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    rows = [{**row, "arm": _NAMES[row["arm"]].of(language)} for row in measurement.tables["errors"]]
    return [
        LineChart(
            Words("Error while learning what is not linear", "学习非线性目标时的误差").of(language),
            rows,
            x="step",
            y="error",
            series="arm",
            low="low",
            high="high",
            x_title=Words("step", "步").of(language),
            y_title=Words("mean squared error", "均方误差").of(language),
            rules=[(measurement.numbers["linear_error"].value, Words("best linear fit", "最佳线性拟合").of(language))],
        )
    ]


CLAIM = Claim(
    name="feedforward",
    group="blocks",
    claim=Words(
        "Attention only moves and mixes; what is not linear in a token's own vector is computed by the feed-forward "
        "part.",
        "注意力只做搬运与混合；对单个 token 向量的非线性加工由前馈层完成。",
    ),
    prediction=Words(
        f"With given weights attention is linear in its values (to {LINEAR:.0e}). At one position, where the weight "
        "is always 1, blocks without a feed-forward part err as much as the best linear fit (within "
        f"{AS_LINEAR:.0%}); with it at most {LOWER} times as much.",
        f"给定权重时，注意力对值是线性的（误差 {LINEAR:.0e}）。只有一个位置时权重恒为 1：没有前馈层的块，误差等于最佳"
        f"线性拟合（相差不超过 {AS_LINEAR:.0%}）；加上前馈层，误差至多为其 {LOWER} 倍。",
    ),
    method=Words(
        "Blocks of this library without norms, on continuous inputs at one position, learn a function with a product "
        "and a cosine in it. The linear fit is by least squares, on other inputs than those of the test. Beside it: "
        "attention of 16 positions whose weights are held fixed by taps.",
        "用本库的块（去掉归一化），输入为单个位置上的连续向量，学习一个含乘积和余弦的函数；线性拟合用最小二乘，测试用"
        "另外的输入。另外用 taps 固定 16 个位置的注意力权重，检验线性。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "linear_error": Words("error of the best linear fit", "最佳线性拟合的误差"),
        "attention_error": Words("error of attention alone", "只有注意力的误差"),
        "feedforward_error": Words("error with the feed-forward part", "加上前馈层的误差"),
        "attention_ratio": Words("attention alone, beside the linear fit", "只有注意力与线性拟合之比"),
        "feedforward_ratio": Words("with feed-forward, beside the linear fit", "加上前馈层与线性拟合之比"),
        "given_weights": Words("distance from linear, weights given", "给定权重时偏离线性的程度"),
        "own_weights": Words(
            "the same where weights are made from the inputs: softmax bends too",
            "权重由输入算出时的偏离：softmax 也是非线性",
        ),
    },
)
