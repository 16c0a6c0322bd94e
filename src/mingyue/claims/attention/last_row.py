"""Claim: generation needs the last row alone, training uses all of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Bars, Lines
from mingyue.claims.grammar import Lexicon, topics
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.nn import Taps

ROUNDING = 1e-4
"""Largest difference of logits of size 1 between a full pass and one with a cache."""
_LENGTH, _BATCH = 24, 8
_ARMS = ("all", "last")
"""Which rows have a loss."""


def measure(trial: Trial) -> Measurement:
    """One model with random weights for what is exact; two trained on all rows and on the last for the rest."""
    sentences = topics(trial.pick(300, 2000, 10000), trial.seed)
    words = Lexicon(word for sentence in sentences for word in sentence)
    stream = words.stream(sentences)
    cut = len(stream) * 9 // 10
    train, held = stream[:cut], stream[cut:]
    steps = trial.pick(25, 200, 1000)
    found: dict[str, list[float]] = {}
    losses: dict[str, list[float]] = {arm: [] for arm in _ARMS}
    norms: dict[str, list[Tensor]] = {arm: [] for arm in _ARMS}
    for seed in seeds(trial, 3, 4, 10):
        model = tiny(len(words), context=_LENGTH, seed=seed, initialisation="xavier")
        for name, value in _exact(model, train, seed, norms).items():
            found.setdefault(name, []).append(value)
        for arm, held_losses in losses.items():
            held_losses.append(_trained(arm, (train, held), steps, seed))
    numbers = {name: Number.largest(samples) for name, samples in found.items() if name.endswith("_error")}
    numbers |= {name: Number.median(samples) for name, samples in found.items() if name not in numbers}
    numbers |= {f"loss_{arm}": Number.mean(samples, "nats") for arm, samples in losses.items()}
    more = [last - every for every, last in zip(losses["all"], losses["last"], strict=True)]
    numbers["loss_more"] = Number.mean(more, "nats")
    gradient = [
        Number.median([float(norm[row]) for norm in rows]).row(loss=arm, row=row + 1)
        for arm, rows in norms.items()
        for row in range(_LENGTH)
    ]
    trained = [numbers[f"loss_{arm}"].row(arm=arm) for arm in losses]
    return Measurement(numbers, {"gradient": gradient, "trained": trained})


def _windows(ids_N: Tensor, count: int, draw: torch.Generator) -> Tensor:
    starts = torch.randint(len(ids_N) - _LENGTH - 1, (count,), generator=draw)
    return torch.stack([ids_N[start : start + _LENGTH + 1] for start in starts])


def _exact(model: DecoderOnly, ids_N: Tensor, seed: int, norms: dict[str, list[Tensor]]) -> dict[str, float]:
    """What is true of any weights: which rows the next token needs, and which rows a loss reaches."""
    both_BT = _windows(ids_N, 1, torch.Generator().manual_seed(seed))
    ids_BT, targets_T = both_BT[:, :-1], both_BT[0, 1:]
    taps = Taps(["final", "embeddings"])
    logits_TV = model(ids_BT, taps=taps)[0]
    terms_T = F.cross_entropy(logits_TV, targets_T, reduction="none")
    points = [taps.values["final"], taps.values["embeddings"]]
    reached: dict[str, float] = {}
    for arm, loss in (("all", terms_T.mean()), ("last", terms_T[-1])):
        final, embedded = (grad[0].norm(dim=-1) for grad in torch.autograd.grad(loss, points, retain_graph=True))
        norms[arm].append(final)
        reached |= {
            f"rows_{arm}": float((final > 0).float().mean()),
            f"inputs_{arm}": float((embedded > 0).float().mean()),
        }
    with torch.no_grad():
        cache = model.new_cache(1)
        model(ids_BT[:, :-1], cache=cache.step())
        one_V = model(ids_BT[:, -1:], cache=cache.step())[0, -1]
        noise = torch.randn(taps.values["final"].shape, generator=torch.Generator().manual_seed(seed))
        noise[:, -1] = 0.0
        spoilt_V = model(ids_BT, taps=Taps(edits={"final": lambda x_BTM: x_BTM + 100 * noise}))[0, -1]
        prefixes = [model(ids_BT[:, : row + 1])[0, -1].log_softmax(-1)[targets_T[row]] for row in range(_LENGTH)]
        log_p = -float(terms_T.sum())
        return reached | {
            "cache_error": float((one_V - logits_TV[-1]).abs().max()),
            "other_rows_error": float((spoilt_V - logits_TV[-1]).abs().max()),
            "likelihood_error": abs(float(torch.stack(prefixes).sum()) - log_p) / abs(log_p),
            "last_term_share": -float(terms_T[-1]) / log_p,
        }


def _trained(arm: str, texts: tuple[Tensor, Tensor], steps: int, seed: int) -> float:
    """Held-out loss after `steps` steps on texts of one length, with the loss on all rows or on the last."""

    def batch(step: int) -> Tensor:
        return _windows(train, _BATCH, torch.Generator().manual_seed(seed * 100_003 + step))

    def last_row_loss(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
        return F.cross_entropy(model(ids_BT[:, :-1])[:, -1], ids_BT[:, -1])

    train, held = texts
    model = tiny(int(train.max()) + 1, context=_LENGTH, seed=seed)
    fit(model, batch, next_token_loss if arm == "all" else last_row_loss, steps=steps, learning_rate=3e-3, seed=seed)
    # Compared on what both were trained for: the last row.
    ids_BT = _windows(held, 256, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return float(last_row_loss(model, ids_BT))


def judge(numbers: Numbers) -> Judgement:
    """The last row suffices for the next token; every row for training and for the likelihood."""
    generates = all(numbers[name].at_most(ROUNDING) for name in ("cache_error", "other_rows_error"))
    trains = numbers["rows_all"].low == 1 and numbers["loss_more"].low > 0
    every_row = numbers["likelihood_error"].at_most(ROUNDING) and numbers["last_term_share"].high < 0.5
    return Judgement.when(generates and trains, "found", correction=every_row)


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("gradient", x="row", series="loss", log_y=True, floor=1e-6),
        Bars("trained", x="arm"),
    ],
    seconds=11,
)
