"""Claim: the projections of all heads can be one matrix, with the same result in less time."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial, values
from mingyue.claims.figures import Lines
from mingyue.claims.timing import alternating, times_as_long
from mingyue.claims.wording import Phrase
from mingyue.nn import CAUSAL, MultiHeadAttention, Rotation, Taps
from mingyue.runtime import derive_seed

D_MODEL, N_HEADS = 512, 8
EQUAL = 1e-5
"""Largest difference that counts as rounding, where the largest value is 1."""


@torch.inference_mode()
def measure(trial: Trial) -> Measurement:
    """Times of one, three and 24 matrices by the number of tokens, and whether the results are equal."""
    n_tokens, turns = trial.pick(((1, 64), 7), ((1, 16, 128, 1024), 31), ((1, 4, 16, 64, 256, 1024, 4096), 61))
    generator = torch.Generator().manual_seed(derive_seed(trial.seed, "one-matrix"))
    attention = MultiHeadAttention(D_MODEL, N_HEADS, N_HEADS, D_MODEL // N_HEADS).eval()
    attention.qkv.weight.normal_(std=D_MODEL**-0.5, generator=generator)
    weight = attention.qkv.weight.detach()
    # Rows are [Q; K; V], each of h heads: 3·h matrices of one head, or three of all heads, cut out and laid apart.
    by_head = [part.clone() for part in weight.chunk(3 * N_HEADS)]
    by_kind = [part.clone() for part in weight.chunk(3)]
    rows: list[dict[str, Any]] = []
    ratios: list[Number] = []
    apart: list[float] = []
    for count in n_tokens:
        x_BTM = torch.randn(1, count, D_MODEL, generator=generator)

        def one(x_BTM: Tensor = x_BTM) -> Tensor:
            return attention.qkv(x_BTM)

        def three(x_BTM: Tensor = x_BTM) -> list[Tensor]:
            return [F.linear(x_BTM, part) for part in by_kind]

        def each(x_BTM: Tensor = x_BTM) -> list[Tensor]:
            return [F.linear(x_BTM, part) for part in by_head]

        taps = Taps(("query", "key", "value"))
        attention(x_BTM, CAUSAL, Rotation(), taps=taps)
        used_BNTD = torch.cat([taps.values[name] for name in ("query", "key", "value")], dim=1)
        apart.append(float((used_BNTD - torch.stack(each(), dim=1)).abs().max() / used_BNTD.abs().max()))
        times = alternating({"one": one, "three": three, "each": each}, turns=turns)
        for name in ("three", "each"):
            ratio = times_as_long(times[name], times["one"])
            rows.append(ratio.row("ratio", tokens=count, way=name))
        ratios.append(times_as_long(times["each"], times["one"]))
    numbers = {
        "apart": Number.exact(float(torch.tensor(apart).max())),
        "sizes": Number.exact(len(n_tokens)),
        "faster": Number.exact(sum(ratio.low > 1 for ratio in ratios)),
        "one_token": ratios[0],
        "most_tokens": ratios[-1],
        "width": Number.exact(weight.shape[0]),
    }
    return Measurement(numbers, {"times": rows})


def judge(numbers: Numbers) -> Judgement:
    """The results are equal; and at how many lengths one matrix is faster."""
    value = values(numbers)
    if not value["apart"] <= EQUAL:
        return Judgement.not_supported("differ")
    how = Phrase("equal" if value["apart"] else "identical")
    if value["faster"] == value["sizes"]:
        return Judgement.supported("always", how=how)
    return Judgement.corrected("sometimes", how=how) if value["faster"] else Judgement.not_supported("never", how=how)


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("times", x="tokens", y="ratio", series="way", log_x=True, rules={"one": 1.0}),
    ],
    seconds=3,
)
