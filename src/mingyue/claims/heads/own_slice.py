"""A head reads its own slice of the projected vectors; a convolution kernel reads every channel; and so does W_Q."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mingyue.charts import Chart, MatrixGrid
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import seeds
from mingyue.nn import CAUSAL, MultiHeadAttention, Rotation, Taps
from mingyue.runtime import derive_seed
from mingyue.words import Language, Words

REACHES = 1e-3
"""A change of this share of what is read counts as reaching it."""

_ARMS = ("projected", "input", "convolution")


def _relative(changed: Tensor, plain: Tensor) -> float:
    return float((changed - plain).norm() / plain.norm())


def _other(x: Tensor, place: slice, dim: int, noise: Tensor) -> Tensor:
    """x with other numbers in one slice."""
    changed = x.clone()
    index = [slice(None)] * x.ndim
    index[dim] = place
    changed[tuple(index)] = noise[tuple(index)]
    return changed


def _changes(n_parts: int, read: Callable[[int | None], list[Tensor]]) -> list[list[float]]:
    """Row i, column j: by which share what part i gives changes, when slice j is changed. `read(None)`: unchanged."""
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


def _measure(trial: Trial) -> Measurement:
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
    """The least of all changes, and how far it varies from seed to seed."""
    least_S = changes_SN.min(axis=1)
    return Number(float(least_S.min()), float(least_S.min()), float(least_S.max()))


def _judge(numbers: Numbers) -> Finding:
    own, elsewhere = numbers["own"].value, numbers["elsewhere"].value
    by_input, by_kernel = numbers["input_elsewhere"].value, numbers["convolution_elsewhere"].value
    if elsewhere or not own >= REACHES or not by_kernel >= REACHES:
        return Finding(
            "does not hold here",
            Words(
                f"Changing a slice moved its own head by {own:.1%} and another by up to {elsewhere:.1%}; a convolution "
                f"kernel moved by {by_kernel:.1%} at least.",
                f"改动一段投影，使本头变化 {own:.1%}，其他头最多变化 {elsewhere:.1%}；卷积核至少变化 {by_kernel:.1%}。",
            ),
        )
    isolated = Words(
        f"Another head's slice of Q, K and V moves a head by exactly 0, its own by {own:.0%} or more; a convolution "
        f"kernel is moved by every group of channels, by {by_kernel:.0%} or more",
        f"改动别的头的 Q、K、V 切片，本头的变化恰为 0；改动自己的切片，变化不少于 {own:.0%}；卷积核则受每组通道影响，"
        f"至少变化 {by_kernel:.0%}",
    )
    if by_input < REACHES:
        return Finding("holds", Words(f"{isolated.en}.", f"{isolated.zh}。"))
    return Finding(
        "holds with a correction",
        Words(
            f"{isolated.en}. But the slice is one of the projected vectors: every part of the input x moves every "
            f"head, by {by_input:.0%} or more.",
            f"{isolated.zh}。但被切分的是投影之后的向量：输入 x 的每一段都会影响每一个头，至少 {by_input:.0%}。",
        ),
    )


_TITLES = {
    "projected": Words("Q, K, V changed", "改动 Q、K、V"),
    "input": Words("x changed", "改动 x"),
    "convolution": Words("convolution", "卷积"),
}


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    rows = measurement.tables["changes"]
    n_parts = 1 + max(row["part"] for row in rows)
    by_arm = [[row["change"] for row in rows if row["arm"] == arm] for arm in _ARMS]
    parts = [str(part) for part in range(n_parts)]
    return [
        MatrixGrid(
            Words("Which slice reaches which head", "哪一段影响哪个头").of(language),
            np.array(by_arm).reshape(1, len(_ARMS), n_parts, n_parts),
            row_titles=[""],
            column_titles=[_TITLES[arm].of(language) for arm in _ARMS],
            row_labels=parts,
            column_labels=parts,
            note=Words(
                "Rows: heads, or kernels of a convolution. Columns: the slice that was changed, of Q, K and V or of "
                "the input x. Value: change of the output beside its length, mean over seeds.",
                "行：头，或卷积核。列：被改动的一段，取自 Q、K、V 或输入 x。数值：输出的变化与其长度之比，对随机种子"
                "取平均。",
            ).of(language),
        )
    ]


CLAIM = Claim(
    name="own-slice",
    group="heads",
    claim=Words(
        "A head sees only its own slice of the features, where a convolution kernel sees all channels.",
        "每个头只看特征中属于自己的一段，而卷积核要看全部通道。",
    ),
    prediction=Words(
        "Other numbers in another head's slice change a head by exactly 0, in its own slice by at least "
        f"{REACHES:.1%}, and in any channels a convolution kernel by at least {REACHES:.1%}. If a slice of the input "
        "reaches another head too, the claim needs a correction.",
        f"换掉别的头的切片，本头变化恰为 0；换掉自己的切片，变化至少 {REACHES:.1%}；换掉任何一组通道，卷积核的变化至少 "
        f"{REACHES:.1%}。若输入 x 的一段也会影响别的头，则需修正。",
    ),
    method=Words(
        "In a random attention of this library, one head's slice of Q, K and V is replaced on the way, and the "
        "output of every head read; then the same with slices of the input x, for the attention and for a "
        "convolution of torch.",
        "在随机初始化的本库注意力中，途中替换某个头的 Q、K、V 切片，读出每个头的输出；再对输入 x 的各段做同样的事，"
        "分别用于注意力和 torch 的卷积。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "own": Words("least change of a head by its own slice", "自己的切片引起的最小变化"),
        "elsewhere": Words("largest change of a head by another's slice", "别的头的切片引起的最大变化"),
        "input_elsewhere": Words("least change of a head by another slice of the input", "输入的别段引起的最小变化"),
        "convolution_elsewhere": Words(
            "least change of a kernel by any other channels", "其他通道对卷积核引起的最小变化"
        ),
    },
    correction=Words(
        "It is the projected Q, K and V that are cut in slices, not x. The rows of W_Q, W_K and W_V that belong to a "
        "head read all of x, so a head can use any feature.",
        "切开的是投影后的 Q、K、V，不是 x。每个头在 W_Q、W_K、W_V 中的那些行都读取整个 x，因此任何特征它都用得上。",
    ),
)
