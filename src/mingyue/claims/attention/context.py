"""Claim: a word has one embedding, and another vector in each context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from mingyue.claims.attention.figures import interval, named, worst
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.grammar import Lexicon, Sentence, banks, strikes
from mingyue.claims.training import fit, seeds, tiny
from mingyue.inspection import Language, Words
from mingyue.inspection.charts import line_chart
from mingyue.models import DecoderOnly, EncoderDecoder
from mingyue.nn import Taps

if TYPE_CHECKING:
    from mingyue.inspection.charts import Chart

GAP = 0.1
"""How much more alike two vectors of the word are in one sense than in two, at least: a difference of cosines."""
SAME = 1e-6
"""Largest difference of vectors that should not differ."""
_LAYERS, _WIDTH, _BATCH, _MASKED = 2, 32, 32, 0.3
_PAD, _MASK = "□", "■"
_PAIRS = {
    "same": Words("same sense", "同一个意思"),
    "other": Words("other sense", "不同的意思"),
    "random": Words("random pairs of words", "随机的两个词"),
}


@dataclass(frozen=True)
class _Corpus:
    """Sentences in ids, filled up to one length, with the sense of the word that they have in common."""

    words: Lexicon
    ids_BT: Tensor
    lengths_B: Tensor
    senses: Sequence[str]
    place: int
    """Where the word stands, in all of them."""


def measure(trial: Trial) -> Measurement:
    """Encoders of 打 and of bank, trained and not; a causal model of 打."""
    steps = trial.pick(30, 200, 1000)
    corpora = {"strike": _corpus(strikes(600, 0), "打"), "bank": _corpus(banks(600, 0), "bank")}
    cosines: dict[tuple[str, str, str, int], list[float]] = {}
    found: dict[str, list[float]] = {}
    for seed in seeds(trial, 1, 3, 10):
        for name, corpus in corpora.items():
            encoder = tiny(
                len(corpus.words),
                context=corpus.ids_BT.shape[1],
                d_model=_WIDTH,
                n_layers=1,
                n_encoder_layers=_LAYERS,
                architecture="encoder-decoder",
                initialisation="xavier",
                seed=seed,
            )
            for state in ("untrained", "trained"):
                if state == "trained":
                    _train_encoder(encoder, corpus, steps, seed)
                layers = _encoded(encoder, corpus)
                apart = float((layers[0][:, corpus.place] - layers[0][0, corpus.place]).abs().max())
                found.setdefault(f"{name}_embedding_apart", []).append(apart)
                for layer, x_BTM in enumerate(layers):
                    for pairs, value in _alike(x_BTM, corpus, seed).items():
                        cosines.setdefault((name, state, pairs, layer), []).append(value)
        for name, value in _causal(corpora["strike"], steps, seed).items():
            found.setdefault(name, []).append(value)
    numbers = {name: worst(values) for name, values in found.items() if name.endswith("_apart")}
    numbers |= {name: Number.mean(values) for name, values in found.items() if name not in numbers}
    for name in corpora:
        for pairs in _PAIRS:
            numbers[f"{name}_{pairs}"] = Number.mean(cosines[name, "trained", pairs, _LAYERS])
        numbers[f"{name}_untrained_other"] = Number.mean(cosines[name, "untrained", "other", _LAYERS])
    rows = [
        interval(Number.mean(values), word=name, state=state, pairs=pairs, layer=layer)
        for (name, state, pairs, layer), values in cosines.items()
    ]
    return Measurement(numbers, {"cosines": rows})


def _corpus(sentences: Sequence[tuple[Sentence, str]], word: str) -> _Corpus:
    """Each sentence once."""
    known = dict(sentences)
    longest = max(map(len, known))
    words = Lexicon([_PAD, _MASK, *(word for sentence in known for word in sentence)])
    filled = [(*sentence, *[_PAD] * (longest - len(sentence))) for sentence in known]
    lengths_B = torch.tensor([len(sentence) for sentence in known])
    return _Corpus(words, words.tensor(filled), lengths_B, list(known.values()), next(iter(known)).index(word))


def _train_encoder(model: EncoderDecoder, corpus: _Corpus, steps: int, seed: int) -> None:
    """Words behind marks are guessed from the words around them (Devlin et al. 2019), by the output layer."""

    def batch(step: int) -> tuple[Tensor, Tensor, Tensor]:
        draw = torch.Generator().manual_seed(seed * 100_003 + step)
        rows_B = torch.randint(len(corpus.ids_BT), (_BATCH,), generator=draw)
        ids_BT, lengths_B = corpus.ids_BT[rows_B], corpus.lengths_B[rows_B]
        real_BT = torch.arange(ids_BT.shape[1]) < lengths_B[:, None]
        hidden_BT = (torch.rand(ids_BT.shape, generator=draw) < _MASKED) & real_BT
        return ids_BT.masked_fill(hidden_BT, corpus.words[_MASK]), lengths_B, ids_BT.masked_fill(~hidden_BT, -100)

    def loss(model: EncoderDecoder, texts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        ids_BT, lengths_B, targets_BT = texts
        logits_BTV = model.output(model.encode(ids_BT, source_lengths_B=lengths_B))
        return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())

    fit(model, batch, loss, steps=steps, learning_rate=1e-2, seed=seed)


@torch.no_grad()
def _encoded(model: EncoderDecoder, corpus: _Corpus) -> list[Tensor]:
    """x_BTM: embeddings, then after each block of the encoder."""
    taps = Taps(["encoder.embeddings", "encoder.blocks.*.output"])
    model.encode(corpus.ids_BT, source_lengths_B=corpus.lengths_B, taps=taps)
    return _layers(taps, "encoder.")


def _layers(taps: Taps, prefix: str = "") -> list[Tensor]:
    blocks = [taps.values[f"{prefix}blocks.{layer}.output"] for layer in range(_LAYERS)]
    return [taps.values[f"{prefix}embeddings"], *blocks]


def _alike(x_BTM: Tensor, corpus: _Corpus, seed: int) -> dict[str, float]:
    """Mean cosine of the word's vectors in one sense, in two, and of pairs of words drawn at random."""
    draw = torch.Generator().manual_seed(seed)
    real = (torch.arange(x_BTM.shape[1]) < corpus.lengths_B[:, None]).nonzero()
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


def _causal(corpus: _Corpus, steps: int, seed: int) -> dict[str, float]:
    """A causal model of the same sentences, with and without the words before 打, read at 打 and at the last word."""
    # What begins with 打 is learned too: 打篮球，… for 他去打篮球，…
    short_BT = torch.cat(
        [corpus.ids_BT[:, corpus.place :], corpus.ids_BT.new_zeros(len(corpus.ids_BT), corpus.place)], 1
    )
    texts_NT = torch.cat([corpus.ids_BT, short_BT])
    pad = corpus.words[_PAD]

    def batch(step: int) -> Tensor:
        draw = torch.Generator().manual_seed(seed * 100_003 + step)
        return texts_NT[torch.randint(len(texts_NT), (_BATCH,), generator=draw)]

    def loss(model: DecoderOnly, ids_BT: Tensor) -> Tensor:
        targets_BT = ids_BT[:, 1:].masked_fill(ids_BT[:, 1:] == pad, -100)
        return F.cross_entropy(model(ids_BT[:, :-1]).flatten(0, 1), targets_BT.flatten())

    model = tiny(
        len(corpus.words),
        context=texts_NT.shape[1],
        d_model=_WIDTH,
        n_layers=_LAYERS,
        initialisation="xavier",
        seed=seed,
    )
    fit(model, batch, loss, steps=steps, learning_rate=1e-2, seed=seed)

    def read(ids_BT: Tensor) -> list[Tensor]:
        taps = Taps(["embeddings", "blocks.*.output"])
        with torch.no_grad():
            model(ids_BT, taps=taps)
        return _layers(taps)

    first = max(float((x_BTM[:, 0] - x_BTM[0, 0]).abs().max()) for x_BTM in read(short_BT))
    layers = read(corpus.ids_BT)
    after = layers[-1][:, corpus.place]
    before: dict[tuple[int, ...], list[int]] = {}
    for row, ids in enumerate(corpus.ids_BT[:, : corpus.place].tolist()):
        before.setdefault(tuple(ids), []).append(row)
    within = max(float((after[rows] - after[rows[0]]).abs().max()) for rows in before.values())
    firsts = [rows[0] for rows in before.values()]
    between = _cosines(after[firsts], after[firsts])[~torch.eye(len(firsts), dtype=torch.bool)]
    last_BM = layers[-1][torch.arange(len(corpus.ids_BT)), corpus.lengths_B - 1]
    ends = _by_sense(last_BM, corpus.senses)
    return {
        "causal_first_apart": first,
        "causal_same_words_before_apart": within,
        "causal_other_words_before": float(between.mean()),
        "causal_last_same": ends["same"],
        "causal_last_other": ends["other"],
    }


def judge(numbers: Numbers) -> Finding:
    """One embedding; vectors that follow the sense; and 打 at the beginning of a causal model's text."""
    value = {name: number.value for name, number in numbers.items()}
    one = value["strike_embedding_apart"] == 0 and value["bank_embedding_apart"] == 0
    gaps = {name: value[f"{name}_same"] - value[f"{name}_other"] for name in ("strike", "bank")}
    blind = value["causal_first_apart"] <= SAME and value["causal_same_words_before_apart"] <= SAME
    verdict = "does not hold here"
    if one and min(gaps.values()) >= GAP:
        verdict = "holds with a correction" if blind else "holds"
    return Finding(
        verdict,
        Words(
            "In an encoder the embedding of 打 is the same everywhere; after the last layer its vectors have cosine "
            f"{value['strike_same']:.2f} in one sense, {value['strike_other']:.2f} in two (random words "
            f"{value['strike_random']:.2f}); `bank`: {value['bank_same']:.2f} and {value['bank_other']:.2f}. In a "
            f"causal model 打 as the first character differs by {value['causal_first_apart']:.1g}, whatever follows; "
            f"with other words before it the cosine is {value['causal_other_words_before']:.2f}, and the last "
            f"character has {value['causal_last_same']:.2f} in one sense, {value['causal_last_other']:.2f} in two.",
            f"编码器里，“打”的嵌入处处相同；最后一层之后，同义时余弦 {value['strike_same']:.2f}，异义时 "
            f"{value['strike_other']:.2f}（随机词 {value['strike_random']:.2f}）；bank 是 {value['bank_same']:.2f} 与 "
            f"{value['bank_other']:.2f}。因果模型里，“打”作首字，无论后面是什么都只差 "
            f"{value['causal_first_apart']:.1g}；前面的字不同，余弦为 {value['causal_other_words_before']:.2f}；末字同"
            f"义时 {value['causal_last_same']:.2f}，异义时 {value['causal_last_other']:.2f}。",
        ),
    )


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """Cosines layer by layer in the trained encoders."""
    zh = language == "zh"
    titles = {
        "strike": "编码器里的“打”：篮球、酱油、车" if zh else "打 in an encoder: with 篮球, 酱油, 车",
        "bank": "编码器里的 bank：钱与河" if zh else "`bank` in an encoder: by money, by a river",
    }
    return [
        line_chart(
            title,
            named(
                [row for row in measurement.tables["cosines"] if (row["word"], row["state"]) == (word, "trained")],
                "pairs",
                _PAIRS,
                language,
            ),
            x="layer",
            y="value",
            series="pairs",
            low="low",
            high="high",
            x_title="经过的层数（0 = 嵌入）" if zh else "layers passed (0 = embedding)",
            y_title="平均余弦" if zh else "mean cosine",
            note="带：各种子的 95% 区间。" if zh else "Bands: 95 % intervals over seeds.",
        )
        for word, title in titles.items()
    ]


CLAIM = Claim(
    name="context",
    group="attention",
    claim=Words(
        "The embedding of 打 is the same in 打篮球, 打酱油 and 打车; after attention its vector holds the context, "
        "and so differs. `bank` by money and `bank` by a river come apart likewise.",
        "“打”在打篮球、打酱油、打车里的嵌入完全相同；经过注意力之后，它的向量带上了语境，于是各不相同。银行的 bank 与"
        "河岸的 bank 也同样分开。",
    ),
    prediction=Words(
        "In a trained encoder: embeddings of the word exactly equal, and after the last layer the mean cosine within "
        f"one sense at least {GAP:g} above that between senses. In a causal model 打 as the first character, or after "
        f"the same words, differs by at most {SAME:g} whatever follows.",
        f"训练好的编码器里：这个词的嵌入完全相等；最后一层之后，同义的平均余弦比异义的至少高 {GAP:g}。因果模型里：“打”"
        f"作首字，或前面的字相同时，无论后面是什么，差别不超过 {SAME:g}。",
    ),
    method=Words(
        f"Two small grammars, in which the word always stands at the same place. Encoders of {_LAYERS} layers learn to "
        f"guess words behind marks ({_MASKED:.0%} of them); no one tells them of senses. Causal models learn the next "
        "character of the same sentences, with and without the words before 打.",
        f"两种小语法，这个词总在同一个位置。{_LAYERS} 层的编码器学习猜出被遮住的词（占 {_MASKED:.0%}），没有人告诉它词"
        "义。因果模型在同样的句子上学习下一个字，“打”之前的字有时带、有时不带。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        **{
            f"{name}_{pairs}": Words(f"cosine of {word}, {words.en}", f"{word} 的余弦，{words.zh}")
            for name, word in (("strike", "打"), ("bank", "bank"))
            for pairs, words in _PAIRS.items()
        },
        "strike_untrained_other": Words("cosine of 打, other sense, before training", "打 的余弦，不同的意思，训练前"),
        "bank_untrained_other": Words(
            "cosine of bank, other sense, before training", "bank 的余弦，不同的意思，训练前"
        ),
        "strike_embedding_apart": Words("largest difference of embeddings of 打", "打 的嵌入的最大差"),
        "bank_embedding_apart": Words("largest difference of embeddings of bank", "bank 的嵌入的最大差"),
        "causal_first_apart": Words("causal, 打 first: largest difference", "因果模型，打 作首字：最大差"),
        "causal_same_words_before_apart": Words(
            "causal, same words before 打: largest difference", "因果模型，打 前面的字相同：最大差"
        ),
        "causal_other_words_before": Words("causal, other words before 打: cosine", "因果模型，打 前面的字不同：余弦"),
        "causal_last_same": Words("causal, last character, same sense: cosine", "因果模型，末字，同一个意思：余弦"),
        "causal_last_other": Words("causal, last character, other sense: cosine", "因果模型，末字，不同的意思：余弦"),
    },
    correction=Words(
        "In a causal model, such as a Mini-GPT, 打 as the first character sees only itself: its vector is the same in "
        "all three. The context shows in an encoder, after other words, and at the characters that follow.",
        "在 Mini-GPT 这样的因果模型里，“打”作首字只看得到自己，三处的向量完全相同。语境要在编码器里、在前面有别的字"
        "时，或在后面的字上才看得出来。",
    ),
)
