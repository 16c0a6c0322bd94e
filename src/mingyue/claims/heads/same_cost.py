"""Many narrow heads cost what one wide head costs — in products; not in softmax and score memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mingyue.charts import Chart, LineChart
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.timing import alternating, times_as_long
from mingyue.config import ModelConfig
from mingyue.models import sizes
from mingyue.nn import CAUSAL, MultiHeadAttention, Rotation, Taps
from mingyue.runtime import derive_seed
from mingyue.words import Language, Words

_EXPLICIT, _FUSED = "explicit", "fused"


def _config(d_model: int, n_heads: int, n_tokens: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=2,
        context=n_tokens,
        d_model=d_model,
        n_layers=1,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_head=d_model // n_heads,
        d_ff=4 * d_model,
    )


def _attention(d_model: int, n_heads: int) -> MultiHeadAttention:
    return MultiHeadAttention(d_model, n_heads, n_heads, d_model // n_heads).eval()


def _multiply_adds(attention: MultiHeadAttention, x_BTM: Tensor) -> tuple[int, Tensor]:
    """Multiply-adds of all products of a pass, as torch counts them, and the weights_BHTS of that pass."""
    taps = Taps("weights")
    with FlopCounterMode(display=False) as counter:
        attention(x_BTM, CAUSAL, Rotation(), taps=taps)
    return counter.get_total_flops() // 2, taps.values["weights"]


@torch.inference_mode()
def _measure(trial: Trial) -> Measurement:
    d_model, n_tokens, turns = trial.pick((64, 64, 5), (512, 256, 21), (512, 1024, 41))
    heads = trial.pick((1, 2, 8), (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32))
    generator = torch.Generator().manual_seed(derive_seed(trial.seed, "same-cost"))
    x_BTM = torch.randn(1, n_tokens, d_model, generator=generator)
    parts = {count: _attention(d_model, count) for count in heads}
    parameters, by_formula, multiply_adds, cells = list[int](), list[int](), list[int](), list[int]()
    for count, part in parts.items():
        work, weights_BHTS = _multiply_adds(part, x_BTM)
        parameters.append(sum(weight.numel() for weight in part.parameters()))
        by_formula.append(sizes(_config(d_model, count, n_tokens)).parts()["attention"])
        multiply_adds.append(work)
        cells.append(weights_BHTS.numel())

    def explicit(part: MultiHeadAttention) -> Tensor:
        return part(x_BTM, CAUSAL, Rotation(), taps=Taps("weights"))

    def fused(part: MultiHeadAttention) -> Tensor:
        return part(x_BTM, CAUSAL, Rotation())

    times = {
        name: alternating({str(count): partial(way, part) for count, part in parts.items()}, turns=turns)
        for name, way in ((_EXPLICIT, explicit), (_FUSED, fused))
    }
    rows = [
        {"heads": count, "what": what, "ratio": values[place] / values[0], "low": None, "high": None}
        for what, values in (("parameters", parameters), ("multiply-adds", multiply_adds), ("scores", cells))
        for place, count in enumerate(heads)
    ]
    for name, by_count in times.items():
        for count in heads:
            ratio = times_as_long(by_count[str(count)], by_count["1"])
            rows.append({"heads": count, "what": name, "ratio": ratio.value, "low": ratio.low, "high": ratio.high})
    most = str(heads[-1])
    numbers = {
        "heads": Number.exact(heads[-1]),
        "parameters": Number.exact(parameters[0]),
        "parameters_apart": Number.exact(max(parameters) - min(parameters)),
        "formula_apart": Number.exact(max(abs(a - b) for a, b in zip(parameters, by_formula, strict=True))),
        "multiply_adds": Number.exact(multiply_adds[0]),
        "multiply_adds_apart": Number.exact(max(multiply_adds) - min(multiply_adds)),
        "score_ratio": Number.exact(cells[-1] / cells[0], "×"),
        "score_bytes": Number.exact(4 * cells[-1], "bytes"),
        "explicit_time": times_as_long(times[_EXPLICIT][most], times[_EXPLICIT]["1"]),
        "fused_time": times_as_long(times[_FUSED][most], times[_FUSED]["1"]),
    }
    return Measurement(numbers, {"ratios": rows})


def _judge(numbers: Numbers) -> Finding:
    parameters, work = numbers["parameters_apart"].value, numbers["multiply_adds_apart"].value
    heads, scores = numbers["heads"].value, numbers["score_ratio"].value
    if parameters or work:
        return Finding(
            "does not hold here",
            Words(
                f"From one head to {heads:.0f}, parameters differ by {parameters:,.0f} and multiply-adds by "
                f"{work:,.0f}.",
                f"从 1 个头到 {heads:.0f} 个头，参数量相差 {parameters:,.0f}，乘加次数相差 {work:,.0f}。",
            ),
        )
    same = Words(
        f"{numbers['parameters'].value:,.0f} parameters and {numbers['multiply_adds'].value:,.0f} multiply-adds, "
        f"the same for one head and for {heads:.0f}",
        f"无论 1 个头还是 {heads:.0f} 个头，都是 {numbers['parameters'].value:,.0f} 个参数、"
        f"{numbers['multiply_adds'].value:,.0f} 次乘加",
    )
    if scores <= 1:
        return Finding("holds", Words(f"{same.en}.", f"{same.zh}。"))
    slower = numbers["explicit_time"].value
    return Finding(
        "holds with a correction",
        Words(
            f"{same.en}. But there are {scores:.0f} times as many scores to keep and to put through softmax; with the "
            f"scores written out, {heads:.0f} heads took {slower:.2f} times as long as one.",
            f"{same.zh}。但要保存、要做 softmax 的分数是 {scores:.0f} 倍；把分数写出来计算时，"
            f"{heads:.0f} 个头的用时是单头的 {slower:.2f} 倍。",
        ),
    )


_NAMES = {
    "parameters": Words("parameters", "参数量"),
    "multiply-adds": Words("multiply-adds of the products", "矩阵乘法的乘加次数"),
    "scores": Words("scores: memory and softmax", "分数：内存与 softmax"),
    _EXPLICIT: Words("time, scores written out", "用时：写出分数"),
    _FUSED: Words("time, fused kernel", "用时：融合内核"),
}


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    rows = [{**row, "what": _NAMES[row["what"]].of(language)} for row in measurement.tables["ratios"]]
    return [
        LineChart(
            Words(
                "The cost of many heads, beside one head of the same width in all", "多头的开销：与总宽度相同的单头相比"
            ).of(language),
            rows,
            x="heads",
            y="ratio",
            series="what",
            low="low",
            high="high",
            x_title=Words("heads", "头数").of(language),
            y_title=Words("times one head", "单头的倍数").of(language),
            log_x=True,
            log_y=True,
            note=Words("Bands: quartiles of paired times.", "色带：成对计时的四分位区间。").of(language),
        )
    ]


CLAIM = Claim(
    name="same-cost",
    group="heads",
    claim=Words(
        "h heads of width d/h cost as much as one head of width d.",
        "h 个宽度为 d/h 的头，与 1 个宽度为 d 的头开销相同。",
    ),
    prediction=Words(
        "Whatever the number of heads, parameters and multiply-adds of all products are the same to the last one. "
        "If anything else grows with h, the claim needs a correction.",
        "不论头数多少，参数量和全部矩阵乘法的乘加次数分毫不差。若另有开销随 h 增长，则需要修正。",
    ),
    method=Words(
        "The attention of this library is made with 1 to h heads. Parameters are counted in the module and by formula, "
        "multiply-adds by torch's own counter, scores from the weights of that pass. Times are medians of runs that "
        "take turns.",
        "用本库的注意力模块分别取 1 到 h 个头：参数量同时从模块和公式得到，乘加次数由 torch 自带的计数器给出，"
        "分数个数取自同一次前向的权重；用时为交替运行的中位数。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "heads": Words("most heads", "最多头数"),
        "parameters": Words("parameters of the attention", "注意力的参数量"),
        "parameters_apart": Words("largest difference of parameters", "参数量的最大差"),
        "formula_apart": Words(
            "largest difference from the formula of `mingyue.models.sizes`", "与 `mingyue.models.sizes` 公式的最大差"
        ),
        "multiply_adds": Words("multiply-adds of a pass", "一次前向的乘加次数"),
        "multiply_adds_apart": Words("largest difference of multiply-adds", "乘加次数的最大差"),
        "score_ratio": Words("scores of most heads, beside one head", "最多头数时的分数个数，与单头之比"),
        "score_bytes": Words("memory of the scores of most heads", "最多头数时分数占用的内存"),
        "explicit_time": Words(
            "time of most heads, scores written out (quartiles)", "最多头数的用时，写出分数（四分位）"
        ),
        "fused_time": Words("time of most heads, fused kernel (quartiles)", "最多头数的用时，融合内核（四分位）"),
    },
    correction=Words(
        "Only products cost the same. There is one n × n table of scores for each head: softmax works h times as much, "
        "and where the tables are kept they take h times the memory.",
        "相同的只是矩阵乘法。每个头各有一张 n × n 的分数表：softmax 的工作量是 h 倍；若保存这些表，内存也是 h 倍。",
    ),
)
