"""Facts (subject, relation) → object, with frozen embeddings: how many are recalled, by feed-forward width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.charts import BarChart, Chart, LineChart
from mingyue.claims.blocks.parts import Nothing
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import accuracy, fit, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.runtime import derive_seed
from mingyue.words import Language, Words

MORE = 1.5
"""A width of 4d recalls at least so many times what there is without a feed-forward part."""
APART = 0.05
"""Shares of facts that differ by less count as the same."""

_D_MODEL, _N_HEADS = 16, 4
_WIDTHS = (0, _D_MODEL, 4 * _D_MODEL)
_ATTENTION = "attention"


def _model(arm: str, n_words: int, seed: int) -> DecoderOnly:
    """One block; embeddings are frozen. `attention`: no feed-forward part, heads so wide that as many weights train."""
    width = 0 if arm == _ATTENTION else int(arm)
    # Attention has 4·M·(H·D) weights, the feed-forward part 2·M·F: as many as with F = 4·M, when H·D = 3·M.
    d_head = (3 if arm == _ATTENTION else 1) * _D_MODEL // _N_HEADS
    model = tiny(
        n_words,
        context=2,
        d_model=_D_MODEL,
        n_layers=1,
        n_heads=_N_HEADS,
        d_head=d_head,
        d_ff=max(width, 1),
        seed=seed,
        initialisation="xavier",
        embedding_scale=True,
        positions="sinusoidal",
    )
    if width == 0:
        for block in model.every_block():
            block.feedforward = Nothing()
    model.embedding.weight.requires_grad_(False)
    return model


def _facts(n_subjects: int, n_relations: int, n_objects: int, seed: int) -> tuple[Tensor, Tensor]:
    """(ids_B2 of all subjects and relations, the object of each fact [B]). Objects are drawn alike and apart."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "facts"))
    pairs_B2 = torch.cartesian_prod(torch.arange(n_subjects), torch.arange(n_relations))
    objects_B = torch.randint(n_objects, (len(pairs_B2),), generator=generator)
    first_relation, first_object = n_subjects, n_subjects + n_relations
    return pairs_B2 + torch.tensor([0, first_relation]), objects_B + first_object


def _measure(trial: Trial) -> Measurement:
    n_subjects, n_relations, n_objects, steps = trial.pick((16, 8, 32, 100), (64, 8, 64, 600), (64, 8, 64, 3000))
    arms = (*map(str, _WIDTHS), _ATTENTION)
    recalled: dict[str, list[float]] = {arm: [] for arm in arms}
    losses: dict[str, list[list[float]]] = {arm: [] for arm in arms}
    trained: dict[str, int] = {}
    for seed in seeds(trial, 1, 5, 5):
        ids_B2, objects_B = _facts(n_subjects, n_relations, n_objects, seed)

        def loss(model: DecoderOnly, data: tuple[Tensor, Tensor]) -> Tensor:
            return F.cross_entropy(model(data[0])[:, -1], data[1])

        for arm in arms:
            model = _model(arm, n_subjects + n_relations + n_objects, seed)
            went = fit(model, lambda _: (ids_B2, objects_B), loss, steps=steps, learning_rate=1e-2, seed=seed)  # noqa: B023
            with torch.no_grad():
                recalled[arm].append(accuracy(model(ids_B2)[:, -1], objects_B))
            losses[arm].append(went.losses)
            trained[arm] = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    numbers = {f"recalled_{arm}": Number.mean(shares) for arm, shares in recalled.items()}
    numbers |= {f"parameters_{arm}": Number.exact(count) for arm, count in trained.items()}
    numbers |= {"facts": Number.exact(n_subjects * n_relations), "chance": Number.exact(1 / n_objects)}
    bars = [
        {"arm": arm, "recalled": share.value, "low": max(0.0, share.low), "high": min(1.0, share.high)}
        for arm in arms
        for share in (numbers[f"recalled_{arm}"],)
    ]
    lines: list[dict[str, Any]] = []
    for arm in arms:
        for step in range(0, steps, max(1, steps // 60)):
            mean = Number.mean([run[step] for run in losses[arm]])
            lines.append({"arm": arm, "step": step, "loss": mean.value, "low": max(0.0, mean.low), "high": mean.high})
    return Measurement(numbers, {"recalled": bars, "losses": lines})


def _judge(numbers: Numbers) -> Finding:
    none, narrow, wide = (numbers[f"recalled_{width}"].value for width in _WIDTHS)
    attention = numbers[f"recalled_{_ATTENTION}"].value
    reason = Words(
        f"Of {numbers['facts'].value:.0f} facts {none:.0%} are recalled without a feed-forward part, {narrow:.0%} "
        f"with width d, {wide:.0%} with 4d; attention alone with as many weights as 4d recalls {attention:.0%}.",
        f"{numbers['facts'].value:.0f} 条事实中，没有前馈层时记住 {none:.0%}，宽度 d 时 {narrow:.0%}，4d 时 "
        f"{wide:.0%}；只有注意力、参数量与 4d 相同时，记住 {attention:.0%}。",
    )
    if not (narrow >= none + APART and wide >= narrow + APART and wide >= MORE * none):
        return Finding("does not hold here", reason)
    if attention < wide - APART:
        return Finding("holds", reason)
    return Finding(
        "holds with a correction",
        Words(
            f"{reason.en} So it is weights that hold facts, wherever they are.",
            f"{reason.zh}可见记住事实的是参数，不论它们在哪一层。",
        ),
    )


_NAMES = {
    "0": Words("no feed-forward", "无前馈层"),
    str(_D_MODEL): Words("width d", "宽度 d"),
    str(4 * _D_MODEL): Words("width 4d", "宽度 4d"),
    _ATTENTION: Words("attention only", "只有注意力"),
}


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    bars, lines = (
        [{**row, "arm": _NAMES[row["arm"]].of(language)} for row in measurement.tables[table]]
        for table in ("recalled", "losses")
    )
    return [
        BarChart(
            Words("Facts recalled, by feed-forward width", "记住的事实，按前馈层宽度").of(language),
            bars,
            x="arm",
            y="recalled",
            low="low",
            high="high",
            y_title=Words("share of facts", "事实的比例").of(language),
            rules=[(measurement.numbers["chance"].value, Words("chance", "随机").of(language))],
            note=Words(
                "Attention only: heads so wide that as many weights are trained as with 4d.",
                "只有注意力：把头加宽，使可训练参数与 4d 时一样多。",
            ).of(language),
        ),
        LineChart(
            Words("Learning the facts", "学习这些事实").of(language),
            lines,
            x="step",
            y="loss",
            series="arm",
            low="low",
            high="high",
            x_title=Words("step", "步").of(language),
            y_title=Words("loss, nats", "损失（nats）").of(language),
        ),
    ]


CLAIM = Claim(
    name="facts",
    group="blocks",
    claim=Words(
        "Attention gathers, the feed-forward part remembers: what a model knows by heart is stored in its wide layer.",
        "注意力负责收集信息，前馈层负责记忆：模型背下来的知识存放在那个变宽的层里。",
    ),
    prediction=Words(
        f"With frozen embeddings more facts are recalled (by {APART:.0%} or more) as the feed-forward part widens "
        f"from nothing to d and 4d, and with 4d at least {MORE} times as many as without. If attention alone with as "
        "many weights recalls no fewer, the claim needs a correction. Else it does not hold.",
        f"冻结词向量，前馈层从无到 d 再到 4d，记住的事实逐级增多（每级至少 {APART:.0%}），4d 时至少是没有时的 {MORE} "
        "倍。若只有注意力、参数量相同时记住的并不更少，则需修正；若不随宽度增加，则不成立。",
    ),
    method=Words(
        "One block of this library, width d = 16. Every pair of a subject and a relation has an object drawn by "
        "chance, so nothing can be inferred. All arms see all facts in every step, for equally many steps; then each "
        "fact is asked.",
        "本库的一个块，宽度 d = 16。每个（主体、关系）对应一个随机抽取的客体，因此无从推断，只能记住。各组每步都看到"
        "全部事实，步数相同；最后逐条提问。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "facts": Words("facts", "事实条数"),
        "chance": Words("share right by chance", "随机答对的比例"),
        "recalled_0": Words("recalled without a feed-forward part", "无前馈层时记住的比例"),
        f"recalled_{_D_MODEL}": Words("recalled with width d", "宽度 d 时记住的比例"),
        f"recalled_{4 * _D_MODEL}": Words("recalled with width 4d", "宽度 4d 时记住的比例"),
        f"recalled_{_ATTENTION}": Words("recalled by wider attention alone", "只有更宽的注意力时记住的比例"),
        "parameters_0": Words("weights trained, no feed-forward part", "可训练参数，无前馈层"),
        f"parameters_{_D_MODEL}": Words("weights trained, width d", "可训练参数，宽度 d"),
        f"parameters_{4 * _D_MODEL}": Words("weights trained, width 4d", "可训练参数，宽度 4d"),
        f"parameters_{_ATTENTION}": Words("weights trained, wider attention alone", "可训练参数，只有更宽的注意力"),
    },
)
