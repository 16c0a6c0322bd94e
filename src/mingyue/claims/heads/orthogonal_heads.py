"""Claim: splitting into heads makes their subspaces orthogonal. Principal angles, trained and random."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from mingyue.claims import grammar
from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Bars, Lines
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.runtime import derive_seed

NEARLY = 0.25
"""Overlap of at most this share of chance counts as orthogonal."""
BELOW = 0.9
"""Overlap of at most this share of chance counts as less than chance."""

_KINDS = ("query", "key")
_CONTEXT = 32


def _subspaces(weight_NM: Tensor, n_heads: int) -> Tensor:
    """Orthonormal bases [H, M, D] of what the rows of each head span."""
    rows_HDM = weight_NM.detach().unflatten(0, (n_heads, -1))
    return torch.linalg.qr(rows_HDM.transpose(1, 2).double()).Q


def _cosines(bases_HMD: Tensor) -> Tensor:
    """Cosines of the principal angles of every pair of subspaces: [pairs, D], falling."""
    pairs = list(itertools.combinations(bases_HMD, 2))
    return torch.linalg.svdvals(torch.stack([first.T @ second for first, second in pairs])).clamp(max=1.0)


def _of_model(model: DecoderOnly, kind: str) -> Tensor:
    """The cosines of all layers, [layers · pairs, D], of W_Q or W_K."""
    n_heads, place = model.config.n_heads, _KINDS.index(kind)
    weights = [block.attention.qkv.weight.chunk(3)[place] for block in model.every_block()]
    return torch.cat([_cosines(_subspaces(weight_NM, n_heads)) for weight_NM in weights])


def _text(seed: int, sentences: int) -> tuple[Tensor, int]:
    """(ids_N of a text, size of its vocabulary)."""
    written = grammar.topics(sentences, seed)
    lexicon = grammar.Lexicon(word for sentence in written for word in sentence)
    return lexicon.stream(written), len(lexicon)


def _trained(
    seed: int, d_model: int, n_heads: int, n_layers: int, steps: int
) -> tuple[DecoderOnly, DecoderOnly, float]:
    """(model as it began, the same trained, its last losses)."""
    ids_N, vocab_size = _text(seed, 4000)

    def make() -> DecoderOnly:
        return tiny(vocab_size, context=_CONTEXT, d_model=d_model, n_heads=n_heads, n_layers=n_layers, seed=seed)

    def batch(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(seed, "orthogonal-heads", step))
        starts_B = torch.randint(len(ids_N) - _CONTEXT - 1, (16,), generator=generator)
        return ids_N[starts_B[:, None] + torch.arange(_CONTEXT + 1)]

    begun, model = make(), make()
    went = fit(model, batch, next_token_loss, steps=steps, learning_rate=3e-3, seed=seed)
    return begun, model, float(np.mean(went.losses[-20:]))


def measure(trial: Trial) -> Measurement:
    """Overlap and principal angles of the row spaces of W_Q and W_K, trained and untrained, and of random ones."""
    d_model, n_heads, n_layers, steps = trial.pick((32, 4, 1, 60), (64, 4, 2, 600), (128, 8, 3, 2000))
    overlaps: dict[str, list[float]] = {}
    angles: dict[str, list[np.ndarray]] = {}
    losses = []

    def add(name: str, cosines_PD: Tensor) -> None:
        overlaps.setdefault(name, []).append(float(cosines_PD.square().mean()))
        angles.setdefault(name, []).append(torch.rad2deg(torch.arccos(cosines_PD)).mean(0).numpy())

    for seed in seeds(trial, 2, 5, 5):
        begun, model, loss = _trained(seed, d_model, n_heads, n_layers, steps)
        losses.append(loss)
        generator = torch.Generator().manual_seed(derive_seed(seed, "subspaces"))
        n_drawn = n_layers * 8  # as random as those of a layer, and more of them
        drawn = [
            _cosines(_subspaces(torch.randn(d_model, d_model, generator=generator), n_heads)) for _ in range(n_drawn)
        ]
        add("random", torch.cat(drawn))
        apart = torch.linalg.qr(torch.randn(d_model, d_model, generator=generator)).Q
        add("control", _cosines(_subspaces(apart, n_heads)))
        for kind in _KINDS:
            add(f"{kind}_begun", _of_model(begun, kind))
            add(kind, _of_model(model, kind))
    numbers = {f"{name}_overlap": Number.mean(values) for name, values in overlaps.items()}
    numbers |= {
        "expected": Number.exact(1 / n_heads),
        "loss": Number.mean(losses, "nats"),
        **{f"{kind}_angle": Number.mean([float(one[0]) for one in angles[kind]], "°") for kind in _KINDS},
        "random_angle": Number.mean([float(one[0]) for one in angles["random"]], "°"),
    }
    order = ("random", "query_begun", "query", "key_begun", "key", "control")
    bars = [numbers[f"{name}_overlap"].clipped(0.0, 1.0).row("overlap", what=name) for name in order]
    lines = []
    for name in ("random", *_KINDS):
        for place, values in enumerate(np.stack(angles[name], axis=1)):
            mean = Number.mean(values.tolist(), "°").clipped(0.0, 90.0)
            lines.append(mean.row("degrees", what=name, angle=place + 1))
    return Measurement(numbers, {"overlaps": bars, "angles": lines})


def judge(numbers: Numbers) -> Judgement:
    """Overlap of the heads of W_Q and W_K as a share of the overlap of random subspaces."""
    chance = numbers["random_overlap"]
    found = [numbers[f"{kind}_overlap"] for kind in _KINDS]
    query, key = (overlap.value / chance.value for overlap in found)
    if all(overlap.high <= NEARLY * chance.low for overlap in found):
        return Judgement.supported("overlap", "near", query=query, key=key)
    if query <= BELOW and key <= BELOW and all(overlap.high < chance.low for overlap in found):
        return Judgement.corrected("overlap", "below", query=query, key=key)
    more = all(overlap.low > chance.high for overlap in found)
    return Judgement.not_supported("overlap", "above" if more else "not_below", query=query, key=key)


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Bars("overlaps", x="what", y="overlap", rules={"expected": "expected"}),
        Lines("angles", x="angle", y="degrees", series="what", rules={"orthogonal": 90.0}),
    ],
    seconds=32,
)
