"""Claim: attention finds what a pronoun stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.charts import BarChart, MatrixChart
from mingyue.claims.attention.figures import interval, matrix_rows
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.grammar import THINGS, Lexicon, Reference, references
from mingyue.claims.training import accuracy, fit, seeds, tiny
from mingyue.models import DecoderOnly
from mingyue.nn import Taps
from mingyue.nn.taps import Edit
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

ABOVE_UNIFORM = 3.0
"""Weight of the chosen head on its noun, in uniform weights, from which it is far above uniform."""
KNOWS, BROKEN = 0.9, 0.5
"""Accuracy of the whole model, and that below which the answer is broken."""
_LAYERS, _HEADS, _BATCH = 2, 4, 32
_CUTS = {
    "whole": Words("nothing cut", "不剪"),
    "other": Words("to the other noun", "剪到另一个名词"),
    "head": Words("to its noun, one head", "剪到它所指，一个头"),
    "all": Words("to its noun, all heads", "剪到它所指，所有头"),
}


def measure(trial: Trial) -> Measurement:
    """Train on half of all sentences; choose a head on a quarter of them, measure it on the last quarter."""
    known = list(dict.fromkeys(references(3000, 0)))  # every sentence of the grammar
    words = Lexicon(word for text in known for word in (*text.words, text.answer))
    steps = trial.pick(100, 250, 1500)
    found: dict[str, list[float]] = {}
    example: tuple[Tensor, Reference] | None = None
    for seed in seeds(trial, 1, 4, 20):
        train, choose, test = _split(known, seed)
        model = tiny(len(words), context=8, n_layers=_LAYERS, n_heads=_HEADS, seed=seed)
        ids_BT, answers_B = _batch(train, words)

        def batch(step: int, size: int = len(train), seed: int = seed) -> Tensor:
            return torch.randint(size, (_BATCH,), generator=torch.Generator().manual_seed(seed * 100_003 + step))

        def loss(model: DecoderOnly, rows_B: Tensor, ids: Tensor = ids_BT, answers: Tensor = answers_B) -> Tensor:
            return F.cross_entropy(model(ids[rows_B])[:, -1], answers[rows_B])

        fit(model, batch, loss, steps=steps, learning_rate=3e-3, seed=seed)
        chosen_LH = _weight_on_noun(model, choose, words)
        layer, head = divmod(int(chosen_LH.argmax()), _HEADS)
        values = _measure_head(model, test, words, (layer, head))
        for name, value in values.items():
            found.setdefault(name, []).append(value)
        if example is None:
            example = (_weights(model, test[:1], words)[layer, 0, head], test[0])
    assert example is not None
    numbers = {name: Number.mean(values) for name, values in found.items()}
    numbers["uniform"] = Number.exact(1 / len(known[0].words))
    numbers["sentences_tested"] = Number.exact(len(_split(known, 0)[2]))
    rows = [interval(numbers[f"accuracy_{cut}"], cut=cut) for cut in _CUTS]
    words_of_example = [{"word": word} for word in example[1].words]
    return Measurement(
        numbers, {"cuts": rows, "weights": matrix_rows(example[0].tolist()), "example": words_of_example}
    )


def _split(known: Sequence[Reference], seed: int) -> tuple[list[Reference], list[Reference], list[Reference]]:
    """(to train on, to choose the head on, to test on): a half and two quarters, no sentence in two of them."""
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed)).tolist()
    half, rest = len(known) // 2, len(known) * 3 // 4
    shuffled = [known[number] for number in order]
    return shuffled[:half], shuffled[half:rest], shuffled[rest:]


def _batch(texts: Sequence[Reference], words: Lexicon) -> tuple[Tensor, Tensor]:
    """(ids_BT up to the pronoun, answers_B)."""
    return words.tensor([text.words for text in texts]), torch.tensor([words[text.answer] for text in texts])


@torch.no_grad()
def _weights(model: DecoderOnly, texts: Sequence[Reference], words: Lexicon) -> Tensor:
    """weights_LBHTS of all layers."""
    taps = Taps(["blocks.*.attention.weights"])
    model(_batch(texts, words)[0], taps=taps)
    return torch.stack([taps.values[f"blocks.{layer}.attention.weights"] for layer in range(_LAYERS)])


def _weight_on_noun(model: DecoderOnly, texts: Sequence[Reference], words: Lexicon) -> Tensor:
    """Mean weight from the pronoun to its noun, [L, H]."""
    weights_LBHTS = _weights(model, texts, words)
    picked = [weights_LBHTS[:, row, :, text.pronoun, text.noun] for row, text in enumerate(texts)]
    return torch.stack(picked).mean(0)


def _measure_head(
    model: DecoderOnly, texts: Sequence[Reference], words: Lexicon, place: tuple[int, int]
) -> dict[str, float]:
    """Its weight, and the accuracy with edges from the pronoun cut: set to −∞ before softmax."""
    ids_BT, answers_B = _batch(texts, words)
    layer, head = place
    others = [next(place for place, word in enumerate(text.words) if word in THINGS) for text in texts]
    nouns = [text.noun for text in texts]
    pronoun = texts[0].pronoun

    def cut(targets: Sequence[int], heads: Sequence[int]) -> Edit:
        def edit(scores_BHTS: Tensor) -> Tensor:
            cut_BHTS = scores_BHTS.clone()
            for row, target in enumerate(targets):
                cut_BHTS[row, list(heads), pronoun, target] = float("-inf")
            return cut_BHTS

        return edit

    every = {f"blocks.{number}.attention.scores": range(_HEADS) for number in range(_LAYERS)}
    one = {f"blocks.{layer}.attention.scores": [head]}
    edits: dict[str, Mapping[str, Edit]] = {
        "whole": {},
        "other": {name: cut(others, heads) for name, heads in every.items()},
        "head": {name: cut(nouns, heads) for name, heads in one.items()},
        "all": {name: cut(nouns, heads) for name, heads in every.items()},
    }
    values: dict[str, float] = {"weight": float(_weight_on_noun(model, texts, words)[layer, head])}
    with torch.no_grad():
        for name, changed in edits.items():
            logits_BV = model(ids_BT, taps=Taps(edits=changed))[:, -1]
            values[f"accuracy_{name}"] = accuracy(logits_BV, answers_B)
    return values


def judge(numbers: Numbers) -> Finding:
    """The head's weight against uniform; the answer without the edge."""
    value = {name: number.value for name, number in numbers.items()}
    times = numbers["weight"].low / value["uniform"]
    points = times >= ABOVE_UNIFORM and value["accuracy_whole"] >= KNOWS and value["accuracy_other"] >= KNOWS
    verdict = "does not hold here"
    if points and value["accuracy_head"] <= BROKEN:
        verdict = "holds"
    elif points and value["accuracy_all"] <= BROKEN:
        verdict = "holds with a correction"
    return Finding(
        verdict,
        Words(
            f"On sentences that it was not chosen on, the head gives {value['weight']:.2f} of its weight to the noun "
            f"({times:.1f} times uniform at least). The answer is right in {value['accuracy_whole']:.0%}; with that "
            f"edge cut in this head in {value['accuracy_head']:.0%}, in all heads in {value['accuracy_all']:.0%}; with "
            f"the edges to the other noun cut in {value['accuracy_other']:.0%}.",
            f"在没有用来挑选的句子上，这个头把 {value['weight']:.2f} 的权重给了它所指的名词（至少是均匀的 {times:.1f} "
            f"倍）。回答正确率 {value['accuracy_whole']:.0%}；只剪这个头的这条边，{value['accuracy_head']:.0%}；所有头"
            f"都剪，{value['accuracy_all']:.0%}；改剪到另一个名词的边，{value['accuracy_other']:.0%}。",
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """The chosen head on one sentence; accuracy by what is cut."""
    zh = language == "zh"
    labels = [row["word"] for row in measurement.tables["example"]]
    cuts: list[dict[str, Any]] = [{**row, "cut": _CUTS[row["cut"]].of(language)} for row in measurement.tables["cuts"]]
    return [
        MatrixChart(
            "选出的头在一个新句子上的权重" if zh else "Weights of the chosen head on a new sentence",
            np.array([row["values"] for row in measurement.tables["weights"]]),
            row_labels=labels,
            column_labels=labels,
            row_title="谁在看" if zh else "who looks",
            column_title="看谁" if zh else "at whom",
            low=0.0,
            high=1.0,
            language=language,
        ),
        BarChart(
            "剪掉“它”的一条边之后" if zh else "With an edge from 它 cut",
            cuts,
            x="cut",
            y="value",
            low="low",
            high="high",
            y_title="正确率" if zh else "accuracy",
            note="误差线：各种子的 95% 区间。" if zh else "Error bars: 95 % intervals over seeds.",
            rules=[(1 / 6, "瞎猜" if zh else "chance")],
        ),
    ]


CLAIM = Claim(
    name="reference",
    group="attention",
    claim=Words(
        "In 猫喜欢吃鱼，它很聪明 (the cat likes to eat fish, it is clever) the query of 它 (it) finds its noun: most "
        "of the weight goes to the cat, and with it the cat's meaning.",
        "在“猫喜欢吃鱼，它很聪明”里，“它”的查询会找到所指的名词：权重大多给了“猫”，也就带来了“猫”的信息。",
    ),
    prediction=Words(
        f"The head that looks most at the noun on one half of new sentences gives it at least {ABOVE_UNIFORM:g} times "
        f"the uniform weight on the other half (low end of the interval). The answer is right in {KNOWS:.0%} or more, "
        f"and in {BROKEN:.0%} or fewer when that edge is cut; cutting the edges to the other noun leaves it right.",
        f"在一半新句子上最看重该名词的头，在另一半上给它的权重至少是均匀的 {ABOVE_UNIFORM:g} 倍（取区间下端）。正确率至"
        f"少 {KNOWS:.0%}；剪掉这条边后至多 {BROKEN:.0%}；剪到另一个名词的边则不影响。",
    ),
    method=Words(
        f"A causal model ({_LAYERS} layers of {_HEADS} heads) learns to continue sentences with an animal and a thing, "
        "in three orders, after 它 with the animal's own trait. Half of all sentences are for training, a quarter "
        "chooses the head, a quarter tests it. An edge is cut by −∞ in place of its score.",
        f"因果模型（{_LAYERS} 层，每层 {_HEADS} 头）学习续写：句中有一个动物和一样东西，三种语序，“它”之后要说出这个动"
        "物的特点。一半句子训练，四分之一挑选头，四分之一测试。剪边：把这条边的分数换成 −∞。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        "weight": Words("weight of the chosen head from 它 to its noun", "选出的头从“它”到所指名词的权重"),
        "uniform": Words("uniform weight", "均匀的权重"),
        "sentences_tested": Words("sentences of the test, for each seed", "每个种子的测试句数"),
        **{f"accuracy_{cut}": Words(f"accuracy, cut: {w.en}", f"正确率，{w.zh}") for cut, w in _CUTS.items()},
    },
    correction=Words(
        "The work may be shared: other heads, and tokens between, carry the noun too. Then one head's weight tells "
        "where the model looks, but only cutting the edge in every head shows that the answer hangs on it.",
        "这件事可能由几个头分担，中间的词也会转述。此时一个头的权重只说明模型在看哪里；把所有头的这条边都剪掉，才看得"
        "出回答靠的就是它。",
    ),
)
