"""Claim: the cost of attention grows with the square of the length."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial
from mingyue.claims.figures import Lines
from mingyue.claims.timing import alternating
from mingyue.claims.training import tiny
from mingyue.nn import CAUSAL, Attend, Rotation, Taps, explicit_attention, fused_attention

TIME_TOLERANCE = 0.35
"""Of a slope of times: caches and the fixed cost of a call bend the lines a little."""
BYTES_TOLERANCE = 0.1
"""Of a slope of bytes."""
NEARLY_LINEAR = 1.5
"""A whole block counts as nearly linear where the slope of its work is below this."""
_WIDTH, _WINDOW = 64, 128
_LONG = (2048, 8192, 32768, 131072)
_POWERS = {"explicit": 2, "fused": 1, "window": 1}
"""Power of n with which kept bytes are expected to grow."""
_PATHS = ("explicit", "fused", "window")
_Path = Callable[[Tensor, Tensor, Tensor], Tensor]


def _runnable() -> dict[str, _Path]:
    return {
        "explicit": lambda q, k, v: explicit_attention(q, k, v, CAUSAL)[0],
        "fused": partial(fused_attention, attend=CAUSAL),
        "window": partial(fused_attention, attend=Attend(causal=True, window=_WINDOW)),
    }


def measure(trial: Trial) -> Measurement:
    """Times and kept bytes of one head on growing texts; multiply-adds of the products and of a whole block."""
    paths, timed = _runnable(), _timed_lengths(trial)
    weighed = trial.pick((512, 1024, 2048), (512, 1024, 2048, 4096), (512, 1024, 2048, 4096, 8192))
    kept = {name: [_kept_bytes(path, _inputs(n, trial.seed)) for n in weighed] for name, path in paths.items()}
    times: dict[str, list[list[float]]] = {name: [] for name in paths}
    most = trial.pick(2, 15, 31)
    for n in sorted({n for lengths in timed.values() for n in lengths}):
        # Fewer turns for long texts: their times vary less, and cost the most.
        turns = max(2, min(most, most * 1024 // n))
        ways = {
            name: partial(_forward_backward, path, _inputs(n, trial.seed))
            for name, path in paths.items()
            if n in timed[name]
        }
        for name, seconds in alternating(ways, turns=turns).items():
            times[name].append(seconds)
    numbers: dict[str, Number] = {}
    for name in paths:
        # The smallest time is the least disturbed; the slope of the medians says how much the others were.
        least = _slope(timed[name], [min(seconds) for seconds in times[name]])
        median = _slope(timed[name], [statistics.median(seconds) for seconds in times[name]])
        numbers[f"time_slope_{name}"] = Number(least, min(least, median), max(least, median))
        numbers[f"bytes_slope_{name}"] = Number.exact(_slope(weighed, kept[name]))
        foretold = kept[name][-2] * (weighed[-1] / weighed[-2]) ** _POWERS[name]
        numbers[f"prediction_off_{name}"] = Number.exact(abs(foretold / kept[name][-1] - 1))
    numbers |= _counted(trial.pick(64, 128, 256), weighed[0])
    measured: list[dict[str, Any]] = [
        {"path": path, "tokens": n, "bytes": size, "seen": "measured"}
        for path in paths
        for n, size in zip(weighed, kept[path], strict=True)
    ]
    predicted = _predicted(kept, weighed)
    for row in [*measured, *predicted]:
        if row["path"] != "window" and row["tokens"] in _LONG:  # a window keeps what the fused kernel keeps
            name = f"{row['seen']}_{row['path']}_{row['tokens'] // 1024}k"
            numbers[name] = Number.exact(row["bytes"] / 2**20, "MiB")
    tables = {
        "times": [
            Number.median(seconds).row(path=path, tokens=n)
            for path in paths
            for n, seconds in zip(timed[path], times[path], strict=True)
        ],
        "bytes": measured,
        "predicted": predicted,
    }
    return Measurement(numbers, tables)


def _timed_lengths(trial: Trial) -> dict[str, tuple[int, ...]]:
    """The lengths at which each path is timed.

    Explicit matrices that leave the processor's cache would measure memory, not arithmetic; the others need long
    texts, where the fixed cost of a call no longer counts.
    """
    short = trial.pick((128, 256, 512), (256, 512, 1024, 2048), (256, 512, 1024, 2048, 4096))
    long = trial.pick((256, 512, 1024), (2048, 4096, 8192, 16384), (2048, 4096, 8192, 16384, 32768))
    return {"explicit": short, "fused": long, "window": long}


def _inputs(n_tokens: int, seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 1, n_tokens, _WIDTH, generator=draw).requires_grad_() for _ in range(3)]


def _forward_backward(path: _Path, inputs: list[Tensor]) -> None:
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


def _slope(lengths: Sequence[int], found: Sequence[float]) -> float:
    """Slope of the least-squares line through the logarithms."""
    x, y = [math.log(n) for n in lengths], [math.log(value) for value in found]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return rise / sum((a - middle_x) ** 2 for a in x)


def _counted(d_model: int, n_tokens: int) -> dict[str, Number]:
    """Multiply-adds as the operations that run report them: of the products QKᵀ and PV, and of a whole block."""
    products = _multiply_adds(lambda: _runnable()["explicit"](*_inputs(n_tokens, 0)))
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
    """Bytes of one head at longer texts than measured, from the longest measured one and the expected power."""
    return [
        {"path": name, "tokens": n, "bytes": kept[name][-1] * (n / lengths[-1]) ** power, "seen": "predicted"}
        for name, power in _POWERS.items()
        for n in _LONG
        if n > lengths[-1]
    ]


def judge(numbers: Numbers) -> Judgement:
    """Slopes against 2 and 1, predictions against what was measured, and two products of n²·d multiply-adds."""

    def near(kind: str, path: str, slope: float) -> bool:
        tolerance = TIME_TOLERANCE if kind == "time" else BYTES_TOLERANCE
        return numbers[f"{kind}_slope_{path}"].near(slope, tolerance)

    def foretold(*paths: str) -> bool:
        return all(numbers[f"prediction_off_{path}"].at_most(BYTES_TOLERANCE) for path in paths)

    claimed = near("time", "explicit", 2) and near("bytes", "explicit", 2) and foretold("explicit")
    claimed = claimed and numbers["products_over_n2d"].value == 2
    corrected = near("time", "fused", 2) and near("bytes", "fused", 1) and foretold("fused")
    windowed = near("time", "window", 1) and near("bytes", "window", 1) and foretold("window")
    layer = numbers["block_slope_at_d"].at_most(NEARLY_LINEAR)
    square = near("time", "fused", 2) and near("bytes", "fused", 2)
    if claimed and corrected and windowed and layer:
        return Judgement.corrected("found", "block", "foretold")
    return Judgement.when(claimed and square, "found", "block", "foretold")


def _timed(measurement: Measurement) -> dict[str, object]:
    """The ends of the lengths at which each path was timed: they are not the same."""
    at = {path: [row["tokens"] for row in measurement.tables["times"] if row["path"] == path] for path in _PATHS}
    short, long = at["explicit"], at["fused"]
    return {"short_from": short[0], "short_to": short[-1], "long_from": long[0], "long_to": long[-1]}


def _weighed(measurement: Measurement) -> dict[str, object]:
    """The longest text whose bytes were measured."""
    return {"measured_to": max(row["tokens"] for row in measurement.tables["bytes"])}


def _bytes(measurement: Measurement) -> Table:
    """Bytes measured, and beyond them predicted."""
    return [*measurement.tables["bytes"], *measurement.tables["predicted"]]


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("times", x="tokens", series="path", log_x=True, log_y=True, scale=1000, values=_timed),
        Lines(
            "bytes",
            rows=_bytes,
            x="tokens",
            y="bytes",
            series="path",
            order=_PATHS,
            interval=None,
            log_x=True,
            log_y=True,
            scale=1 / 2**20,
            dashed=("path", "window"),
            values=_weighed,
        ),
    ],
    seconds=12,
)
