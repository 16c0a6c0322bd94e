"""Claim: heads specialise, one in syntax, one in pronouns, one in sentiment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Bars, WordTable
from mingyue.claims.heads.clauses import CHANCE, RELATIONS, lexicon, texts
from mingyue.claims.training import fit, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.nn import Taps

KNOWS = 0.9
"""Smallest accuracy of a model that has learned a relation."""
LOOKS = 0.3
"""Smallest preference of a head that follows a relation."""
APART = 0.3
"""A head has one job if its preference for its own relation is larger by this than for any other."""
NEEDED = 0.5
"""A relation depends on a head if without it at least this share of what is known is lost."""
_LAYERS, _HEADS = 2, 4
_CHANCES = torch.tensor([CHANCE[relation] for relation in RELATIONS])

Head = tuple[int, int]


class _Texts:
    """Texts as tensors: their ids, and the places of the links by relation."""

    def __init__(self, count: int, seed: int) -> None:
        made = texts(count, seed)
        self.ids_BT = lexicon().tensor([text.words for text in made])
        links = [[text.links[relation] for relation in RELATIONS] for text in made]
        self.query_BR = torch.tensor([[link.query for link in row] for row in links])
        self.right_BR = torch.tensor([[link.right for link in row] for row in links])
        self.wrong_BR = torch.tensor([[link.wrong for link in row] for row in links])
        self.answer_BR = self.ids_BT.gather(1, self.query_BR + 1)

    def logits(self, model: DecoderOnly, rows: Tensor | slice = slice(None), taps: Taps | None = None) -> Tensor:
        """logits_BRV of the answers to all relations."""
        logits_BTV = model(self.ids_BT[rows, :-1], taps=taps)
        return logits_BTV.gather(1, self.query_BR[rows][..., None].expand(-1, -1, logits_BTV.shape[-1]))


def measure(trial: Trial) -> Measurement:
    """For each relation: choose the head on one half of new texts, measure and switch it off on the other half."""
    samples: dict[str, list[float]] = {}
    rows: list[dict[str, Any]] = []
    n_texts = trial.pick(128, 512, 512)
    for seed in seeds(trial, 1, 5, 10):
        start = tiny(len(lexicon()), context=32, n_layers=_LAYERS, n_heads=_HEADS, seed=seed)
        choose, test = _Texts(n_texts, seed + 500_000_000), _Texts(n_texts, seed + 600_000_000)
        untrained = _chosen(start, choose, test)[1]
        model = _trained(start, trial, seed)
        chosen, found_RR, all_LHR = _chosen(model, choose, test)
        carriers = [_where(head_LH >= LOOKS) for head_LH in all_LHR.unbind(-1)]
        lost_RR = _lost(model, test, [[head] for head in chosen])
        together_RR = _lost(model, test, carriers)
        known_R = _accuracy(test.logits(model), test)
        for number, relation in enumerate(RELATIONS):
            others = [other for other in range(len(RELATIONS)) if other != number]
            own = float(found_RR[number, number])
            one = {
                "known": float(known_R[number]),
                "preference": own,
                "untrained": float(untrained[number, number]),
                "apart": own - float(found_RR[number, others].max()),
                "lost": float(lost_RR[number, number]),
                "spilled": float(lost_RR[number, others].max()),
                "lost_all": float(together_RR[number, number]),
                "carriers": float(len(carriers[number])),
            }
            for name, value in one.items():
                samples.setdefault(f"{relation}_{name}", []).append(value)
            for other, asked in enumerate(RELATIONS):
                samples.setdefault(f"looks {relation} {asked}", []).append(float(found_RR[number, other]))
                samples.setdefault(f"cuts {relation} {asked}", []).append(float(lost_RR[number, other]))
        samples.setdefault("different", []).append(float(len(set(chosen))))
        rows = rows or _map(all_LHR)
    means = {name: _within(name, Number.mean(values)) for name, values in samples.items()}
    tables = {
        kind: [means[f"{kind} {head} {asked}"].row(head=head, asked=asked) for head in RELATIONS for asked in RELATIONS]
        for kind in ("looks", "cuts")
    }
    return Measurement({name: mean for name, mean in means.items() if " " not in name}, {**tables, "heads": rows})


def _within(name: str, number: Number) -> Number:
    """The number with its interval cut to what is possible: counts from 0, shares from 0 to 1, differences from −1."""
    if name.endswith(("carriers", "different")):
        return number.clipped(0.0, _LAYERS * _HEADS)
    is_share = name.startswith("cuts") or name.endswith(("known", "lost", "spilled", "lost_all"))
    return number.clipped(0.0 if is_share else -1.0, 1.0)


def _trained(model: DecoderOnly, trial: Trial, seed: int) -> DecoderOnly:
    steps, rows = trial.pick((80, 32), (600, 64), (1500, 64))
    train = _Texts(trial.pick(1000, 8000, 20_000), seed)

    def batch(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed * 100_003 + step)
        return torch.randint(len(train.ids_BT), (rows,), generator=generator)

    def loss(model: DecoderOnly, rows_B: Tensor) -> Tensor:
        return F.cross_entropy(train.logits(model, rows_B).flatten(0, 1), train.answer_BR[rows_B].flatten())

    fit(model, batch, loss, steps=steps, learning_rate=1e-2, seed=seed)
    return model


@torch.no_grad()
def _preferences(model: DecoderOnly, given: _Texts) -> Tensor:
    """[L, H, R]: mean weight from the query to the right word, minus that to the wrong one of the same kind."""
    taps = Taps(["blocks.*.attention.weights"])
    model(given.ids_BT, taps=taps)
    weights_LBHTS = torch.stack([taps.values[f"blocks.{layer}.attention.weights"] for layer in range(_LAYERS)])
    row_B = torch.arange(len(given.ids_BT))
    found = []
    for relation in range(len(RELATIONS)):
        query_B, right_B, wrong_B = (side[:, relation] for side in (given.query_BR, given.right_BR, given.wrong_BR))
        right, wrong = (weights_LBHTS[:, row_B, :, query_B, key_B] for key_B in (right_B, wrong_B))
        found.append((right - wrong).mean(0))
    return torch.stack(found, dim=-1)


def _chosen(model: DecoderOnly, choose: _Texts, test: _Texts) -> tuple[list[Head], Tensor, Tensor]:
    """(the head chosen for each relation; [R, R]: its preferences on the test texts; [L, H, R] of all heads there)."""
    on_choose_LHR, on_test_LHR = _preferences(model, choose), _preferences(model, test)
    chosen = [divmod(int(on_choose_LHR[..., relation].argmax()), _HEADS) for relation in range(len(RELATIONS))]
    return chosen, torch.stack([on_test_LHR[head] for head in chosen]), on_test_LHR


def _where(mask_LH: Tensor) -> list[Head]:
    return [(int(layer), int(head)) for layer, head in mask_LH.nonzero()]


def _accuracy(logits_BRV: Tensor, test: _Texts) -> Tensor:
    """Share of right answers by relation, [R]."""
    return (logits_BRV.argmax(-1) == test.answer_BR).float().mean(0)


@torch.no_grad()
def _lost(model: DecoderOnly, test: _Texts, groups: Sequence[Sequence[Head]]) -> Tensor:
    """[groups, R]: the share of what is known about each relation, above chance, that is lost without these heads.

    A head is switched off by putting its mean over all texts and positions in place of its output.
    """
    taps = Taps(["blocks.*.attention.heads"])
    whole_R = _accuracy(test.logits(model, taps=taps), test)
    known_R = (whole_R - _CHANCES).clamp(min=1e-6)
    means = {
        (layer, head): taps.values[f"blocks.{layer}.attention.heads"][:, head].mean((0, 1))
        for layer in range(_LAYERS)
        for head in range(_HEADS)
    }

    def without(layer: int, heads: Iterable[Head]) -> Callable[[Tensor], Tensor]:
        def edit(heads_BHTD: Tensor) -> Tensor:
            edited_BHTD = heads_BHTD.clone()
            for at, head in heads:
                if at == layer:
                    edited_BHTD[:, head] = means[at, head]
            return edited_BHTD

        return edit

    found = []
    for group in groups:
        edits = {f"blocks.{layer}.attention.heads": without(layer, group) for layer in range(_LAYERS)}
        cut_R = _accuracy(test.logits(model, taps=Taps(edits=edits)), test)
        found.append(((whole_R - cut_R) / known_R).clamp(0.0, 1.0))
    return torch.stack(found)


def _map(all_LHR: Tensor) -> list[dict[str, Any]]:
    """Rows of the figure of all heads of one model."""
    return [
        {"row": relation, "column": f"{layer}.{head}", "word": f"{value:.2f}", "value": max(value, 0.0), "hover": []}
        for number, relation in enumerate(RELATIONS)
        for layer, row in enumerate(all_LHR[..., number].tolist())
        for head, value in enumerate(row)
    ]


def judge(numbers: Numbers) -> Judgement:
    """Each relation has a head that follows it, which has this one job and is needed for it alone."""
    follow, alone, needed = 0, 0, 0
    for relation in RELATIONS:
        preference = numbers[f"{relation}_preference"]
        untrained = numbers[f"{relation}_untrained"]
        known = numbers[f"{relation}_known"].value >= KNOWS
        follow += known and preference.low >= LOOKS and preference.low > untrained.high
        alone += numbers[f"{relation}_apart"].low >= APART
        lost, spilled = numbers[f"{relation}_lost"], numbers[f"{relation}_spilled"]
        needed += lost.low >= NEEDED and spilled.high < lost.low
    every = len(RELATIONS)
    counted = {"follow": follow, "alone": alone, "needed": needed}
    if follow == alone == needed == every:
        return Judgement.supported("found", **counted)
    some = follow == every and (alone > 0 or needed > 0)
    return Judgement.when(some, "found", *(["shared"] if follow == every else []), correction=True, **counted)


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Bars("looks", x="head", series="asked", rules={"follows": LOOKS}),
        Bars("cuts", x="head", series="asked", rules={"needed": NEEDED}),
        WordTable("heads", low=0.0, high=1.0),
    ],
    seconds=70,
)
