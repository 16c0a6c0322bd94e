"""Claim: the feed-forward part stores facts. How many (subject, relation) → object are recalled, by its width."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.blocks.parts import Nothing
from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Bars, Lines
from mingyue.claims.training import accuracy, fit, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.runtime import derive_seed

MORE = 1.5
"""A width of 4d recalls at least this many times the facts recalled without a feed-forward part."""
APART = 0.05
"""Shares of facts that differ by less count as equal."""

_D_MODEL, _N_HEADS = 16, 4
_WIDTHS = (0, _D_MODEL, 4 * _D_MODEL)
_ATTENTION = "attention"


def _model(arm: str, n_words: int, seed: int) -> DecoderOnly:
    """One block; embeddings are frozen. `attention`: no feed-forward part, heads widened to as many weights."""
    width = 0 if arm == _ATTENTION else int(arm)
    # Attention has 4·M·(H·D) weights, the feed-forward part 2·M·F: as many as with F = 4·M, when H·D = 3·M.
    d_head = (3 if arm == _ATTENTION else 1) * _D_MODEL // _N_HEADS
    model = tiny(
        n_words,
        context=2,
        d_model=_D_MODEL,
        n_layers=1,
        n_heads=_N_HEADS,
        d_head=d_head,
        d_ff=max(width, 1),
        seed=seed,
        initialisation="xavier",
        embedding_scale=True,
        positions="sinusoidal",
    )
    if width == 0:
        _without_feedforward(model)
    model.embedding.weight.requires_grad_(False)
    return model


def _without_feedforward(model: DecoderOnly) -> DecoderOnly:
    """The same model, its feed-forward parts taken out for good."""
    for block in model.every_block():
        block.feedforward = Nothing()
    return model


def _facts(n_subjects: int, n_relations: int, n_objects: int, seed: int) -> tuple[Tensor, Tensor]:
    """(ids_B2 of all subjects and relations, the object of each fact [B]). Objects are independent and uniform."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "facts"))
    pairs_B2 = torch.cartesian_prod(torch.arange(n_subjects), torch.arange(n_relations))
    objects_B = torch.randint(n_objects, (len(pairs_B2),), generator=generator)
    first_relation, first_object = n_subjects, n_subjects + n_relations
    return pairs_B2 + torch.tensor([0, first_relation]), objects_B + first_object


def measure(trial: Trial) -> Measurement:
    """Share of facts recalled after training, by arm: widths of the feed-forward part, and attention alone."""
    n_subjects, n_relations, n_objects, steps = trial.pick((16, 8, 32, 100), (64, 8, 64, 600), (64, 8, 64, 3000))
    arms = (*map(str, _WIDTHS), _ATTENTION)
    recalled: dict[str, list[float]] = {arm: [] for arm in arms}
    losses: dict[str, list[list[float]]] = {arm: [] for arm in arms}
    trained: dict[str, int] = {}
    cut: list[float] = []
    for seed in seeds(trial, 1, 5, 5):
        ids_B2, objects_B = _facts(n_subjects, n_relations, n_objects, seed)

        def loss(model: DecoderOnly, data: tuple[Tensor, Tensor]) -> Tensor:
            return F.cross_entropy(model(data[0])[:, -1], data[1])

        for arm in arms:
            model = _model(arm, n_subjects + n_relations + n_objects, seed)
            trained[arm] = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
            went = fit(model, lambda _: (ids_B2, objects_B), loss, steps=steps, learning_rate=1e-2, seed=seed)  # noqa: B023
            with torch.no_grad():
                recalled[arm].append(accuracy(model(ids_B2)[:, -1], objects_B))
                if arm == str(_WIDTHS[-1]):
                    cut.append(accuracy(_without_feedforward(model)(ids_B2)[:, -1], objects_B))
            losses[arm].append(went.losses)
    numbers = {f"recalled_{arm}": Number.share(shares) for arm, shares in recalled.items()}
    numbers["recalled_cut"] = Number.share(cut)
    numbers |= {f"parameters_{arm}": Number.exact(count) for arm, count in trained.items()}
    numbers |= {"facts": Number.exact(n_subjects * n_relations), "chance": Number.exact(1 / n_objects)}
    bars = [numbers[f"recalled_{arm}"].row("recalled", arm=arm) for arm in arms]
    lines: list[dict[str, Any]] = []
    for arm in arms:
        for step in range(0, steps, max(1, steps // 60)):
            mean = Number.mean([run[step] for run in losses[arm]])
            lines.append(mean.clipped(0.0, math.inf).row("loss", arm=arm, step=step))
    return Measurement(numbers, {"recalled": bars, "losses": lines})


def judge(numbers: Numbers) -> Judgement:
    """More facts with each width, lost with the layer; a correction if as wide attention recalls as many."""
    none, narrow, wide = (numbers[f"recalled_{width}"] for width in _WIDTHS)
    more = narrow.at_least(none.high + APART) and wide.at_least(narrow.high + APART)
    lost = numbers["recalled_cut"].high < none.low
    if not (more and wide.at_least(MORE * none.high) and lost):
        return Judgement.not_supported("found")
    if numbers[f"recalled_{_ATTENTION}"].high < wide.low - APART:
        return Judgement.supported("found")
    return Judgement.corrected("found", "anywhere")


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Bars("recalled", x="arm", y="recalled", rules={"chance": "chance"}),
        Lines("losses", x="step", y="loss", series="arm"),
    ],
    seconds=62,
)
