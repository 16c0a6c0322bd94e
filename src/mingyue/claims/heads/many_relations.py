"""Claim: one head attends to one relation at a time, several heads to several."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial
from mingyue.claims.figures import Bars, Matrices
from mingyue.claims.training import accuracy, fit, seeds
from mingyue.nn import EVERYONE, MultiHeadAttention, RotaryPositions, Taps
from mingyue.runtime import derive_seed

ENOUGH = 0.95
"""Share of values right that counts as having both."""
MIXED = 0.65
"""At most this share counts as having only a mixture: the two values, and a guess which is which."""

_N_TOKENS, _N_VALUES = 6, 128
MIXTURE = 0.5 + 0.5 / _N_VALUES
"""Share of values right if both are known and their order is guessed: half, and all where the two are equal."""
_PLACES = (1, 5)
"""Positions of the two values, counted back from the question."""
_HEADS = (1, 2)
_BASE = 4.0
"""Base of the rotary angles: the slowest pair turns a little within these few positions."""


class _OneLayer(nn.Module):
    """Embedding, one attention with rotary positions, a linear readout of both values at the last token. No more."""

    def __init__(self, d_model: int, n_heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_N_VALUES + 1, d_model)
        self.positions = RotaryPositions(_N_TOKENS, d_model // n_heads, base=_BASE)
        self.attention = MultiHeadAttention(d_model, n_heads, n_heads, d_model // n_heads)
        self.readout = nn.Linear(d_model, 2 * _N_VALUES)
        with torch.no_grad():
            for weight in self.parameters():
                std = 1.0 if weight is self.embedding.weight else weight.shape[-1] ** -0.5
                weight.normal_(std=std, generator=generator)

    def forward(self, ids_BT: Tensor, taps: Taps | None = None) -> Tensor:
        """ids_BT → logits [B, 2, values] of the tokens at the two positions."""
        rotation = self.positions.rotation(torch.arange(_N_TOKENS)[None])
        mixed_BTM = self.attention(self.embedding(ids_BT), EVERYONE, rotation, taps=taps)
        return self.readout(mixed_BTM[:, -1]).unflatten(-1, (2, _N_VALUES))


def _batch(rows: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """(ids_BT with the question at the end, what is wanted [B, 2])."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "many-relations", step))
    ids_BT = torch.randint(_N_VALUES, (rows, _N_TOKENS), generator=generator)
    ids_BT[:, -1] = _N_VALUES
    return ids_BT, ids_BT[:, [_N_TOKENS - 1 - place for place in _PLACES]]


def _loss(model: _OneLayer, data: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(data[0]).flatten(0, 1), data[1].flatten())


def _either(logits_B2V: Tensor, wanted_B2: Tensor) -> float:
    """Share of the answers that are one of the two wanted values, in the right place or not."""
    answers_B2 = logits_B2V.argmax(-1)
    return float((answers_B2[:, :, None] == wanted_B2[:, None, :]).any(-1).float().mean())


def measure(trial: Trial) -> Measurement:
    """Share of the two values that one head and two heads have right, and where each head looks."""
    d_model, steps, rows, rate = trial.pick((32, 400, 64, 3e-2), (32, 800, 128, 2e-2), (64, 2000, 128, 1e-2))
    shares: dict[int, list[list[float]]] = {count: [] for count in _HEADS}
    either: dict[int, list[float]] = {count: [] for count in _HEADS}
    looked: list[dict[str, Any]] = []
    parameters = []
    for seed in seeds(trial, 1, 8, 8):
        ids_BT, wanted_B2 = _batch(2048, seed, -1)
        for count in _HEADS:
            model = _OneLayer(d_model, count, torch.Generator().manual_seed(derive_seed(seed, "weights")))
            fit(model, lambda step: _batch(rows, seed, step), _loss, steps=steps, learning_rate=rate, seed=seed)  # noqa: B023
            taps = Taps("weights")
            with torch.no_grad():
                logits_B2V = model(ids_BT, taps)
            shares[count].append([accuracy(logits_B2V[:, place], wanted_B2[:, place]) for place in range(2)])
            either[count].append(_either(logits_B2V, wanted_B2))
            parameters.append(sum(weight.numel() for weight in model.parameters()))
            if seed == seeds(trial, 1, 1, 1)[0]:
                weights_HS = taps.values["weights"][:, :, -1].mean(0)
                looked += [
                    {"heads": count, "head": head, "before": _N_TOKENS - 1 - place, "weight": float(weight)}
                    for head, row in enumerate(weights_HS)
                    for place, weight in enumerate(row)
                ]
    # What a head can do is what its best training does: medians between the smallest and the largest, not means.
    numbers = {
        "one_head": Number.median([float(np.mean(pair)) for pair in shares[1]]),
        "two_heads": Number.median([float(np.mean(pair)) for pair in shares[2]]),
        "one_head_either": Number.median(either[1]),
        "two_heads_either": Number.median(either[2]),
        "mixture": Number.exact(MIXTURE),
        "parameters": Number.exact(parameters[0]),
        "parameters_apart": Number.exact(max(parameters) - min(parameters)),
    }
    right = []
    for count, pairs in shares.items():
        for place in range(2):
            share = Number.median([pair[place] for pair in pairs])
            right.append(share.row("right", heads=count, before=_PLACES[place]))
    return Measurement(numbers, {"right": right, "weights": looked})


def judge(numbers: Numbers) -> Judgement:
    """Two heads have both values in every training; one head with as many parameters in none."""
    one, two = numbers["one_head"], numbers["two_heads"]
    if not two.at_least(ENOUGH) or not one.high < ENOUGH or numbers["parameters_apart"].value:
        return Judgement.not_supported("shares", "either")
    if one.at_most(MIXED):
        return Judgement.supported("shares", "either")
    return Judgement.corrected("shares", "either", "keeps_more")


def _weights(measurement: Measurement) -> Table:
    """The weights of each head, one panel a head."""
    panels = {(1, 0): "one", (2, 0): "first", (2, 1): "second"}
    return [
        {
            "panel": panels[row["heads"], row["head"]],
            "row": "question",
            "distance": row["before"],
            "weight": row["weight"],
        }
        for row in measurement.tables["weights"]
    ]


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Bars("right", x="heads", y="right", series="before", rules={"mixture": "mixture"}),
        Matrices(
            "weights", rows=_weights, panel="panel", row="row", column="distance", value="weight", low=0.0, high=1.0
        ),
    ],
    seconds=32,
)
