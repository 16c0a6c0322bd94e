"""Claim: the input table and the output layer can share one matrix, which saves a whole table."""

from __future__ import annotations

from torch import Tensor

from mingyue.claims.claim import Claim, Judgement, Measurement, Number, Numbers, Table, Trial, values
from mingyue.claims.embeddings.texts import Text, python_docs, token_losses
from mingyue.claims.figures import Bars, Lines
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.models import DecoderOnly, build_model

TOLERANCE = 0.05
"""Nats per token by which tied may be worse than untied and still count as no worse."""
ROUNDING = 1e-4
"""Relative difference of gradients, of which the order of summation differs."""
_LENGTH, _ROWS = 64, 16
_RATES = (2e-3, 4e-3)
_ARMS = ("tied", "untied")
_CHECKS = 8
"""How often a training computes the held-out loss; steps are a multiple of it."""


def measure(trial: Trial) -> Measurement:
    """Parameters, gradients and held-out losses of models with one table and with two, at the best learning rate."""
    pieces, d_model, n_layers, steps = trial.pick((300, 16, 1, 24), (512, 32, 1, 480), (2048, 96, 2, 2000))
    rates = trial.pick(_RATES[1:], _RATES, _RATES)
    text = python_docs(pieces)
    held_BT = text.held_windows(_LENGTH + 1, trial.pick(8, 64, 256))
    chosen = seeds(trial, 2, 3, 5)

    def model_of(arm: str, seed: int) -> DecoderOnly:
        return tiny(
            text.vocab_size, context=_LENGTH, d_model=d_model, n_layers=n_layers, seed=seed, tied_output=arm == "tied"
        )

    curves: dict[tuple[str, float], list[list[float]]] = {}  # for each seed, the losses at the checks
    for arm in _ARMS:
        for rate in rates:
            curves[arm, rate] = [
                _held_out(model_of(arm, seed), text, held_BT, steps=steps, rate=rate, seed=seed) for seed in chosen
            ]

    # Each arm at its best rate, chosen in the same way for both.
    def at_the_end(arm: str, rate: float) -> list[float]:
        return [losses[-1] for losses in curves[arm, rate]]

    best = {arm: min(rates, key=lambda rate: sum(at_the_end(arm, rate))) for arm in _ARMS}
    loss = {arm: at_the_end(arm, best[arm]) for arm in _ARMS}
    counts = {arm: sum(weight.numel() for weight in model_of(arm, 0).parameters()) for arm in _ARMS}
    numbers = {
        "vocab_size": Number.exact(text.vocab_size),
        "d_model": Number.exact(d_model),
        **{f"parameters_{arm}": Number.exact(counts[arm]) for arm in _ARMS},
        "saved": Number.exact(counts["untied"] - counts["tied"]),
        "gradient_error": Number.exact(_gradient_error(model_of("tied", trial.seed), held_BT[:4])),
        **{f"loss_{arm}": Number.mean(loss[arm], "nats") for arm in _ARMS},
        "worse": Number.mean([tied - own for tied, own in zip(loss["tied"], loss["untied"], strict=True)], "nats"),
    }
    rows = [
        Number.mean(samples).row("loss", arm=arm, step=check * steps // _CHECKS)
        for arm in _ARMS
        for check, samples in enumerate(zip(*curves[arm, best[arm]], strict=True), start=1)
    ]
    return Measurement(numbers, {"losses": rows})


def _held_out(model: DecoderOnly, text: Text, held_BT: Tensor, *, steps: int, rate: float, seed: int) -> list[float]:
    """Held-out loss in nats per token at `_CHECKS` steps, the last of them the end of training."""
    losses: list[float] = []

    def look(trained: DecoderOnly) -> bool:
        losses.append(float(token_losses(trained, held_BT).mean()))
        return False

    fit(
        model,
        lambda step: text.batch(_ROWS, _LENGTH + 1, seed, step),
        next_token_loss,
        steps=steps,
        learning_rate=rate,
        seed=seed,
        until=look,
        check_every=steps // _CHECKS,
    )
    return losses


def _gradient_error(tied: DecoderOnly, ids_BT: Tensor) -> float:
    """Relative difference of the tied table's gradient from the sum of those of two tables with the same weights."""
    weights = tied.state_dict()
    untied = build_model(tied.config.replace(tied_output=False), seed=0)
    untied.load_state_dict({**weights, "output.weight": weights["embedding.weight"]})
    for model in (tied, untied):
        next_token_loss(model, ids_BT).backward()
    input_VM = untied.embedding.weight.grad
    output_VM = untied.get_parameter("output.weight").grad
    shared_VM = tied.embedding.weight.grad
    assert input_VM is not None and output_VM is not None and shared_VM is not None
    return float((shared_VM - input_VM - output_VM).norm() / shared_VM.norm())


def judge(numbers: Numbers) -> Judgement:
    """One table fewer and the sum of both gradients; a correction if the held-out loss is surely worse."""
    value = values(numbers)
    said = {"one_table": value["vocab_size"] * value["d_model"], "share": value["saved"] / value["parameters_untied"]}
    if value["saved"] != said["one_table"] or not numbers["gradient_error"].at_most(ROUNDING):
        return Judgement.not_supported("found", "gradient", **said)
    if numbers["worse"].at_most(TOLERANCE):
        return Judgement.supported("found", **said)
    if numbers["worse"].low > 0:
        return Judgement.corrected("found", "costs", **said)
    return Judgement.not_supported("found", "unclear", **said)


def _parameters(measurement: Measurement) -> Table:
    return [{"arm": arm, "parameters": measurement.numbers[f"parameters_{arm}"].value} for arm in _ARMS]


CLAIM = Claim(
    __name__,
    measure=measure,
    judge=judge,
    figures=[
        Lines("losses", x="step", y="loss", series="arm"),
        Bars("parameters", rows=_parameters, x="arm", y="parameters", interval=None),
    ],
    seconds=83,
)
