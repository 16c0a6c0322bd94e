"""Do the subspaces that heads look into become orthogonal? Angles between them, trained beside random."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mingyue.charts import BarChart, Chart, LineChart
from mingyue.claims import grammar
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.runtime import derive_seed
from mingyue.words import Language, Words

NEARLY = 0.25
"""Overlap of at most this share of chance counts as orthogonal."""
BELOW = 0.9
"""Overlap of at most this share of chance counts as less than chance."""

_KINDS = ("query", "key")
_CONTEXT = 32


def _subspaces(weight_NM: Tensor, n_heads: int) -> Tensor:
    """Orthonormal bases [H, M, D] of what the rows of each head span."""
    rows_HDM = weight_NM.detach().unflatten(0, (n_heads, -1))
    return torch.linalg.qr(rows_HDM.transpose(1, 2).double()).Q


def _cosines(bases_HMD: Tensor) -> Tensor:
    """Cosines of the principal angles of every pair of subspaces: [pairs, D], falling."""
    pairs = list(itertools.combinations(bases_HMD, 2))
    return torch.linalg.svdvals(torch.stack([first.T @ second for first, second in pairs])).clamp(max=1.0)


def _of_model(model: DecoderOnly, kind: str) -> Tensor:
    """The cosines of all layers, [layers · pairs, D], of W_Q or W_K."""
    n_heads, place = model.config.n_heads, _KINDS.index(kind)
    weights = [block.attention.qkv.weight.chunk(3)[place] for block in model.every_block()]
    return torch.cat([_cosines(_subspaces(weight_NM, n_heads)) for weight_NM in weights])


def _text(seed: int, sentences: int) -> tuple[Tensor, int]:
    """(ids_N of a text, size of its vocabulary)."""
    written = grammar.topics(sentences, seed)
    lexicon = grammar.Lexicon(word for sentence in written for word in sentence)
    return lexicon.stream(written), len(lexicon)


def _trained(
    seed: int, d_model: int, n_heads: int, n_layers: int, steps: int
) -> tuple[DecoderOnly, DecoderOnly, float]:
    """(model as it began, the same trained, its last losses)."""
    ids_N, vocab_size = _text(seed, 4000)

    def make() -> DecoderOnly:
        return tiny(vocab_size, context=_CONTEXT, d_model=d_model, n_heads=n_heads, n_layers=n_layers, seed=seed)

    def batch(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(seed, "orthogonal-heads", step))
        starts_B = torch.randint(len(ids_N) - _CONTEXT - 1, (16,), generator=generator)
        return ids_N[starts_B[:, None] + torch.arange(_CONTEXT + 1)]

    begun, model = make(), make()
    went = fit(model, batch, next_token_loss, steps=steps, learning_rate=3e-3, seed=seed)
    return begun, model, float(np.mean(went.losses[-20:]))


def _measure(trial: Trial) -> Measurement:
    d_model, n_heads, n_layers, steps = trial.pick((32, 4, 1, 60), (64, 4, 2, 600), (128, 8, 3, 2000))
    overlaps: dict[str, list[float]] = {}
    angles: dict[str, list[np.ndarray]] = {}
    losses = []

    def add(name: str, cosines_PD: Tensor) -> None:
        overlaps.setdefault(name, []).append(float(cosines_PD.square().mean()))
        angles.setdefault(name, []).append(torch.rad2deg(torch.arccos(cosines_PD)).mean(0).numpy())

    for seed in seeds(trial, 2, 5, 5):
        begun, model, loss = _trained(seed, d_model, n_heads, n_layers, steps)
        losses.append(loss)
        generator = torch.Generator().manual_seed(derive_seed(seed, "subspaces"))
        n_drawn = n_layers * 8  # as random as those of a layer, and more of them
        drawn = [
            _cosines(_subspaces(torch.randn(d_model, d_model, generator=generator), n_heads)) for _ in range(n_drawn)
        ]
        add("random", torch.cat(drawn))
        apart = torch.linalg.qr(torch.randn(d_model, d_model, generator=generator)).Q
        add("control", _cosines(_subspaces(apart, n_heads)))
        for kind in _KINDS:
            add(f"{kind}_begun", _of_model(begun, kind))
            add(kind, _of_model(model, kind))
    numbers = {f"{name}_overlap": Number.mean(values) for name, values in overlaps.items()}
    numbers |= {
        "expected": Number.exact(1 / n_heads),
        "loss": Number.mean(losses, "nats"),
        **{f"{kind}_angle": Number.mean([float(one[0]) for one in angles[kind]], "°") for kind in _KINDS},
        "random_angle": Number.mean([float(one[0]) for one in angles["random"]], "°"),
    }
    order = ("random", "query_begun", "query", "key_begun", "key", "control")
    bars = [
        {"what": name, "overlap": mean.value, "low": max(0.0, mean.low), "high": min(1.0, mean.high)}
        for name in order
        for mean in (numbers[f"{name}_overlap"],)
    ]
    lines = []
    for name in ("random", *_KINDS):
        for place, values in enumerate(np.stack(angles[name], axis=1)):
            mean = Number.mean(values.tolist(), "°")
            row = {"what": name, "angle": place + 1, "degrees": mean.value}
            lines.append({**row, "low": max(0.0, mean.low), "high": min(90.0, mean.high)})
    return Measurement(numbers, {"overlaps": bars, "angles": lines})


def _judge(numbers: Numbers) -> Finding:
    chance = numbers["random_overlap"]
    found = [numbers[f"{kind}_overlap"] for kind in _KINDS]
    query, key = (overlap.value / chance.value for overlap in found)
    reason = Words(
        f"Overlap of two heads, beside random subspaces: W_Q {query:.2f} times, W_K {key:.2f} times "
        "(orthogonal would be 0). ",
        f"两个头的重叠与随机子空间之比：W_Q 为 {query:.2f}，W_K 为 {key:.2f}（正交应为 0）。",
    )
    if query <= NEARLY and key <= NEARLY:
        return Finding("holds", Words(f"{reason.en}They are nearly orthogonal.", f"{reason.zh}近乎正交。"))
    if query <= BELOW and key <= BELOW and all(overlap.high < chance.low for overlap in found):
        return Finding(
            "holds with a correction",
            Words(
                f"{reason.en}They overlap less than chance, and are far from orthogonal.",
                f"{reason.zh}重叠比随机少，但远未正交。",
            ),
        )
    return Finding(
        "does not hold here",
        Words(f"{reason.en}Training does not make them orthogonal.", f"{reason.zh}训练并没有使它们正交。"),
    )


_NAMES = {
    "random": Words("random", "随机"),
    "query_begun": Words("W_Q at first", "W_Q 初始"),
    "query": Words("W_Q trained", "W_Q 训练后"),
    "key_begun": Words("W_K at first", "W_K 初始"),
    "key": Words("W_K trained", "W_K 训练后"),
    "control": Words("made orthogonal", "人为正交"),
}


def _draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    named = {
        table: [{**row, "what": _NAMES[row["what"]].of(language)} for row in rows]
        for table, rows in measurement.tables.items()
    }
    return [
        BarChart(
            Words("Overlap of the subspaces of two heads", "两个头的子空间重叠程度").of(language),
            named["overlaps"],
            x="what",
            y="overlap",
            low="low",
            high="high",
            y_title=Words("mean cos² of principal angles", "主夹角 cos² 的均值").of(language),
            rules=[
                (measurement.numbers["expected"].value, Words("chance, 1 / heads", "随机期望，1 / 头数").of(language)),
            ],
        ),
        LineChart(
            Words("Principal angles between two heads, from the smallest", "两个头之间的主夹角，从小到大").of(language),
            named["angles"],
            x="angle",
            y="degrees",
            series="what",
            low="low",
            high="high",
            x_title=Words("number of the angle", "第几个夹角").of(language),
            y_title=Words("degrees", "度").of(language),
            rules=[(90.0, Words("orthogonal", "正交").of(language))],
        ),
    ]


CLAIM = Claim(
    name="orthogonal-heads",
    group="heads",
    claim=Words(
        "Splitting into heads forces their subspaces to become orthogonal.",
        "切分成多头，会迫使各头的子空间彼此正交。",
    ),
    prediction=Words(
        "The overlap of two heads is the mean cos² of the principal angles between the row spaces of their W_Q (and "
        "W_K): 0 when orthogonal, 1/h by chance. "
        f"At most {NEARLY:.0%} of that of random subspaces: holds. At most {BELOW:.0%}, intervals apart: with a "
        "correction. Otherwise it does not hold.",
        "两个头的重叠，取其 W_Q（及 W_K）行空间之间主夹角 cos² 的均值：正交为 0，随机为 1/h。"
        f"若不超过随机子空间的 {NEARLY:.0%}，则成立；不超过 {BELOW:.0%} 且区间分开，则需修正；否则不成立。",
    ),
    method=Words(
        "Small decoders are trained on made sentences, several seeds; heads together are as wide as the model, so "
        "all could be orthogonal. Angles are compared with those before training, of random subspaces, and of a matrix "
        "made orthogonal, as a check of the measure.",
        "用造出的句子训练若干小解码器（多个随机种子）；各头宽度之和等于模型宽度，因此完全可以两两正交。夹角与训练前、"
        "与随机子空间比较；另用一个人为正交的矩阵检验这种量法。",
    ),
    measure=_measure,
    judge=_judge,
    draw=_draw,
    labels={
        "random_overlap": Words("overlap of random subspaces", "随机子空间的重叠"),
        "control_overlap": Words("overlap of subspaces made orthogonal", "人为正交的子空间的重叠"),
        "query_begun_overlap": Words("overlap of W_Q before training", "训练前 W_Q 的重叠"),
        "query_overlap": Words("overlap of W_Q, trained", "训练后 W_Q 的重叠"),
        "key_begun_overlap": Words("overlap of W_K before training", "训练前 W_K 的重叠"),
        "key_overlap": Words("overlap of W_K, trained", "训练后 W_K 的重叠"),
        "expected": Words("overlap by chance, 1 / heads", "随机时的期望，1 / 头数"),
        "loss": Words("loss at the end of training", "训练结束时的损失"),
        "query_angle": Words("smallest principal angle of W_Q, trained", "训练后 W_Q 的最小主夹角"),
        "key_angle": Words("smallest principal angle of W_K, trained", "训练后 W_K 的最小主夹角"),
        "random_angle": Words("smallest principal angle of random subspaces", "随机子空间的最小主夹角"),
    },
    correction=Words(
        "Heads have columns of their own in the projected vectors, but nothing in the training asks the rows of their "
        "matrices to be orthogonal: several heads may well look at the same features of x.",
        "各头在投影后的向量里各占一段，但训练中没有任何要求让各头矩阵的行空间正交：几个头完全可能看同样的特征。",
    ),
)
