"""Claim: attention gives each query a convex mixture of the values, and can be an exact look-up."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial, values
from mingyue.claims.figures import Lines, Matrix, matrix_rows
from mingyue.claims.training import seeds
from mingyue.nn import EVERYONE, Taps, explicit_attention, fused_attention

ROUNDING = 1e-5
"""Largest error of sums and mixtures of numbers of size 1 in fp32."""
_HEADS, _WIDTH, _DIRECTIONS = 4, 16, 64
_GAPS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Scores of the right key above the others, in the look-up."""
_LOOKUP_GAP = 32


def measure(trial: Trial) -> Measurement:
    """Random queries, keys and values; then a dictionary with orthonormal keys."""
    n_tokens, chosen = trial.pick(16, 64, 512), seeds(trial, 3, 10, 50)
    sums, least, outside, mixture = list[float](), list[float](), list[float](), list[float]()
    shapes = list[tuple[int, ...]]()
    for seed in chosen:
        query, key, value = _random(seed, n_tokens)
        taps = Taps(["scores", "weights"])
        explicit_attention(query, key, value, EVERYONE, taps=taps)
        weights_HTS, value_HSD = taps.values["weights"][0], value[0]
        out_HTD = fused_attention(query, key, value, EVERYONE)[0]
        shapes.append(tuple(taps.values["scores"].shape[-2:]))
        sums.append(float((weights_HTS.sum(-1) - 1).abs().max()))
        least.append(float(weights_HTS.min()))
        mixture.append(float((weights_HTS @ value_HSD - out_HTD).abs().max()))
        outside.append(_outside(out_HTD, value_HSD, seed))
    errors = {gap: [_look_up(seed, float(gap)) for seed in chosen] for gap in _GAPS}
    numbers = {
        "tokens": Number.exact(n_tokens),
        "score_rows": Number.median([shape[0] for shape in shapes]),
        "score_columns": Number.median([shape[1] for shape in shapes]),
        "sum_error": Number.largest(sums),
        "least_weight": Number(min(least), min(least), max(least)),
        "outside": Number.largest(outside),
        "mixture_error": Number.largest(mixture),
        "lookup_error": Number.largest(error for error, _ in errors[_LOOKUP_GAP]),
        "lookup_least_weight": Number.median([weight for _, weight in errors[_LOOKUP_GAP]]),
        "gap_of_zero": Number.exact(_gap_of_zero(), "nats"),
    }
    lookup = [Number.median([error for error, _ in found]).row(gap=gap) for gap, found in errors.items()]
    query, key, value = _random(trial.seed, 8)
    weights_TS = explicit_attention(query, key, value, EVERYONE)[1][0, 0]
    return Measurement(numbers, {"lookup": lookup, "weights": matrix_rows(weights_TS.tolist())})


def _random(seed: int, n_tokens: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(1, _HEADS, n_tokens, _WIDTH, generator=draw) for _ in range(3)]


def _outside(out_HTD: Tensor, value_HSD: Tensor, seed: int) -> float:
    """How far the furthest output lies outside the convex hull of the values, along random directions."""
    directions_DK = torch.randn(_WIDTH, _DIRECTIONS, generator=torch.Generator().manual_seed(seed))
    directions_DK /= directions_DK.norm(dim=0)
    reached_HTK, hull_H1K = out_HTD @ directions_DK, (value_HSD @ directions_DK).amax(1, keepdim=True)
    return float((reached_HTK - hull_H1K).clamp(min=0).max())


def _look_up(seed: int, gap: float) -> tuple[float, float]:
    """Largest error of fetching each value of a dictionary by its key, and the smallest weight."""
    draw = torch.Generator().manual_seed(seed)
    key_SD = torch.linalg.qr(torch.randn(_WIDTH, _WIDTH, generator=draw))[0]
    value_SD = torch.randn(_WIDTH, _WIDTH, generator=draw)
    query_TD = key_SD * (gap * math.sqrt(_WIDTH))  # the scale of attention divides it away again
    found, weights = explicit_attention(query_TD[None, None], key_SD[None, None], value_SD[None, None], EVERYONE)
    return float((found[0, 0] - value_SD).abs().max()), float(weights.min())


def _gap_of_zero() -> int:
    """How many nats below the best a score is when its fp32 weight is exactly 0."""
    for gap in range(60, 130):
        key = torch.tensor([float(gap), 0.0]).view(1, 1, 2, 1)
        _, weights = explicit_attention(torch.ones(1, 1, 1, 1), key, key, EVERYONE)
        if float(weights.min()) == 0.0:
            return gap
    return 130


def judge(numbers: Numbers) -> Judgement:
    """Shape, sums, positive weights, mixtures, look-up: all within rounding, or the claim is not supported."""
    value = values(numbers)
    errors = ("sum_error", "outside", "mixture_error", "lookup_error")
    square = value["score_rows"] == value["score_columns"] == value["tokens"]
    positive = numbers["least_weight"].low > 0 and numbers["lookup_least_weight"].low > 0
    exact = all(numbers[name].at_most(ROUNDING) for name in errors)
    return Judgement.when(square and positive and exact, "found")


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Matrix("weights", low=0.0, high=1.0),
        Lines("lookup", x="gap", log_x=True, log_y=True, floor=1e-9),
    ],
    seconds=0,
)
