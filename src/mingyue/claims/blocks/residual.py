"""Claim: the residual path lets gradients reach the first block and keeps tokens apart. With and without norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.claims import grammar
from mingyue.claims.blocks.parts import smoothed, stretch_of, without_residual
from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Lines
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.errors import TrainingError
from mingyue.models import DecoderOnly
from mingyue.nn import Taps
from mingyue.runtime import derive_seed

ARRIVES = 10.0
"""A gradient arrives when its norm at the first block is within this factor of that at the last. Below, it is lost."""
ALIKE = 0.9
"""Tokens with a mean cosine above this count as alike."""
LEARNS = 0.1
"""Losses that differ by less, in nats, count as equal."""

_CONTEXT = 32
_ARMS = ("pre", "post", "pre-plain", "post-plain", "bare", "bare-plain")
"""Norms before or after the sub-layers, or none (bare); plain: without the residual path."""
_TRAINED = ("pre_warm", "pre_cold", "post_warm", "post_cold", "pre-plain_warm", "bare_warm", "bare-plain_warm")
"""Arms with (warm) and without (cold) warm-up."""


def _model(arm: str, vocab_size: int, n_layers: int, d_model: int, seed: int) -> DecoderOnly:
    kind, _, plain = arm.partition("-")
    model = tiny(
        vocab_size,
        context=_CONTEXT,
        d_model=d_model,
        n_layers=n_layers,
        seed=seed,
        norm_placement="post" if kind == "post" else "pre",
        final_norm=kind != "post",
        initialisation="xavier",
        embedding_scale=True,
    )
    blocks = model.every_block()
    if kind == "bare":
        for block in blocks:
            block.attention_norm = block.feedforward_norm = nn.Identity()
    model.blocks = nn.ModuleList(without_residual(block) if plain else block for block in blocks)
    return model


def _at_first(arm: str, n_layers: int, d_model: int, seed: int) -> tuple[float, float, float]:
    """Before training: (norm of the gradient at the input of the first block ÷ at the output of the last; mean cosine
    between the vectors of different tokens at the output of the last; norm of the vectors there ÷ at the input)."""
    model = _model(arm, 64, n_layers, d_model, seed)
    generator = torch.Generator().manual_seed(derive_seed(seed, "residual"))
    ids_BT = torch.randint(64, (4, _CONTEXT + 1), generator=generator)
    taps = Taps(("embeddings", f"blocks.{n_layers - 1}.output"))
    logits_BTV = model(ids_BT[:, :-1], taps=taps)
    loss = F.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten())
    begin_BTM, end_BTM = taps.values["embeddings"], taps.values[f"blocks.{n_layers - 1}.output"]
    first_BTM, last_BTM = torch.autograd.grad(loss, [begin_BTM, end_BTM])
    growth = float(end_BTM.detach().norm() / begin_BTM.detach().norm())
    return float(first_BTM.norm() / last_BTM.norm()), _mean_cosine(end_BTM.detach()), growth


def _mean_cosine(x_BTM: Tensor) -> float:
    """Of all pairs of different positions of a row."""
    unit_BTM = F.normalize(x_BTM, dim=-1)
    cosines_BTT = unit_BTM @ unit_BTM.transpose(1, 2)
    n_tokens = x_BTM.shape[1]
    return float((cosines_BTT.sum((1, 2)) - n_tokens).mean() / (n_tokens * (n_tokens - 1)))


@dataclass(frozen=True)
class _Training:
    n_layers: int
    d_model: int
    steps: int
    learning_rate: float


def _train(arm: str, how: _Training, seed: int) -> list[float]:
    """Losses of a training of one of `_TRAINED` on generated sentences; a diverged one keeps its last finite loss."""
    kind, _, start = arm.partition("_")
    sentences = grammar.topics(3000, seed)
    lexicon = grammar.Lexicon(word for sentence in sentences for word in sentence)
    ids_N = lexicon.stream(sentences)

    def batch(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(seed, "residual", step))
        starts_B = torch.randint(len(ids_N) - _CONTEXT - 1, (8,), generator=generator)
        return ids_N[starts_B[:, None] + torch.arange(_CONTEXT + 1)]

    model = _model(kind, len(lexicon), how.n_layers, how.d_model, seed)
    losses: list[float] = []

    def loss(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
        value = next_token_loss(model, ids_BT)
        losses.append(float(value.detach()))
        return value

    warmup = 0.3 if start == "warm" else 0.0
    try:
        fit(model, batch, loss, steps=how.steps, learning_rate=how.learning_rate, seed=seed, warmup=warmup)
    except TrainingError:  # without norms vectors grow without bound
        losses.pop()
        losses += [losses[-1]] * (how.steps - len(losses))
    return losses


def measure(trial: Trial) -> Measurement:
    """Gradients and cosines by depth before training; in the larger sizes, losses of training."""
    depths, d_model = trial.pick(((2, 12), 32), ((1, 2, 4, 8, 12, 16), 64), ((1, 2, 4, 8, 12, 16), 128))
    rows: list[dict[str, Any]] = []
    numbers: dict[str, Number] = {"depth": Number.exact(depths[-1])}
    for arm in _ARMS:
        for n_layers in depths:
            found = [_at_first(arm, n_layers, d_model, seed) for seed in seeds(trial, 3, 5, 5)]
            # Norms differ by powers of ten: their median, with the smallest and the largest.
            gradient, growth = (Number.median([one[place] for one in found], "×") for place in (0, 2))
            cosine = Number.mean([one[1] for one in found]).clipped(-1.0, 1.0)
            for what, number in (("gradient", gradient), ("cosine", cosine)):
                rows.append(number.row(arm=arm, what=what, layers=n_layers))
            if n_layers == depths[-1]:
                numbers |= {f"{arm}_gradient": gradient, f"{arm}_cosine": cosine, f"{arm}_growth": growth}
    how = trial.pick(None, _Training(6, 32, 200, 1e-2), _Training(6, 64, 800, 1e-2))
    lines: list[dict[str, Any]] = []
    if how is not None:
        losses, lines = _trainings(how, seeds(trial, 1, 3, 5))
        numbers |= {"trained_depth": Number.exact(how.n_layers), **losses}
    return Measurement(numbers, {"depth": rows, "training": lines})


def _trainings(how: _Training, chosen: Sequence[int]) -> tuple[dict[str, Number], list[dict[str, Any]]]:
    """(the last losses of each arm, the rows of the figure)."""
    losses: dict[str, Number] = {}
    rows: list[dict[str, Any]] = []
    stretch = stretch_of(how.steps)
    for arm in _TRAINED:
        runs = [_train(arm, how, seed) for seed in chosen]
        if arm == _TRAINED[0]:
            losses["untrained_loss"] = Number.mean([run[0] for run in runs], "nats")
        losses[f"{arm}_loss"] = Number.mean([sum(run[-stretch:]) / stretch for run in runs], "nats")
        rows += smoothed(runs, "loss", arm=arm)
    return losses, rows


def judge(numbers: Numbers) -> Judgement:
    """Whether gradients arrive and tokens differ with the path and not without it, with norms and without."""

    def arrives(arm: str) -> bool:
        gradient = numbers[f"{arm}_gradient"]
        return gradient.at_least(1 / ARRIVES) and gradient.at_most(ARRIVES)

    def lost(*arms: str) -> bool:
        return all(numbers[f"{arm}_gradient"].high < 1 / ARRIVES for arm in arms)

    def apart(arm: str) -> bool:
        return numbers[f"{arm}_cosine"].at_most(ALIKE)

    alike = all(numbers[f"{arm}_cosine"].low > ALIKE for arm in ("pre-plain", "post-plain", "bare-plain"))
    # Without norms the path must at least not lose the gradient: whether it bounds it is what the norms are for.
    lost_bare = lost("bare-plain") and numbers["bare_gradient"].at_least(1 / ARRIVES)
    lost_normed = lost("pre-plain", "post-plain")
    grows = numbers["bare_gradient"].low > ARRIVES
    trained = "pre-plain_warm_loss" in numbers
    reasons = ["normed", "bare", *(["trained"] if trained else [])]
    fails = not trained or numbers["pre-plain_warm_loss"].at_least(numbers["pre_warm_loss"].high + LEARNS)
    if not (arrives("pre") and apart("pre") and alike and lost_bare and fails):
        return Judgement.not_supported(*reasons)
    corrections = {"norms_carry": not lost_normed, "norms_bound": grows, "post_alike": not apart("post")}
    found = [reason for reason, true in corrections.items() if true]
    return Judgement.corrected(*reasons, *found) if found else Judgement.supported(*reasons)


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("gradient", table="depth", where={"what": "gradient"}, x="layers", series="arm", log_x=True, log_y=True),
        Lines("cosine", table="depth", where={"what": "cosine"}, x="layers", series="arm", log_x=True),
        Lines("training", x="step", y="loss", series="arm"),
    ],
    seconds=45,
)
