"""An embedding is a row of a table: what a one-hot vector times the matrix gives; and which rows learn in a step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import tiny
from mingyue.runtime import derive_seed
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

_ROWS = 24
"""Rows of the table whose gradients are shown."""


def _measure(trial: Trial) -> Measurement:
    vocab_size, d_model, n_tokens = trial.pick((300, 32, 64), (3000, 512, 512), (3000, 512, 4096))
    generator = torch.Generator().manual_seed(derive_seed(trial.seed, "lookup"))
    table = tiny(vocab_size, context=8, d_model=d_model, n_layers=1, seed=trial.seed).embedding
    ids_T = torch.randint(vocab_size, (n_tokens,), generator=generator)
    with torch.no_grad():
        one_hot_TV = F.one_hot(ids_T, vocab_size).float()
        apart = (table(ids_T) - one_hot_TV @ table.weight).abs().max()
        slower = _seconds(lambda: one_hot_TV @ table.weight) / _seconds(lambda: table(ids_T))

    # Ids are drawn from the first half of a small vocabulary, so that the other half cannot occur.
    ids_1T = torch.randint(_ROWS // 2, (1, 13), generator=generator)
    read = set(ids_1T[0, :-1].tolist())
    untied_V, tied_V = (_gradients(ids_1T, tied=tied, seed=trial.seed) for tied in (False, True))
    reached = {row for row in range(_ROWS) if untied_V[row] > 0}
    numbers = {
        "apart": Number.exact(float(apart)),
        "slower": Number.exact(slower),
        "vocab_size": Number.exact(_ROWS),
        "rows_read": Number.exact(len(read)),
        "rows_untied": Number.exact(len(reached)),
        "rows_astray": Number.exact(len(reached ^ read)),
        "rows_tied": Number.exact(float((tied_V > 0).sum())),
    }
    rows = [
        {"row": row, "read": row in read, "untied": float(untied_V[row]), "tied": float(tied_V[row])}
        for row in range(_ROWS)
    ]
    return Measurement(numbers, {"gradients": rows})


def _gradients(ids_1T: Tensor, *, tied: bool, seed: int) -> Tensor:
    """Length of the loss gradient of each row of the table, [V]."""
    model = tiny(_ROWS, context=16, seed=seed, tied_output=tied)
    F.cross_entropy(model(ids_1T[:, :-1]).flatten(0, 1), ids_1T[:, 1:].flatten()).backward()
    gradient_VM = nn.Module.get_parameter(model, "embedding.weight").grad
    assert gradient_VM is not None
    return gradient_VM.norm(dim=1)


def _seconds(work: Callable[[], Tensor]) -> float:
    """Median of a few runs."""
    taken = list[float]()
    for _ in range(7):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _judge(numbers: Numbers) -> Finding:
    apart, astray = numbers["apart"].value, numbers["rows_astray"].value
    read, untied, tied, vocab_size = (
        int(numbers[name].value) for name in ("rows_read", "rows_untied", "rows_tied", "vocab_size")
    )
    if apart == 0 and astray == 0 and tied == vocab_size:
        return Finding(
            "holds",
            Words(
                f"Row and product are the same bits. {read} of {vocab_size} rows were read, and these and no others "
                "got "
                f"a gradient; tied to the output layer, all {tied} did.",
                f"查表与矩阵乘法的结果逐位相同。{vocab_size} 行里读了 {read} 行，得到梯度的正是这些行；"
                f"与输出层共享后，{tied} 行全都有梯度。",
            ),
        )
    return Finding(
        "does not hold here",
        Words(
            f"Row and product differ by up to {apart:.1e}; {untied} rows got a gradient where {read} were read "
            f"({astray:.0f} wrongly), and {tied} of {vocab_size} when tied.",
            f"查表与乘法最多相差 {apart:.1e}；读了 {read} 行，有梯度的是 {untied} 行（其中 {astray:.0f} 行对不上），"
            f"共享时为 {vocab_size} 行中的 {tied} 行。",
        ),
    )


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    from mingyue.charts import BarChart

    names = {
        "untied": Words("table of its own", "独立的表"),
        "tied": Words("shared with the output layer", "与输出层共享"),
    }
    rows = [
        {"row": str(row["row"]), "norm": row[kind], "table": words.of(language)}
        for kind, words in names.items()
        for row in measurement.tables["gradients"]
    ]
    return [
        BarChart(
            Words("Gradient of each row of the embedding table in one step", "一步训练中嵌入表各行的梯度").of(language),
            rows,
            x="row",
            y="norm",
            series="table",
            x_title=Words("row (token id)", "行号（token id）").of(language),
            y_title=Words("length of the gradient", "梯度长度").of(language),
            note=Words(
                "The text has ids below 12 only. Without tying, the rows that it does not contain get exactly 0.",
                "文本里只有小于 12 的 id。不共享时，没有出现的行梯度恰好为 0。",
            ).of(language),
        )
    ]


CLAIM = Claim(
    name="lookup",
    group="embeddings",
    claim=Words(
        "An embedding layer is a big table: token id 12 takes row 12, and no arithmetic is done. Its rows are what "
        "training moves.",
        "嵌入层就是一张大表：id 为 12 的 token 取第 12 行，不做任何运算；训练调整的就是这些行。",
    ),
    prediction=Words(
        "The row equals the one-hot vector times the matrix, bit for bit. In a step, exactly the rows that were read "
        "get "
        "a gradient; where the table is also the output layer, every row does.",
        "取出的行与 one-hot 向量乘矩阵逐位相等。一步训练里，恰好是读过的行有梯度；如果这张表同时是输出层，"
        "则每一行都有。",
    ),
    method=Words(
        "Random ids through a table of 3000 × 512 in both ways. Then one backward pass of a small model over 12 tokens "
        f"with {_ROWS} possible ids, with a table of its own and with a tied one.",
        f"用一张 3000 × 512 的表，两种方式各算一遍随机 id。再让小模型对 12 个 token（共 {_ROWS} 种 id）做一次反向传播，"
        "独立的表和与输出层共享的表各一次。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "apart": Words("largest difference of row and product", "查表与乘法的最大差"),
        "slower": Words("time of the product ÷ time of the look-up", "乘法用时 ÷ 查表用时"),
        "vocab_size": Words("rows of the small table", "小表的行数"),
        "rows_read": Words("rows that the text reads", "文本读到的行数"),
        "rows_untied": Words("rows with a gradient, table of its own", "有梯度的行数（独立的表）"),
        "rows_astray": Words("rows where reading and gradient disagree", "读取与梯度对不上的行数"),
        "rows_tied": Words("rows with a gradient, tied", "有梯度的行数（共享）"),
    },
)
