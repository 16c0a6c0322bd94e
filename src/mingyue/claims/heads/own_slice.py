"""Claim: a head reads only its own slice of the features. True of the projected vectors, not of the input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial, values
from mingyue.claims.figures import Matrices
from mingyue.claims.training import seeds
from mingyue.nn import CAUSAL, MultiHeadAttention, Rotation, Taps
from mingyue.runtime import derive_seed

REACHES = 1e-3
"""A change of this share of what is read counts as reaching it."""

_ARMS = ("projected", "input", "convolution")


def _relative(changed: Tensor, plain: Tensor) -> float:
    return float((changed - plain).norm() / plain.norm())


def _other(x: Tensor, place: slice, dim: int, noise: Tensor) -> Tensor:
    """x with one slice replaced by noise."""
    changed = x.clone()
    index = [slice(None)] * x.ndim
    index[dim] = place
    changed[tuple(index)] = noise[tuple(index)]
    return changed


def _changes(n_parts: int, read: Callable[[int | None], list[Tensor]]) -> list[list[float]]:
    """Row i, column j: relative change of the output of part i when slice j is changed. `read(None)`: unchanged."""
    plain = read(None)
    changed = [read(part) for part in range(n_parts)]
    return [[_relative(changed[j][i], plain[i]) for j in range(n_parts)] for i in range(n_parts)]


@torch.inference_mode()
def _one_seed(d_model: int, n_heads: int, n_tokens: int, seed: int) -> dict[str, list[list[float]]]:
    generator = torch.Generator().manual_seed(derive_seed(seed, "own-slice"))

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    d_head = d_model // n_heads
    attention = MultiHeadAttention(d_model, n_heads, n_heads, d_head).eval()
    attention.qkv.weight.copy_(draw(3 * d_model, d_model) / d_model**0.5)
    convolution = nn.Conv1d(d_model, n_heads, kernel_size=3, padding=1, bias=False).eval()
    convolution.weight.copy_(draw(n_heads, d_model, 3) / (3 * d_model) ** 0.5)
    x_1TM, other_1TM = draw(1, n_tokens, d_model), draw(1, n_tokens, d_model)
    noise_1HTD = {name: draw(1, n_heads, n_tokens, d_head) for name in ("query", "key", "value")}

    def heads(x_BTM: Tensor, taps: Taps) -> list[Tensor]:
        attention(x_BTM, CAUSAL, Rotation(), taps=taps)
        return list(taps.values["heads"].unbind(1))

    def columns(part: int) -> slice:
        return slice(part * d_head, (part + 1) * d_head)

    def projected(part: int | None) -> list[Tensor]:
        if part is None:
            return heads(x_1TM, Taps("heads"))

        place = slice(part, part + 1)

        def put(name: str) -> Callable[[Tensor], Tensor]:
            return lambda value_BHTD: _other(value_BHTD, place, 1, noise_1HTD[name])

        return heads(x_1TM, Taps("heads", {name: put(name) for name in noise_1HTD}))

    def input_of_heads(part: int | None) -> list[Tensor]:
        return heads(x_1TM if part is None else _other(x_1TM, columns(part), 2, other_1TM), Taps("heads"))

    def input_of_kernels(part: int | None) -> list[Tensor]:
        x_BTM = x_1TM if part is None else _other(x_1TM, columns(part), 2, other_1TM)
        return list(convolution(x_BTM.transpose(1, 2)).unbind(1))

    readers = zip(_ARMS, (projected, input_of_heads, input_of_kernels), strict=True)
    return {arm: _changes(n_heads, read) for arm, read in readers}


def measure(trial: Trial) -> Measurement:
    """Relative change of each head when one slice is replaced, of Q, K and V, of x, and for a convolution."""
    d_model, n_heads, n_tokens = trial.pick((64, 4, 8), (512, 8, 32), (512, 8, 128))
    found = [_one_seed(d_model, n_heads, n_tokens, seed) for seed in seeds(trial, 2, 5, 9)]
    elsewhere = ~np.eye(n_heads, dtype=bool)
    cells = {arm: np.array([one[arm] for one in found]) for arm in _ARMS}  # [seed, part, slice]
    numbers = {
        "own": _least(cells["projected"][:, ~elsewhere]),
        "elsewhere": Number.exact(float(cells["projected"][:, elsewhere].max())),
        "input_elsewhere": _least(cells["input"][:, elsewhere]),
        "convolution_elsewhere": _least(cells["convolution"][:, elsewhere]),
    }
    rows = [
        {"arm": arm, "part": part, "slice": place, "change": float(cells[arm][:, part, place].mean())}
        for arm in _ARMS
        for part in range(n_heads)
        for place in range(n_heads)
    ]
    return Measurement(numbers, {"changes": rows})


def _least(changes_SN: NDArray[np.float64]) -> Number:
    """The smallest of all changes, with the smallest and largest of the seeds' own."""
    least_S = changes_SN.min(axis=1)
    return Number(float(least_S.min()), float(least_S.min()), float(least_S.max()))


def judge(numbers: Numbers) -> Judgement:
    """A head is changed by its own slice alone; a correction if a slice of the input reaches other heads."""
    value = values(numbers)
    if value["elsewhere"] or not value["own"] >= REACHES or not value["convolution_elsewhere"] >= REACHES:
        return Judgement.not_supported("reached")
    if value["input_elsewhere"] < REACHES:
        return Judgement.supported("isolated")
    return Judgement.corrected("isolated", "input")


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Matrices("changes", panel="arm", row="part", column="slice", value="change"),
    ],
    seconds=0,
)
