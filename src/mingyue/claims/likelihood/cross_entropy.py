"""Claim: negative log likelihood is cross-entropy with one-hot targets, in value and in gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Bars, Points
from mingyue.claims.training import seeds, tiny
from mingyue.training.cross_entropy import linear_cross_entropy
from mingyue.training.loss import loss_of_logits

EQUAL = 1e-5
"""Largest relative difference of losses, and of gradients (relative to the largest component)."""
SMOOTHING = 0.1
_VOCABULARY = 40
_WAYS = ("value", "gradient", "residual", "training")


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
    numbers = {way: Number.largest(apart) for way, apart in found.items()}
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


def judge(numbers: Numbers) -> Judgement:
    """Equal in value and gradient, and not equal once targets are not one-hot."""
    equal = all(numbers[way].at_most(EQUAL) for way in _WAYS)
    condition = numbers["smoothed"].low > 100 * EQUAL
    return Judgement.when(equal and condition, "found")


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Points("points", x="residual", y="gradient", series="target"),
        Bars("apart", x="way", interval=None, log_y=True, floor=1e-12, rules={"tolerance": EQUAL}),
    ],
    seconds=1,
)
