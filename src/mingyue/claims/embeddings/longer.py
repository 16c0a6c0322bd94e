"""Claim: rotary positions work beyond the length that a model was trained at, learned ones do not."""

from __future__ import annotations

import math

from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial
from mingyue.claims.embeddings.texts import changed
from mingyue.claims.embeddings.two_back import VOCAB_SIZE, curve, excess, train, true_losses, two_back
from mingyue.claims.figures import Bars, Lines
from mingyue.claims.training import seeds, tiny
from mingyue.config import RotaryScaling
from mingyue.models import DecoderOnly

TOLERANCE = 0.1
"""Nats per token by which the loss beyond three times the trained length may exceed the loss within that length."""
TIMES = 4
"""Texts are read to this many times the trained length."""
_TRAINED = ("none", "learned", "sinusoidal", "rotary")
_READERS = (*_TRAINED, "scaled", "window", "learned_window")


def measure(trial: Trial) -> Measurement:
    """Loss by position, up to `TIMES` the trained length, for each kind of positions and way to read."""
    length, steps, rows, d_model = trial.pick((16, 120, 12, 32), (64, 400, 16, 32), (64, 1500, 16, 64))
    long_BT = two_back(trial.pick(24, 64, 256), TIMES * length + 1, trial.seed, "held out")
    losses: dict[str, list[Tensor]] = {reader: [] for reader in _READERS}  # each [TIMES · length]: by position
    for kind in _TRAINED:
        # How well rotary positions extrapolate varies much from seed to seed, the other kinds little.
        for seed in seeds(trial, 1, 8, 12) if kind == "rotary" else seeds(trial, 1, 3, 5):
            model = _trained(kind, length, steps=steps, rows=rows, d_model=d_model, seed=seed)
            for reader, reading in _readings(kind, model, length).items():
                losses[reader].append(excess(reading, long_BT))

    numbers = {"length": Number.exact(length)}
    for reader, samples in losses.items():
        within = [float(sample[:length].mean()) for sample in samples]
        beyond = [float(sample[-length:].mean()) for sample in samples]
        numbers[f"within_{reader}"] = Number.mean(within, "nats")
        numbers[f"rise_{reader}"] = Number.mean([far - near for near, far in zip(within, beyond, strict=True)], "nats")
        numbers[f"reach_{reader}"] = Number.median([_reach_of(sample, length) for sample in samples])
    guessing = math.log(VOCAB_SIZE) - float(true_losses(long_BT)[:, -length:].mean())
    numbers["guessing"] = Number.exact(guessing, "nats")
    curves = [row for reader in _READERS for row in curve(losses[reader], length // 4, reader=reader)]
    return Measurement(numbers, {"curves": curves})


def _reach_of(losses_T: Tensor, length: int) -> float:
    """To how many times the trained length the loss stays within `TOLERANCE`, in steps of a quarter."""
    quarters_Q = losses_T.view(-1, length // 4).mean(1)
    above_Q = quarters_Q > losses_T[:length].mean() + TOLERANCE
    above_Q[:4] = False
    return float(above_Q.int().argmax() if above_Q.any() else len(above_Q)) / 4


def _trained(kind: str, length: int, *, steps: int, rows: int, d_model: int, seed: int) -> DecoderOnly:
    """A model whose context is `TIMES` the length that it is trained at.

    Initial weights are the paper's for all kinds: sinusoids of size 1 would drown embeddings of size 0.02.
    """
    model = tiny(
        VOCAB_SIZE,
        context=TIMES * length,
        d_model=d_model,
        n_layers=2,
        n_heads=2,
        seed=seed,
        positions=kind,
        initialisation="xavier",
        embedding_scale=True,
    )
    train(model, length, rows=rows, steps=steps, seed=seed)
    return model


def _readings(kind: str, model: DecoderOnly, length: int) -> dict[str, DecoderOnly]:
    """The model, and its weights in other configurations."""
    if kind == "learned":
        return {kind: model, "learned_window": changed(model, window=length)}
    if kind != "rotary":
        return {kind: model}
    return {
        kind: model,
        "scaled": changed(model, rotary_scaling=RotaryScaling(kind="ntk", factor=TIMES)),
        "window": changed(model, window=length),
    }


def judge(numbers: Numbers) -> Judgement:
    """Rotary positions extrapolate and learned ones do not; a correction if rotary ones must be scaled.

    A window does not count: it hides what is farther away than in training, so long texts are read in short pieces.
    """
    extrapolates = {reader: numbers[f"rise_{reader}"].high <= TOLERANCE for reader in _READERS}
    lost = numbers["rise_learned"].low > TOLERANCE
    window = "window" if extrapolates["window"] else "no_window"
    reach = TIMES * numbers["length"].value
    if lost and extrapolates["rotary"]:
        return Judgement.supported("rises", "rotary", window, reach=reach)
    if lost and extrapolates["scaled"]:
        return Judgement.corrected("rises", "not_alone", "scaled", window, reach=reach)
    return Judgement.not_supported("rises", "not_alone", "none" if lost else "learned_too", window, reach=reach)


def _reach(measurement: Measurement) -> dict[str, object]:
    return {"reach": TIMES * measurement.numbers["length"].value}


def _rises(measurement: Measurement) -> Table:
    return [measurement.numbers[f"rise_{reader}"].row(reader=reader) for reader in _READERS]


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("curves", x="position", series="reader", rules={"guessing": "guessing"}, values=_reach),
        Bars("rises", rows=_rises, x="reader", rules={"tolerance": TOLERANCE}),
    ],
    seconds=95,
)
