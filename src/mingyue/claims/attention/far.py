"""Claim: recurrent nets forget what is far away, attention reaches it in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mingyue.charts import LineChart
from mingyue.claims.attention.figures import interval, named
from mingyue.claims.attention.recurrent import Recurrent, parameters_of, recurrent
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.training import accuracy, fit, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.nn import Taps
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

REACHES, FORGETS = 0.9, 0.5
"""Accuracy from which a net has found the key, and below which it has not; chance is 1/8."""
KEPT, VANISHED = 1e-2, 1e-4
"""Gradient at the key over the longest distance, as a share of that over the shortest."""
_KEYS, _NOISE = 8, 8
_ASK = _KEYS + _NOISE
_VOCABULARY = _ASK + 1
_WIDTH, _BATCH = 32, 16
_NETS = {
    "tanh": Words("recurrent net (tanh)", "循环网络（tanh）"),
    "lstm": Words("LSTM", "LSTM"),
    "transformer": Words("Transformer", "Transformer"),
}


def measure(trial: Trial) -> Measurement:
    """Train each net at each distance; gradient at the key before and after."""
    distances = trial.pick((4, 12), (8, 32, 128), (8, 32, 128, 256))
    steps = trial.pick(30, 300, 600)
    runs: list[dict[str, Any]] = []
    for seed in seeds(trial, 1, 3, 5):
        for distance in distances:
            for name, net in _nets(distance, seed).items():
                runs.append({"net": name, "distance": distance, **_run(net, distance, steps, seed)})

    def over(what: str, name: str, distance: int) -> list[float]:
        return [run[what] for run in runs if run["net"] == name and run["distance"] == distance]

    near, far = distances[0], distances[-1]
    numbers = {"distance": Number.exact(far, "tokens")}
    for name in _NETS:
        numbers[f"accuracy_{name}"] = Number.median(over("accuracy", name, far))
        shares = zip(over("before", name, far), over("before", name, near), strict=True)
        numbers[f"gradient_kept_{name}"] = Number.median([a / b for a, b in shares])
    numbers["parameters_apart"] = Number.exact(_parameters_apart(far))
    places = [(name, distance) for name in _NETS for distance in distances]
    tables = {
        "accuracy": [
            interval(Number.median(over("accuracy", name, distance)), net=name, distance=distance)
            for name, distance in places
        ],
        "gradient": [
            interval(Number.median(over(when, name, distance)), net=name, distance=distance, when=when)
            for when in ("before", "after")
            for name, distance in places
        ],
    }
    return Measurement(numbers, tables)


def _nets(distance: int, seed: int) -> dict[str, nn.Module]:
    """The three, with as many parameters as the Transformer has (its positions are a formula, so of any length)."""
    model = tiny(_VOCABULARY, context=distance + 1, d_model=_WIDTH, n_layers=2, positions="rotary", seed=seed)
    size = parameters_of(model)
    others = {kind: recurrent(kind, _VOCABULARY, _WIDTH, size, seed) for kind in ("tanh", "lstm")}
    return {**others, "transformer": model}


def _parameters_apart(distance: int) -> float:
    sizes = [parameters_of(net) for net in _nets(distance, 0).values()]
    return max(sizes) / min(sizes) - 1


def _texts(count: int, distance: int, seed: int) -> tuple[Tensor, Tensor]:
    """(ids_BT, key_B): the key at place 0, then noise, and at place `distance` the word that asks for it."""
    draw = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(_KEYS, _ASK, (count, distance + 1), generator=draw)
    ids_BT[:, 0] = torch.randint(_KEYS, (count,), generator=draw)
    ids_BT[:, -1] = _ASK
    return ids_BT, ids_BT[:, 0]


def _loss(net: nn.Module, texts: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(net(texts[0])[:, -1], texts[1])


def _run(net: nn.Module, distance: int, steps: int, seed: int) -> dict[str, float]:
    """Accuracy on new texts after training, and the gradient at the key before and after it."""
    held = _texts(256, distance, 7 + seed)
    before = _gradient_at_key(net, held)
    fit(
        net,
        lambda step: _texts(_BATCH, distance, (seed + 1) * 1_000_003 + step),
        _loss,
        steps=steps,
        learning_rate=3e-3,
        seed=seed,
        until=lambda net: accuracy(net(held[0])[:, -1], held[1]) > 0.995,
        check_every=25,
    )
    with torch.no_grad():
        right = accuracy(net(held[0])[:, -1], held[1])
    return {"accuracy": right, "before": before, "after": _gradient_at_key(net, held)}


def _gradient_at_key(net: nn.Module, texts: tuple[Tensor, Tensor]) -> float:
    """Mean ‖∂loss/∂x₀‖ over texts, x₀ being the embedding of the key, in fp64: it may be smaller than fp32 can say."""
    ids_BT, key_B = texts[0][:32], texts[1][:32]
    net.double()
    if isinstance(net, DecoderOnly):
        taps = Taps(["embeddings"])
        logits_BV = net(ids_BT, taps=taps)[:, -1]
        x_BTM = taps.values["embeddings"]
    else:
        assert isinstance(net, Recurrent)
        x_BTM = net.embedding(ids_BT)
        logits_BV = net.read(x_BTM)[:, -1]
    # Summed: the gradient of each text's own loss, not of a mean.
    (grad_BTM,) = torch.autograd.grad(F.cross_entropy(logits_BV, key_B, reduction="sum"), x_BTM)
    net.float()
    return max(float(grad_BTM[:, 0].norm(dim=-1).mean()), 1e-300)


def judge(numbers: Numbers) -> Finding:
    """The Transformer finds the key and keeps the gradient; how many recurrent nets do not."""
    value = {name: number.value for name, number in numbers.items()}
    reaches = value["accuracy_transformer"] >= REACHES and value["gradient_kept_transformer"] >= KEPT
    forgotten = [
        value[f"accuracy_{name}"] <= FORGETS and value[f"gradient_kept_{name}"] <= VANISHED for name in ("tanh", "lstm")
    ]
    verdict = "does not hold here"
    if reaches and any(forgotten):
        verdict = "holds" if all(forgotten) else "holds with a correction"
    found = {name: (value[f"accuracy_{name}"], value[f"gradient_kept_{name}"]) for name in _NETS}
    return Finding(
        verdict,
        Words(
            f"After {value['distance']:.0f} tokens the key is found by "
            + "; ".join(
                f"the {'Transformer' if name == 'transformer' else _NETS[name].en} in {right:.0%} (its gradient at the "
                f"start is {kept:.1g} of that over the shortest distance)"
                for name, (right, kept) in found.items()
            )
            + ".",
            f"隔 {value['distance']:.0f} 个 token 后，找到键的比例："
            + "；".join(
                f"{_NETS[name].zh} {right:.0%}（训练开始时的梯度是最短距离时的 {kept:.1g}）"
                for name, (right, kept) in found.items()
            )
            + "。",
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """Accuracy and gradient against the distance."""
    zh = language == "zh"
    note = Words("Lines: medians over seeds; bands: least to largest.", "线：各种子的中位数；带：最小到最大。")
    start = [row for row in measurement.tables["gradient"] if row["when"] == "before"]
    return [
        LineChart(
            "隔 D 个 token 找到键" if zh else "Finding a key D tokens back",
            named(measurement.tables["accuracy"], "net", _NETS, language),
            x="distance",
            y="value",
            series="net",
            low="low",
            high="high",
            x_title="距离 D" if zh else "distance D",
            y_title="正确率" if zh else "accuracy",
            log_x=True,
            rules=[(1 / _KEYS, "瞎猜" if zh else "chance")],
            note=note.of(language),
        ),
        LineChart(
            "训练开始时损失对键的梯度" if zh else "Gradient at the key when training begins",
            named(start, "net", _NETS, language),
            x="distance",
            y="value",
            series="net",
            low="low",
            high="high",
            x_title="距离 D" if zh else "distance D",
            y_title="梯度的大小" if zh else "size of the gradient",
            log_x=True,
            log_y=True,
            note=note.of(language),
        ),
    ]


CLAIM = Claim(
    name="far",
    group="attention",
    claim=Words(
        "A recurrent net passes a message along and easily forgets; attention is a round table at which every word "
        "hears every other, however far away.",
        "循环网络像顺序传话，容易遗忘；注意力像圆桌会议，再远的词也直接听得到。",
    ),
    prediction=Words(
        f"At the longest distance the Transformer is right in at least {REACHES:.0%}, both recurrent nets in at most "
        f"{FORGETS:.0%}; the gradient at the key is at least {KEPT:g} of that at the shortest distance in the "
        f"Transformer, at most {VANISHED:g} in the recurrent nets.",
        f"在最远的距离上，Transformer 的正确率至少 {REACHES:.0%}，两种循环网络至多 {FORGETS:.0%}；键处的梯度与最短距离"
        f"时相比，Transformer 至少 {KEPT:g}，循环网络至多 {VANISHED:g}。",
    ),
    method=Words(
        f"One of {_KEYS} keys at place 0, D words of noise, then a word that asks for the key. Transformer (2 layers, "
        f"width {_WIDTH}, rotary), PyTorch's tanh net and LSTM with its own initial weights: equal parameters, "
        "batches, steps and learning rate. Gradients in fp64, before training.",
        f"位置 0 放 {_KEYS} 个键之一，随后 D 个干扰词，最后一个词要求说出这个键。Transformer（2 层，宽 {_WIDTH}，旋转位"
        "置）、PyTorch 的 tanh 网络与 LSTM（自带初始权重）：参数量、批次、步数、学习率都相同。梯度用 fp64，在训练之前"
        "测。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        "distance": Words("longest distance", "最远的距离"),
        **{f"accuracy_{net}": Words(f"accuracy there: {w.en}", f"在那里的正确率：{w.zh}") for net, w in _NETS.items()},
        **{
            f"gradient_kept_{net}": Words(f"gradient, longest over shortest: {w.en}", f"梯度，最远 ÷ 最近：{w.zh}")
            for net, w in _NETS.items()
        },
        "parameters_apart": Words("most parameters over fewest, less 1", "参数最多 ÷ 最少 − 1"),
    },
)
