"""Claim: LayerNorm gives every vector mean 0 and variance 1, so gradients keep their size and higher rates work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.claims import grammar
from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial, values
from mingyue.claims.figures import Lines
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.errors import TrainingError
from mingyue.models import DecoderOnly
from mingyue.nn import Taps, make_norm
from mingyue.runtime import derive_seed

EXACT = 1e-3
"""Largest error of a mean, a variance or a vector that counts as none: ε in the norm leaves a little."""
MOVED = 0.1
"""A vector that changes by this share of its length has changed."""
KEEPS = 10.0
"""A gradient keeps its size over depth when it changes by less than this factor."""
LEARNS = 0.1
"""A rate works when the loss ends this much, in nats, below what frequencies of words alone give."""
HIGHER = 2.0
"""With norms, the largest rate that works must be at least this many times that without."""

_ARMS = ("none", "post", "pre", "rms")
"""No norm; LayerNorm after each addition, as in the paper; LayerNorm before each sub-layer; RMSNorm there."""
_NORMED = _ARMS[1:]
_PLACES = ("post", "pre")
"""Of LayerNorm."""
_LIES_ON = ("arm", "rms")
"""Its line lies on that of LayerNorm before."""
_RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
_CONTEXT, _WIDTH, _VOCABULARY, _EPS = 32, 64, 64, 1e-6


def measure(trial: Trial) -> Measurement:
    """What the norm does to vectors; gradients by depth before training; losses by learning rate."""
    depths, d_model = trial.pick((1, 8), (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32)), trial.pick(32, 64, 64)
    numbers: dict[str, Number] = {"depth": Number.exact(depths[-1])}
    chosen = seeds(trial, 2, 5, 5)
    found = [_statistics(seed) for seed in chosen]
    numbers |= {name: Number.median([one[name] for one in found]) for name in found[0]}
    rows: list[dict[str, Any]] = []
    for arm in _ARMS:
        for n_layers in depths:
            pairs = [_by_depth(arm, n_layers, d_model, seed) for seed in chosen]
            # Norms differ by powers of ten: their median, with the smallest and the largest.
            gradient, size = (Number.median([pair[part] for pair in pairs], "×") for part in (0, 1))
            rows += [number.row(arm=arm, what=what, layers=n_layers)
                     for what, number in (("gradient", gradient), ("size", size))]  # fmt: skip
            if n_layers == depths[-1]:
                numbers |= {f"{arm}_gradient": gradient, f"{arm}_size": size}
    how = trial.pick(_Training(2, 30, (1e-3, 3e-2)), _Training(4, 120, _RATES), _Training(6, 400, _RATES))
    rates, losses = _trainings(how, seeds(trial, 1, 3, 5))
    return Measurement({**numbers, **rates}, {"depth": rows, "rates": losses})


@torch.no_grad()
def _statistics(seed: int) -> dict[str, float]:
    """Means, variances and changes of vectors of very different sizes, by LayerNorm and by RMSNorm."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "layer-norm"))
    x_TM = torch.randn(32, _WIDTH, generator=generator)
    scale_T1, shift_T1 = (
        10 ** (3 * torch.rand(32, 1, generator=generator) - 1),
        5 * torch.randn(32, 1, generator=generator),
    )
    layer, rms = make_norm("layer", _WIDTH, _EPS), make_norm("rms", _WIDTH, _EPS)
    given_TM = x_TM * scale_T1 + shift_T1
    normed_TM = layer(given_TM)
    other_TM = given_TM.clone()
    other_TM[1:] = torch.randn(31, _WIDTH, generator=generator)

    def moved(norm: nn.Module, changed_TM: Tensor) -> float:
        """Largest change of a vector, relative to its length, when the input is changed in this way."""
        before_TM = norm(x_TM)
        return float(((norm(changed_TM) - before_TM).norm(dim=-1) / before_TM.norm(dim=-1)).max())

    return {
        "mean": float(normed_TM.mean(-1).abs().max()),
        "variance": float((normed_TM.var(-1, correction=0) - 1).abs().max()),
        "rms_square": float((rms(given_TM).square().mean(-1) - 1).abs().max()),
        "elsewhere": float((layer(other_TM)[0] - normed_TM[0]).abs().max()),
        "scaled": moved(layer, x_TM * scale_T1),
        "shifted": moved(layer, x_TM + shift_T1),
        "rms_scaled": moved(rms, x_TM * scale_T1),
        "rms_shifted": moved(rms, x_TM + shift_T1),
    }


def _model(arm: str, vocab_size: int, n_layers: int, d_model: int, seed: int) -> DecoderOnly:
    """A decoder with the norms of an arm; without any, the last one before the output layer is left out too."""
    model = tiny(
        vocab_size,
        context=_CONTEXT,
        d_model=d_model,
        n_layers=n_layers,
        seed=seed,
        norm="rms" if arm == "rms" else "layer",
        norm_placement="post" if arm == "post" else "pre",
        final_norm=arm in ("pre", "rms"),
        initialisation="xavier",
        embedding_scale=True,
    )
    if arm == "none":
        for block in model.every_block():
            block.attention_norm = block.feedforward_norm = nn.Identity()
    return model


def _by_depth(arm: str, n_layers: int, d_model: int, seed: int) -> tuple[float, float]:
    """Before training: (norm of the gradient at the input of the first block ÷ at the output of the last; size of the
    vectors at the output of the last ÷ at the input of the first)."""
    model = _model(arm, _VOCABULARY, n_layers, d_model, seed)
    generator = torch.Generator().manual_seed(derive_seed(seed, "depth"))
    ids_BT = torch.randint(_VOCABULARY, (4, _CONTEXT + 1), generator=generator)
    taps = Taps(("embeddings", f"blocks.{n_layers - 1}.output"))
    logits_BTV = model(ids_BT[:, :-1], taps=taps)
    loss = F.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten())
    begin_BTM, end_BTM = taps.values["embeddings"], taps.values[f"blocks.{n_layers - 1}.output"]
    first_BTM, last_BTM = torch.autograd.grad(loss, [begin_BTM, end_BTM])
    return float(first_BTM.norm() / last_BTM.norm()), float(end_BTM.detach().norm() / begin_BTM.detach().norm())


@dataclass(frozen=True)
class _Training:
    n_layers: int
    steps: int
    rates: Sequence[float]


def _trainings(how: _Training, chosen: Sequence[int]) -> tuple[dict[str, Number], list[dict[str, Any]]]:
    """(the best loss of each arm, its largest rate that works, and as a factor of that without norms; figure rows)."""
    texts = {seed: _text(seed) for seed in chosen}
    losses = {
        (arm, rate): [_train(arm, how, rate, seed, texts[seed]) for seed in chosen]
        for arm in _ARMS
        for rate in how.rates
    }
    numbers = {
        "trained_depth": Number.exact(how.n_layers),
        "frequencies": Number.mean([_entropy(ids_N) for ids_N, _ in texts.values()], "nats"),
    }
    largest: dict[str, list[float]] = {}
    for arm in _ARMS:
        largest[arm] = [
            max((rate for rate in how.rates if losses[arm, rate][at] <= _entropy(texts[seed][0]) - LEARNS), default=0.0)
            for at, seed in enumerate(chosen)
        ]
        numbers[f"{arm}_rate"] = Number.median(largest[arm])
        best = [min(losses[arm, rate][at] for rate in how.rates) for at in range(len(chosen))]
        numbers[f"{arm}_loss"] = Number.mean(best, "nats")
    for arm in _NORMED:
        pairs = zip(largest[arm], largest["none"], strict=True)
        # Where no rate works, the largest that does is below the smallest that was tried: this is in favour of no norm.
        least = how.rates[0]
        power = Number.mean([math.log10((one or least / 10) / max(without, least)) for one, without in pairs])
        numbers[f"{arm}_times"] = Number(10**power.value, 10**power.low, 10**power.high, "×")
    rows = [Number.mean(losses[arm, rate]).row("loss", arm=arm, rate=rate) for arm in _ARMS for rate in how.rates]
    return numbers, rows


def _text(seed: int) -> tuple[Tensor, int]:
    """(ids_N of generated sentences, size of the vocabulary)."""
    sentences = grammar.topics(3000, seed)
    lexicon = grammar.Lexicon(word for sentence in sentences for word in sentence)
    return lexicon.stream(sentences), len(lexicon)


def _entropy(ids_N: Tensor) -> float:
    """The loss, in nats, of a model that knows only how frequent each word is."""
    share_V = ids_N.bincount().double() / len(ids_N)
    return float(-(share_V * share_V.clamp(min=1e-12).log()).sum())


def _train(arm: str, how: _Training, rate: float, seed: int, text: tuple[Tensor, int]) -> float:
    """The loss of the last tenth of a training; of one that diverges, at most that of a uniform guess."""
    (ids_N, vocab_size), last = text, max(1, how.steps // 10)

    def batch(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(seed, "layer-norm batch", step))
        starts_B = torch.randint(len(ids_N) - _CONTEXT - 1, (8,), generator=generator)
        return ids_N[starts_B[:, None] + torch.arange(_CONTEXT + 1)]

    model = _model(arm, vocab_size, how.n_layers, 32, seed)
    try:
        # Neither warm-up nor clipping: both exist to make up for large gradients.
        went = fit(model, batch, next_token_loss, steps=how.steps, learning_rate=rate, seed=seed, warmup=0.0, clip=0.0)
    except TrainingError:
        return math.log(vocab_size)
    return min(sum(went.losses[-last:]) / last, math.log(vocab_size))


def judge(numbers: Numbers) -> Judgement:
    """Exact statistics; gradients that keep their size and higher rates, with the norm at either place."""
    value = values(numbers)
    exact = all(value[name] <= EXACT for name in ("mean", "variance", "scaled", "shifted")) and value["elsewhere"] == 0
    kept = {
        arm: 1 / KEEPS <= numbers[f"{arm}_gradient"].low <= numbers[f"{arm}_gradient"].high <= KEEPS for arm in _ARMS
    }
    higher = {arm: numbers[f"{arm}_times"].low >= HIGHER for arm in _NORMED}
    reasons = ["statistics", "depth", "rates"]
    keeps = {arm: kept[arm] and not kept["none"] for arm in _PLACES}
    if not exact or not any(keeps[arm] or higher[arm] for arm in _PLACES):
        return Judgement.not_supported(*reasons)
    if all(keeps[arm] and higher[arm] for arm in _PLACES):
        return Judgement.supported(*reasons)
    gradients, tolerant = sum(keeps.values()), sum(higher[arm] for arm in _PLACES)
    return Judgement.corrected(*reasons, "parts", gradients=gradients, tolerant=tolerant)


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        *(
            Lines(
                what,
                table="depth",
                where={"what": what},
                x="layers",
                series="arm",
                log_x=True,
                log_y=True,
                dashed=_LIES_ON,
            )
            for what in ("gradient", "size")
        ),
        Lines("rates", x="rate", y="loss", series="arm", log_x=True, dashed=_LIES_ON),
    ],
    seconds=60,
)
