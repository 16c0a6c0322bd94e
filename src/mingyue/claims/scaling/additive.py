"""Claim: dot-product attention equals additive attention at small d_k, and needs its scale to do so at large d_k."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial, values
from mingyue.claims.figures import Bars
from mingyue.claims.training import fit, seeds
from mingyue.nn import EVERYONE, explicit_attention

FACTOR = 1.5
"""Numbers of steps that differ by less than this factor count as alike."""
ACCURACY = 0.9
KEYS = 32
_SYMBOLS, _INPUT, _CLASSES, _VALUE = 64, 32, 8, 16
_CHECK_EVERY, _TEST = 10, 128
_ARMS = ("additive", "plain", "scaled")


@dataclass(frozen=True)
class _Task:
    """keys_EBS: different symbols; values_EBS: a class for each; query_EB: one of the keys; target_EB: its class.

    E counts seeds: models of several seeds are trained side by side, each with its own data.
    """

    keys_EBS: Tensor
    values_EBS: Tensor
    query_EB: Tensor
    target_EB: Tensor


def _tasks(chosen: Sequence[int], rows: int, step: int) -> _Task:
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for seed in chosen:
        draw = torch.Generator().manual_seed(1_000_003 * seed + step)
        keys_BS = torch.rand(rows, _SYMBOLS, generator=draw).argsort(-1)[:, :KEYS]
        values_BS = torch.randint(_CLASSES, (rows, KEYS), generator=draw)
        parts.append((keys_BS, values_BS, torch.randint(KEYS, (rows, 1), generator=draw)))
    keys_EBS, values_EBS, asked_EB1 = (torch.stack(part) for part in zip(*parts, strict=True))
    query_EB, target_EB = keys_EBS.gather(-1, asked_EB1)[..., 0], values_EBS.gather(-1, asked_EB1)[..., 0]
    return _Task(keys_EBS, values_EBS, query_EB, target_EB)


class _Retrieval(nn.Module):
    """One query looks at 32 keys and reads a value: logits of its class. Everything begins with variance 1."""

    def __init__(self, arm: str, width: int, chosen: Sequence[int]) -> None:
        super().__init__()
        self.arm = arm
        draws = [torch.Generator().manual_seed(seed) for seed in chosen]

        def normal(rows: int, columns: int, variance: float = 1.0) -> Tensor:
            return torch.stack([torch.randn(rows, columns, generator=draw) for draw in draws]) * math.sqrt(variance)

        self.register_buffer("symbols_EVI", normal(_SYMBOLS, _INPUT))
        self.to_query_EID = nn.Parameter(normal(_INPUT, width, 1 / _INPUT))
        self.to_key_EID = nn.Parameter(normal(_INPUT, width, 1 / _INPUT))
        self.to_score_ED1 = nn.Parameter(normal(width, 1, 1 / width)) if arm == "additive" else None
        self.values_ECU = nn.Parameter(normal(_CLASSES, _VALUE))
        self.output_EUC = nn.Parameter(normal(_VALUE, _CLASSES, 1 / _VALUE))

    def forward(self, task: _Task) -> Tensor:
        """logits_EBC."""
        seed_E1 = torch.arange(len(task.query_EB))[:, None]
        symbols_EVI = self.get_buffer("symbols_EVI")
        query_EBD = (symbols_EVI @ self.to_query_EID)[seed_E1, task.query_EB]
        key_EBSD = (symbols_EVI @ self.to_key_EID)[seed_E1[..., None], task.keys_EBS]
        value_EBSU = self.values_ECU[seed_E1[..., None], task.values_EBS]
        if self.arm == "scaled":  # this library's attention
            query_PHTD, key_PGSD = query_EBD.flatten(0, 1)[:, None, None], key_EBSD.flatten(0, 1)[:, None]
            heads_PHTU, _ = explicit_attention(query_PHTD, key_PGSD, value_EBSU.flatten(0, 1)[:, None], EVERYONE)
            return heads_PHTU[:, 0, 0].view(*query_EBD.shape[:2], -1) @ self.output_EUC
        if self.to_score_ED1 is not None:  # v·tanh(W q + U k): Bahdanau et al. 2015, section A.1.2
            mixed_EBSD = torch.tanh(key_EBSD + query_EBD[:, :, None])
            scores_EBS = (mixed_EBSD @ self.to_score_ED1[:, None])[..., 0]
        else:
            scores_EBS = (key_EBSD @ query_EBD[..., None])[..., 0]
        return (scores_EBS.softmax(-1)[:, :, None] @ value_EBSU)[:, :, 0] @ self.output_EUC


def _loss(model: _Retrieval, task: _Task) -> Tensor:
    logits_EBC = model(task)
    return len(logits_EBC) * F.cross_entropy(logits_EBC.flatten(0, 1), task.target_EB.flatten())  # a mean for each seed


def _steps_needed(
    arm: str, width: int, rate: float, *, chosen: Sequence[int], steps: int, rows: int
) -> list[tuple[int, float]]:
    """For each seed the step at which its accuracy is first 90 % (`steps` if it never is), and its last accuracy."""
    model, test = _Retrieval(arm, width, chosen), _tasks(chosen, _TEST, -1)
    reached: list[int | None] = [None] * len(chosen)
    last = [0.0] * len(chosen)
    asked = 0

    def until(model: _Retrieval) -> bool:
        nonlocal asked
        asked += _CHECK_EVERY
        last[:] = (model(test).argmax(-1) == test.target_EB).float().mean(-1).tolist()
        for place, right in enumerate(last):
            if reached[place] is None and right >= ACCURACY:
                reached[place] = asked
        return None not in reached

    fit(model, lambda step: _tasks(chosen, rows, step), _loss, steps=steps, learning_rate=rate, warmup=0.0,
        decay=False, clip=0.0, until=until, check_every=_CHECK_EVERY)  # fmt: skip
    return [(steps if step is None else step, right) for step, right in zip(reached, last, strict=True)]


def measure(trial: Trial) -> Measurement:
    """Steps to 90 % for three ways to score, by width: the best of several learning rates for each."""
    widths = trial.pick((16, 128), (8, 64, 256), (8, 64, 256, 512))
    rates = trial.pick((2e-2,), (3e-3, 1e-2, 3e-2), (1e-3, 3e-3, 1e-2, 3e-2))
    steps, rows = trial.pick((120, 32), (800, 32), (1500, 32))
    chosen = seeds(trial, 1, 5, 10)
    table: list[dict[str, Any]] = []
    numbers = {
        "least_width": Number.exact(widths[0]),
        "most_width": Number.exact(widths[-1]),
        "steps": Number.exact(steps, "steps"),
    }
    for width in widths:
        best: dict[str, list[float]] = {}
        for arm in _ARMS:
            tried = {rate: _steps_needed(arm, width, rate, chosen=chosen, steps=steps, rows=rows) for rate in rates}
            rate = min(tried, key=lambda rate, tried=tried: _worth(tried[rate]))
            best[arm] = [float(step) for step, _ in tried[rate]]
            needed = Number.median(best[arm], "steps")
            there = sum(step < steps or right >= ACCURACY for step, right in tried[rate])
            table.append(needed.row(d_k=str(width), arm=arm, rate=rate))
            for end, at in (("least", widths[0]), ("most", widths[-1])):
                if width == at:
                    numbers[f"{arm}_{end}"] = needed
                    numbers[f"{arm}_{end}_there"] = Number.exact(there / len(chosen))
                    if arm != "additive":  # seed by seed; a training that never got there counts as its last step
                        ratios = [one / other for one, other in zip(best[arm], best["additive"], strict=True)]
                        numbers[f"{arm}_{end}_ratio"] = Number.mean(ratios, "×")
    return Measurement(numbers, {"steps": table})


def _worth(found: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Smaller is better: the median of steps, then, where most never got there, what they got wrong."""
    return statistics.median(step for step, _ in found), -statistics.fmean(right for _, right in found)


def judge(numbers: Numbers) -> Judgement:
    """At large d_k plain dot products are behind and scaled ones are not; at small d_k none is behind."""
    value = values(numbers)
    behind = numbers["plain_most_ratio"].at_least(FACTOR)
    kept = numbers["scaled_most_ratio"].at_most(FACTOR)
    at_small = [numbers[f"{arm}_least_ratio"] for arm in _ARMS[1:]]
    small = all(ratio.at_most(FACTOR) for ratio in at_small)
    alike = small and all(ratio.at_least(1 / FACTOR) for ratio in at_small)
    faster = small and numbers["scaled_least_ratio"].high < 1
    long_enough = value["additive_least_there"] == value["additive_most_there"] == 1
    reasons = ["steps", "ratios"]
    if not alike:
        reasons.append("not_alike" if faster else "unclear")
    if not long_enough:
        reasons.append("too_short")

    def shown(name: str) -> str:
        never = value[name] >= value["steps"] and value[f"{name}_there"] <= 0.5
        return f"{'> ' if never else ''}{value[name]:.0f}"

    steps = {f"{arm}_at_{end}": shown(f"{arm}_{end}") for arm in _ARMS for end in ("least", "most")}
    supported = behind and kept and (alike or faster) and long_enough
    return Judgement.when(supported, *reasons, correction=not alike, **steps)


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Bars("steps", x="d_k", series="arm", rules={"end": "steps"}),
    ],
    seconds=76,
)
