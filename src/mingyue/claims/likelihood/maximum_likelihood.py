"""Claim: training fits the frequencies of its text; how close those are to the truth depends on the amount of text."""

from __future__ import annotations

from bisect import bisect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial, values
from mingyue.claims.figures import Lines
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.models import DecoderOnly

STATES = 6
FITTED = 0.1
"""Largest divergence of the model from the counts, as a share of that of the counts from the truth."""
THEORY = 0.3
"""Largest relative difference between the mean divergence of counts and truth and V(V − 1)/2N."""
SAME = 1e-5
_EVEN = 5.0
"""Concentration of the Dirichlet distribution of the source: large enough that every transition is seen."""


def measure(trial: Trial) -> Measurement:
    """KL divergences between model, counts and truth, for texts of several lengths."""
    lengths = trial.pick((300, 3000), (300, 1000, 3000, 10000, 30000), (300, 1000, 3000, 10000, 30000, 100000))
    steps = trial.pick(80, 200, 400)
    chosen = seeds(trial, 2, 5, 10)
    more = seeds(trial, 15, 60, 120)  # counting is cheap: an interval for what needs no model
    rows: list[dict[str, Any]] = []
    shares, ratios = list[Number](), list[Number]()
    model_gaps: list[Number] = []
    same: list[float] = []
    for length in lengths:
        theory = STATES * (STATES - 1) / (2 * length)
        sample = [_divergence(counts_VV, truth_VV) for truth_VV, counts_VV, _ in (_text(s, length) for s in more)]
        fitted, to_truth = list[float](), list[float]()
        for seed in chosen:
            truth_VV, counts_VV, ids_T = _text(seed, length)
            model = _train(counts_VV, steps, seed)
            made_VV = _of_model(model)
            fitted.append(_divergence(counts_VV, made_VV) / _divergence(counts_VV, truth_VV))
            to_truth.append(_divergence_of(counts_VV, truth_VV, made_VV))
            same.append(_loss_apart(model, counts_VV, ids_T))
        gap = Number.mean(sample)
        shares.append(Number.mean(fitted))
        ratios.append(Number(gap.value / theory, gap.low / theory, gap.high / theory))
        model_gaps.append(Number.mean(to_truth))
        left = Number.mean([share * gap.value for share in fitted])
        gaps = {"fit": left, "sample": gap, "model": model_gaps[-1], "theory": Number.exact(theory)}
        for name, number in gaps.items():
            floored = {"value": max(number.value, 1e-9), "low": max(number.low, 1e-9)}
            rows.append(number.row(N=length, gap=name) | floored)
    numbers = {
        "states": Number.exact(STATES),
        "least_text": Number.exact(lengths[0], "tokens"),
        "most_text": Number.exact(lengths[-1], "tokens"),
        "left_most": max(shares, key=lambda number: number.value),
        "ratio_least": min(ratios, key=lambda number: number.value),
        "ratio_most": max(ratios, key=lambda number: number.value),
        "model_to_truth_short": model_gaps[0],
        "model_to_truth_long": model_gaps[-1],
        "text_loss_apart": Number.largest(same, "nats"),
    }
    return Measurement(numbers, {"gaps": rows})


def _text(seed: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """(transition probabilities of the source, counts of pairs in a text of it, ids of the text)."""
    draw = torch.Generator().manual_seed(seed)
    gamma_VV = torch._standard_gamma(torch.full((STATES, STATES), _EVEN, dtype=torch.float64), generator=draw)
    truth_VV = gamma_VV / gamma_VV.sum(-1, keepdim=True)
    bounds = truth_VV.cumsum(-1)[:, :-1].tolist()
    ids, state = [0], 0
    for uniform in torch.rand(length, generator=draw, dtype=torch.float64).tolist():
        state = bisect(bounds[state], uniform)
        ids.append(state)
    ids_T = torch.tensor(ids)
    pairs_N = ids_T[:-1] * STATES + ids_T[1:]
    return truth_VV, torch.bincount(pairs_N, minlength=STATES**2).view(STATES, STATES).double(), ids_T


def _train(counts_VV: Tensor, steps: int, seed: int) -> DecoderOnly:
    """A model that sees only the last token: the likelihood of a text depends on its counts of pairs alone."""
    model = tiny(STATES, context=64, n_layers=1, seed=seed, positions="none", window=1, tied_output=False,
                 initialisation="xavier")  # fmt: skip
    ids_V1 = torch.arange(STATES)[:, None]
    weights_VV = (counts_VV / counts_VV.sum()).float()

    def loss(model: DecoderOnly, counted_VV: Tensor) -> Tensor:
        return -(counted_VV * model(ids_V1)[:, 0].log_softmax(-1)).sum()

    fit(model, lambda _: weights_VV, loss, steps=steps, learning_rate=1e-2, seed=seed)
    return model


@torch.no_grad()
def _of_model(model: DecoderOnly) -> Tensor:
    return model(torch.arange(STATES)[:, None])[:, 0].double().softmax(-1)


def _divergence(counts_VV: Tensor, other_VV: Tensor) -> float:
    """KL(counts ‖ other) of the next token, weighted by how often each token comes before, in nats."""
    own_VV = counts_VV / counts_VV.sum(-1, keepdim=True).clamp(min=1)
    return _divergence_of(counts_VV, own_VV, other_VV)


def _divergence_of(counts_VV: Tensor, one_VV: Tensor, other_VV: Tensor) -> float:
    terms_VV = torch.where(one_VV > 0, one_VV * (one_VV.clamp(min=1e-300) / other_VV).log(), 0.0)
    return float((counts_VV.sum(-1) / counts_VV.sum() * terms_VV.sum(-1)).sum())


@torch.no_grad()
def _loss_apart(model: DecoderOnly, counts_VV: Tensor, ids_T: Tensor) -> float:
    """Difference between the loss of a part of the text in one pass and the loss computed from its counts of pairs."""
    ids_1T = ids_T[None, :65]
    pairs_N = ids_1T[0, :-1] * STATES + ids_1T[0, 1:]
    counted_VV = torch.bincount(pairs_N, minlength=STATES**2).view(STATES, STATES)
    by_counts = -(counted_VV * F.log_softmax(model(torch.arange(STATES)[:, None])[:, 0], -1)).sum() / counted_VV.sum()
    return abs(float(next_token_loss(model, ids_1T) - by_counts))


def judge(numbers: Numbers) -> Judgement:
    """The model is close to the counts, and the counts are as far from the truth as theory predicts."""
    value = values(numbers)
    fits = value["left_most"] <= FITTED and value["text_loss_apart"] <= SAME
    theory = max(abs(value["ratio_least"] - 1), abs(value["ratio_most"] - 1)) <= THEORY
    return Judgement.when(fits and theory, "found")


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[Lines("gaps", x="N", series="gap", log_x=True, log_y=True)],
    seconds=29,
)
