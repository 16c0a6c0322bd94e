"""Claim: training fits the frequencies of its text; how near those are to the truth is a matter of how much text."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.charts import LineChart
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

STATES = 6
FITTED = 0.1
"""Most that is left between model and counts, as a share of what is between counts and truth."""
THEORY = 0.3
"""Most that the mean of counts to truth may be away from V(V − 1)/2N, as a share of it."""
SAME = 1e-5
_EVEN = 5.0
"""Concentration of the Dirichlet distribution of the source: no transition is too rare to be counted."""
_GAPS = {
    "fit": Words("counts → model", "计数 → 模型"),
    "sample": Words("truth → counts", "真实 → 计数"),
    "model": Words("truth → model", "真实 → 模型"),
    "theory": Words("V(V − 1)/2N", "V(V − 1)/2N"),
}


def measure(trial: Trial) -> Measurement:
    """KL divergences between model, counts and truth, for texts of several lengths."""
    lengths = trial.pick((300, 3000), (300, 1000, 3000, 10000, 30000), (300, 1000, 3000, 10000, 30000, 100000))
    steps = trial.pick(80, 200, 400)
    chosen = seeds(trial, 2, 5, 10)
    more = seeds(trial, 15, 60, 120)  # counting is cheap: an interval for what needs no model
    rows: list[dict[str, Any]] = []
    shares, ratios = list[Number](), list[Number]()
    followed: list[Number] = []
    same: list[float] = []
    for length in lengths:
        theory = STATES * (STATES - 1) / (2 * length)
        sample = [_divergence(counts_VV, truth_VV) for truth_VV, counts_VV, _ in (_text(s, length) for s in more)]
        fitted, told = list[float](), list[float]()
        for seed in chosen:
            truth_VV, counts_VV, ids_T = _text(seed, length)
            model = _train(counts_VV, steps, seed)
            made_VV = _of_model(model)
            fitted.append(_divergence(counts_VV, made_VV) / _divergence(counts_VV, truth_VV))
            told.append(_divergence_of(counts_VV, truth_VV, made_VV))
            same.append(_loss_apart(model, counts_VV, ids_T))
        gap = Number.mean(sample)
        shares.append(Number.mean(fitted))
        ratios.append(Number(gap.value / theory, gap.low / theory, gap.high / theory))
        followed.append(Number.mean(told))
        left = Number.mean([share * gap.value for share in fitted])
        for name, number in (("fit", left), ("sample", gap), ("model", followed[-1]), ("theory", Number.exact(theory))):
            rows.append({"N": length, "gap": name, "value": max(number.value, 1e-9), "low": max(number.low, 1e-9),
                         "high": number.high})  # fmt: skip
    numbers = {
        "states": Number.exact(STATES),
        "least_text": Number.exact(lengths[0], "tokens"),
        "most_text": Number.exact(lengths[-1], "tokens"),
        "left_most": max(shares, key=lambda number: number.value),
        "ratio_least": min(ratios, key=lambda number: number.value),
        "ratio_most": max(ratios, key=lambda number: number.value),
        "model_to_truth_short": followed[0],
        "model_to_truth_long": followed[-1],
        "text_loss_apart": Number(max(same), min(same), max(same), "nats"),
    }
    return Measurement(numbers, {"gaps": rows})


def _text(seed: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """(transition probabilities of the source, counts of pairs in a text of it, ids of the text)."""
    draw = torch.Generator().manual_seed(seed)
    gamma_VV = torch._standard_gamma(torch.full((STATES, STATES), _EVEN, dtype=torch.float64), generator=draw)
    truth_VV = gamma_VV / gamma_VV.sum(-1, keepdim=True)
    bounds = truth_VV.cumsum(-1)[:, :-1].tolist()
    ids, state = [0], 0
    for uniform in torch.rand(length, generator=draw, dtype=torch.float64).tolist():
        state = bisect(bounds[state], uniform)
        ids.append(state)
    ids_T = torch.tensor(ids)
    pairs_N = ids_T[:-1] * STATES + ids_T[1:]
    return truth_VV, torch.bincount(pairs_N, minlength=STATES**2).view(STATES, STATES).double(), ids_T


def _train(counts_VV: Tensor, steps: int, seed: int) -> DecoderOnly:
    """A model that sees the last token only: the likelihood of a text depends on its counts of pairs alone."""
    model = tiny(STATES, context=64, n_layers=1, seed=seed, positions="none", window=1, tied_output=False,
                 initialisation="xavier")  # fmt: skip
    ids_V1 = torch.arange(STATES)[:, None]
    weights_VV = (counts_VV / counts_VV.sum()).float()

    def loss(model: DecoderOnly, counted_VV: Tensor) -> Tensor:
        return -(counted_VV * model(ids_V1)[:, 0].log_softmax(-1)).sum()

    fit(model, lambda _: weights_VV, loss, steps=steps, learning_rate=1e-2, seed=seed)
    return model


@torch.no_grad()
def _of_model(model: DecoderOnly) -> Tensor:
    return model(torch.arange(STATES)[:, None])[:, 0].double().softmax(-1)


def _divergence(counts_VV: Tensor, other_VV: Tensor) -> float:
    """KL(counts ‖ other) of the next token, weighted by how often each token comes before, in nats."""
    own_VV = counts_VV / counts_VV.sum(-1, keepdim=True).clamp(min=1)
    return _divergence_of(counts_VV, own_VV, other_VV)


def _divergence_of(counts_VV: Tensor, one_VV: Tensor, other_VV: Tensor) -> float:
    terms_VV = torch.where(one_VV > 0, one_VV * (one_VV.clamp(min=1e-300) / other_VV).log(), 0.0)
    return float((counts_VV.sum(-1) / counts_VV.sum() * terms_VV.sum(-1)).sum())


@torch.no_grad()
def _loss_apart(model: DecoderOnly, counts_VV: Tensor, ids_T: Tensor) -> float:
    """The loss of a stretch of the text in one pass, against the same from its counts of pairs."""
    ids_1T = ids_T[None, :65]
    pairs_N = ids_1T[0, :-1] * STATES + ids_1T[0, 1:]
    counted_VV = torch.bincount(pairs_N, minlength=STATES**2).view(STATES, STATES)
    by_counts = -(counted_VV * F.log_softmax(model(torch.arange(STATES)[:, None])[:, 0], -1)).sum() / counted_VV.sum()
    return abs(float(next_token_loss(model, ids_1T) - by_counts))


def judge(numbers: Numbers) -> Finding:
    """The model is at the counts, and the counts are as far from the truth as theory says."""
    value = {name: number.value for name, number in numbers.items()}
    fits = value["left_most"] <= FITTED and value["text_loss_apart"] <= SAME
    theory = max(abs(value["ratio_least"] - 1), abs(value["ratio_most"] - 1)) <= THEORY
    return Finding(
        "holds" if fits and theory else "does not hold here",
        Words(
            f"What is left between model and counts is at most {value['left_most']:.1g} of what is between counts and "
            f"truth, and that is {value['ratio_least']:.2f} to {value['ratio_most']:.2f} times V(V − 1)/2N. So the "
            f"model "
            f"is {value['model_to_truth_short']:.3g} nats from the truth with {value['least_text']:,.0f} tokens and "
            f"{value['model_to_truth_long']:.2g} with {value['most_text']:,.0f}: more text helps, more training does "
            f"not.",
            f"模型与计数之间剩下的差距，至多是计数与真实之间差距的 {value['left_most']:.1g}；而后者是 V(V − 1)/2N 的 "
            f"{value['ratio_least']:.2f} 到 {value['ratio_most']:.2f} 倍。所以用 {value['least_text']:,.0f} "
            f"个 token 训练，模型离真实 "
            f"{value['model_to_truth_short']:.3g} nat；用 {value['most_text']:,.0f} 个，是 "
            f"{value['model_to_truth_long']:.2g} nat："
            "有用的是更多文本，而不是更多训练。",
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """The divergences against the length of the text."""
    zh = language == "zh"
    rows = [{**row, "gap": _GAPS[row["gap"]].of(language)} for row in measurement.tables["gaps"]]
    return [
        LineChart(
            "模型、计数与真实分布之间的距离" if zh else "How far model, counts and truth are apart",
            rows,
            x="N",
            y="value",
            series="gap",
            low="low",
            high="high",
            x_title="文本长度 N（token）" if zh else "tokens of the text, N",
            y_title="KL（nat/token）" if zh else "KL, nats a token",
            log_x=True,
            log_y=True,
            note="色带为各随机种子的 95 % 区间。" if zh else "Bands: 95 % intervals over seeds.",
        )
    ]


CLAIM = Claim(
    name="maximum-likelihood",
    group="likelihood",
    claim=Words(
        "Training finds the parameters under which the training text is most probable: it makes the model agree with "
        "the "
        "frequencies of that text.",
        "训练求出使训练文本概率最大的参数，也就是让模型与这份文本里的频率一致。",
    ),
    prediction=Words(
        f"Text from a known Markov source of {STATES} states. At every length N the divergence of the model from the "
        f"counts of "
        f"the text is at most {FITTED:.0%} of that of the counts from the source, and the latter is V(V − 1)/2N within "
        f"{THEORY:.0%}.",
        f"文本来自已知的 {STATES} 状态马尔可夫源。对每种长度 N：模型与计数的散度不超过计数与源的散度的 {FITTED:.0%}；"
        f"而后者等于 V(V − 1)/2N，误差在 {THEORY:.0%} 之内。",
    ),
    method=Words(
        "A one-layer model that sees the last token only is trained on the counts of pairs (the same as training on "
        "the text: "
        "checked on a stretch of it). Divergences are KL, weighted by how often a token occurs.",
        "单层模型只看前一个 token，用相邻 token 对的计数训练（等同于在文本上训练：取一段验证过）。距离用 KL 散度，"
        "按 token 出现次数加权。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        "states": Words("states of the source, V", "源的状态数 V"),
        "least_text": Words("shortest text", "最短的文本"),
        "most_text": Words("longest text", "最长的文本"),
        "left_most": Words(
            "counts → model ÷ truth → counts, largest over N", "（计数→模型）÷（真实→计数），各 N 中最大"
        ),
        "ratio_least": Words("truth → counts ÷ V(V − 1)/2N, least over N", "（真实→计数）÷ V(V − 1)/2N，各 N 中最小"),
        "ratio_most": Words("truth → counts ÷ V(V − 1)/2N, largest over N", "（真实→计数）÷ V(V − 1)/2N，各 N 中最大"),
        "model_to_truth_short": Words("truth → model with the shortest text, in nats", "最短文本：真实→模型（nat）"),
        "model_to_truth_long": Words("truth → model with the longest text, in nats", "最长文本：真实→模型（nat）"),
        "text_loss_apart": Words("loss of a text and of its counts: difference", "文本的损失与其计数的损失之差"),
    },
)
