"""Claim: rotary positions rotate queries and keys, so that scores depend on distances alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Bars, Matrix
from mingyue.claims.number_figures import Dials
from mingyue.claims.training import seeds, tiny
from mingyue.nn import RotaryPositions, Taps
from mingyue.nn.positions import rotary_frequencies
from mingyue.runtime import derive_seed

ROUNDING = 1e-5
"""Of numbers near 1: float32 rounding of a sum of products, and of angles of hundreds of radians."""
ANGLE_ROUNDING = 1e-3
"""Radians; angles are computed from vectors of all layers."""
TURNED = 1e-2
"""Queries and keys that change by this share of their norm count as rotated."""
_KINDS = ("none", "learned", "sinusoidal", "rotary")
_SHIFT = 37
_PICTURE = 48
_PAIR, _STARTS, _DISTANCES = 2, (0, 5, 20, 50), (5, 15)
"""The pair of a head of width 16 that is drawn, positions of the key, and how far after it the query is."""


def measure(trial: Trial) -> Measurement:
    """Scores and norms of rotated vectors; what changes in models when a text is shifted, by kind of positions."""
    d_head, span = trial.pick((16, 64), (64, 512), (128, 4096))
    chosen = seeds(trial, 3, 10, 20)
    scores = [_scores(d_head, span, seed) for seed in chosen]
    shifted = {kind: [_shift(kind, seed) for seed in chosen] for kind in _KINDS}
    rotary = shifted["rotary"]

    def median(values: Sequence[dict[str, float]], name: str) -> Number:
        return Number.median([sample[name] for sample in values])

    numbers = {
        "score_error": median(scores, "spread"),
        "length_error": median(scores, "length"),
        "query_turned": median(rotary, "query"),
        "key_turned": median(rotary, "key"),
        "value_turned": median(rotary, "value"),
        "angle_error": median(rotary, "angle"),
        "pairs": Number.exact(d_head // 2),
        "angles": Number.exact(_different_angles(d_head)),
        **{f"logits_{kind}": median(samples, "logits") for kind, samples in shifted.items()},
    }
    bars = [numbers[f"logits_{kind}"].row("change", kind=kind) for kind in _KINDS]
    return Measurement(numbers, {"logits": bars, "scores": _picture(trial.seed), "turned": _dials()})


def _turned(d_head: int, span: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """One random query and one random key at every position: query_TD, key_TD, and both unrotated, [2, D]."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "rotary"))
    pair_2D = torch.randn(2, d_head, generator=generator)
    rotation = RotaryPositions(span, d_head).rotation(torch.arange(span)[None])
    turned_12TD = rotation.rotate(pair_2D[None, :, None].expand(1, 2, span, d_head))
    return turned_12TD[0, 0], turned_12TD[0, 1], pair_2D


def _scores(d_head: int, span: int, seed: int) -> dict[str, float]:
    """How much q·k at one distance and the norms of vectors vary with the position, both relative."""
    query_TD, key_TD, pair_2D = _turned(d_head, span, seed)
    length_2 = pair_2D.norm(dim=1)
    scores_TS = (query_TD @ key_TD.T / length_2.prod()).numpy()
    diagonals = [scores_TS.diagonal(offset) for offset in range(1 - span, span)]
    lengths_2T = torch.stack([query_TD, key_TD]).norm(dim=2) / length_2[:, None]
    return {
        "spread": max(float(diagonal.max() - diagonal.min()) for diagonal in diagonals),
        "length": float((lengths_2T - 1).abs().max()),
    }


@torch.no_grad()
def _shift(positions: str, seed: int) -> dict[str, float]:
    """What changes in a model of three layers when all tokens are `_SHIFT` positions further on.

    Queries and keys: the smallest change of all layers. Values and logits: the largest. All relative.
    """
    model = tiny(32, context=64, d_model=64, n_heads=2, n_layers=3, seed=seed, positions=positions,
                 initialisation="xavier", embedding_scale=True).eval()  # fmt: skip
    generator = torch.Generator().manual_seed(derive_seed(seed, "shift"))
    ids_1T = torch.randint(32, (1, 24), generator=generator)
    seen = list[dict[str, Tensor]]()
    for start in (0, _SHIFT):
        taps = Taps(("blocks.*.attention.query", "blocks.*.attention.key", "blocks.*.attention.value", "logits"))
        model(ids_1T, positions_BT=torch.arange(24)[None] + start, taps=taps)
        seen.append(taps.values)
    here, there = seen

    def changes(kind: str) -> list[float]:
        return [
            float((there[name] - value).norm() / value.norm()) for name, value in here.items() if name.endswith(kind)
        ]

    queries = [(value, there[name]) for name, value in here.items() if name.endswith("query")]
    return {
        "query": min(changes("query")),
        "key": min(changes("key")),
        "value": max(changes("value")),
        "logits": max(changes("logits")),
        "angle": max(_angle_error(*pair) for pair in queries) if positions == "rotary" else math.nan,
    }


def _angle_error(query_BHTD: Tensor, moved_BHTD: Tensor) -> float:
    """Largest difference, in radians, between the angles that pairs were rotated by and the expected ones."""
    before, after = (torch.complex(*part.chunk(2, dim=-1)).flatten(0, 2) for part in (query_BHTD, moved_BHTD))
    turned_I = (before.conj() * after).sum(dim=0)  # over tokens and heads: one angle for each pair, whatever its values
    wanted_I = _SHIFT * rotary_frequencies(query_BHTD.shape[-1], 10000.0, None)
    return float((turned_I * torch.polar(torch.ones_like(wanted_I), -wanted_I)).angle().abs().max())


def _different_angles(d_head: int) -> int:
    """Number of different angles by which the pairs of one vector are rotated from one position to the next."""
    cosine_I, sine_I = (part[0, 0, 0] for part in RotaryPositions(2, d_head).rotation(torch.tensor([[1]])).angles or ())
    return int((torch.atan2(sine_I, cosine_I).diff().abs() > 1e-9).sum()) + 1


def _picture(seed: int) -> list[dict[str, Any]]:
    """q·k ÷ ‖q‖‖k‖ for one query and one key at all pairs of positions."""
    query_TD, key_TD, pair_2D = _turned(16, _PICTURE, seed)
    scores_TS = query_TD @ key_TD.T / pair_2D.norm(dim=1).prod()
    return [
        {"query": position, "values": [round(value, 3) for value in row]}
        for position, row in enumerate(scores_TS.tolist())
    ]


def _dials() -> list[dict[str, Any]]:
    """One pair of a query and of a key that are equal before rotation, at several positions: tips of hands."""
    last = max(_STARTS) + max(_DISTANCES) + 1
    vector_11TD = torch.zeros(1, 1, last, 16)
    vector_11TD[..., _PAIR] = 1.0  # rotary pairs are in halves: component i goes with component 8 + i
    turned_TD = RotaryPositions(last, 16).rotation(torch.arange(last)[None]).rotate(vector_11TD)[0, 0]
    tips_T2 = turned_TD[:, [_PAIR, _PAIR + 8]]
    rows: list[dict[str, Any]] = []
    for distance in _DISTANCES:
        for start in _STARTS:
            score = float(tips_T2[start] @ tips_T2[start + distance])
            for what, at in (("key", start), ("query", start + distance)):
                x, y = tips_T2[at].tolist()
                rows.append({"distance": distance, "start": start, "what": what, "x": x, "y": y, "score": score})
    return rows


def judge(numbers: Numbers) -> Judgement:
    """Queries and keys change, all that should stay does, and each pair has its own angle.

    With the two kinds that are added to embeddings the logits must change: otherwise the shift would show nothing.
    """
    unchanged = max(numbers[name].high for name in ("score_error", "length_error", "value_turned", "logits_rotary"))
    changes = ("query_turned", "key_turned", "logits_learned", "logits_sinusoidal")
    turned = all(numbers[name].at_least(TURNED) for name in changes)
    supported = (
        unchanged <= ROUNDING
        and numbers["angle_error"].high <= ANGLE_ROUNDING
        and turned
        and numbers["pairs"].value == numbers["angles"].value
    )
    return Judgement.supported("found") if supported else Judgement.not_supported("not_all", "found")


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Dials("turned", row="distance", column="start", series="what"),
        Matrix("scores", labels="query", low=-1.0, high=1.0, diverging=True),
        Bars("logits", x="kind", y="change", log_y=True, floor=1e-9),
    ],
    seconds=0,
)
