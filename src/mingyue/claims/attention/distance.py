"""Claim: with positions attention learns distances: to copy the token k positions back.

A training that does not reach the accuracy within the limit is censored: its number of steps is only known to be above
the limit. It counts as the limit, which is a lower bound, and its accuracy there is reported beside it.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Lines
from mingyue.claims.training import accuracy, fit, seeds, tiny
from mingyue.models import DecoderOnly

REACHED = 0.9
"""Accuracy on new texts at which a model can do it."""
SLOWER = 2.0
"""A model without positions needs at least this many times the steps of the fastest kind."""
_VOCABULARY, _LENGTH, _BATCH, _EVERY = 16, 24, 16, 10
_WARMUP = 20
"""Steps over which the learning rate rises: the same for every limit."""
_KINDS = ("none", "learned", "sinusoidal", "rotary")
_ENDS = ("near", "far")


@dataclass(frozen=True)
class _Run:
    """How the training of one model went."""

    steps: int
    """Steps to the accuracy; the limit if they were not enough."""
    reached: bool
    accuracy: float
    """On new texts, at the end of training."""


def measure(trial: Trial) -> Measurement:
    """Steps to 90 % for each kind of positions and each distance."""
    distances = trial.pick((2,), (1, 4, 12), (1, 2, 4, 8, 16))
    limit = trial.pick(50, 1200, 4000)
    chosen = seeds(trial, 1, 3, 5)
    runs = {(kind, back): [_run(kind, back, limit, seed) for seed in chosen] for kind in _KINDS for back in distances}
    numbers = {
        "chance": Number.exact(1 / _VOCABULARY),
        "limit": Number.exact(limit, "steps"),
        "nearest": Number.exact(distances[0], "tokens"),
        "farthest": Number.exact(distances[-1], "tokens"),
    }
    for kind in _KINDS:
        for end, back in zip(_ENDS, (distances[0], distances[-1]), strict=True):
            found = runs[kind, back]
            numbers[f"steps_{kind}_{end}"] = Number.median([run.steps for run in found], "steps")
            numbers[f"reached_{kind}_{end}"] = Number.exact(statistics.fmean(run.reached for run in found))
            numbers[f"accuracy_{kind}_{end}"] = Number.share([run.accuracy for run in found])
    rows = [
        Number.median([run.steps for run in found]).row(kind=kind, back=back) for (kind, back), found in runs.items()
    ]
    return Measurement(numbers, {"steps": rows})


def _run(kind: str, back: int, limit: int, seed: int) -> _Run:
    """Trains until 90 % of the tokens of new texts are copied, at most `limit` steps."""
    # Xavier with scaled embeddings, as in the paper: words and positions begin at the same scale.
    model = tiny(
        _VOCABULARY,
        context=_LENGTH,
        n_layers=2,
        positions=kind,
        embedding_scale=True,
        initialisation="xavier",
        seed=seed,
    )
    held_BT = _texts(32, seed + 500_009)
    right = 0.0

    def done(model: DecoderOnly) -> bool:
        nonlocal right
        right = accuracy(model(held_BT)[:, back:], held_BT[:, : _LENGTH - back])
        return right >= REACHED

    def loss(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
        return F.cross_entropy(model(ids_BT)[:, back:].flatten(0, 1), ids_BT[:, : _LENGTH - back].flatten())

    result = fit(
        model,
        lambda step: _texts(_BATCH, seed * 100_003 + step),
        loss,
        steps=limit,
        learning_rate=1e-2,
        warmup=_WARMUP / limit,
        decay=False,
        seed=seed,
        until=done,
        check_every=_EVERY,
    )
    return _Run(result.steps, result.reached is not None, right)


def _texts(count: int, seed: int) -> Tensor:
    return torch.randint(_VOCABULARY, (count, _LENGTH), generator=torch.Generator().manual_seed(seed))


def judge(numbers: Numbers) -> Judgement:
    """All kinds of positions reach 90 % with every seed, and none at all needs far longer with every seed."""
    with_positions = [kind for kind in _KINDS if kind != "none"]
    reach = all(numbers[f"reached_{kind}_{end}"].value == 1 for kind in with_positions for end in _ENDS)
    # The slowest seed of the fastest kind against the fastest seed without positions; censored: the limit.
    behind = all(
        numbers[f"steps_none_{end}"].at_least(
            SLOWER * min(numbers[f"steps_{kind}_{end}"].high for kind in with_positions)
        )
        for end in _ENDS
    )
    alone = {end: numbers[f"reached_none_{end}"].value for end in _ENDS}
    steps = {f"{kind}_{end}": _shown(numbers, f"{kind}_{end}") for kind in _KINDS for end in _ENDS}
    reasons = ["steps"] if all(share == 1 for share in alone.values()) else ["steps", "censored"]
    if not (reach and behind):
        return Judgement.not_supported(*reasons, **steps)
    if any(alone.values()):
        return Judgement.corrected(*reasons, "later", **steps)
    return Judgement.supported(*reasons, **steps)


def _shown(numbers: Numbers, arm: str) -> str:
    """The median of the steps; only a bound where half of the seeds or more did not reach the accuracy."""
    return f"{'> ' if numbers[f'reached_{arm}'].value <= 0.5 else ''}{numbers[f'steps_{arm}']:.0f}"


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("steps", x="back", series="kind", log_x=True, rules={"limit": "limit"}),
    ],
    seconds=60,
)
