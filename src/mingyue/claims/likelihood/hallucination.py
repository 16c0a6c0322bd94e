"""Claim: a model says what was frequent in its text, true or false, and answers about what it has never read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mingyue.charts import BarChart, LineChart
from mingyue.claims.claim import Claim, Finding, Measurement, Number, Numbers, Trial
from mingyue.claims.grammar import Lexicon, generator
from mingyue.claims.training import fit, next_token_loss, seeds, tiny
from mingyue.words import Language, Words

if TYPE_CHECKING:
    from mingyue.charts import Chart

CLOSE = 0.05
"""Most that the probability of the false sentence may be away from its share of the lines."""
ANSWERS = 0.9
"""Least probability that a subject never read of gets some place all the same."""
SURE = 2.0
"""Its likeliest place is called confident from this many times an even guess on."""
_SHARES = tuple(tenth / 10 for tenth in range(1, 10))
_LINES = 20
"""Lines about each subject; of them `share` × 20 are false."""
_PEOPLE = ("甲", "乙", "丙", "丁", "戊", "己", "庚", "辛", "壬")
_STRANGER = "癸"
"""No line is about this one."""
_TRUE = ("东城", "西城", "南城", "北城", "中城", "山城", "江城", "海城", "石城")
_FALSE = ("东村", "西村", "南村", "北村", "中村", "山村", "江村", "海村", "石村")
_PLACES = _TRUE + _FALSE


def measure(trial: Trial) -> Measurement:
    """Probability of the false place for each subject, and what is said about a subject never read of."""
    layers, steps = trial.pick((1, 170), (2, 250), (2, 400))
    chosen = seeds(trial, 1, 8, 20)
    words = Lexicon((*_PEOPLE, _STRANGER, "住", "在", *_PLACES, "。"))
    places = torch.tensor(words.ids(_PLACES))
    told: dict[float, list[float]] = {share: [] for share in _SHARES}
    followed, answered, likeliest = list[float](), list[float](), list[float]()
    spread = list[float]()
    strangers = list[Tensor]()
    for seed in chosen:
        shares = dict(zip(generator(seed, "shares").sample(_PEOPLE, len(_PEOPLE)), _SHARES, strict=True))
        lines_BT = words.tensor(_lines(shares))
        model = tiny(len(words), context=8, n_layers=layers, seed=seed, tied_output=False)
        fit(model, lambda _, ids_BT=lines_BT: ids_BT, next_token_loss, steps=steps, learning_rate=1e-2, seed=seed)
        with torch.no_grad():
            asked_BT = words.tensor([(person, "住", "在") for person in (*_PEOPLE, _STRANGER)])
            chances_BV = model(asked_BT)[:, -1].softmax(-1)
        for place, share in enumerate(shares[person] for person in _PEOPLE):
            false = float(chances_BV[place, words[_FALSE[place]]])
            true = float(chances_BV[place, words[_TRUE[place]]])
            told[share].append(false)
            if share != 0.5:
                followed.append(float((false > true) == (share > 0.5)))
        stranger_P = chances_BV[-1, places]
        strangers.append(stranger_P)
        answered.append(float(stranger_P.sum()))
        likeliest.append(float(stranger_P.max()))
        own_P = stranger_P / stranger_P.sum()
        spread.append(float((-(own_P * own_P.clamp(min=1e-30).log()).sum()).exp()))
    by_share = {share: Number.mean(values) for share, values in told.items()}
    rows: list[dict[str, Any]] = [
        {"share": share, "value": number.value, "low": number.low, "high": number.high}
        for share, number in by_share.items()
    ]
    bars = [
        {"place": place, "value": float(chance)} for place, chance in zip(_PLACES, strangers[0].tolist(), strict=True)
    ]
    off = max(by_share, key=lambda share: abs(by_share[share].value - share))
    numbers = {
        "off_at": Number.exact(off),
        "off_most": by_share[off],
        "told_01": by_share[0.1],
        "told_05": by_share[0.5],
        "told_09": by_share[0.9],
        "follows_majority": Number.mean(followed),
        "stranger_answered": Number.mean(answered),
        "stranger_likeliest": Number.mean(likeliest),
        "even_guess": Number.exact(1 / len(_PLACES)),
        "stranger_places": Number.mean(spread),
    }
    return Measurement(numbers, {"told": rows, "stranger": bars})


def _lines(shares: dict[str, float]) -> list[tuple[str, ...]]:
    """What the model reads: of the lines about each person that share is false."""
    lines: list[tuple[str, ...]] = []
    for place, person in enumerate(_PEOPLE):
        false = round(shares[person] * _LINES)
        lines += [(person, "住", "在", _FALSE[place], "。")] * false
        lines += [(person, "住", "在", _TRUE[place], "。")] * (_LINES - false)
    return lines


def judge(numbers: Numbers) -> Finding:
    """Probability follows frequency; and someone never read of is given a place all the same."""
    value = {name: number.value for name, number in numbers.items()}
    fits = abs(value["off_most"] - value["off_at"]) <= CLOSE
    answers = value["stranger_answered"] >= ANSWERS
    confident = value["stranger_likeliest"] >= SURE * value["even_guess"]
    told = Words(
        f"False in 10 %, 50 % and 90 % of the lines, a sentence gets probability {value['told_01']:.2f}, "
        f"{value['told_05']:.2f} and {value['told_09']:.2f} (furthest off: {value['off_most']:.2f} for "
        f"{value['off_at']:.1f}). Someone never read of is given a place with probability "
        f"{value['stranger_answered']:.2f}; the likeliest place gets {value['stranger_likeliest']:.2f}, an even guess "
        f"{value['even_guess']:.2f}.",
        f"若一句假话占 10 %、50 %、90 % 的行，它得到的概率是 {value['told_01']:.2f}、{value['told_05']:.2f}、"
        f"{value['told_09']:.2f}（偏得最多的一处：{value['off_at']:.1f} 得到 {value['off_most']:.2f}）。从未读到的人，"
        f"模型仍以 {value['stranger_answered']:.2f} 的概率给出一个住处；最可能的一处得 "
        f"{value['stranger_likeliest']:.2f}，"
        f"平均猜测是 {value['even_guess']:.2f}。",
    )
    if fits and answers and confident:
        return Finding("holds", told)
    if fits and answers:
        return Finding(
            "holds with a correction",
            Words(
                told.en + " It answers, but spreads its answer: it is not sure.",
                told.zh + "它会回答，但把概率摊开：并不自信。",
            ),
        )
    return Finding("does not hold here", told)


def draw(measurement: Measurement, language: Language) -> Sequence[Chart]:
    """Probability against frequency, and the answer about a stranger."""
    zh = language == "zh"
    names = {"told": "模型给假话的概率" if zh else "probability of the false sentence", "ideal": "y = x"}
    rows = [{**row, "series": names["told"]} for row in measurement.tables["told"]]
    rows += [{"share": s, "value": s, "low": s, "high": s, "series": names["ideal"]} for s in (0.1, 0.9)]
    return [
        LineChart(
            "假话说得越多，模型越信" if zh else "The more often it is said, the more likely the model finds it",
            rows,
            x="share",
            y="value",
            series="series",
            low="low",
            high="high",
            x_title="假话占该人物各行的比例" if zh else "share of the lines about the subject that are false",
            y_title="概率" if zh else "probability",
            note="色带为各随机种子的 95 % 区间。" if zh else "Band: 95 % interval over seeds.",
        ),
        BarChart(
            f"“{_STRANGER}住在……”：训练文本里没有这个人"
            if zh
            else f"“{_STRANGER} lives in …”: nobody wrote about this one",
            measurement.tables["stranger"],
            x="place",
            y="value",
            x_title="地点" if zh else "place",
            y_title="概率" if zh else "probability",
            rules=[(1 / len(_PLACES), "平均猜测" if zh else "an even guess")],
            note="第一个随机种子。" if zh else "The first seed.",
        ),
    ]


CLAIM = Claim(
    name="hallucination",
    group="likelihood",
    claim=Words(
        "Models make things up because training fits likelihood, not truth: what is false but frequent becomes likely.",
        "模型会编造，因为训练拟合的是似然而不是真相：虽假但常见的话，会变成高概率的话。",
    ),
    prediction=Words(
        f"If a share p of the lines about a subject is false, the false sentence gets probability p to {CLOSE:g}, for "
        f"p from 0.1 "
        f"to 0.9. A subject never read of is answered all the same, with a place in at least {ANSWERS:.0%} of cases; "
        f"confidently, if the likeliest place gets {SURE:g} times an even guess (else the claim needs a correction).",
        f"若关于某人的各行中有比例 p 是假的，那句假话的概率就是 p（误差 {CLOSE:g}），p 从 0.1 到 0.9。对从未读到的人，"
        f"模型照样回答：给出某个地点的概率至少 {ANSWERS:.0%}；若最可能的地点达到平均猜测的 {SURE:g} 倍，"
        f"就算自信（否则需修正）。",
    ),
    method=Words(
        f"One training on {_LINES} lines about each of nine people, of which 10 % to 90 % name a false place; each "
        f"false sentence "
        "is as grammatical as the true one. Then the model completes the sentence for each, and for a tenth, of whom "
        "nothing was written.",
        f"一次训练，九个人各 {_LINES} 行，其中 10 % 到 90 % 写的是假地点；假话与真话一样通顺。"
        f"然后让模型补全每个人的句子，"
        "以及第十个人的——训练文本里没有他。",
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    labels={
        "off_at": Words("share p at which the probability is furthest off", "概率偏离最大处的比例 p"),
        "off_most": Words("probability of the false sentence there", "该处假话的概率"),
        "told_01": Words("probability of what is false in 10 % of the lines", "10 % 的行为假：假话的概率"),
        "told_05": Words("probability of what is false in 50 % of the lines", "50 % 的行为假：假话的概率"),
        "told_09": Words("probability of what is false in 90 % of the lines", "90 % 的行为假：假话的概率"),
        "follows_majority": Words("share of subjects for whom the majority wins", "多数说法胜出的比例"),
        "stranger_answered": Words(
            "never read of: probability of naming some place", "从未读到的人：给出某个地点的概率"
        ),
        "stranger_likeliest": Words(
            "never read of: probability of the likeliest place", "从未读到的人：最可能地点的概率"
        ),
        "even_guess": Words("an even guess among the places", "在各地点间平均猜测"),
        "stranger_places": Words(
            "never read of: places that share the answer (perplexity)", "从未读到的人：分享答案的地点数（困惑度）"
        ),
    },
)
