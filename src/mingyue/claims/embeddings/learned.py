"""Claim: a learned table of positions ends at its last row, and rows that training never reached are useless."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.embeddings.two_back import VOCAB_SIZE, curve, excess, train, true_losses, two_back
from mingyue.claims.figures import Lines
from mingyue.claims.training import seeds, tiny
from mingyue.runtime import derive_seed

WORSE = 0.5
"""Nats per token by which rows that training never reached must be worse than rows that it did reach."""
_CONTEXT = 1024
_ARMS = ("short", "redrawn", "long")


def measure(trial: Trial) -> Measurement:
    """Loss by position of models trained at one length and at twice that length, in tables of twice the length."""
    length, steps, rows, d_model = trial.pick((16, 160, 16, 32), (64, 300, 16, 32), (64, 1000, 16, 64))
    twice_BT = two_back(trial.pick(32, 64, 256), 2 * length + 1, trial.seed, "held out")
    losses: dict[str, list[Tensor]] = {arm: [] for arm in _ARMS}  # each [2 · length]: by position
    reached, moved = list[float](), list[float]()
    for seed in seeds(trial, 1, 4, 8):
        for arm, span in (("short", length), ("long", 2 * length)):
            model = tiny(VOCAB_SIZE, context=2 * length, d_model=d_model, n_layers=1, seed=seed)
            before_TM = model.get_parameter("positions.table").detach().clone()
            train(model, span, rows=rows, steps=steps, seed=seed)
            losses[arm].append(excess(model, twice_BT))
            if arm == "short":
                table_TM = model.get_parameter("positions.table")
                changed_T = (table_TM.detach() != before_TM).any(dim=1)
                reached.append(float(changed_T[:length].sum()))
                moved.append(float(changed_T[length:].sum()))
                generator = torch.Generator().manual_seed(derive_seed(seed, "redrawn"))
                with torch.no_grad():
                    table_TM[length:] = 0.02 * torch.randn(length, d_model, generator=generator)
                losses["redrawn"].append(excess(model, twice_BT))

    numbers = {
        "served": Number.exact(_serves(_CONTEXT - 1)),
        "refused": Number.exact(1 - _serves(_CONTEXT)),
        "length": Number.exact(length),
        "rows_reached": Number.median(reached),
        "rows_moved_beyond": Number.median(moved),
        "within": Number.mean([float(sample[:length].mean()) for sample in losses["short"]], "nats"),
        **{f"beyond_{arm}": Number.mean([float(s[length:].mean()) for s in losses[arm]], "nats") for arm in _ARMS},
        "guessing": Number.exact(math.log(VOCAB_SIZE) - float(true_losses(twice_BT)[:, length:].mean()), "nats"),
    }
    return Measurement(numbers, {"curves": [row for arm in _ARMS for row in curve(losses[arm], length // 8, arm=arm)]})


@torch.no_grad()
def _serves(position: int) -> float:
    """1 if a table of 1024 rows accepts this position, 0 if it refuses it with an error that names both numbers."""
    model = tiny(VOCAB_SIZE, context=_CONTEXT, d_model=8, n_layers=1, n_heads=1).eval()
    try:
        logits_11V = model(torch.zeros(1, 1, dtype=torch.long), positions_BT=torch.tensor([[position]]))
    except ValueError as error:
        if str(position) in str(error) and str(_CONTEXT) in str(error):
            return 0.0
        raise
    return float(torch.isfinite(logits_11V).all())


def judge(numbers: Numbers) -> Judgement:
    """Positions beyond the table are refused, and those beyond the training texts are surely worse than others."""
    served, refused = numbers["served"].value == 1, numbers["refused"].value == 1
    within, beyond, redrawn, long = (
        numbers[name] for name in ("within", "beyond_short", "beyond_redrawn", "beyond_long")
    )
    worse = beyond.low - max(within.high, long.high)
    unlearned = numbers["rows_moved_beyond"].high == 0 and worse >= WORSE and redrawn.low - long.high >= WORSE
    return Judgement.when(
        served and refused and unlearned,
        "last_served" if served else "last_not_served",
        "next_refused" if refused else "next_served",
        "losses",
    )


def _twice(measurement: Measurement) -> dict[str, object]:
    return {"twice": 2 * measurement.numbers["length"].value}


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[Lines("curves", x="position", series="arm", rules={"guessing": "guessing"}, values=_twice)],
    seconds=40,
)
