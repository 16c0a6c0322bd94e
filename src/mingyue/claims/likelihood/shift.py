"""Claim: the targets are the inputs shifted by one; without the shift there is nothing to learn but copying."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.charts import BarChart, LineChart
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.grammar import Lexicon, topics
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.data import padded_batch
from mingyue.models import DecoderOnly
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

COPIED = 0.02
"""The loss of copying must fall below this."""
POSSIBLE, IMPOSSIBLE = 0.9, 0.5
"""Least share of possible pairs of words in text of the shifted model, and most in text of the other."""
_LINE = (12, 45, 9, 33, 88)
_WINDOW, _ROWS, _WRITTEN = 16, 32, 64
_ARMS = {"shifted": Words("Y = X shifted by one", "Y = X 错开一位"), "copied": Words("Y = X", "Y = X")}


def measure(trial: Trial) -> Measurement:
    """Losses of a model trained with the shift and of one without, on the next token, and what each of them writes."""
    steps, lines = trial.pick((60, 500), (300, 3000), (600, 10000))
    chosen = seeds(trial, 2, 5, 10)
    words = Lexicon(word for sentence in topics(2000, 0) for word in sentence)
    possible = _pairs(words.stream(topics(20_000, 1)))
    own, following, written = ({arm: list[float]() for arm in _ARMS} for _ in range(3))
    curves: dict[str, list[list[float]]] = {arm: [] for arm in _ARMS}
    unigram = list[float]()
    for seed in chosen:
        text_N, held_N = words.stream(topics(lines, seed + 10)), words.stream(topics(400, seed + 500_000))
        unigram.append(_unigram(text_N, held_N, len(words)))
        held_BT = held_N[: len(held_N) // (_WINDOW + 1) * (_WINDOW + 1)].view(-1, _WINDOW + 1)
        for arm in _ARMS:
            model = tiny(len(words), context=_WINDOW, n_layers=1, seed=seed, initialisation="xavier", tied_output=False)
            loss = next_token_loss if arm == "shifted" else _copy_loss
            trained = fit(model, lambda step, t=text_N, s=seed: _windows(t, s, step), loss, steps=steps,
                          learning_rate=2e-2, seed=seed)  # fmt: skip
            curves[arm].append(trained.losses)
            with torch.no_grad():
                own[arm].append(float(loss(model, held_BT)))
                following[arm].append(float(next_token_loss(model, held_BT)))
            text = _write(model, held_BT[:8, :4], seed)
            pairs = [pair for row in text for pair in itertools.pairwise(row)]
            written[arm].append(sum(pair in possible for pair in pairs) / len(pairs))
    batch = padded_batch([np.array(_LINE)], pad_id=0, bos_id=1)
    right = batch.inputs_BT.tolist() == [list(_LINE[:-1])] and batch.targets_BT.tolist() == [list(_LINE[1:])]
    numbers = {
        "batch_is_shifted": Number.exact(float(right)),
        "unigram": Number.mean(unigram, "nats"),
        "shifted_loss": Number.mean(following["shifted"], "nats"),
        "copied_own_loss": Number.mean(own["copied"], "nats"),
        "copied_next_loss": Number.mean(following["copied"], "nats"),
        "shifted_possible": Number.mean(written["shifted"]),
        "copied_possible": Number.mean(written["copied"]),
    }
    return Measurement(numbers, {"curves": _curve_rows(curves), "written": _bars(numbers)})


def _copy_loss(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
    """The loss where the target of each token is that token."""
    inputs_BT = ids_BT[:, :-1]
    return F.cross_entropy(model(inputs_BT).flatten(0, 1), inputs_BT.flatten())


def _windows(text_N: Tensor, seed: int, step: int) -> Tensor:
    draw = torch.Generator().manual_seed(1_000_003 * seed + step)
    starts_B = torch.randint(len(text_N) - _WINDOW - 1, (_ROWS,), generator=draw)
    return text_N[starts_B[:, None] + torch.arange(_WINDOW + 1)]


def _unigram(text_N: Tensor, held_N: Tensor, n_words: int) -> float:
    counts_V = torch.bincount(text_N, minlength=n_words).double() + 1
    return float(-(counts_V / counts_V.sum()).log()[held_N].mean())


def _pairs(text_N: Tensor) -> set[tuple[int, int]]:
    return set(zip(text_N[:-1].tolist(), text_N[1:].tolist(), strict=True))


@torch.no_grad()
def _write(model: DecoderOnly, ids_BT: Tensor, seed: int) -> list[list[int]]:
    """Draw a text after each prompt, a token at a time."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(_WRITTEN):
        chances_BV = model(ids_BT[:, -_WINDOW:])[:, -1].softmax(-1)
        ids_BT = torch.cat([ids_BT, torch.multinomial(chances_BV, 1, generator=draw)], dim=1)
    return ids_BT[:, 3:].tolist()


def _curve_rows(curves: dict[str, list[list[float]]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for arm, runs in curves.items():
        every = max(1, len(runs[0]) // 50)
        for step in range(0, len(runs[0]), every):
            number = Number.mean([run[step] for run in runs])
            rows.append({"step": step + 1, "arm": arm, "value": number.value, "low": max(number.low, 1e-4),
                         "high": number.high})  # fmt: skip
    return rows


def _bars(numbers: Numbers) -> list[dict[str, Any]]:
    return [
        {"arm": arm, "value": number.value, "low": number.low, "high": number.high}
        for arm, number in ((arm, numbers[f"{arm}_possible"]) for arm in _ARMS)
    ]


def judge(numbers: Numbers) -> Finding:
    """With the shift a language is learned; without it the loss is 0 and the model worse than word frequencies."""
    value = {name: number.value for name, number in numbers.items()}
    learned = value["shifted_loss"] < value["unigram"] and value["shifted_possible"] >= POSSIBLE
    copied = value["copied_own_loss"] <= COPIED
    worthless = value["copied_next_loss"] > value["unigram"] and value["copied_possible"] <= IMPOSSIBLE
    return Finding(
        "holds" if learned and copied and worthless and value["batch_is_shifted"] == 1 else "does not hold here",
        Words(
            f"Trained with Y = X the loss falls to {value['copied_own_loss']:.1g}; on the real next word that model "
            f"has "
            f"{value['copied_next_loss']:.1f} nats, where word frequencies alone have {value['unigram']:.1f} and the "
            f"model "
            f"trained with the shift {value['shifted_loss']:.1f}. Of the pairs of words that it writes "
            f"{value['copied_possible']:.0%} are possible, with the shift {value['shifted_possible']:.0%}.",
            f"用 Y = X 训练，损失降到 {value['copied_own_loss']:.1g}；但对真正的下一个词，它的损失是 "
            f"{value['copied_next_loss']:.1f} nat，单看词频也只有 {value['unigram']:.1f}，错位训练的模型是 "
            f"{value['shifted_loss']:.1f}。它写出的相邻两词只有 {value['copied_possible']:.0%} 是可能的，"
            f"错位训练的模型为 {value['shifted_possible']:.0%}。",
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """The two losses during training, and how much of what is written is possible."""
    zh = language == "zh"
    curves = [{**row, "arm": _ARMS[row["arm"]].of(language)} for row in measurement.tables["curves"]]
    bars = [{**row, "arm": _ARMS[row["arm"]].of(language)} for row in measurement.tables["written"]]
    return [
        LineChart(
            "训练损失：照抄的损失趋于 0" if zh else "Loss in training: that of copying goes to 0",
            curves,
            x="step",
            y="value",
            series="arm",
            low="low",
            high="high",
            x_title="步" if zh else "step",
            y_title="损失（nat）" if zh else "loss, nats",
            log_y=True,
            note="色带为各随机种子的 95 % 区间。" if zh else "Bands: 95 % intervals over seeds.",
        ),
        BarChart(
            "写出的文字中，可能出现的相邻词对" if zh else "Pairs of words in what is written that the language has",
            bars,
            x="arm",
            y="value",
            low="low",
            high="high",
            x_title="训练方式" if zh else "trained with",
            y_title="比例" if zh else "share",
        ),
    ]


CLAIM = Claim(
    name="shift",
    group="likelihood",
    claim=Words(
        "Inputs and targets are the same text, shifted by one token: X = [12, 45, 9, 33] has Y = [45, 9, 33, 88].",
        "输入与目标是同一段文本，错开一个 token：X = [12, 45, 9, 33] 对应 Y = [45, 9, 33, 88]。",
    ),
    prediction=Words(
        f"The batches of this library are shifted so. Trained with Y = X the loss falls below {COPIED:g}, and yet "
        f"that model "
        f"predicts the next word worse than word frequencies do, and at most {IMPOSSIBLE:.0%} of the pairs of words "
        f"that it "
        f"writes are possible; trained with the shift it is better than word frequencies, and at least {POSSIBLE:.0%} "
        f"are.",
        f"本库的批次正是这样错位的。用 Y = X 训练，损失降到 {COPIED:g} 以下，但预测下一个词还不如词频，"
        f"写出的相邻词对至多 {IMPOSSIBLE:.0%} 可能出现；错位训练则优于词频，且至少 {POSSIBLE:.0%} 可能出现。",
    ),
    method=Words(
        "A small model is trained twice on sentences made by rules, and then writes. A pair of words is possible if "
        "it occurs "
        "in 20,000 sentences of the same rules.",
        "同一个小模型在按规则生成的句子上训练两次，然后让它写。相邻两词若在同样规则生成的 20,000 句中出现过，"
        "就算可能。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        "batch_is_shifted": Words("the library's batch is shifted by one (1 = yes)", "本库的批次错开一位（1 = 是）"),
        "unigram": Words("word frequencies alone: loss of the next word", "只用词频：下一个词的损失"),
        "shifted_loss": Words("trained with the shift: loss of the next word", "错位训练：下一个词的损失"),
        "copied_own_loss": Words("trained with Y = X: its own loss", "Y = X 训练：它自己的损失"),
        "copied_next_loss": Words("trained with Y = X: loss of the next word", "Y = X 训练：下一个词的损失"),
        "shifted_possible": Words(
            "trained with the shift: possible pairs in what it writes", "错位训练：写出的词对中可能的比例"
        ),
        "copied_possible": Words(
            "trained with Y = X: possible pairs in what it writes", "Y = X 训练：写出的词对中可能的比例"
        ),
    },
)
