"""Reading on past the length that a model was trained at: which kinds of positions carry it, and which do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.embeddings.texts import changed, token_losses
from mingyue.claims.embeddings.two_back import VOCAB_SIZE, true_losses, two_back
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.config import RotaryScaling
from mingyue.models import DecoderOnly
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

CARRIES = 0.1
"""Nats a token by which the loss beyond three times the trained length may be above that within it."""
TIMES = 4
"""How many times the trained length is read."""
_TRAINED = ("none", "learned", "sinusoidal", "rotary")
_READERS = (*_TRAINED, "scaled", "window")
_NAMES = {
    "none": Words("none", "无"),
    "learned": Words("learned", "可学习"),
    "sinusoidal": Words("sinusoidal", "正余弦"),
    "rotary": Words("rotary", "旋转"),
    "scaled": Words("rotary with NTK scaling", "旋转加 NTK 缩放"),
    "window": Words("rotary with a window", "旋转加滑动窗口"),
}


def _measure(trial: Trial) -> Measurement:
    length, steps, rows, d_model = trial.pick((16, 120, 12, 32), (64, 400, 16, 32), (64, 1500, 16, 64))
    long_BT = two_back(trial.pick(24, 64, 256), TIMES * length + 1, trial.seed, "held out")
    true_BT = true_losses(long_BT)
    excess: dict[str, list[Tensor]] = {reader: [] for reader in _READERS}  # each [TIMES · length]: by position
    for kind in _TRAINED:
        # How far rotary positions carry differs much from seed to seed; the others are alike.
        for seed in seeds(trial, 1, 8, 12) if kind == "rotary" else seeds(trial, 1, 3, 5):
            model = _train(kind, length, steps=steps, rows=rows, d_model=d_model, seed=seed)
            for reader, reading in _readings(kind, model, length).items():
                excess[reader].append((token_losses(reading, long_BT) - true_BT).mean(dim=0))

    numbers = {"length": Number.exact(length)}
    for reader, samples in excess.items():
        within = [float(sample[:length].mean()) for sample in samples]
        beyond = [float(sample[-length:].mean()) for sample in samples]
        numbers[f"within_{reader}"] = Number.mean(within, "nats")
        numbers[f"rise_{reader}"] = Number.mean([far - near for near, far in zip(within, beyond, strict=True)], "nats")
    guessing = math.log(VOCAB_SIZE) - float(true_BT[:, -length:].mean())
    numbers["guessing"] = Number.exact(guessing, "nats")
    curves = [row for reader in _READERS for row in _curve(reader, excess[reader], length)]
    return Measurement(numbers, {"curves": curves})


def _train(kind: str, length: int, *, steps: int, rows: int, d_model: int, seed: int) -> DecoderOnly:
    """A model whose context is `TIMES` the length that it is trained at.

    Initial weights are the paper's for all kinds, since sinusoids of size 1 would drown embeddings of size 0.02.
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

    def batch(step: int) -> Tensor:
        return two_back(rows, length + 1, seed, "training", step)

    fit(model, batch, next_token_loss, steps=steps, learning_rate=5e-3, seed=seed)
    return model


def _readings(kind: str, model: DecoderOnly, length: int) -> dict[str, DecoderOnly]:
    """The ways in which the weights of one training are read."""
    if kind != "rotary":
        return {kind: model}
    return {
        "rotary": model,
        "scaled": changed(model, rotary_scaling=RotaryScaling(kind="ntk", factor=TIMES)),
        "window": changed(model, window=length),
    }


def _curve(reader: str, samples: Sequence[Tensor], length: int) -> list[dict[str, Any]]:
    """Excess loss in stretches of a quarter of the trained length."""
    width = length // 4
    rows: list[dict[str, Any]] = []
    for start in range(0, TIMES * length, width):
        mean = Number.mean([float(sample[start : start + width].mean()) for sample in samples])
        rows.append(
            {"reader": reader, "position": start + width / 2, "value": mean.value, "low": mean.low, "high": mean.high}
        )
    return rows


def _judge(numbers: Numbers) -> Finding:
    rise = {reader: numbers[f"rise_{reader}"].value for reader in _READERS}
    length = int(numbers["length"].value)
    plain = numbers["rise_rotary"]
    carried = [reader for reader in _READERS if rise[reader] <= CARRIES]
    listed_en = ", ".join(f"{_NAMES[reader].en} {rise[reader]:+.2f}" for reader in _READERS)
    listed_zh = "，".join(f"{_NAMES[reader].zh} {rise[reader]:+.2f}" for reader in _READERS)
    en = (
        f"Trained at {length}, loss at the last quarter of {TIMES * length} against the trained positions: {listed_en}."
    )
    zh = f"以长度 {length} 训练，读到 {TIMES * length} 时，最后四分之一的损失比训练过的位置：{listed_zh}（nat）。"
    if "rotary" in carried:
        return Finding("holds", Words(en + " Plain rotary carries.", zh + "单纯的旋转位置编码就够了。"))
    if "window" in carried or "scaled" in carried:
        helped = [_NAMES[reader] for reader in ("scaled", "window") if reader in carried]
        return Finding(
            "holds with a correction",
            Words(
                en + f" Rotary alone does not carry ({plain.low:+.2f} to {plain.high:+.2f}). What does: "
                f"{', '.join(name.en for name in helped)}.",
                zh + f"单靠旋转位置编码走不远（{plain.low:+.2f} 到 {plain.high:+.2f}）；能延续的是："
                f"{'、'.join(name.zh for name in helped)}。",
            ),
        )
    return Finding(
        "does not hold here",
        Words(
            en + " Rotary does not carry, scaled or in a window neither.",
            zh + "旋转位置编码走不远，缩放或加窗口也不行。",
        ),
    )


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    from mingyue.charts import BarChart, LineChart

    numbers = measurement.numbers
    length = int(numbers["length"].value)
    bars = [
        {"reader": _NAMES[reader].of(language), "rise": number.value, "low": number.low, "high": number.high}
        for reader in _READERS
        for number in [numbers[f"rise_{reader}"]]
    ]
    y_title = Words("loss above the source's own (nats)", "超出信源本身的损失（nat）").of(language)
    note = Words(
        "Means of the seeds (more of rotary), 95 % intervals.", "各种子的均值（旋转的种子更多），95% 区间。"
    ).of(language)
    return [
        LineChart(
            Words(f"Trained at {length}, read to {TIMES * length}", f"以长度 {length} 训练，读到 {TIMES * length}").of(
                language
            ),
            [{**row, "reader": _NAMES[row["reader"]].of(language)} for row in measurement.tables["curves"]],
            x="position",
            y="value",
            series="reader",
            low="low",
            high="high",
            x_title=Words("position", "位置").of(language),
            y_title=y_title,
            rules=[(numbers["guessing"].value, Words("guessing blindly", "瞎猜").of(language))],
            note=note,
        ),
        BarChart(
            Words(
                "Rise of the loss from trained positions to the last quarter", "从训练过的位置到最后四分之一，损失上升"
            ).of(language),
            bars,
            x="reader",
            y="rise",
            low="low",
            high="high",
            x_title=Words("positions", "位置编码").of(language),
            y_title=Words("nats a token", "nat/token").of(language),
            rules=[(CARRIES, Words("still counts as carried", "仍算能延续").of(language))],
            note=note,
        ),
    ]


CLAIM = Claim(
    name="longer",
    group="embeddings",
    claim=Words(
        "Learned positions cannot go beyond the length that a model was trained at. Rotary positions, which know only "
        "distances, can: they are what lets models read very long texts.",
        "可学习的位置编码无法超出训练长度；旋转位置编码只管距离，所以可以，它是大模型能读长文本的关键。",
    ),
    prediction=Words(
        f"Read to {TIMES} times the trained length, a kind of positions carries if the loss at the last quarter is at "
        f"most "
        f"{CARRIES} nats a token above that at trained positions. Expected: learned and sinusoidal do not, and plain "
        "rotary does not either; rotary in a window as wide as the training texts does.",
        f"读到训练长度的 {TIMES} 倍，如果最后四分之一的损失比训练过的位置高出不到 {CARRIES} nat/token，就算能延续。"
        f"预期：可学习的和"
        "正余弦的不能，单纯的旋转也不能；旋转加上与训练文本同宽的滑动窗口可以。",
    ),
    method=Words(
        "A source in which a symbol mostly follows from the one two places before it: one who has understood it loses "
        "nothing in longer texts. Models of two blocks for each kind of positions; the weights trained with rotary "
        "positions are read in three ways: as they are, with NTK scaling by 4, in a sliding window.",
        "信源中的符号多半由两位之前的符号决定：学懂了的模型读更长的文本也不会吃亏。每种位置编码各训练一个两块的模型；"
        "用旋转位置编码"
        "训练出的权重以三种方式读：原样、NTK 缩放 4 倍、滑动窗口。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "length": Words("trained length", "训练长度"),
        **{
            f"within_{reader}": Words(
                f"loss above the source's at trained positions: {name.en}", f"训练过的位置，超出信源的损失：{name.zh}"
            )
            for reader, name in _NAMES.items()
        },
        **{
            f"rise_{reader}": Words(f"rise to the last quarter: {name.en}", f"到最后四分之一的上升：{name.zh}")
            for reader, name in _NAMES.items()
        },
        "guessing": Words("loss above the source's, guessing blindly", "超出信源的损失，瞎猜"),
    },
    correction=Words(
        "That scores depend on distances alone does not mean that distances never met in training are understood. "
        "Plain "
        "rotary positions lose much of what they knew soon after the trained length. A window that hides farther "
        "tokens "
        "carries them; scaled angles lose less. Models for long texts are also trained on at the new length, which is "
        "not tested here.",
        "分数只取决于距离，并不等于模型懂得训练中从未见过的距离。单纯的旋转位置编码一过训练长度就丢掉许多本事；"
        "遮住远处的滑动窗口能让它"
        "延续下去，缩放角度则损失较少。面向长文本的模型还会在新长度上继续训练，这里没有测试。",
    ),
)
