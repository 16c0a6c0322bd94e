"""Claim: training fits the frequencies of its text; how close those are to the truth depends on the amount of text."""

from __future__ import annotations

import copy
import math
from bisect import bisect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Lines
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.models import DecoderOnly

STATES = 6
FITTED = 0.1
"""Largest divergence of the model from the counts, as a share of that of the counts from the truth."""
THEORY = 0.3
"""Largest relative difference between the mean divergence of counts and truth and V(V − 1)/2N."""
SAME = 1e-5
"""Largest difference, in nats and relative, between the loss of a text and that of its counts, and their gradients."""
LONGER = 3
"""A longer training has this many times the steps."""
HELPS = 0.5
"""More text helps if the longest one at most leaves this share of the divergence of the shortest."""
UNCHANGED = 0.1
"""A longer training changes nothing if the divergence stays the same within this share."""
_WINDOW = 64
_FLOOR = 1e-9
"""Smaller divergences are rounding, and are drawn as this one."""
_EVEN = 5.0
"""Concentration of the Dirichlet distribution of the source: large enough that every transition is seen."""


def measure(trial: Trial) -> Measurement:
    """KL divergences between model, counts and source, for texts of several lengths."""
    lengths = trial.pick((300, 3000), (300, 1000, 3000, 10000, 30000), (300, 1000, 3000, 10000, 30000, 100000))
    steps = trial.pick(60, 200, 400)
    chosen = seeds(trial, 4, 5, 10)
    more = seeds(trial, 15, 60, 120)  # counting is cheap: an interval for what needs no model
    rows: list[dict[str, Any]] = []
    found: dict[int, list[_Trained]] = {}
    ratios: list[Number] = []
    for length in lengths:
        theory = STATES * (STATES - 1) / (2 * length)
        sample = [_divergence(counts_VV, truth_VV) for truth_VV, counts_VV, _ in (_text(s, length) for s in more)]
        found[length] = [_trained(seed, length, steps) for seed in chosen]
        gap = Number.mean(sample)
        ratios.append(Number(gap.value / theory, gap.low / theory, gap.high / theory))
        gaps = {
            "fit": Number.mean([one.to_counts for one in found[length]]),
            "sample": gap,
            "model": Number.mean([one.to_source for one in found[length]]),
            "theory": Number.exact(theory),
        }
        for name, number in gaps.items():
            floored = {column: max(end, _FLOOR) for column, end in number.row().items()}
            rows.append({"N": length, "gap": name, **floored})
    shortest, longest = found[lengths[0]], found[lengths[-1]]
    longer = [_trained(seed, lengths[0], LONGER * steps) for seed in chosen]

    def shares(name: str) -> list[Number]:
        return [
            Number.mean([getattr(one, name) / one.counts_to_source for one in runs]).clipped(0.0, math.inf)
            for runs in found.values()
        ]

    everything = [one for runs in found.values() for one in runs]
    numbers = {
        "states": Number.exact(STATES),
        "least_text": Number.exact(lengths[0], "tokens"),
        "most_text": Number.exact(lengths[-1], "tokens"),
        "left_most": max(shares("to_counts"), key=lambda number: number.high),
        "untrained_least": min(shares("untrained_to_counts"), key=lambda number: number.low),
        "gain_short": Number.mean([one.gain for one in shortest], "nats"),
        "gain_long": Number.mean([one.gain for one in longest], "nats"),
        "ratio_least": min(ratios, key=lambda number: number.low),
        "ratio_most": max(ratios, key=lambda number: number.high),
        "model_to_truth_short": Number.mean([one.to_source for one in shortest], "nats"),
        "model_to_truth_long": Number.mean([one.to_source for one in longest], "nats"),
        "more_text": Number.mean(
            [long.to_source / short.to_source for short, long in zip(shortest, longest, strict=True)]
        ),
        "more_training": Number.mean(
            [long.to_source / one.to_source for one, long in zip(shortest, longer, strict=True)]
        ),
        "text_loss_apart": Number.largest((one.loss_apart for one in everything), "nats"),
        "text_gradient_apart": Number.largest(one.gradient_apart for one in everything),
    }
    return Measurement(numbers, {"gaps": rows})


@dataclass(frozen=True)
class _Trained:
    """Of one model and its text; divergences in nats per token."""

    to_counts: float
    """KL(counts ‖ model): how far the likelihood of the text is from the greatest that any such model can give it."""
    untrained_to_counts: float
    """The same before training."""
    counts_to_source: float
    """KL(counts ‖ source)."""
    to_source: float
    """KL(source ‖ model)."""
    gain: float
    """log P of the text by the model, less that by its source, per token."""
    loss_apart: float
    gradient_apart: float


def _trained(seed: int, length: int, steps: int) -> _Trained:
    """A model trained on the counts of a text, beside the counts, the source, and its own text."""
    source_VV, counts_VV, ids_T = _text(seed, length)
    model = _model(seed)
    loss_apart, gradient_apart = _text_apart(model, counts_VV, ids_T)
    untrained_VV = _of_model(model)
    _train(model, counts_VV, steps, seed)
    made_VV = _of_model(model)
    share_VV = counts_VV / counts_VV.sum()
    return _Trained(
        to_counts=_divergence(counts_VV, made_VV),
        untrained_to_counts=_divergence(counts_VV, untrained_VV),
        counts_to_source=_divergence(counts_VV, source_VV),
        to_source=_divergence_of(counts_VV, source_VV, made_VV),
        gain=float((share_VV * (made_VV / source_VV).log()).sum()),
        loss_apart=loss_apart,
        gradient_apart=gradient_apart,
    )


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


def _model(seed: int) -> DecoderOnly:
    """A model that sees only the last token: the likelihood of a text depends on its counts of pairs alone."""
    return tiny(STATES, context=_WINDOW, n_layers=1, seed=seed, positions="none", window=1, tied_output=False,
                initialisation="xavier")  # fmt: skip


def _loss_of_counts(model: DecoderOnly, counts_VV: Tensor) -> Tensor:
    """Mean −log P of the next token over all pairs of a text, from their counts."""
    logs_VV = model(torch.arange(STATES)[:, None])[:, 0].log_softmax(-1)
    return -((counts_VV / counts_VV.sum()).to(logs_VV.dtype) * logs_VV).sum()


def _loss_of_text(model: DecoderOnly, ids_T: Tensor) -> Tensor:
    """The same from the text itself: all of it, in windows, each begun with the last token of the one before."""
    n_pairs, total = len(ids_T) - 1, torch.zeros(())
    cut = n_pairs // _WINDOW * _WINDOW
    parts_BT = [ids_T[: cut + 1].unfold(0, _WINDOW + 1, _WINDOW)] if cut else []
    parts_BT += [ids_T[None, cut:]] if cut < n_pairs else []
    for ids_BT in parts_BT:
        total = total + next_token_loss(model, ids_BT) * (ids_BT.shape[0] * (ids_BT.shape[1] - 1))
    return total / n_pairs


def _text_apart(model: DecoderOnly, counts_VV: Tensor, ids_T: Tensor) -> tuple[float, float]:
    """Differences between the losses by text and by counts: of their values, and of their gradients (relative)."""
    exact = copy.deepcopy(model).double()  # in fp32 the sums of a long text round differently
    weights = list(exact.parameters())
    losses = [_loss_of_text(exact, ids_T), _loss_of_counts(exact, counts_VV)]
    by_text, by_counts = (torch.cat([part.flatten() for part in torch.autograd.grad(loss, weights)]) for loss in losses)
    apart = abs(float(losses[0].detach() - losses[1].detach()))
    return apart, float((by_text - by_counts).norm() / by_counts.norm())


def _train(model: DecoderOnly, counts_VV: Tensor, steps: int, seed: int) -> None:
    fit(model, lambda _: counts_VV, _loss_of_counts, steps=steps, learning_rate=1e-2, seed=seed)


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


def judge(numbers: Numbers) -> Judgement:
    """The model is close to the counts and no other: the counts differ from the source as theory says."""
    same = numbers["text_loss_apart"].at_most(SAME) and numbers["text_gradient_apart"].at_most(SAME)
    fits = numbers["left_most"].at_most(FITTED) and numbers["untrained_least"].low > FITTED
    # The most probable parameters for a text are not those of its source.
    likelier = numbers["gain_short"].low > 0 and numbers["gain_long"].low > 0
    theory = numbers["ratio_least"].near(1, THEORY) and numbers["ratio_most"].near(1, THEORY)
    text_helps = numbers["more_text"].at_most(HELPS)
    training_does_not = numbers["more_training"].at_least(1 - UNCHANGED)
    return Judgement.when(same and fits and likelier and theory and text_helps and training_does_not, "found", "apart")


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[Lines("gaps", x="N", series="gap", log_x=True, log_y=True)],
    seconds=20,
)
