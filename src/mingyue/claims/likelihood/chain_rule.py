"""Claim: the next-token probabilities of a causal model multiply to a probability of the whole text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Lines
from mingyue.claims.training import fit, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.nn import EVERYONE

EXACT = 1e-4
"""Tolerance of the sum of all probabilities, and of log P in one pass against a pass for each token (in nats)."""
BROKEN = 0.1
"""Without the mask, the sum must be at least this far from 1."""
_START = 0
"""The token before the text. It is also one of the letters: all V tokens may follow at every position."""
_LETTERS = 4
_ARMS = ("masked", "open")
Logits = Callable[[DecoderOnly, Tensor], Tensor]


def measure(trial: Trial) -> Measurement:
    """Sum of P over all strings of each length, for models trained with and without the mask."""
    length = trial.pick(4, 6, 7)
    steps = trial.pick(40, 200, 300)
    chosen = seeds(trial, 2, 5, 10)
    totals: dict[str, list[list[float]]] = {arm: [] for arm in _ARMS}
    untrained: list[float] = []
    apart: list[float] = []
    for seed in chosen:
        for arm in _ARMS:
            logits = _with_mask if arm == "masked" else _without_mask
            model = tiny(_LETTERS, context=length, seed=seed, initialisation="xavier")
            if arm == "masked":
                untrained.append(_totals(model, logits, length)[-1])
            _train(model, logits, length, steps, seed)
            totals[arm].append(_totals(model, logits, length))
            if arm == "masked":
                apart.append(_apart(model, length, seed))
    last = {arm: [sums[-1] for sums in found] for arm, found in totals.items()}
    numbers = {
        "strings": Number.exact(_LETTERS**length),
        "length": Number.exact(length),
        "masked_total": _furthest(last["masked"]),
        "untrained_total": _furthest(untrained),
        "open_total": Number.median(last["open"]),
        "passes_apart": Number.largest(apart, "nats"),
    }
    rows: list[dict[str, Any]] = []
    for arm, found in totals.items():
        for size in range(1, length + 1):
            rows.append(Number.median([sums[size - 1] for sums in found]).row(length=size, arm=arm))
    return Measurement(numbers, {"totals": rows})


def _furthest(sums: Sequence[float]) -> Number:
    """The sum that is furthest from 1, between the smallest and the largest."""
    return Number(max(sums, key=lambda total: abs(total - 1)), min(sums), max(sums))


def _with_mask(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
    return model(ids_BT)


def _without_mask(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
    """The logits without the causal mask, which the forward pass of the model always applies."""
    positions_1T = torch.arange(ids_BT.shape[1])[None]
    x_BTM = model.positions.add(model.embedding(ids_BT), positions_1T)
    rotation = model.positions.rotation(positions_1T)
    for block in model.every_block():
        x_BTM = block(x_BTM, EVERYONE, rotation)
    return model.output(model.final_norm(x_BTM))


def _inputs(strings_BT: Tensor) -> Tensor:
    """Inputs of the model: the start token, then the text without its last token."""
    return F.pad(strings_BT[:, :-1], (1, 0), value=_START)


def _train(model: DecoderOnly, logits: Logits, length: int, steps: int, seed: int) -> None:
    """Trains on random strings: without a mask, the target can be read from the input; with it there is no pattern."""

    def batch(step: int) -> Tensor:
        draw = torch.Generator().manual_seed(1_000_003 * seed + step)
        return torch.randint(_LETTERS, (32, length), generator=draw)

    def loss(model: DecoderOnly, strings_BT: Tensor) -> Tensor:
        return F.cross_entropy(logits(model, _inputs(strings_BT)).flatten(0, 1), strings_BT.flatten())

    fit(model, batch, loss, steps=steps, learning_rate=3e-3, seed=seed)


@torch.no_grad()
def _totals(model: DecoderOnly, logits: Logits, length: int) -> list[float]:
    """Σ P(text) over all texts of 1, 2, … `length` tokens."""
    sums = []
    for size in range(1, length + 1):
        strings_BT = torch.tensor(list(itertools.product(range(_LETTERS), repeat=size)))
        sums.append(float(_log_probability(model, logits, strings_BT).exp().sum()))
    return sums


def _log_probability(model: DecoderOnly, logits: Logits, strings_BT: Tensor) -> Tensor:
    logs_BTV = logits(model, _inputs(strings_BT)).double().log_softmax(-1)
    return logs_BTV.gather(-1, strings_BT[:, :, None])[:, :, 0].sum(-1)


@torch.no_grad()
def _apart(model: DecoderOnly, length: int, seed: int) -> float:
    """Largest difference of log P between one pass over the text and a pass over each of its prefixes."""
    strings_BT = torch.randint(_LETTERS, (16, length), generator=torch.Generator().manual_seed(seed))
    whole_B = _log_probability(model, _with_mask, strings_BT)
    ids_BT = _inputs(strings_BT)
    parts_B = torch.zeros_like(whole_B)
    for position in range(length):
        logs_BV = model(ids_BT[:, : position + 1])[:, -1].double().log_softmax(-1)
        parts_B += logs_BV.gather(-1, strings_BT[:, position : position + 1])[:, 0]
    return float((whole_B - parts_B).abs().max())


def judge(numbers: Numbers) -> Judgement:
    """Sums of 1 with the mask, one pass equal to many, and no sum of 1 without the mask."""
    sums = numbers["masked_total"].near(1, EXACT) and numbers["untrained_total"].near(1, EXACT)
    adds = numbers["passes_apart"].at_most(EXACT)
    broken = numbers["open_total"].at_least(1 + BROKEN) or numbers["open_total"].at_most(1 - BROKEN)
    return Judgement.when(sums and adds and broken, "found")


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[Lines("totals", x="length", series="arm", log_y=True)],
    seconds=17,
)
