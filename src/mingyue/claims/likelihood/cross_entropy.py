"""Claim: negative log likelihood is cross-entropy with one-hot targets, in value and in gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.charts import BarChart, ScatterChart
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import seeds, tiny
from mingyue.training.cross_entropy import linear_cross_entropy
from mingyue.training.loss import loss_of_logits
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

EQUAL = 1e-5
"""Most that losses may differ (as a share) and gradients (as a share of the largest)."""
SMOOTHING = 0.1
_VOCABULARY = 40
_WAYS = {
    "value": Words("−Σ y log ŷ against −log P: loss", "−Σ y log ŷ 与 −log P：损失"),
    "gradient": Words("−Σ y log ŷ against −log P: gradient", "−Σ y log ŷ 与 −log P：梯度"),
    "residual": Words("gradient at the logits against ŷ − y", "logit 处的梯度与 ŷ − y"),
    "training": Words("the loss that training uses, with gradients", "训练所用的损失及其梯度"),
}


def measure(trial: Trial) -> Measurement:
    """Both losses and their gradients on the logits of a model; ŷ − y; the loss of training; smoothed targets."""
    rows, tokens = trial.pick((4, 16), (16, 64), (32, 128))
    found: dict[str, list[float]] = {way: [] for way in _WAYS}
    smoothed: list[float] = []
    points: list[dict[str, float]] = []
    for seed in seeds(trial, 2, 10, 30):
        model = tiny(_VOCABULARY, context=tokens, seed=seed, initialisation="xavier")
        draw = torch.Generator().manual_seed(seed)
        ids_BT = torch.randint(_VOCABULARY, (rows, tokens + 1), generator=draw)
        x_NM = model.hidden(ids_BT[:, :-1]).detach().flatten(0, 1)
        logits_NV, targets_N = model.output(x_NM).detach(), ids_BT[:, 1:].flatten()
        one_hot_NV = F.one_hot(targets_N, _VOCABULARY).to(logits_NV.dtype)
        log_loss, log_gradient = _with_gradient(logits_NV, lambda z, t=targets_N: _negative_log(z, t))
        cross, gradient = _with_gradient(logits_NV, lambda z, y=one_hot_NV: -(y * z.log_softmax(-1)).sum())
        found["value"].append(abs(cross - log_loss) / abs(log_loss))
        found["gradient"].append(_apart(gradient, log_gradient))
        residual_NV = logits_NV.softmax(-1) - one_hot_NV
        found["residual"].append(_apart(log_gradient, residual_NV))
        found["training"].append(_of_training(x_NM, model.embedding.weight.detach(), targets_N, log_loss, log_gradient))
        soft_NV = (1 - SMOOTHING) * one_hot_NV + SMOOTHING / _VOCABULARY
        _, smooth_NV = _with_gradient(logits_NV, lambda z, y=soft_NV: -(y * z.log_softmax(-1)).sum())
        smoothed.append(_apart(smooth_NV, log_gradient))
        if not points:
            points = [
                {"residual": float(r), "gradient": float(g), "target": int(y)}
                for r, g, y in zip(residual_NV[:4].flatten(), log_gradient[:4].flatten(), one_hot_NV[:4].flatten(),
                                   strict=True)
            ]  # fmt: skip
    numbers = {way: Number(max(apart), min(apart), max(apart)) for way, apart in found.items()}
    bars = [{"way": way, "value": number.value} for way, number in numbers.items()]
    numbers["smoothed"] = Number.mean(smoothed)
    return Measurement(numbers, {"points": points, "apart": bars})


def _negative_log(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    return -logits_NV.softmax(-1).gather(-1, targets_N[:, None]).log().sum()


def _with_gradient(logits_NV: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[float, Tensor]:
    leaf_NV = logits_NV.clone().requires_grad_()
    value = loss(leaf_NV)
    value.backward()
    assert leaf_NV.grad is not None
    return float(value.detach()), leaf_NV.grad


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


def _of_training(x_NM: Tensor, weight_VM: Tensor, targets_N: Tensor, log_loss: float, log_gradient_NV: Tensor) -> float:
    """Largest relative difference of both losses of training, and of their gradients at output layer and input."""
    whole, gradient_NV = _with_gradient(x_NM @ weight_VM.T, lambda z: loss_of_logits(z, targets_N).objective)
    x_NM, weight_VM = x_NM.clone().requires_grad_(), weight_VM.clone().requires_grad_()
    pieces = linear_cross_entropy(x_NM, weight_VM, targets_N)[0]
    pieces.backward()
    assert x_NM.grad is not None and weight_VM.grad is not None
    return max(
        abs(whole - log_loss) / abs(log_loss),
        abs(float(pieces.detach()) - log_loss) / abs(log_loss),
        _apart(gradient_NV, log_gradient_NV),
        _apart(x_NM.grad, log_gradient_NV @ weight_VM.detach()),
        _apart(weight_VM.grad, log_gradient_NV.T @ x_NM.detach()),
    )


def judge(numbers: Numbers) -> Finding:
    """Equal in value and gradient, and not equal once targets are not one-hot."""
    value = {name: number.value for name, number in numbers.items()}
    equal = all(value[way] <= EQUAL for way in _WAYS)
    condition = value["smoothed"] > 100 * EQUAL
    return Finding(
        "holds" if equal and condition else "does not hold here",
        Words(
            f"Losses differ by {value['value']:.1g} of their size, gradients by {value['gradient']:.1g}; the gradient "
            f"at "
            f"the logits is ŷ − y to {value['residual']:.1g}; the loss of training agrees to {value['training']:.1g}. "
            f"With targets that are not one-hot (label smoothing {SMOOTHING:g}) the gradients differ by "
            f"{value['smoothed']:.1%}.",
            f"两种损失相对相差 {value['value']:.1g}，梯度相差 {value['gradient']:.1g}；logit 处的梯度就是 ŷ − y"
            f"（误差 {value['residual']:.1g}）；训练所用的损失与之相差 {value['training']:.1g}。"
            f"目标不是 one-hot 时（标签平滑 {SMOOTHING:g}），梯度相差 {value['smoothed']:.1%}。",
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """The gradient by autograd against ŷ − y, and how far apart things are."""
    zh = language == "zh"
    kind = {0: "其他字" if zh else "other tokens", 1: "目标字" if zh else "the target"}
    points = [{**row, "kind": kind[row["target"]]} for row in measurement.tables["points"]]
    bars = [{"way": _WAYS[row["way"]].of(language), "value": max(row["value"], 1e-12)}
            for row in measurement.tables["apart"]]  # fmt: skip
    return [
        ScatterChart(
            "logit 处的梯度就是 ŷ − y" if zh else "The gradient at the logits is ŷ − y",
            points,
            x="residual",
            y="gradient",
            series="kind",
            x_title="ŷ − y",
            y_title="∂(−log P)/∂logit",
        ),
        BarChart(
            "最大相对差" if zh else "Largest relative differences",
            bars,
            x="way",
            y="value",
            y_title="相对差" if zh else "relative difference",
            log_y=True,
            rules=[(EQUAL, "容差" if zh else "tolerance")],
        ),
    ]


CLAIM = Claim(
    name="cross-entropy",
    group="likelihood",
    claim=Words(
        "Minimising the negative log likelihood is minimising the cross-entropy with one-hot targets.",
        "最小化负对数似然，就是最小化目标为 one-hot 的交叉熵。",
    ),
    prediction=Words(
        f"−log P(target) and −Σ y log ŷ are equal to {EQUAL:g} in value and in gradient, the gradient at the logits "
        f"is ŷ − y, "
        "and the loss that training uses is the same. With targets that are not one-hot the gradients differ.",
        f"−log P(目标) 与 −Σ y log ŷ 的值和梯度都相等（误差 {EQUAL:g}），logit 处的梯度是 ŷ − y，"
        f"训练所用的损失也与之相同。"
        "目标不是 one-hot 时，梯度不等。",
    ),
    method=Words(
        "The logits of a small model on random texts. Each loss is written out as its formula, and differentiated by "
        "autograd; beside them the two losses of this library's training.",
        "小模型在随机文本上的 logit。两种损失都按公式写出，由 autograd 求导；并与本库训练所用的两种实现比较。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        **_WAYS,
        "smoothed": Words("with label smoothing: gradient, relative difference", "标签平滑时梯度的相对差"),
    },
)
