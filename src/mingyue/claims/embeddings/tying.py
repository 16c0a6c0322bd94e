"""One matrix for reading and writing: what it saves, and what it does to the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.embeddings.texts import Text, python_docs, token_losses
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.models import DecoderOnly, build_model
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

TOLERANCE = 0.05
"""Nats a token by which tied may be worse than untied and still count as no worse."""
ROUNDING = 1e-4
"""Relative difference of gradients that are summed in another order."""
_LENGTH, _ROWS = 64, 16
_RATES = (2e-3, 4e-3)
_ARMS = ("tied", "untied")
_CHECKS = 8
"""How often the held-out loss is taken in a training; steps are a multiple of it."""


def _measure(trial: Trial) -> Measurement:
    pieces, d_model, n_layers, steps = trial.pick((300, 16, 1, 24), (512, 32, 1, 480), (2048, 96, 2, 2000))
    rates = trial.pick(_RATES[1:], _RATES, _RATES)
    text = python_docs(pieces)
    held_BT = text.held_windows(_LENGTH + 1, trial.pick(8, 64, 256))
    chosen = seeds(trial, 2, 3, 5)

    def model_of(arm: str, seed: int) -> DecoderOnly:
        return tiny(
            text.vocab_size, context=_LENGTH, d_model=d_model, n_layers=n_layers, seed=seed, tied_output=arm == "tied"
        )

    curves: dict[tuple[str, float], list[list[float]]] = {}  # of each seed, the losses at the steps
    for arm in _ARMS:
        for rate in rates:
            curves[arm, rate] = [
                _held_out(model_of(arm, seed), text, held_BT, steps=steps, rate=rate, seed=seed) for seed in chosen
            ]

    # Each arm with the rate that suits it best: the same choice for both.
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
    rows: list[dict[str, Any]] = []
    for arm in _ARMS:
        for check, samples in enumerate(zip(*curves[arm, best[arm]], strict=True), start=1):
            mean = Number.mean(samples)
            rows.append({"arm": arm, "step": check * steps // _CHECKS, "loss": mean.value}
                        | {"low": mean.low, "high": mean.high})  # fmt: skip
    return Measurement(numbers, {"losses": rows})


def _held_out(model: DecoderOnly, text: Text, held_BT: Tensor, *, steps: int, rate: float, seed: int) -> list[float]:
    """Held-out loss in nats a token at `_CHECKS` steps, the last of them the end of training."""
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
    """How far the gradient of the tied table is from the sum of those of both tables, when these hold the same."""
    weights = tied.state_dict()
    untied = build_model(tied.config.replace(tied_output=False), seed=0)
    untied.load_state_dict({**weights, "output.weight": weights["embedding.weight"]})
    for model in (tied, untied):
        next_token_loss(model, ids_BT).backward()
    read_VM = untied.embedding.weight.grad
    written_VM = untied.get_parameter("output.weight").grad
    shared_VM = tied.embedding.weight.grad
    assert read_VM is not None and written_VM is not None and shared_VM is not None
    return float((shared_VM - read_VM - written_VM).norm() / shared_VM.norm())


def _judge(numbers: Numbers) -> Finding:
    saved, worse = int(numbers["saved"].value), numbers["worse"]
    vocab_size, d_model = int(numbers["vocab_size"].value), int(numbers["d_model"].value)
    error = numbers["gradient_error"].value
    tied, untied = numbers["loss_tied"].value, numbers["loss_untied"].value
    share = saved / numbers["parameters_untied"].value
    en = (
        f"{saved:,} parameters saved, {share:.0%} of the model (V·d = {vocab_size:,} × {d_model} = "
        f"{vocab_size * d_model:,}). Held-out loss {tied:.3f} with one matrix, {untied:.3f} with two: "
        f"{worse.value:+.3f} ({worse.low:+.3f} to {worse.high:+.3f}) nats a token."
    )
    zh = (
        f"省下 {saved:,} 个参数，占模型的 {share:.0%}（V·d = {vocab_size:,} × {d_model} = {vocab_size * d_model:,}）。"
        f"留出损失：一个矩阵 {tied:.3f}，两个矩阵 {untied:.3f}，相差 {worse.value:+.3f}"
        f"（{worse.low:+.3f} 到 {worse.high:+.3f}）nat/token。"
    )
    if saved != vocab_size * d_model or error > ROUNDING:
        return Finding(
            "does not hold here",
            Words(
                en + f" The gradient of the shared table is {error:.0e} off the sum of the two.",
                zh + f"共享表的梯度与两份梯度之和相差 {error:.0e}。",
            ),
        )
    if worse.value <= TOLERANCE:
        return Finding("holds", Words(en, zh))
    return Finding(
        "holds with a correction",
        Words(en + " Here the saving has a price.", zh + "在这里，省下的参数是有代价的。"),
    )


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    from mingyue.charts import BarChart, LineChart

    names = {"tied": Words("one matrix", "一个矩阵"), "untied": Words("two matrices", "两个矩阵")}
    numbers = measurement.numbers
    return [
        LineChart(
            Words("Held-out loss with one matrix and with two", "一个矩阵与两个矩阵的留出损失").of(language),
            [{**row, "arm": names[row["arm"]].of(language)} for row in measurement.tables["losses"]],
            x="step",
            y="loss",
            series="arm",
            low="low",
            high="high",
            x_title=Words("steps", "步数").of(language),
            y_title=Words("nats a token", "nat/token").of(language),
            note=Words("Means of the seeds; band: 95 % interval.", "各种子的均值；色带为 95% 区间。").of(language),
        ),
        BarChart(
            Words("Parameters", "参数量").of(language),
            [
                {"arm": names[arm].of(language), "parameters": numbers[f"parameters_{arm}"].value}
                for arm in _ARMS
            ],
            x="arm",
            y="parameters",
            x_title=Words("input table and output layer", "嵌入表与输出层").of(language),
            y_title=Words("parameters", "参数量").of(language),
        ),
    ]  # fmt: skip


CLAIM = Claim(
    name="tying",
    group="embeddings",
    claim=Words(
        "The matrix that turns tokens into vectors and the one that turns the last vectors into scores of tokens are "
        "usually one and the same, transposed. It saves a whole table.",
        "把 token 变成向量的矩阵，与把最后的向量变回 token 分数的矩阵，通常是同一个矩阵（互为转置）。"
        "这样省下一整张表。",
    ),
    prediction=Words(
        "Exactly V·d parameters fewer; the gradient of the shared table is the sum of what it gets as input table and "
        "as "
        f"output layer (to {ROUNDING:.0e}); held-out loss at most {TOLERANCE} nats a token above that of two matrices.",
        f"参数恰好少 V·d 个；共享表的梯度等于它作为嵌入表和作为输出层所得梯度之和（误差 {ROUNDING:.0e}）；"
        f"留出损失比两个矩阵的"
        f"高出不超过 {TOLERANCE} nat/token。",
    ),
    method=Words(
        "Small models on the help texts of Python, in byte-pair tokens, with the same steps and batches; each arm with "
        "the better of two learning rates. Parameters are counted on the model.",
        "用 Python 的帮助文本（BPE 词表）训练小模型，步数和批次相同；两种做法各取两个学习率中较好的一个。"
        "参数量直接从模型上数。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "vocab_size": Words("V, size of the vocabulary", "V，词表大小"),
        "d_model": Words("d, width of the model", "d，模型宽度"),
        "parameters_tied": Words("parameters, one matrix", "参数量，一个矩阵"),
        "parameters_untied": Words("parameters, two matrices", "参数量，两个矩阵"),
        "saved": Words("parameters saved", "省下的参数"),
        "gradient_error": Words(
            "gradient of the shared table against the sum of both", "共享表的梯度与两份之和的相对差"
        ),
        "loss_tied": Words("held-out loss, one matrix", "留出损失，一个矩阵"),
        "loss_untied": Words("held-out loss, two matrices", "留出损失，两个矩阵"),
        "worse": Words("one matrix − two, seed by seed", "一个矩阵 − 两个矩阵，逐个种子"),
    },
    correction=Words(
        "Sharing saves a table, but not for nothing: in a small model, one matrix with two jobs learns later and ends "
        "worse than two after the same steps. Large models are not tested here.",
        "共享省下一张表，但并非没有代价：在小模型里，身兼两职的一个矩阵学得更晚，步数相同时结果也不如两个矩阵。"
        "大模型这里没有测试。",
    ),
)
