"""Claim: with positions attention learns distances: to copy the token k positions back."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial, values
from mingyue.claims.figures import Lines
from mingyue.claims.training import accuracy, fit, seeds, tiny
from mingyue.models import DecoderOnly

REACHED = 0.9
"""Accuracy on new texts at which a model can do it."""
SLOWER = 2.0
"""A model without positions needs at least this many times the steps of the fastest kind."""
_VOCABULARY, _LENGTH, _BATCH, _EVERY = 16, 24, 16, 10
_KINDS = ("none", "learned", "sinusoidal", "rotary")


def measure(trial: Trial) -> Measurement:
    """Steps to 90 % for each kind of positions and each distance."""
    distances = trial.pick((2,), (1, 4, 12), (1, 2, 4, 8, 16))
    limit = trial.pick(50, 400, 1500)
    chosen = seeds(trial, 1, 3, 5)
    steps = {
        (kind, back): [_steps(kind, back, limit, seed) for seed in chosen] for kind in _KINDS for back in distances
    }
    numbers = {
        "limit": Number.exact(limit, "steps"),
        "nearest": Number.exact(distances[0], "tokens"),
        "farthest": Number.exact(distances[-1], "tokens"),
    }
    for kind in _KINDS:
        for end, back in (("near", distances[0]), ("far", distances[-1])):
            numbers[f"steps_{kind}_{end}"] = Number.median(steps[kind, back], "steps")
    rows = [Number.median(found).row(kind=kind, back=back) for (kind, back), found in steps.items()]
    return Measurement(numbers, {"steps": rows})


def _steps(kind: str, back: int, limit: int, seed: int) -> int:
    """Steps after which 90 % of the tokens of new texts are copied; `limit` if they never are."""
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

    def done(model: DecoderOnly) -> bool:
        return accuracy(model(held_BT)[:, back:], held_BT[:, : _LENGTH - back]) >= REACHED

    def loss(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
        return F.cross_entropy(model(ids_BT)[:, back:].flatten(0, 1), ids_BT[:, : _LENGTH - back].flatten())

    result = fit(
        model,
        lambda step: _texts(_BATCH, seed * 100_003 + step),
        loss,
        steps=limit,
        learning_rate=1e-2,
        decay=False,
        seed=seed,
        until=done,
        check_every=_EVERY,
    )
    return limit if result.reached is None else result.reached


def _texts(count: int, seed: int) -> Tensor:
    return torch.randint(_VOCABULARY, (count, _LENGTH), generator=torch.Generator().manual_seed(seed))


def judge(numbers: Numbers) -> Judgement:
    """All kinds of positions reach 90 %, and none at all needs far longer."""
    value = values(numbers)
    limit = value["limit"]
    ends = ("near", "far")
    with_positions = [kind for kind in _KINDS if kind != "none"]
    reach = all(value[f"steps_{kind}_{end}"] < limit for kind in with_positions for end in ends)
    fastest = {end: min(value[f"steps_{kind}_{end}"] for kind in with_positions) for end in ends}
    behind = all(value[f"steps_none_{end}"] >= SLOWER * fastest[end] for end in ends)
    alone = value["steps_none_near"] < limit or value["steps_none_far"] < limit

    def shown(steps: float) -> str:
        return f"> {limit:.0f}" if steps >= limit else f"{steps:.0f}"

    steps = {f"{kind}_{end}": shown(value[f"steps_{kind}_{end}"]) for kind in _KINDS for end in ends}
    if not (reach and behind):
        return Judgement.not_supported("steps", **steps)
    return Judgement.corrected("steps", "later", **steps) if alone else Judgement.supported("steps", **steps)


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("steps", x="back", series="kind", log_x=True, rules={"limit": "limit"}),
    ],
    seconds=60,
)
