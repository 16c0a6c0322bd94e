"""Two things wanted from two places at once: one head can only mix them, two narrower heads bring both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.charts import BarChart, Chart, MatrixGrid
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import accuracy, fit, seeds
from mingyue.nn import EVERYONE, MultiHeadAttention, RotaryPositions, Taps
from mingyue.runtime import derive_seed
from mingyue.words import Language, Words

ENOUGH = 0.95
"""Share of values right that counts as having both."""
MIXED = 0.65
"""At most this share counts as having only a mixture: one of the two, and luck."""

_N_TOKENS, _N_VALUES = 6, 128
_PLACES = (1, 5)
"""How far before the question the two values stand."""
_HEADS = (1, 2)
_BASE = 4.0
"""Of the rotary angles: the slowest turns a little within these few places."""


class _OneLayer(nn.Module):
    """Embedding, one attention with rotary positions, a linear readout of both values at the last token. No more."""

    def __init__(self, d_model: int, n_heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_N_VALUES + 1, d_model)
        self.positions = RotaryPositions(_N_TOKENS, d_model // n_heads, base=_BASE)
        self.attention = MultiHeadAttention(d_model, n_heads, n_heads, d_model // n_heads)
        self.readout = nn.Linear(d_model, 2 * _N_VALUES)
        with torch.no_grad():
            for weight in self.parameters():
                std = 1.0 if weight is self.embedding.weight else weight.shape[-1] ** -0.5
                weight.normal_(std=std, generator=generator)

    def forward(self, ids_BT: Tensor, taps: Taps | None = None) -> Tensor:
        """ids_BT → logits [B, 2, values] of what stands at the two places."""
        rotation = self.positions.rotation(torch.arange(_N_TOKENS)[None])
        mixed_BTM = self.attention(self.embedding(ids_BT), EVERYONE, rotation, taps=taps)
        return self.readout(mixed_BTM[:, -1]).unflatten(-1, (2, _N_VALUES))


def _batch(rows: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """(ids_BT with the question at the end, what is wanted [B, 2])."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "many-relations", step))
    ids_BT = torch.randint(_N_VALUES, (rows, _N_TOKENS), generator=generator)
    ids_BT[:, -1] = _N_VALUES
    return ids_BT, ids_BT[:, [_N_TOKENS - 1 - place for place in _PLACES]]


def _loss(model: _OneLayer, data: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(data[0]).flatten(0, 1), data[1].flatten())


def _measure(trial: Trial) -> Measurement:
    d_model, steps, rows, rate = trial.pick((32, 400, 64, 3e-2), (32, 800, 128, 2e-2), (64, 2000, 128, 1e-2))
    shares: dict[int, list[list[float]]] = {count: [] for count in _HEADS}
    looked: list[dict[str, Any]] = []
    parameters = []
    for seed in seeds(trial, 1, 5, 7):
        ids_BT, wanted_B2 = _batch(2048, seed, -1)
        for count in _HEADS:
            model = _OneLayer(d_model, count, torch.Generator().manual_seed(derive_seed(seed, "weights")))
            fit(model, lambda step: _batch(rows, seed, step), _loss, steps=steps, learning_rate=rate, seed=seed)  # noqa: B023
            taps = Taps("weights")
            with torch.no_grad():
                logits_B2V = model(ids_BT, taps)
            shares[count].append([accuracy(logits_B2V[:, place], wanted_B2[:, place]) for place in range(2)])
            parameters.append(sum(weight.numel() for weight in model.parameters()))
            if seed == seeds(trial, 1, 1, 1)[0]:
                weights_HS = taps.values["weights"][:, :, -1].mean(0)
                looked += [
                    {"heads": count, "head": head, "before": _N_TOKENS - 1 - place, "weight": float(weight)}
                    for head, row in enumerate(weights_HS)
                    for place, weight in enumerate(row)
                ]
    numbers = {
        "one_head": Number.mean([float(np.mean(pair)) for pair in shares[1]]),
        "two_heads": Number.mean([float(np.mean(pair)) for pair in shares[2]]),
        "mixture": Number.exact(0.5 + 0.5 / _N_VALUES),
        "parameters": Number.exact(parameters[0]),
        "parameters_apart": Number.exact(max(parameters) - min(parameters)),
    }
    right = []
    for count, pairs in shares.items():
        for place in range(2):
            share = Number.mean([pair[place] for pair in pairs])
            right.append(
                {
                    "heads": count,
                    "before": _PLACES[place],
                    "right": share.value,
                    "low": max(0.0, share.low),
                    "high": min(1.0, share.high),
                }
            )
    return Measurement(numbers, {"right": right, "weights": looked})


def _judge(numbers: Numbers) -> Finding:
    one, two = numbers["one_head"].value, numbers["two_heads"].value
    reason = Words(
        f"With equally many parameters, one head had {one:.0%} of the values right, two heads {two:.0%}; "
        f"one value and a guess at the other would be {numbers['mixture'].value:.0%}.",
        f"参数量相同，单头答对 {one:.0%} 的值，双头答对 {two:.0%}；只知其一、另一个靠猜，约为 "
        f"{numbers['mixture'].value:.0%}。",
    )
    if not two >= ENOUGH or not one < ENOUGH or numbers["parameters_apart"].value:
        return Finding("does not hold here", reason)
    if one <= MIXED:
        return Finding("holds", reason)
    return Finding(
        "holds with a correction",
        Words(
            f"{reason.en} One head keeps more than half of what it mixes.",
            f"{reason.zh}单头混合之后留下的不止一半。",
        ),
    )


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    far = {
        place: Words(f"value {place} before the question", f"问题前第 {place} 个位置的值").of(language)
        for place in _PLACES
    }
    one_or_two = {
        1: Words("one head", "1 个头").of(language),
        2: Words("two heads of half the width", "2 个半宽的头").of(language),
    }
    bars = [
        {**row, "heads": one_or_two[row["heads"]], "before": far[row["before"]]} for row in measurement.tables["right"]
    ]
    rows = measurement.tables["weights"]
    seen = [[row["weight"] for row in rows if (row["heads"], row["head"]) == head] for head in ((1, 0), (2, 0), (2, 1))]
    columns = [str(_N_TOKENS - 1 - place) for place in range(_N_TOKENS)]
    return [
        BarChart(
            Words("Values right", "答对的比例").of(language),
            bars,
            x="heads",
            y="right",
            series="before",
            low="low",
            high="high",
            y_title=Words("share right", "答对的比例").of(language),
            rules=[
                (measurement.numbers["mixture"].value, Words("one known, one guessed", "知其一，猜其一").of(language))
            ],
        ),
        MatrixGrid(
            Words("Where the question looks, mean weight", "提问处看向哪里（平均权重）").of(language),
            np.array(seen).reshape(1, 3, 1, _N_TOKENS),
            row_titles=[""],
            column_titles=[
                Words("one head", "单头").of(language),
                Words("head 0 of 2", "双头之 0").of(language),
                Words("head 1 of 2", "双头之 1").of(language),
            ],
            row_labels=[Words("question", "提问").of(language)],
            column_labels=columns,
            low=0.0,
            high=1.0,
            note=Words(
                f"Columns: places before the question. Wanted: {_PLACES[0]} and {_PLACES[1]} before it. Two heads "
                "need not look at one place each: from two mixtures that differ a readout can tell which value is "
                "which.",
                f"列：在提问之前第几个位置。需要的是第 {_PLACES[0]} 和第 {_PLACES[1]} 个。两个头不必各看一处：有了两"
                "种不同的混合，读出层就能分清哪个值在哪里。",
            ).of(language),
        ),
    ]


CLAIM = Claim(
    name="many-relations",
    group="heads",
    claim=Words(
        "One head can attend to one kind of relation at a time; several heads can attend to several.",
        "单头一次只能抓住一种关系，多头可以同时抓住几种。",
    ),
    prediction=Words(
        f"Two values are wanted from two places. Two heads of half the width have at least {ENOUGH:.0%} of them "
        f"right. One head, with as many parameters, has at most {MIXED:.0%} (holds), less than {ENOUGH:.0%} (with a "
        "correction), or as many (does not hold).",
        f"要从两处各取一个值。两个半宽的头答对至少 {ENOUGH:.0%}；参数量相同的单头若不超过 {MIXED:.0%}，则成立；"
        f"超过但低于 {ENOUGH:.0%}，则需修正；同样多，则不成立。",
    ),
    method=Words(
        f"One attention with rotary positions and a linear readout, no feed-forward part. Rows of random symbols; the "
        f"question at the end asks which symbols stand {_PLACES[0]} and {_PLACES[1]} before it. Same training for "
        "both, new rows to test.",
        f"一层带旋转位置的注意力加线性读出，没有前馈层。一行随机符号，末尾提问：往前第 {_PLACES[0]} 个和第 "
        f"{_PLACES[1]} 个符号各是什么。两者训练相同，用新的行测试。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "one_head": Words("values right, one head", "单头答对的比例"),
        "two_heads": Words("values right, two heads", "双头答对的比例"),
        "mixture": Words("one value known, the other guessed from two", "知其一、另一个二选一去猜"),
        "parameters": Words("parameters of each", "各自的参数量"),
        "parameters_apart": Words("difference of parameters", "参数量之差"),
    },
)
