"""Claim: a word has one embedding, and another vector in each context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.charts import LineChart
from mingyue.claims.attention.figures import interval, named, worst
from mingyue.claims.attention.senses import (
    LAYERS,
    MASKED,
    Corpus,
    Task,
    beginning_with_word,
    causal_model,
    corpus_of,
    new_encoder,
    train_encoder,
)
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.grammar import banks, strikes
from mingyue.claims.training import seeds
from mingyue.models import DecoderOnly, EncoderDecoder
from mingyue.nn import Taps
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

GAP = 0.1
"""How much more alike two vectors of the word are in one sense than in two, at least: a difference of cosines."""
SAME = 1e-6
"""Largest difference of vectors that should not differ."""
_WORDS = {"strike": "打", "bank": "bank"}
_TASKS: tuple[Task, ...] = ("translate", "guess")
_LINES = {
    "same": Words("same sense", "同一个意思"),
    "other": Words("other sense", "不同的意思"),
    "other_guess": Words("other sense, trained to guess", "不同的意思（学的是猜词）"),
    "random": Words("random pairs of words", "随机的两个词"),
}


def measure(trial: Trial) -> Measurement:
    """Encoders of 打 and of bank, untrained and trained for each task; causal models of both."""
    steps = trial.pick(25, 200, 1000)
    corpora = {
        "strike": corpus_of(strikes(600, 0), _WORDS["strike"]),
        "bank": corpus_of(banks(600, 0), _WORDS["bank"]),
    }
    cosines: dict[tuple[str, str, str, int], list[float]] = {}
    found: dict[str, list[float]] = {}
    for seed in seeds(trial, 1, 3, 10):
        for name, corpus in corpora.items():
            encoders = {"untrained": new_encoder(corpus, seed)}
            for task in _TASKS:
                encoders[task] = new_encoder(corpus, seed)
                train_encoder(encoders[task], corpus, task, steps, seed)
            for state, encoder in encoders.items():
                layers = _encoded(encoder, corpus)
                found.setdefault(f"{name}_embedding_apart", []).append(_apart(layers[0][:, corpus.place]))
                for layer, x_BTM in enumerate(layers):
                    for pairs, value in _alike(x_BTM, corpus, seed).items():
                        cosines.setdefault((name, state, pairs, layer), []).append(value)
            for what, value in _causal(causal_model(corpus, steps, seed), corpus).items():
                found.setdefault(f"causal_{name}_{what}", []).append(value)
    numbers = {name: worst(values) for name, values in found.items() if name.endswith("_apart")}
    numbers |= {name: Number.median(values) for name, values in found.items() if name not in numbers}
    for (name, state, pairs, layer), values in cosines.items():
        if layer == LAYERS and (state == "translate" or pairs != "random"):
            prefix = name if state == "translate" else f"{name}_{state}"
            numbers[f"{prefix}_{pairs}"] = Number.median(values)
    rows = [
        interval(Number.median(values), word=name, state=state, pairs=pairs, layer=layer)
        for (name, state, pairs, layer), values in cosines.items()
    ]
    return Measurement(numbers, {"cosines": rows})


@torch.no_grad()
def _encoded(model: EncoderDecoder, corpus: Corpus) -> list[Tensor]:
    """x_BTM: embeddings, then after each block of the encoder."""
    taps = Taps(["encoder.embeddings", "encoder.blocks.*.output"])
    model.encode(corpus.ids_BT, source_lengths_B=corpus.lengths_B, taps=taps)
    return _layers(taps, "encoder.")


def _layers(taps: Taps, prefix: str = "") -> list[Tensor]:
    blocks = [taps.values[f"{prefix}blocks.{layer}.output"] for layer in range(LAYERS)]
    return [taps.values[f"{prefix}embeddings"], *blocks]


def _alike(x_BTM: Tensor, corpus: Corpus, seed: int) -> dict[str, float]:
    """Mean cosine of the word's vectors in one sense, in two, and of pairs of words drawn at random."""
    draw = torch.Generator().manual_seed(seed)
    real = corpus.real_BT.nonzero()
    one, two = (real[torch.randint(len(real), (500,), generator=draw)].T for _ in range(2))
    apart = corpus.ids_BT[one[0], one[1]] != corpus.ids_BT[two[0], two[1]]
    random = F.cosine_similarity(x_BTM[one[0], one[1]], x_BTM[two[0], two[1]], dim=-1)[apart]
    return {**_by_sense(x_BTM[:, corpus.place], corpus.senses), "random": float(random.mean())}


def _by_sense(x_BM: Tensor, senses: Sequence[str]) -> dict[str, float]:
    """Mean cosine of vectors of one sense, and of two."""
    cosine_BB = _cosines(x_BM, x_BM)
    alike_BB = torch.tensor([[one == two for two in senses] for one in senses])
    pairs_BB = torch.ones_like(alike_BB).triu(1)
    return {
        "same": float(cosine_BB[alike_BB & pairs_BB].mean()),
        "other": float(cosine_BB[~alike_BB & pairs_BB].mean()),
    }


def _cosines(one_NM: Tensor, two_NM: Tensor) -> Tensor:
    return F.normalize(one_NM, dim=-1) @ F.normalize(two_NM, dim=-1).T


def _apart(x_BM: Tensor) -> float:
    return float((x_BM - x_BM[0]).abs().max())


@torch.no_grad()
def _causal(model: DecoderOnly, corpus: Corpus) -> dict[str, float]:
    """The word at the beginning, after the same words and after any; and the last word of the sentence."""

    def read(ids_BT: Tensor) -> list[Tensor]:
        taps = Taps(["embeddings", "blocks.*.output"])
        model(ids_BT, taps=taps)
        return _layers(taps)

    last_layer_BTM = read(corpus.ids_BT)[-1]
    word_BM = last_layer_BTM[:, corpus.place]
    alike: dict[tuple[int, ...], list[int]] = {}
    for row, before in enumerate(corpus.ids_BT[:, : corpus.place].tolist()):
        alike.setdefault(tuple(before), []).append(row)
    at_word = _by_sense(word_BM, corpus.senses)
    at_end = _by_sense(last_layer_BTM[torch.arange(len(word_BM)), corpus.lengths_B - 1], corpus.senses)
    return {
        "first_apart": max(_apart(x_BTM[:, 0]) for x_BTM in read(beginning_with_word(corpus))),
        "same_before_apart": max(_apart(word_BM[rows]) for rows in alike.values()),
        **at_word,
        **{f"last_{pairs}": value for pairs, value in at_end.items()},
    }


def judge(numbers: Numbers) -> Finding:
    """One embedding; vectors that follow the sense; and the word at the beginning of a causal model's text."""
    value = {name: number.value for name, number in numbers.items()}
    one = value["strike_embedding_apart"] == 0 and value["bank_embedding_apart"] == 0
    gaps = [value[f"{name}_same"] - value[f"{name}_other"] for name in _WORDS]
    blind = max(value[f"causal_{name}_{what}"] for name in _WORDS for what in ("first_apart", "same_before_apart"))
    verdict = "does not hold here"
    if one and min(gaps) >= GAP:
        verdict = "holds with a correction" if blind <= SAME else "holds"

    def two(prefix: str) -> str:
        return f"{value[f'{prefix}_same']:.2f} / {value[f'{prefix}_other']:.2f}"

    return Finding(
        verdict,
        Words(
            f"Cosines in one sense / in two. In an encoder that translates, after the last layer: 打 {two('strike')}, "
            f"bank {two('bank')}; in one that guesses hidden words: {two('strike_guess')} and {two('bank_guess')}; the "
            "embeddings are equal. In a causal model the word at the beginning, or after the same words, differs by "
            f"{blind:.1g} whatever follows; bank after words that tell has {two('causal_bank')}, 打 after words that "
            f"do not {two('causal_strike')}, and the last character of its sentence {two('causal_strike_last')}.",
            f"余弦，同义 / 异义。学翻译的编码器，最后一层之后：打 {two('strike')}，bank {two('bank')}；学猜词的编码器："
            f"{two('strike_guess')} 与 {two('bank_guess')}；嵌入完全相等。因果模型里，这个词在开头，或前面的词相同时，"
            f"无论后面是什么只差 {blind:.1g}；前面的词能说明意思的 bank 是 {two('causal_bank')}，前面的字说明不了的“打”"
            f"是 {two('causal_strike')}，而句末的字是 {two('causal_strike_last')}。",
        ),
    )


def _drawn(measurement: Measurement, word: str) -> list[dict[str, Any]]:
    """The lines of a word's figure."""
    rows = [row for row in measurement.tables["cosines"] if row["word"] == word]
    lines = [{**row, "line": row["pairs"]} for row in rows if row["state"] == "translate"]
    guess = [row for row in rows if row["state"] == "guess" and row["pairs"] == "other"]
    return [*lines, *({**row, "line": "other_guess"} for row in guess)]


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """Cosines layer by layer in the trained encoders."""
    zh = language == "zh"
    note = Words("Lines: medians over seeds; bands: least to largest.", "线：各种子的中位数；带：最小到最大。")
    titles = {
        "strike": "编码器里的“打”：篮球、酱油、车" if zh else "打 in an encoder: with 篮球, 酱油, 车",
        "bank": "编码器里的 bank：钱与河" if zh else "bank in an encoder: by money, by a river",
    }
    return [
        LineChart(
            title,
            named(_drawn(measurement, word), "line", _LINES, language),
            x="layer",
            y="value",
            series="line",
            low="low",
            high="high",
            x_title="经过的层数（0 = 嵌入）" if zh else "layers passed (0 = embedding)",
            y_title="平均余弦" if zh else "mean cosine",
            note=note.of(language),
        )
        for word, title in titles.items()
    ]


def _labels() -> dict[str, Words]:
    senses = {"same": Words("same sense", "同义"), "other": Words("other sense", "异义")}
    states = {
        "": Words("translating", "学翻译"),
        "_guess": Words("guessing", "学猜词"),
        "_untrained": Words("untrained", "未训练"),
    }
    labels: dict[str, Words] = {}
    for name, word in _WORDS.items():
        for state, told in states.items():
            for pairs, sense in senses.items():
                labels[f"{name}{state}_{pairs}"] = Words(
                    f"cosine of {word}, encoder {told.en}, {sense.en}",
                    f"{word} 的余弦，编码器（{told.zh}），{sense.zh}",
                )
        labels[f"{name}_random"] = Words(f"cosine of random words beside {word}", f"{word} 一侧随机两词的余弦")
        labels[f"{name}_embedding_apart"] = Words(
            f"largest difference of embeddings of {word}", f"{word} 的嵌入的最大差"
        )
        labels[f"causal_{name}_first_apart"] = Words(
            f"causal, {word} at the beginning: largest difference", f"因果模型，{word} 在开头：最大差"
        )
        labels[f"causal_{name}_same_before_apart"] = Words(
            f"causal, the same words before {word}: largest difference", f"因果模型，{word} 前面的词相同：最大差"
        )
        for pairs, sense in senses.items():
            labels[f"causal_{name}_{pairs}"] = Words(
                f"cosine of {word}, causal, {sense.en}", f"{word} 的余弦，因果模型，{sense.zh}"
            )
            labels[f"causal_{name}_last_{pairs}"] = Words(
                f"cosine of the last token, causal, {word}, {sense.en}",
                f"句末 token 的余弦，因果模型，{word}，{sense.zh}",
            )
    return labels


CLAIM = Claim(
    name="context",
    group="attention",
    claim=Words(
        "The embedding of 打 is the same in 打篮球, 打酱油 and 打车; after attention its vector holds the context, "
        "and so differs. The bank of money and the bank of a river come apart likewise.",
        "“打”在打篮球、打酱油、打车里的嵌入完全相同；经过注意力之后，它的向量带上了语境，于是各不相同。银行的 bank 与"
        "河岸的 bank 也同样分开。",
    ),
    prediction=Words(
        "In an encoder that translates: embeddings of the word exactly equal, and after the last layer the mean "
        f"cosine within one sense at least {GAP:g} above that between senses. In a causal model the word at the "
        f"beginning, or after the same words, differs by at most {SAME:g} whatever follows.",
        f"学翻译的编码器里：这个词的嵌入完全相等；最后一层之后，同义的平均余弦比异义的至少高 {GAP:g}。因果模型里：这个"
        f"词在开头，或前面的词相同时，无论后面是什么，差别不超过 {SAME:g}。",
    ),
    method=Words(
        f"Two small grammars, in which the word always stands at the same place. Encoders of {LAYERS} layers learn to "
        "name every word of a sentence, 打 and bank by a translation that depends on the sense; others only to guess "
        f"words behind marks ({MASKED:.0%} of them), and no one tells them of senses. Causal models learn the next "
        "word of the same sentences, with and without what stands before the word.",
        f"两种小语法，这个词总在同一个位置。{LAYERS} 层的编码器学习说出句中每个词，打与 bank 要说出随意思而定的译名；另"
        f"一些只学猜出被遮住的词（占 {MASKED:.0%}），没有人告诉它词义。因果模型在同样的句子上学习下一个词，这个词之前的"
        "部分有时带、有时不带。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels=_labels(),
    correction=Words(
        "In a causal model, such as a Mini-GPT, 打 as the first character sees only itself: its vector is the same in "
        "all three. The context shows in an encoder, after words that tell, and at the characters that follow. And "
        "how far the senses part depends on what is learned: guessing hidden words parts them far less than "
        "translating.",
        "在 Mini-GPT 这样的因果模型里，“打”作首字只看得到自己，三处的向量完全相同。语境要在编码器里、在前面的词能说明"
        "意思时，或在后面的字上才看得出来。各个意思分得多开，也取决于学的是什么：只学猜词时，远不如学翻译时分得开。",
    ),
)
