"""A learned table of positions: where it ends, and what its rows hold that training never reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.embeddings.texts import token_losses
from mingyue.claims.embeddings.two_back import VOCAB_SIZE, true_losses, two_back
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.runtime import derive_seed
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

WORSE = 0.5
"""Nats a token by which rows that training never reached are surely worse than rows that it did."""
_CONTEXT = 1024
_ARMS = ("short", "redrawn", "long")


def _measure(trial: Trial) -> Measurement:
    length, steps, rows, d_model = trial.pick((16, 160, 16, 32), (64, 300, 16, 32), (64, 1000, 16, 64))
    twice_BT = two_back(trial.pick(32, 64, 256), 2 * length + 1, trial.seed, "held out")
    true_BT = true_losses(twice_BT)
    excess: dict[str, list[Tensor]] = {arm: [] for arm in _ARMS}  # each [2 · length]: by position
    reached, moved = list[float](), list[float]()
    for seed in seeds(trial, 1, 4, 8):

        def read(model: DecoderOnly) -> Tensor:
            return (token_losses(model, twice_BT) - true_BT).mean(dim=0)

        for arm, span in (("short", length), ("long", 2 * length)):
            model = tiny(VOCAB_SIZE, context=2 * length, d_model=d_model, n_layers=1, seed=seed)
            before_TM = model.get_parameter("positions.table").detach().clone()
            _train(model, span, rows=rows, steps=steps, seed=seed)
            excess[arm].append(read(model))
            if arm == "short":
                table_TM = model.get_parameter("positions.table")
                changed_T = (table_TM.detach() != before_TM).any(dim=1)
                reached.append(float(changed_T[:length].sum()))
                moved.append(float(changed_T[length:].sum()))
                generator = torch.Generator().manual_seed(derive_seed(seed, "redrawn"))
                with torch.no_grad():
                    table_TM[length:] = 0.02 * torch.randn(length, d_model, generator=generator)
                excess["redrawn"].append(read(model))

    numbers = {
        "served": Number.exact(_serves(_CONTEXT - 1)),
        "refused": Number.exact(1 - _serves(_CONTEXT)),
        "length": Number.exact(length),
        "rows_reached": Number.median(reached),
        "rows_moved_beyond": Number.median(moved),
        "within": Number.mean([float(sample[:length].mean()) for sample in excess["short"]], "nats"),
        **{f"beyond_{arm}": Number.mean([float(s[length:].mean()) for s in excess[arm]], "nats") for arm in _ARMS},
        "guessing": Number.exact(math.log(VOCAB_SIZE) - float(true_BT[:, length:].mean()), "nats"),
    }
    return Measurement(numbers, {"curves": [row for arm in _ARMS for row in _curve(arm, excess[arm], length)]})


def _train(model: DecoderOnly, length: int, *, rows: int, steps: int, seed: int) -> None:
    """On `rows` texts of `length` tokens a step."""

    def batch(step: int) -> Tensor:
        return two_back(rows, length + 1, seed, "training", step)

    fit(model, batch, next_token_loss, steps=steps, learning_rate=5e-3, seed=seed)


@torch.no_grad()
def _serves(position: int) -> float:
    """1 if a table of 1024 rows serves a token at this position, 0 if it is refused with an error that names it."""
    model = tiny(VOCAB_SIZE, context=_CONTEXT, d_model=8, n_layers=1, n_heads=1).eval()
    try:
        logits_11V = model(torch.zeros(1, 1, dtype=torch.long), positions_BT=torch.tensor([[position]]))
    except ValueError as error:
        if str(position) in str(error) and str(_CONTEXT) in str(error):
            return 0.0
        raise
    return float(torch.isfinite(logits_11V).all())


def _curve(arm: str, samples: Sequence[Tensor], length: int) -> list[dict[str, Any]]:
    """Excess loss in stretches of an eighth of the length."""
    width = length // 8
    rows: list[dict[str, Any]] = []
    for start in range(0, 2 * length, width):
        mean = Number.mean([float(sample[start : start + width].mean()) for sample in samples])
        rows.append(
            {"arm": arm, "position": start + width / 2, "value": mean.value, "low": mean.low, "high": mean.high}
        )
    return rows


def _judge(numbers: Numbers) -> Finding:
    served, refused = numbers["served"].value == 1, numbers["refused"].value == 1
    moved = numbers["rows_moved_beyond"].high
    within, beyond, redrawn, long = (
        numbers[name] for name in ("within", "beyond_short", "beyond_redrawn", "beyond_long")
    )
    length = int(numbers["length"].value)
    en = (
        f"Index 1023 of 1024 is {'served' if served else 'not served'}, 1024 is {'refused' if refused else 'served'}. "
        f"Trained at {length}: {moved:.0f} of the rows beyond moved; loss above the source's own {within.value:.2f} "
        f"nats "
        f"within, {beyond.value:.2f} beyond, {redrawn.value:.2f} with those rows drawn anew, {long.value:.2f} where "
        "training reached them (guessing blindly: "
        f"{numbers['guessing'].value:.2f})."
    )
    zh = (
        f"1024 行的表，索引 1023 {'可用' if served else '不可用'}，1024 {'被拒绝' if refused else '竟被接受'}。"
        f"以长度 {length} 训练：之外的行有 {moved:.0f} 行变过；超出信源本身的损失，范围内 {within.value:.2f} nat，"
        f"之外 {beyond.value:.2f}，把那些行重新随机 {redrawn.value:.2f}，训练到过的 {long.value:.2f}"
        f"（瞎猜为 {numbers['guessing'].value:.2f}）。"
    )
    worse = beyond.low - max(within.high, long.high)
    if served and refused and moved == 0 and worse >= WORSE and redrawn.low - long.high >= WORSE:
        return Finding("holds", Words(en, zh))
    return Finding("does not hold here", Words(en, zh))


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    from mingyue.charts import LineChart

    length = int(measurement.numbers["length"].value)
    names = {
        "short": Words(f"trained at {length}", f"以长度 {length} 训练"),
        "redrawn": Words(f"the same, rows from {length} on drawn anew", f"同上，从第 {length} 行起重新随机"),
        "long": Words(f"trained at {2 * length}", f"以长度 {2 * length} 训练"),
    }
    guessing = measurement.numbers["guessing"].value
    return [
        LineChart(
            Words("A learned table beyond what training reached", "可学习的位置表，超出训练到过的位置").of(language),
            [{**row, "arm": names[row["arm"]].of(language)} for row in measurement.tables["curves"]],
            x="position",
            y="value",
            series="arm",
            low="low",
            high="high",
            x_title=Words("position", "位置").of(language),
            y_title=Words("loss above the source's own (nats)", "超出信源本身的损失（nat）").of(language),
            rules=[(guessing, Words("guessing blindly", "瞎猜").of(language))],
            note=Words("Means of the seeds; band: 95 % interval.", "各种子的均值；色带为 95% 区间。").of(language),
        )
    ]


CLAIM = Claim(
    name="learned",
    group="embeddings",
    claim=Words(
        "The simplest way to give positions is a table with a trained vector for each. A table of 1024 has no vector "
        "for "
        "a 1025th token; and a position that training never saw means nothing to the model.",
        "给出位置最简单的办法是一张表，每个位置一个训练出来的向量。1024 行的表没有第 1025 个 token 的向量；"
        "训练里从未出现的位置，"
        "对模型毫无意义。",
    ),
    prediction=Words(
        f"Index 1023 works, 1024 is refused with an error that names both numbers. Trained on short texts in a table "
        f"twice as long, the upper rows do not move at all, and there the loss is at least {WORSE} nats worse than "
        f"below "
        "and than in a model trained at twice the length; drawing those rows anew changes nothing about that.",
        f"索引 1023 可用，1024 被拒绝，错误信息写明两个数。表长为训练文本的两倍时，上半部分的行一点不动；在那里，"
        f"损失比下半部分、"
        f"也比以两倍长度训练的模型至少差 {WORSE} nat；把那些行重新随机一遍也还是如此。",
    ),
    method=Words(
        "A source in which a symbol mostly follows from the one two places before it, so that places count and nothing "
        "far away does. Models of one block; the loss is taken less that of the source itself.",
        "信源中的符号多半由两位之前的符号决定，因此位置要紧，而远处无关。单块模型；损失减去信源本身的损失。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "served": Words("index 1023 of 1024 served (1 = yes)", "1024 行的表，索引 1023 可用（1 = 是）"),
        "refused": Words("index 1024 refused (1 = yes)", "索引 1024 被拒绝（1 = 是）"),
        "length": Words("length of the training texts", "训练文本的长度"),
        "rows_reached": Words("rows below that length that training moved", "该长度以内、训练改变过的行数"),
        "rows_moved_beyond": Words("rows beyond that moved", "该长度以外、改变过的行数"),
        "within": Words("loss above the source's, trained positions", "超出信源的损失，训练到过的位置"),
        "beyond_short": Words("the same at positions never trained", "同上，从未训练到的位置"),
        "beyond_redrawn": Words("the same, those rows drawn anew", "同上，那些行重新随机"),
        "beyond_long": Words("the same positions, trained at twice the length", "同样的位置，以两倍长度训练"),
        "guessing": Words("loss above the source's, guessing blindly", "超出信源的损失，瞎猜"),
    },
)
