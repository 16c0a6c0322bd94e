"""Claim: the product of the probabilities of a text underflows; the sum of their logarithms does not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial, values
from mingyue.claims.figures import Lines
from mingyue.claims.training import seeds, tiny
from mingyue.runtime import derive_seed

VOCABULARY = 9000
CLOSE = 1e-4
"""Largest relative error of a sum of logs in fp32 against fp64."""
SOON = 100
"""The product must be 0 within this many characters."""
_TEXT = 64
_SMALLEST = math.log(2.0**-149)
"""Logarithm of the smallest positive fp32 number."""


def measure(trial: Trial) -> Measurement:
    """Characters until the fp32 product is 0, for an untrained model of 9,000 characters and for better models."""
    model_texts = trial.pick(2, 8, 32)
    long_text = trial.pick(2_000, 10_000, 100_000)
    chosen = seeds(trial, 3, 10, 30)
    zero, wrong = list[float](), list[float]()
    for seed in chosen:
        logs_BT = _of_model(seed, model_texts)
        zero += [_characters_until_zero(logs_T) for logs_T in logs_BT]
    rows: list[dict[str, Any]] = []
    until_zero = dict[float, Number]()
    for nats in (0.5, 1.0, 2.0, 3.0, 4.5, 6.0, 7.5, math.log(VOCABULARY)):
        counts = []
        for seed in chosen:
            draw = np.random.default_rng(derive_seed(seed, f"logs {nats}"))
            logs_T = -draw.gamma(4.0, nats / 4.0, size=long_text)  # losses of tokens vary: mean `nats`, sd half of it
            counts.append(_characters_until_zero(logs_T))
            exact = float(logs_T.sum())
            wrong.append(abs(_sum_fp32(logs_T) - exact) / abs(exact))
        until_zero[nats] = Number.mean(counts, "characters")
        rows.append(until_zero[nats].row(nats=nats))
    numbers = {
        "vocabulary": Number.exact(VOCABULARY),
        "zero_after": Number.median([float(count) for count in zero], "characters"),
        "predicted": Number.exact(math.ceil(-_SMALLEST / math.log(VOCABULARY)), "characters"),
        "text": Number.exact(long_text, "characters"),
        "sum_off": Number.largest(wrong),
        "sums_finite": Number.exact(float(all(math.isfinite(share) for share in wrong))),
        "worst_zero_after": until_zero[0.5],
    }
    return Measurement(numbers, {"until_zero": rows})


@torch.no_grad()
def _of_model(seed: int, texts: int) -> NDArray[np.float64]:
    """log P of the tokens of random texts under an untrained model with a vocabulary of 9,000 characters."""
    model = tiny(VOCABULARY, context=_TEXT, d_model=16, n_layers=1, n_heads=2, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(VOCABULARY, (texts, _TEXT), generator=draw)
    logs_BTV = model(ids_BT[:, :-1]).double().log_softmax(-1)
    return logs_BTV.gather(-1, ids_BT[:, 1:, None])[:, :, 0].numpy()


def _characters_until_zero(logs_T: NDArray[np.float64]) -> int:
    """Number of factors after which a running product in fp32 is 0; one more than all of them if it never is.

    Rounds as IEEE 754 does, subnormal numbers included: a processor that is set to flush those to 0 would reach 0 a few
    characters earlier.
    """
    product = np.float64(1.0)
    for count, log in enumerate(logs_T, start=1):
        product = _round_to_fp32(product * _round_to_fp32(np.exp(log)))
        if product == 0:
            return count
    return len(logs_T) + 1


def _round_to_fp32(value: np.float64) -> np.float64:
    """A positive fp64 number rounded to the nearest fp32 number and kept as fp64: independent of processor flags."""
    if value == 0:
        return value
    _, exponent = np.frexp(value)
    step = np.ldexp(1.0, max(int(exponent) - 24, -149))
    return np.float64(np.rint(value / step) * step)


def _sum_fp32(logs_T: NDArray[np.float64]) -> float:
    """The logs added one after another, each sum rounded to fp32."""
    return float(np.cumsum(logs_T.astype(np.float32), dtype=np.float32)[-1])


def judge(numbers: Numbers) -> Judgement:
    """The product is 0 within a short text; the sum of logs has a small relative error."""
    value = values(numbers)
    underflows = numbers["zero_after"].high <= SOON
    adds = value["sums_finite"] == 1 and numbers["sum_off"].at_most(CLOSE)
    return Judgement.when(underflows and adds, "found")


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[Lines("until_zero", x="nats", log_y=True)],
    seconds=1,
)
