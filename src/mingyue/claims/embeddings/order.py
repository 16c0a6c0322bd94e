"""Claim: attention without positions does not know the order of words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Trial
from mingyue.claims.figures import Lines
from mingyue.claims.grammar import Lexicon
from mingyue.claims.training import seeds, tiny
from mingyue.nn import Taps

EQUAL = 1e-5
"""Vectors with a relative distance up to this count as equal: rounding is near 1e-7."""
DIFFERENT = 1e-3
"""Vectors with a relative distance from this on count as different."""
_KINDS = ("none", "learned", "sinusoidal", "rotary")
_LEXICON = Lexicon("狗咬人猫看鱼吃草")
_N_LAYERS = 4


def measure(trial: Trial) -> Measurement:
    """Distance of the vectors of 咬 in two sentences, after each block of encoders and decoders."""
    chosen = seeds(trial, 5, 20, 50)
    samples = {("encoder", kind): [_encoder(kind, seed) for seed in chosen] for kind in _KINDS}
    samples["decoder", "middle"] = [_decoder("狗咬人", "人咬狗", 1, seed) for seed in chosen]
    samples["decoder", "last"] = [_decoder("狗人咬", "人狗咬", 2, seed) for seed in chosen]
    medians = {arm: [Number.median(block) for block in zip(*found, strict=True)] for arm, found in samples.items()}
    numbers = {
        **{f"encoder_{kind}": medians["encoder", kind][-1] for kind in _KINDS},
        "decoder_middle": medians["decoder", "middle"][0],
        "decoder_last_first_block": medians["decoder", "last"][0],
        "decoder_last_second_block": medians["decoder", "last"][1],
    }
    curves = [
        distance.row("distance", group=group, kind=kind, block=block)
        for (group, kind), blocks in medians.items()
        for block, distance in enumerate(blocks, start=1)
    ]
    return Measurement(numbers, {"curves": curves})


def _options(positions: str) -> dict[str, Any]:
    """Initial weights of the paper, with which attention weights are not nearly uniform."""
    return {"n_layers": _N_LAYERS, "positions": positions, "initialisation": "xavier", "embedding_scale": True}


@torch.no_grad()
def _encoder(positions: str, seed: int) -> list[float]:
    """Distance of 咬 in 狗咬人 from 咬 in 人咬狗, after each block of an encoder."""
    model = tiny(len(_LEXICON), context=4, seed=seed, architecture="encoder-decoder", **_options(positions)).eval()
    taps = Taps("encoder.blocks.*.output")
    model.encode(_LEXICON.tensor(["狗咬人", "人咬狗"]), taps=taps)
    return [_apart(value[:, 1]) for value in taps.values.values()]


@torch.no_grad()
def _decoder(one: str, other: str, position: int, seed: int) -> list[float]:
    """Distance of the vectors of two texts at one position, after each block of a decoder without positions."""
    model = tiny(len(_LEXICON), context=4, seed=seed, **_options("none")).eval()
    taps = Taps("blocks.*.output")
    model(_LEXICON.tensor([one, other]), taps=taps)
    return [_apart(value[:, position]) for value in taps.values.values()]


def _apart(x_2M: Tensor) -> float:
    """‖a − b‖ as a share of ‖a‖."""
    return float((x_2M[0] - x_2M[1]).norm() / x_2M[0].norm())


def judge(numbers: Numbers) -> Judgement:
    """An encoder needs positions; a correction if a causal decoder can tell the order without them."""
    least = min(numbers[f"encoder_{kind}"].low for kind in _KINDS[1:])
    if not (numbers["encoder_none"].at_most(EQUAL) and least >= DIFFERENT):
        return Judgement.not_supported("encoder_unlike", least=least)
    middle = numbers["decoder_middle"].low
    first, second = numbers["decoder_last_first_block"].high, numbers["decoder_last_second_block"].low
    decoder_knows = middle >= DIFFERENT and first <= EQUAL and second >= DIFFERENT
    if decoder_knows:
        return Judgement.corrected("encoder", "decoder_knows", least=least)
    return Judgement.supported("encoder", "decoder_blind", least=least)


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines(
            group,
            table="curves",
            where={"group": group},
            x="block",
            y="distance",
            series="kind",
            log_y=True,
            floor=1e-9,
            rules={"same": EQUAL},
        )
        for group in ("encoder", "decoder")
    ],
    seconds=1,
)
