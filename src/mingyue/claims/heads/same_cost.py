"""Claim: many narrow heads cost as much as one wide head. True of the products, not of softmax and score memory."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial, values
from mingyue.claims.figures import Lines
from mingyue.claims.timing import alternating, times_as_long
from mingyue.config import ModelConfig
from mingyue.models import sizes
from mingyue.nn import CAUSAL, MultiHeadAttention, Rotation, Taps
from mingyue.runtime import derive_seed


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
def measure(trial: Trial) -> Measurement:
    """Parameters, multiply-adds, scores and times by the number of heads."""
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
        for name, way in (("explicit", explicit), ("fused", fused))
    }
    rows = [
        {"heads": count, "what": what, "ratio": counts[place] / counts[0], "low": None, "high": None}
        for what, counts in (("parameters", parameters), ("multiply-adds", multiply_adds), ("scores", cells))
        for place, count in enumerate(heads)
    ]
    for name, by_count in times.items():
        for count in heads:
            ratio = times_as_long(by_count[str(count)], by_count["1"])
            rows.append(ratio.row("ratio", heads=count, what=name))
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
        "explicit_time": times_as_long(times["explicit"][most], times["explicit"]["1"]),
        "fused_time": times_as_long(times["fused"][most], times["fused"]["1"]),
    }
    return Measurement(numbers, {"ratios": rows})


def judge(numbers: Numbers) -> Judgement:
    """Parameters and products are the same; whether anything else grows with the heads."""
    value = values(numbers)
    if any(value[name] != 0 for name in ("parameters_apart", "formula_apart", "multiply_adds_apart")):
        return Judgement.not_supported("differ")
    if value["score_ratio"] <= 1:
        return Judgement.supported("same")
    if value["score_ratio"] != value["heads"]:
        return Judgement.not_supported("same", "scores")
    return Judgement.corrected("same", "scores")


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("ratios", x="heads", y="ratio", series="what", log_x=True, log_y=True),
    ],
    seconds=3,
)
