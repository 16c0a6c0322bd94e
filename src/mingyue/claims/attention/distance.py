"""Claim: what positions make easy. Copy the token that stands k places back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.charts import LineChart
from mingyue.claims.attention.figures import interval, named
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import accuracy, fit, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

REACHED = 0.9
"""Accuracy on new texts at which a model can do it."""
SLOWER = 2.0
"""How many times the steps of the fastest kind a model without positions needs at least."""
_VOCABULARY, _LENGTH, _BATCH, _EVERY = 16, 24, 16, 10
_KINDS = {
    "none": Words("none", "无位置"),
    "learned": Words("learned", "可学习"),
    "sinusoidal": Words("sinusoidal", "正余弦"),
    "rotary": Words("rotary", "旋转"),
}


def measure(trial: Trial) -> Measurement:
    """Steps to 90 % for each kind of positions and each distance."""
    distances = trial.pick((2,), (1, 4, 12), (1, 2, 4, 8, 16))
    limit = trial.pick(50, 400, 1500)
    chosen = seeds(trial, 1, 3, 5)
    steps = {
        (kind, back): [_steps(kind, back, limit, seed) for seed in chosen] for kind in _KINDS for back in distances
    }
    numbers = {
        "limit": Number.exact(limit, "steps"),
        "nearest": Number.exact(distances[0], "tokens"),
        "farthest": Number.exact(distances[-1], "tokens"),
    }
    for kind in _KINDS:
        for where, back in (("near", distances[0]), ("far", distances[-1])):
            numbers[f"steps_{kind}_{where}"] = Number.median(steps[kind, back], "steps")
    rows = [interval(Number.median(found), kind=kind, back=back) for (kind, back), found in steps.items()]
    return Measurement(numbers, {"steps": rows})


def _steps(kind: str, back: int, limit: int, seed: int) -> int:
    """Steps after which new texts are copied in 90 % of their places; `limit` if they never are."""
    # Xavier with scaled embeddings, as in the paper: words and positions begin with numbers of the same size.
    model = tiny(
        _VOCABULARY,
        context=_LENGTH,
        n_layers=2,
        positions=kind,
        embedding_scale=True,
        initialisation="xavier",
        seed=seed,
    )
    held_BT = _texts(32, seed + 500_009)

    def done(model: DecoderOnly) -> bool:
        return accuracy(model(held_BT)[:, back:], held_BT[:, : _LENGTH - back]) >= REACHED

    def loss(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
        return F.cross_entropy(model(ids_BT)[:, back:].flatten(0, 1), ids_BT[:, : _LENGTH - back].flatten())

    result = fit(
        model,
        lambda step: _texts(_BATCH, seed * 100_003 + step),
        loss,
        steps=limit,
        learning_rate=1e-2,
        decay=False,
        seed=seed,
        until=done,
        check_every=_EVERY,
    )
    return limit if result.reached is None else result.reached


def _texts(count: int, seed: int) -> Tensor:
    return torch.randint(_VOCABULARY, (count, _LENGTH), generator=torch.Generator().manual_seed(seed))


def judge(numbers: Numbers) -> Finding:
    """All kinds of positions reach 90 %, and none at all needs far longer."""
    value = {name: number.value for name, number in numbers.items()}
    limit = value["limit"]
    places = ("near", "far")
    with_positions = [kind for kind in _KINDS if kind != "none"]
    reach = all(value[f"steps_{kind}_{where}"] < limit for kind in with_positions for where in places)
    fastest = {where: min(value[f"steps_{kind}_{where}"] for kind in with_positions) for where in places}
    behind = all(value[f"steps_none_{where}"] >= SLOWER * fastest[where] for where in places)
    alone = value["steps_none_near"] < limit or value["steps_none_far"] < limit
    verdict = "does not hold here"
    if reach and behind:
        verdict = "holds with a correction" if alone else "holds"

    def told(kind: str) -> str:
        near, far = (
            f"> {limit:.0f}" if value[f"steps_{kind}_{where}"] >= limit else f"{value[f'steps_{kind}_{where}']:.0f}"
            for where in places
        )
        return f"{near} / {far}"

    slowly = Words("", "")
    if verdict == "holds with a correction":
        slowly = Words(
            " Without positions it is learned too, only later: the causal mask tells a model where it is.",
            "没有位置也学得会，只是更晚：因果掩码让模型知道自己在哪里。",
        )
    near, far = (f"{value[name]:.0f}" for name in ("nearest", "farthest"))
    return Finding(
        verdict,
        Words(
            f"Steps to {REACHED:.0%}, {near} / {far} tokens back: "
            + "; ".join(f"{words.en} {told(kind)}" for kind, words in _KINDS.items())
            + "."
            + slowly.en,
            f"达到 {REACHED:.0%} 的步数，前 {near} 个 / 前 {far} 个 token："
            + "；".join(f"{words.zh} {told(kind)}" for kind, words in _KINDS.items())
            + "。"
            + slowly.zh,
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """Steps against the distance."""
    zh = language == "zh"
    limit = measurement.numbers["limit"].value
    note = Words("Lines: medians over seeds; bands: least to largest.", "线：各种子的中位数；带：最小到最大。")
    return [
        LineChart(
            f"抄写前第 k 个 token：到 {REACHED:.0%} 的步数"
            if zh
            else f"Copying the token k back: steps to {REACHED:.0%}",
            named(measurement.tables["steps"], "kind", _KINDS, language),
            x="back",
            y="value",
            series="kind",
            low="low",
            high="high",
            x_title="k",
            y_title="步数" if zh else "steps",
            log_x=True,
            rules=[(limit, "试到这里为止" if zh else "tried no longer")],
            note=note.of(language),
        )
    ]


CLAIM = Claim(
    name="distance",
    group="attention",
    claim=Words(
        "Attention by itself does not know where words stand; positions, learned, sinusoidal or rotary, let it learn "
        "how far apart they are.",
        "注意力本身不知道词在哪里；有了可学习、正余弦或旋转的位置，它才学得会词与词的距离。",
    ),
    prediction=Words(
        f"With each kind of positions a small model learns to copy the token k back to {REACHED:.0%} within the steps "
        f"tried; without positions it needs at least {SLOWER:g} times the steps of the fastest kind, or never does. "
        "Which kind is the fastest is measured, not predicted.",
        f"每种位置都能让小模型在所试步数内把“抄写前第 k 个 token”学到 {REACHED:.0%}；没有位置时，所需步数至少是最快一种"
        f"的 {SLOWER:g} 倍，或始终学不会。哪一种最快，只测量、不预测。",
    ),
    method=Words(
        f"Random texts of {_LENGTH} tokens; a causal model of 2 layers and width 32 says at each place what stood k "
        f"places before. Equal weights at the start but for positions, equal rate; new texts every {_EVERY} steps "
        "decide.",
        f"{_LENGTH} 个 token 的随机文字；2 层、宽 32 的因果模型在每个位置说出前第 k 个 token。除位置外起始权重相同，学"
        f"习率相同；每 {_EVERY} 步用新文字检验。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        "limit": Words("steps tried", "所试步数"),
        "nearest": Words("smallest k", "最小的 k"),
        "farthest": Words("largest k", "最大的 k"),
        **{
            f"steps_{kind}_{where}": Words(
                f"steps, {words.en}, {'smallest k' if where == 'near' else 'largest k'}",
                f"步数，{words.zh}，{'最小的 k' if where == 'near' else '最大的 k'}",
            )
            for kind, words in _KINDS.items()
            for where in ("near", "far")
        },
    },
)
