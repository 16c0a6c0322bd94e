"""Claim: the targets are the inputs shifted by one; without the shift a model only learns to copy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Bars, Lines
from mingyue.claims.grammar import Lexicon, topics
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.data import padded_batch
from mingyue.models import DecoderOnly

COPIED = 0.02
"""The loss of copying must not be above this."""
POSSIBLE, IMPOSSIBLE = 0.9, 0.5
"""Smallest share of possible word pairs in text of the shifted model, and largest in text of the other."""
_LINE = (12, 45, 9, 33, 88)
_WINDOW, _ROWS, _GENERATED = 16, 32, 64
_ARMS = ("shifted", "copied")


def measure(trial: Trial) -> Measurement:
    """Losses on the next token and generated text of a model trained with the shift and of one trained without."""
    steps, lines = trial.pick((60, 500), (300, 3000), (600, 10000))
    chosen = seeds(trial, 2, 5, 10)
    words = Lexicon(word for sentence in topics(2000, 0) for word in sentence)
    possible = _pairs(words.stream(topics(20_000, 1)))
    own, following, generated = ({arm: list[float]() for arm in _ARMS} for _ in range(3))
    curves: dict[str, list[list[float]]] = {arm: [] for arm in _ARMS}
    unigram = list[float]()
    for seed in chosen:
        text_N, held_N = words.stream(topics(lines, seed + 10)), words.stream(topics(400, seed + 500_000))
        unigram.append(_unigram(text_N, held_N, len(words)))
        held_BT = held_N[: len(held_N) // (_WINDOW + 1) * (_WINDOW + 1)].view(-1, _WINDOW + 1)
        for arm in _ARMS:
            model = tiny(len(words), context=_WINDOW, n_layers=1, seed=seed, initialisation="xavier", tied_output=False)
            loss = next_token_loss if arm == "shifted" else _copy_loss
            trained = fit(model, lambda step, t=text_N, s=seed: _windows(t, s, step), loss, steps=steps,
                          learning_rate=2e-2, seed=seed)  # fmt: skip
            curves[arm].append(trained.losses)
            with torch.no_grad():
                own[arm].append(float(loss(model, held_BT)))
                following[arm].append(float(next_token_loss(model, held_BT)))
            text = _generate(model, held_BT[:8, :4], seed)
            pairs = [pair for row in text for pair in itertools.pairwise(row)]
            generated[arm].append(sum(pair in possible for pair in pairs) / len(pairs))
    batch = padded_batch([np.array(_LINE)], pad_id=0, bos_id=1)
    right = batch.inputs_BT.tolist() == [list(_LINE[:-1])] and batch.targets_BT.tolist() == [list(_LINE[1:])]
    numbers = {
        "batch_is_shifted": Number.exact(float(right)),
        "unigram": Number.mean(unigram, "nats"),
        "shifted_loss": Number.mean(following["shifted"], "nats"),
        "copied_own_loss": Number.mean(own["copied"], "nats"),
        "copied_next_loss": Number.mean(following["copied"], "nats"),
        "shifted_possible": Number.share(generated["shifted"]),
        "copied_possible": Number.share(generated["copied"]),
    }
    bars = [numbers[f"{arm}_possible"].row(arm=arm) for arm in _ARMS]
    return Measurement(numbers, {"curves": _curve_rows(curves), "written": bars})


def _copy_loss(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
    """The loss where the target of each token is that token."""
    inputs_BT = ids_BT[:, :-1]
    return F.cross_entropy(model(inputs_BT).flatten(0, 1), inputs_BT.flatten())


def _windows(text_N: Tensor, seed: int, step: int) -> Tensor:
    draw = torch.Generator().manual_seed(1_000_003 * seed + step)
    starts_B = torch.randint(len(text_N) - _WINDOW - 1, (_ROWS,), generator=draw)
    return text_N[starts_B[:, None] + torch.arange(_WINDOW + 1)]


def _unigram(text_N: Tensor, held_N: Tensor, n_words: int) -> float:
    counts_V = torch.bincount(text_N, minlength=n_words).double() + 1
    return float(-(counts_V / counts_V.sum()).log()[held_N].mean())


def _pairs(text_N: Tensor) -> set[tuple[int, int]]:
    return set(zip(text_N[:-1].tolist(), text_N[1:].tolist(), strict=True))


@torch.no_grad()
def _generate(model: DecoderOnly, ids_BT: Tensor, seed: int) -> list[list[int]]:
    """Samples a continuation of each prompt; returns the last token of the prompt and what follows."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(_GENERATED):
        chances_BV = model(ids_BT[:, -_WINDOW:])[:, -1].softmax(-1)
        ids_BT = torch.cat([ids_BT, torch.multinomial(chances_BV, 1, generator=draw)], dim=1)
    return ids_BT[:, 3:].tolist()


def _curve_rows(curves: dict[str, list[list[float]]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for arm, runs in curves.items():
        every = max(1, len(runs[0]) // 50)
        for step in range(0, len(runs[0]), every):
            number = Number.mean([run[step] for run in runs])
            rows.append(number.row(step=step + 1, arm=arm) | {"low": max(number.low, 1e-4)})
    return rows


def judge(numbers: Numbers) -> Judgement:
    """With the shift a language is learned; without it the loss is 0 and the model worse than word frequencies."""
    learned = numbers["shifted_loss"].high < numbers["unigram"].low and numbers["shifted_possible"].at_least(POSSIBLE)
    copied = numbers["copied_own_loss"].at_most(COPIED)
    worse = numbers["copied_next_loss"].low > numbers["unigram"].high
    worthless = worse and numbers["copied_possible"].at_most(IMPOSSIBLE)
    return Judgement.when(learned and copied and worthless and numbers["batch_is_shifted"].value == 1, "found")


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("curves", x="step", series="arm", log_y=True),
        Bars("generated", table="written", x="arm"),
    ],
    seconds=30,
)
