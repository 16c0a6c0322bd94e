"""Claim: the next-token probabilities of a causal model multiply to a probability of the whole text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.charts import LineChart
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import fit, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.nn import EVERYONE
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

EXACT = 1e-4
"""Most that the sum of all probabilities may be away from 1, and one pass from a pass for each token (in nats)."""
BROKEN = 0.1
"""Without the mask, the sum must be at least this far from 1."""
_START = 0
"""The first token stands before the text, and is also a letter: all V tokens may follow at every place."""
_LETTERS = 4
_ARMS = {"masked": Words("with the causal mask", "有因果掩码"), "open": Words("mask taken away", "去掉掩码")}
Logits = Callable[[DecoderOnly, Tensor], Tensor]


def measure(trial: Trial) -> Measurement:
    """Sum of P over all strings of each length, for models trained with and without the mask."""
    length = trial.pick(4, 6, 7)
    steps = trial.pick(40, 200, 300)
    chosen = seeds(trial, 2, 5, 10)
    totals: dict[str, list[list[float]]] = {arm: [] for arm in _ARMS}
    untrained: list[float] = []
    apart: list[float] = []
    for seed in chosen:
        for arm in _ARMS:
            logits = _with_mask if arm == "masked" else _without_mask
            model = tiny(_LETTERS, context=length, seed=seed, initialisation="xavier")
            if arm == "masked":
                untrained.append(_totals(model, logits, length)[-1])
            _train(model, logits, length, steps, seed)
            totals[arm].append(_totals(model, logits, length))
            if arm == "masked":
                apart.append(_apart(model, length, seed))
    last = {arm: [sums[-1] for sums in found] for arm, found in totals.items()}
    numbers = {
        "strings": Number.exact(_LETTERS**length),
        "length": Number.exact(length),
        "masked_total": _furthest(last["masked"]),
        "untrained_total": _furthest(untrained),
        "open_total": Number.mean(last["open"]),
        "passes_apart": Number(max(apart), min(apart), max(apart), "nats"),
    }
    rows: list[dict[str, Any]] = []
    for arm, found in totals.items():
        for place in range(length):
            number = Number.median([sums[place] for sums in found])
            rows.append(
                {"length": place + 1, "arm": arm, "value": number.value, "low": number.low, "high": number.high}
            )
    return Measurement(numbers, {"totals": rows})


def _furthest(sums: Sequence[float]) -> Number:
    """The sum that is furthest from 1, between the least and the greatest."""
    return Number(max(sums, key=lambda total: abs(total - 1)), min(sums), max(sums))


def _with_mask(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
    return model(ids_BT)


def _without_mask(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
    """The same model, but every token sees every other: the model itself always hides the future."""
    positions_1T = torch.arange(ids_BT.shape[1])[None]
    x_BTM = model.positions.add(model.embedding(ids_BT), positions_1T)
    rotation = model.positions.rotation(positions_1T)
    for block in model.every_block():
        x_BTM = block(x_BTM, EVERYONE, rotation)
    return model.output(model.final_norm(x_BTM))


def _inputs(strings_BT: Tensor) -> Tensor:
    """What the model reads: the start, then all of the text but its last token."""
    return F.pad(strings_BT[:, :-1], (1, 0), value=_START)


def _train(model: DecoderOnly, logits: Logits, length: int, steps: int, seed: int) -> None:
    """On random strings: there is nothing to learn but, without a mask, to read the answer."""

    def batch(step: int) -> Tensor:
        draw = torch.Generator().manual_seed(1_000_003 * seed + step)
        return torch.randint(_LETTERS, (32, length), generator=draw)

    def loss(model: DecoderOnly, strings_BT: Tensor) -> Tensor:
        return F.cross_entropy(logits(model, _inputs(strings_BT)).flatten(0, 1), strings_BT.flatten())

    fit(model, batch, loss, steps=steps, learning_rate=3e-3, seed=seed)


@torch.no_grad()
def _totals(model: DecoderOnly, logits: Logits, length: int) -> list[float]:
    """Σ P(text) over all texts of 1, 2, … `length` tokens."""
    sums = []
    for size in range(1, length + 1):
        strings_BT = torch.tensor(list(itertools.product(range(_LETTERS), repeat=size)))
        sums.append(float(_log_probability(model, logits, strings_BT).exp().sum()))
    return sums


def _log_probability(model: DecoderOnly, logits: Logits, strings_BT: Tensor) -> Tensor:
    logs_BTV = logits(model, _inputs(strings_BT)).double().log_softmax(-1)
    return logs_BTV.gather(-1, strings_BT[:, :, None])[:, :, 0].sum(-1)


@torch.no_grad()
def _apart(model: DecoderOnly, length: int, seed: int) -> float:
    """Largest difference of log P between one pass over the text and a pass over each of its beginnings."""
    strings_BT = torch.randint(_LETTERS, (16, length), generator=torch.Generator().manual_seed(seed))
    whole_B = _log_probability(model, _with_mask, strings_BT)
    ids_BT = _inputs(strings_BT)
    parts_B = torch.zeros_like(whole_B)
    for place in range(length):
        logs_BV = model(ids_BT[:, : place + 1])[:, -1].double().log_softmax(-1)
        parts_B += logs_BV.gather(-1, strings_BT[:, place : place + 1])[:, 0]
    return float((whole_B - parts_B).abs().max())


def judge(numbers: Numbers) -> Finding:
    """Sums of 1 with the mask, one pass equal to many, and no sum of 1 without the mask."""
    value = {name: number.value for name, number in numbers.items()}
    sums = max(abs(value["masked_total"] - 1), abs(value["untrained_total"] - 1)) <= EXACT
    adds = value["passes_apart"] <= EXACT
    broken = abs(value["open_total"] - 1) >= BROKEN
    return Finding(
        "holds" if sums and adds and broken else "does not hold here",
        Words(
            f"The probabilities of all {value['strings']:,.0f} texts of {value['length']:g} tokens add up to "
            f"{value['masked_total']:.6f}; log P in one pass and token by token differ by {value['passes_apart']:.1g} "
            f"nats. Without the mask the sum is {value['open_total']:,.1f}: no probability.",
            f"全部 {value['strings']:,.0f} 个长 {value['length']:g} 的文本，概率之和为 {value['masked_total']:.6f}；"
            f"一次算出的 log P 与逐个 token 算出的相差 {value['passes_apart']:.1g} nat。"
            f"去掉掩码后，这个和是 {value['open_total']:,.1f}，已不是概率。",
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """The sum of all probabilities against the length of the texts."""
    zh = language == "zh"
    rows = [{**row, "arm": _ARMS[row["arm"]].of(language)} for row in measurement.tables["totals"]]
    return [
        LineChart(
            "所有文本的概率之和" if zh else "The sum of the probabilities of all texts",
            rows,
            x="length",
            y="value",
            series="arm",
            low="low",
            high="high",
            x_title="文本长度（token）" if zh else "tokens of the text",
            y_title="Σ P",
            log_y=True,
            note="色带：各随机种子的最小与最大值。" if zh else "Bands: least and greatest over seeds.",
        )
    ]


CLAIM = Claim(
    name="chain-rule",
    group="likelihood",
    claim=Words(
        "A causal model gives each text a probability: the product, over its tokens, of the probability of each token "
        "given those before it.",
        "因果模型给每个文本一个概率：各 token 在其前文下的条件概率之积。",
    ),
    prediction=Words(
        f"Over all texts of a length the products add up to 1 (to {EXACT:g}), before and after training, and log P is "
        f"the sum "
        f"of the token terms however it is computed (to {EXACT:g} nats). With the mask taken away the sum is at least "
        f"{BROKEN:g} away from 1.",
        f"对某一长度的全部文本，连乘积之和为 1（误差 {EXACT:g}），训练前后都如此；log P 等于各 token 项之和，与算法无关"
        f"（误差 {EXACT:g} nat）。去掉掩码后，这个和至少偏离 1 达 {BROKEN:g}。",
    ),
    method=Words(
        f"A vocabulary of {_LETTERS} tokens, so that every text can be listed. A small model is trained on random "
        f"texts, once "
        "with the causal mask and once with every token seeing every other; then P is summed over all texts.",
        f"词表只有 {_LETTERS} 个 token，所有文本都能列出。小模型在随机文本上训练，一次有因果掩码，一次人人互见；"
        "然后对全部文本求 P 之和。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        "strings": Words("texts of the greatest length", "最大长度的文本数"),
        "length": Words("greatest length in tokens", "最大长度（token）"),
        "masked_total": Words("Σ P with the mask, trained (furthest from 1)", "有掩码、训练后的 Σ P（离 1 最远者）"),
        "untrained_total": Words(
            "Σ P with the mask, not trained (furthest from 1)", "有掩码、未训练的 Σ P（离 1 最远者）"
        ),
        "open_total": Words("Σ P with the mask taken away", "去掉掩码的 Σ P"),
        "passes_apart": Words(
            "log P in one pass and token by token: largest difference", "一次与逐个计算的 log P 的最大差"
        ),
    },
)
