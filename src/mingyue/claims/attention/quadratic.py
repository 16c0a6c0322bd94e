"""Claim: the cost of attention grows with the square of the length."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mingyue.charts import LineChart
from mingyue.claims.attention.figures import interval, named
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Table, Trial
from mingyue.claims.timing import alternating
from mingyue.claims.training import tiny
from mingyue.nn import CAUSAL, Attend, Rotation, Taps, explicit_attention, fused_attention
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

TIME_TOLERANCE = 0.35
"""Of a slope of times: caches and the fixed cost of a call bend the lines a little."""
BYTES_TOLERANCE = 0.1
"""Of a slope of bytes."""
_WIDTH, _WINDOW = 64, 128
_LONG = (2048, 8192, 32768, 131072)
_PATHS = {
    "explicit": Words("written out", "逐步写出"),
    "fused": Words("fused", "融合核"),
    "window": Words(f"sliding window of {_WINDOW}", f"宽 {_WINDOW} 的滑动窗口"),
}
_Path = Callable[[Tensor, Tensor, Tensor], Tensor]


def _paths() -> dict[str, _Path]:
    return {
        "explicit": lambda q, k, v: explicit_attention(q, k, v, CAUSAL)[0],
        "fused": partial(fused_attention, attend=CAUSAL),
        "window": partial(fused_attention, attend=Attend(causal=True, window=_WINDOW)),
    }


def measure(trial: Trial) -> Measurement:
    """Times and kept bytes of one head on growing texts; multiply-adds of the products and of a whole block."""
    paths, timed = _paths(), _timed_lengths(trial)
    weighed = trial.pick((512, 1024, 2048), (512, 1024, 2048, 4096), (512, 1024, 2048, 4096, 8192))
    kept = {name: [_kept_bytes(path, _inputs(n, trial.seed)) for n in weighed] for name, path in paths.items()}
    times: dict[str, list[list[float]]] = {name: [] for name in paths}
    most = trial.pick(2, 15, 31)
    for n in sorted({n for lengths in timed.values() for n in lengths}):
        # Fewer turns of the long ones: they are less disturbed, and cost the most.
        turns = max(2, min(most, most * 1024 // n))
        ways = {
            name: partial(_there_and_back, path, _inputs(n, trial.seed))
            for name, path in paths.items()
            if n in timed[name]
        }
        for name, seconds in alternating(ways, turns=turns).items():
            times[name].append(seconds)
    numbers: dict[str, Number] = {}
    for name in paths:
        # The least time is the one that nothing disturbed; the slope of the medians says how much was disturbed.
        least = _slope(timed[name], [min(seconds) for seconds in times[name]])
        median = _slope(timed[name], [statistics.median(seconds) for seconds in times[name]])
        numbers[f"time_slope_{name}"] = Number(least, min(least, median), max(least, median))
        numbers[f"bytes_slope_{name}"] = Number.exact(_slope(weighed, kept[name]))
    numbers |= _counted(trial.pick(64, 128, 256), weighed[0])
    predicted = _predicted(kept, weighed)
    for row in predicted:
        if row["path"] != "window":  # it keeps what the fused kernel keeps
            numbers[f"mebibytes_{row['path']}_{row['tokens'] // 1024}k"] = Number.exact(row["bytes"] / 2**20, "MiB")
    tables = {
        "times": [
            interval(Number.median(seconds), path=path, tokens=n)
            for path in paths
            for n, seconds in zip(timed[path], times[path], strict=True)
        ],
        "bytes": [
            {"path": path, "tokens": n, "bytes": size, "seen": "measured"}
            for path in paths
            for n, size in zip(weighed, kept[path], strict=True)
        ],
        "predicted": predicted,
    }
    return Measurement(numbers, tables)


def _timed_lengths(trial: Trial) -> dict[str, tuple[int, ...]]:
    """Where each way is timed.

    Written out, matrices that leave the processor's cache would be measured as memory, not as arithmetic; the others
    need long texts, in which what is fixed for a call no longer counts.
    """
    short = trial.pick((128, 256, 512), (256, 512, 1024, 2048), (256, 512, 1024, 2048, 4096))
    long = trial.pick((256, 512, 1024), (2048, 4096, 8192, 16384), (2048, 4096, 8192, 16384, 32768))
    return {"explicit": short, "fused": long, "window": long}


def _inputs(n_tokens: int, seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 1, n_tokens, _WIDTH, generator=draw).requires_grad_() for _ in range(3)]


def _there_and_back(path: _Path, inputs: list[Tensor]) -> None:
    out = path(*inputs)
    torch.autograd.grad(out, inputs, torch.ones_like(out))


def _kept_bytes(path: _Path, inputs: list[Tensor]) -> int:
    """Bytes that the forward pass keeps for the backward pass, besides the queries, keys and values themselves."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = path(*inputs)
    given = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    assert out.requires_grad  # and so the storages are still held, and no address was used twice
    return sum(size for address, size in storages.items() if address not in given)


def _slope(lengths: Sequence[int], values: Sequence[float]) -> float:
    """Slope of the least-squares line through the logarithms."""
    x, y = [math.log(n) for n in lengths], [math.log(value) for value in values]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return rise / sum((a - middle_x) ** 2 for a in x)


def _counted(d_model: int, n_tokens: int) -> dict[str, Number]:
    """Multiply-adds as the operations that run report them: of the products QKᵀ and PV, and of a whole block."""
    products = _multiply_adds(lambda: _paths()["explicit"](*_inputs(n_tokens, 0)))
    model = tiny(2, context=1, d_model=d_model, n_layers=1, n_heads=d_model // 32)

    def block(n: int) -> int:
        # The explicit path: its two products are counted in full, as the claim counts them.
        x_BTM, taps = torch.zeros(1, n, d_model), Taps(["attention.weights"])
        return _multiply_adds(lambda: model.blocks[0](x_BTM, CAUSAL, Rotation(), taps=taps))

    # Linear and square part of the count, from two lengths; they are equal at linear / square tokens.
    one, two = block(d_model), block(2 * d_model)
    square = (two - 2 * one) / 2
    linear = one - square
    return {
        "products_over_n2d": Number.exact(products / (n_tokens**2 * _WIDTH)),
        "block_halves_at": Number.exact(linear / square, "d_model"),
        "block_slope_at_d": Number.exact((linear + 2 * square) / (linear + square)),
    }


def _multiply_adds(run: Callable[[], object]) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() // 2


def _predicted(kept: Mapping[str, Sequence[int]], lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Bytes of one head at lengths that few machines can try, from the longest measured text and the slope it had."""
    powers = {"explicit": 2, "fused": 1, "window": 1}
    return [
        {"path": name, "tokens": n, "bytes": kept[name][-1] * (n / lengths[-1]) ** power, "seen": "predicted"}
        for name, power in powers.items()
        for n in _LONG
    ]


def judge(numbers: Numbers) -> Finding:
    """Slopes against 2 and 1, and two products of n²·d multiply-adds."""
    value = {name: number.value for name, number in numbers.items()}

    def near(kind: str, path: str, slope: float) -> bool:
        tolerance = TIME_TOLERANCE if kind == "time" else BYTES_TOLERANCE
        return abs(value[f"{kind}_slope_{path}"] - slope) <= tolerance

    claimed = near("time", "explicit", 2) and near("bytes", "explicit", 2) and value["products_over_n2d"] == 2
    corrected = near("time", "fused", 2) and near("bytes", "fused", 1)
    windowed = near("time", "window", 1) and near("bytes", "window", 1)
    square = near("time", "fused", 2) and near("bytes", "fused", 2)
    verdict = "does not hold here"
    if claimed and corrected and windowed:
        verdict = "holds with a correction"
    elif claimed and square:
        verdict = "holds"
    slopes = {path: f"{value[f'time_slope_{path}']:.2f} / {value[f'bytes_slope_{path}']:.2f}" for path in _PATHS}
    return Finding(
        verdict,
        Words(
            f"Slopes of time / kept bytes: written out {slopes['explicit']}, fused {slopes['fused']}, window "
            f"{slopes['window']}. The two products take {value['products_over_n2d']:g} n²·d multiply-adds; a whole "
            f"block is half attention at n = {value['block_halves_at']:.2g} d, and has slope "
            f"{value['block_slope_at_d']:.2f} at n = d.",
            f"时间 / 保留字节的斜率：逐步写出 {slopes['explicit']}，融合核 {slopes['fused']}，窗口 {slopes['window']}。"
            f"两次乘积共 {value['products_over_n2d']:g} n²·d 次乘加；整个块到 n = {value['block_halves_at']:.2g} d 时注"
            f"意力才占一半，n = d 时斜率为 {value['block_slope_at_d']:.2f}。",
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """Times; bytes measured and predicted."""
    zh = language == "zh"
    note = Words(
        "Beyond the measured lengths: predicted. Fused and window keep the same: the dashed line lies on the other.",
        "超过测量长度的是预测。融合核与窗口保留的一样多，虚线与另一条重合。",
    )
    times = [
        {**row, **{end: 1000 * row[end] for end in ("value", "low", "high")}} for row in measurement.tables["times"]
    ]
    rows = [*measurement.tables["bytes"], *(r for r in measurement.tables["predicted"] if r["tokens"] > _LONG[0])]
    return [
        LineChart(
            "一个头的前向与反向" if zh else "Forward and backward of one head",
            named(times, "path", _PATHS, language),
            x="tokens",
            y="value",
            series="path",
            low="low",
            high="high",
            x_title="token 数 n" if zh else "tokens n",
            y_title="毫秒" if zh else "milliseconds",
            log_x=True,
            log_y=True,
            note=_where_timed(times).of(language),
        ),
        LineChart(
            "为反向传播保留的字节" if zh else "Bytes kept for the backward pass",
            [{**row, "mebibytes": row["bytes"] / 2**20} for row in named(rows, "path", _PATHS, language)],
            x="tokens",
            y="mebibytes",
            series="path",
            x_title="token 数 n" if zh else "tokens n",
            y_title="MiB",
            log_x=True,
            log_y=True,
            dashed=[_PATHS["window"].of(language)],
            note=note.of(language),
        ),
    ]


def _where_timed(times: Table) -> Words:
    """What the lines of times are, and that they do not all go over the same lengths."""
    at = {path: [row["tokens"] for row in times if row["path"] == path] for path in _PATHS}
    short, long = at["explicit"], at["fused"]
    both = [f"{n:,}" for n in short if n in long]
    return Words(
        f"Lines: medians; bands: least to largest. Written out is timed from {short[0]:,} to {short[-1]:,} tokens "
        f"(beyond, memory would be measured and not arithmetic), the others from {long[0]:,} to {long[-1]:,} (where "
        f"the fixed cost of a call no longer counts): compare slopes, and heights only at {' and '.join(both)}.",
        f"线：中位数；带：最小到最大。逐步写出在 {short[0]:,} 到 {short[-1]:,} 个 token 上计时（更长时测到的是内存，"
        f"不是运算），另两种在 {long[0]:,} 到 {long[-1]:,} 个上（那里每次调用的固定开销已不要紧）：可比的是斜率，"
        f"高低只能在 {' 和 '.join(both)} 处比较。",
    )


CLAIM = Claim(
    name="quadratic",
    group="attention",
    claim=Words(
        "Attention costs n²·d: time and memory grow with the square of the length n of the text.",
        "注意力的代价是 n²·d：时间与内存都随文字长度 n 的平方增长。",
    ),
    prediction=Words(
        f"On logarithmic axes (tolerance {TIME_TOLERANCE:g} for time, {BYTES_TOLERANCE:g} for bytes): written out "
        "slope 2 in both; fused 2 in time and 1 in bytes; a sliding window 1 in both. The two products are 2 n²·d "
        "multiply-adds exactly.",
        f"在对数坐标上（时间容差 {TIME_TOLERANCE:g}，字节容差 {BYTES_TOLERANCE:g}）：逐步写出，两者斜率都是 2；融合核，"
        "时间 2、字节 1；滑动窗口，两者都是 1。两次乘积恰好 2 n²·d 次乘加。",
    ),
    method=Words(
        f"One causal head of width {_WIDTH}, forward and backward, three ways that take turns; slopes of the least "
        "times. Kept bytes: every storage that the forward pass saves for the backward pass, besides queries, keys "
        "and values. Multiply-adds as PyTorch's counter reports them.",
        f"一个宽 {_WIDTH} 的因果头，前向与反向，三种算法轮流测，斜率取自最短时间。保留的字节：前向为反向保存的每一块内"
        "存，不算查询、键、值本身。乘加次数由 PyTorch 的计数器给出。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        **{
            f"time_slope_{path}": Words(
                f"slope of least times (and of medians): {w.en}", f"最短时间（与中位数）的斜率：{w.zh}"
            )
            for path, w in _PATHS.items()
        },
        **{
            f"bytes_slope_{path}": Words(f"slope of bytes: {w.en}", f"字节的斜率：{w.zh}") for path, w in _PATHS.items()
        },
        **{
            f"mebibytes_{path}_{n // 1024}k": Words(
                f"kept by one head at {n:,} tokens, {_PATHS[path].en} (predicted)",
                f"一个头在 {n:,} 个 token 时保留的内存，{_PATHS[path].zh}（预测）",
            )
            for path in ("explicit", "fused")
            for n in _LONG
        },
        "products_over_n2d": Words("multiply-adds of QKᵀ and PV, over n²·d", "QKᵀ 与 PV 的乘加次数 ÷ n²·d"),
        "block_halves_at": Words("length at which half a block's work is attention", "注意力占一个块一半工作量的长度"),
        "block_slope_at_d": Words("slope of a whole block's work at n = d", "n = d 时整个块工作量的斜率"),
    },
    correction=Words(
        "The square is that of attention alone: the projections and the feed-forward layer cost 12 n·d², so a whole "
        "layer is close to linear until n nears 6 d. And memory need not grow with the square: the fused kernel never "
        "keeps the n × n matrix. A sliding window makes both linear.",
        "平方增长的只是注意力本身：投影与前馈层要 12 n·d²，所以 n 接近 6 d 之前，整层接近线性。内存也不必按平方增长："
        "融合核从不保留 n × n 矩阵。滑动窗口让两者都成为线性。",
    ),
)
